"""SAC's log-probabilities, targets and losses against hand calculation and torch's own distributions."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from loomrl.algorithms.noise import negated_gumbel
from loomrl.algorithms.sac import losses


def gaussians(count: int = 50, width: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean, log_std, noise = (torch.randn(count, width, generator=generator, dtype=torch.float64) for _ in range(3))
    return mean, log_std - 1.0, noise


def test_log_density_is_that_of_torchs_transformed_distribution() -> None:
    mean, log_std, noise = gaussians()
    action, log_prob = losses.squashed_sample(mean, log_std, noise)
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    torch.testing.assert_close(log_prob, squashed.log_prob(action).sum(-1), rtol=1e-6, atol=1e-6)


def test_the_density_integrates_to_one() -> None:
    noise = torch.linspace(-8, 8, 20_001, dtype=torch.float64).unsqueeze(-1)
    mean, log_std = torch.full_like(noise, 0.3), torch.full_like(noise, -0.2)
    action, log_prob = losses.squashed_sample(mean, log_std, noise)
    assert float(torch.trapezoid(log_prob.exp(), action.squeeze(-1))) == pytest.approx(1.0, abs=1e-6)


def test_log_density_is_finite_and_right_where_tanh_saturates() -> None:
    mean = torch.tensor([[15.0], [-15.0]])  # tanh is +-1 in float32 there
    action, log_prob = losses.squashed_sample(mean, torch.zeros(2, 1), torch.zeros(2, 1))
    assert action.flatten().tolist() == [1.0, -1.0]
    # log(1 - tanh(u)^2) = log 4 - 2|u| up to e^(-2|u|); the density is the normal one's divided by it
    expected = -0.5 * math.log(2 * math.pi) - (math.log(4.0) - 30.0)
    assert log_prob.tolist() == pytest.approx([expected, expected], rel=1e-6)


def test_targets_by_hand() -> None:
    values = torch.tensor([[1.0, 5.0, -2.0], [2.0, 4.0, -3.0]])  # two critics, three rows
    log_prob = torch.tensor([-1.0, 0.5, 2.0])
    soft = losses.soft_value(values, log_prob, 0.2)
    assert soft.tolist() == pytest.approx([1.0 + 0.2, 4.0 - 0.1, -3.0 - 0.4])
    reward, discount = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.9, 0.9, 0.81])  # the last over two steps
    targets = losses.soft_targets(reward, discount, torch.tensor([False, True, False]), soft)
    assert targets.tolist() == pytest.approx([1.0 + 0.9 * 1.2, 1.0, 1.0 - 0.81 * 3.4])


def test_critic_loss_by_a_loop_over_the_critics() -> None:
    generator = torch.Generator().manual_seed(1)
    values, target = torch.randn(2, 7, generator=generator), torch.randn(7, generator=generator)
    by_hand = sum(0.5 * sum((float(v) - float(t)) ** 2 for v, t in zip(one, target, strict=True)) / 7 for one in values)
    assert float(losses.critic_loss(values, target)) == pytest.approx(by_hand, rel=1e-5)
    distances = [abs(float(v) - float(t)) for one in values for v, t in zip(one, target, strict=True)]
    assert float(losses.td_error(values, target)) == pytest.approx(sum(distances) / 14, rel=1e-5)


def test_actor_loss_and_its_gradient_against_torchs_reparameterised_sample() -> None:
    mean, log_std, noise = gaussians()
    mean.requires_grad_()
    log_std.requires_grad_()

    def critics(action: torch.Tensor) -> torch.Tensor:
        return torch.stack([action.sin().sum(-1), (action - 0.3).square().sum(-1)])

    action, log_prob = losses.squashed_sample(mean, log_std, noise)
    loss = losses.actor_loss(critics(action), log_prob, 0.4)
    gradients = torch.autograd.grad(loss, [mean, log_std])
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    sample = torch.tanh(mean + log_std.exp() * noise)
    lower = torch.minimum(*critics(sample))
    expected = (0.4 * squashed.log_prob(sample).sum(-1) - lower).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    for found, wanted in zip(gradients, torch.autograd.grad(expected, [mean, log_std]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("entropy", "moves"), [(-1.0, "down"), (-5.0, "up")])
def test_temperature_falls_where_entropy_is_above_its_target(entropy: float, moves: str) -> None:
    log_temperature = torch.tensor(0.7, requires_grad=True)
    loss = losses.temperature_loss(log_temperature, torch.tensor(entropy), -3.0)
    assert float(loss.detach()) == pytest.approx(0.7 * (entropy + 3.0))
    (slope,) = torch.autograd.grad(loss, log_temperature)
    assert float(slope) == pytest.approx(entropy + 3.0)
    assert (float(slope) > 0) == (moves == "down")  # descent goes against the slope


def test_discrete_expectations_by_loops_over_actions() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, values = torch.randn(4, 3, generator=generator), torch.randn(2, 4, 3, generator=generator)
    log_probs = Categorical(logits=logits).logits
    found = losses.soft_value_discrete(values, log_probs, 0.3)
    for row in range(4):
        expected = 0.0
        for action in range(3):
            probability = math.exp(float(log_probs[row, action]))
            lower = min(float(values[0, row, action]), float(values[1, row, action]))
            expected += probability * (lower - 0.3 * math.log(probability))
        assert float(found[row]) == pytest.approx(expected, rel=1e-5)
    assert float(losses.actor_loss_discrete(values, log_probs, 0.3)) == pytest.approx(-float(found.mean()), rel=1e-6)


def test_gumbel_noise_draws_from_the_softmax() -> None:
    logits = np.array([0.0, 1.0, 2.0, -1.0])
    drawn = (logits - negated_gumbel((40_000, 4), np.random.default_rng(0))).argmax(-1)
    expected = np.exp(logits) / np.exp(logits).sum()
    assert np.bincount(drawn, minlength=4) / 40_000 == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(40_000))
