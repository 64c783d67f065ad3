"""Every distribution over actions: by hand, against torch's own, by integration, and by counting samples."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch.distributions import Bernoulli, Categorical, Normal, TransformedDistribution
from torch.distributions.transforms import AffineTransform, TanhTransform

from loomrl.algorithms.policies.distributions import (
    Distribution,
    GaussianActions,
    SquashedGaussianActions,
    action_distribution,
)
from loomrl.errors import ConfigError
from loomrl.types import Trajectory

BOX = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
LOG3 = math.log(3.0)


def trajectory_of(action: np.ndarray, **extras: Any) -> Trajectory:
    """One step of as many environments as there are actions."""
    none = np.zeros((1, len(action)), np.bool_)
    extras = {name: value[None] for name, value in extras.items()}
    return Trajectory(none, action[None], none.astype(np.float64), none, none, none, extras)


def test_several_choices_add_up() -> None:
    several = action_distribution(MultiDiscrete([2, 3], start=[5, 0]))
    logits = torch.tensor([[LOG3, 0.0, 0.0, 0.0, math.log(2.0)]])  # 3/4, 1/4 and 1/4, 1/4, 1/2
    learnt = several.raw_actions(trajectory_of(np.array([[5, 2]])))
    assert learnt.tolist() == [[0, 2]]
    log_prob, entropy = several.log_prob_and_entropy((logits,), learnt)
    assert log_prob.item() == pytest.approx(math.log(3 / 4) + math.log(1 / 2))
    first = -(3 / 4 * math.log(3 / 4) + 1 / 4 * math.log(1 / 4))
    second = -(2 * 1 / 4 * math.log(1 / 4) + 1 / 2 * math.log(1 / 2))
    assert entropy.item() == pytest.approx(first + second)
    assert several.greedy((logits,)).tolist() == [[5, 2]]


def test_bits_are_independent() -> None:
    bits = action_distribution(MultiBinary(2))
    logits = torch.tensor([[LOG3, -LOG3]])  # a one has probability 3/4 and 1/4
    log_prob, entropy = bits.log_prob_and_entropy(
        (logits,), bits.raw_actions(trajectory_of(np.array([[1, 1]], np.int8)))
    )
    assert log_prob.item() == pytest.approx(math.log(3 / 4 * 1 / 4))
    assert entropy.item() == pytest.approx(-2 * (3 / 4 * math.log(3 / 4) + 1 / 4 * math.log(1 / 4)))
    assert bits.greedy((logits,)).tolist() == [[1, 0]]


def test_torchs_own_distributions_agree() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(50, 7, generator=generator) * 3
    several, bits = action_distribution(MultiDiscrete([[3], [4]])), action_distribution(MultiBinary(7))
    chosen = torch.stack([torch.randint(3, (50,)), torch.randint(4, (50,))], -1)
    found = several.log_prob_and_entropy((logits,), chosen)
    parts = Categorical(logits=logits[:, :3]), Categorical(logits=logits[:, 3:])
    torch.testing.assert_close(found[0], parts[0].log_prob(chosen[:, 0]) + parts[1].log_prob(chosen[:, 1]))
    torch.testing.assert_close(found[1], parts[0].entropy() + parts[1].entropy())
    ones = torch.bernoulli(torch.full((50, 7), 0.5), generator=generator)
    found = bits.log_prob_and_entropy((logits,), ones)
    torch.testing.assert_close(found[0], Bernoulli(logits=logits).log_prob(ones).sum(-1))
    torch.testing.assert_close(found[1], Bernoulli(logits=logits).entropy().sum(-1))


def test_squashed_density_is_that_of_the_action() -> None:
    squashed = SquashedGaussianActions(BOX)
    mean, log_std = torch.tensor([[0.3, -1.0]] * 3), torch.tensor([-0.5, 0.2])
    sample = torch.tensor([[0.0, 0.5], [1.5, -2.0], [-0.7, 0.1]])
    half = torch.tensor([2.0, 5.0])
    into_bounds = [TanhTransform(), AffineTransform(torch.tensor([0.0, 5.0]), half)]
    reference = TransformedDistribution(Normal(mean, log_std.exp()), into_bounds)
    found, _ = squashed.log_prob_and_entropy((mean, log_std), sample)
    torch.testing.assert_close(found, reference.log_prob(squashed.bounded(sample)).sum(-1), rtol=1e-4, atol=1e-4)
    by_hand = -0.5 * (0.3 / math.exp(-0.5)) ** 2 + 0.5 - 0.5 * math.log(2 * math.pi)  # N(0; 0.3, e^-0.5); tanh'(0) = 1
    one = SquashedGaussianActions(Box(-2.0, 2.0, (1,), np.float32))
    density, _ = one.log_prob_and_entropy((mean[:1, :1], log_std[:1]), sample[:1, :1])
    assert density.item() == pytest.approx(by_hand - math.log(2.0), abs=1e-6)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.3), (0.5, 1.0), (-2.0, 1.5)])
def test_squashed_density_integrates_to_one_and_its_entropy_is_exact(mean: float, std: float) -> None:
    squashed = SquashedGaussianActions(Box(-1.0, 3.0, (1,), np.float32))
    sample = torch.linspace(mean - 9 * std, mean + 9 * std, 200_001)[:, None]
    parameters = torch.full((1, 1), mean), torch.tensor([math.log(std)])
    log_density, entropy = squashed.log_prob_and_entropy(parameters, sample)
    density = log_density.double().exp().numpy()
    action = -1.0 + 2.0 * (np.tanh(sample[:, 0].double().numpy()) + 1.0)
    assert np.trapezoid(density, action) == pytest.approx(1.0, abs=1e-3)
    expected = -np.trapezoid(density * log_density.double().numpy(), action)
    assert entropy.item() == pytest.approx(expected, abs=2e-3)


def test_squashing_stays_finite_and_within_bounds_where_tanh_saturates() -> None:
    squashed = SquashedGaussianActions(BOX)
    mean = torch.tensor([[40.0, -40.0]], requires_grad=True)
    log_std = torch.zeros(2, requires_grad=True)
    log_prob, entropy = squashed.log_prob_and_entropy((mean, log_std), torch.tensor([[41.0, -41.0]]))
    (log_prob + entropy).sum().backward()
    assert torch.isfinite(log_prob).all()
    assert mean.grad is not None
    assert torch.isfinite(mean.grad).all()
    assert BOX.contains(squashed.greedy((mean, log_std)).detach().numpy()[0])


SAMPLED: list[tuple[gymnasium.Space[Any], tuple[np.ndarray, ...]]] = [
    (Discrete(3, start=4), (np.log([[0.2, 0.5, 0.3]]),)),
    (MultiDiscrete([2, 3], start=[1, 0]), (np.log([[0.7, 0.3, 0.2, 0.5, 0.3]]),)),
    (MultiBinary(2), (np.array([[LOG3, -LOG3]]),)),
    (BOX, (np.array([[0.5, 9.0]]), np.array([-1.0, 0.5]))),
]


@pytest.mark.parametrize(("space", "parameters"), SAMPLED, ids=lambda value: str(value)[:20])
def test_samples_follow_the_density(space: gymnasium.Space[Any], parameters: tuple[np.ndarray, ...]) -> None:
    """The mean of -log p over samples is the entropy: within five standard errors."""
    distribution, count = action_distribution(space), 20_000
    rows = tuple(np.repeat(part, count, 0) if part.ndim > 1 else part for part in parameters)
    rows = tuple(part.astype(np.float32) for part in rows)
    drawn = distribution.sample(rows, np.random.default_rng(3))
    assert drawn.action.dtype == space.dtype
    assert all(space.contains(one if space.shape else np.int64(one)) for one in drawn.action[:200])
    learnt = distribution.raw_actions(trajectory_of(drawn.action, **drawn.extras))
    log_prob, entropy = distribution.log_prob_and_entropy(tuple(torch.from_numpy(part) for part in rows), learnt)
    error = float(log_prob.std()) / math.sqrt(count)
    assert float(-log_prob.mean()) == pytest.approx(float(entropy.mean()), abs=5 * error)
    again = distribution.sample(rows, np.random.default_rng(3))
    assert again.action.tobytes() == drawn.action.tobytes()


def test_clipping_leaves_the_density_of_the_sample() -> None:
    clipped = action_distribution(BOX)
    assert isinstance(clipped, GaussianActions)
    sample = torch.tensor([[5.0, 5.0]])
    assert clipped.bounded(sample).tolist() == [[2.0, 5.0]]
    log_prob, _ = clipped.log_prob_and_entropy((torch.zeros(1, 2), torch.zeros(2)), sample)
    assert log_prob.item() == pytest.approx(-25.0 - math.log(2 * math.pi))


@pytest.mark.parametrize(
    ("space", "squash", "message"),
    [
        (Box(-np.inf, np.inf, (1,), np.float32), True, "squash_actions needs finite action bounds"),
        (Discrete(2), True, "squash_actions is for Box actions"),
        (gymnasium.spaces.Tuple([Discrete(2)]), False, "action space Tuple.* put its parts into one MultiDiscrete"),
        (gymnasium.spaces.Text(3), False, "action space Text.* wrap the environment"),
    ],
)
def test_what_has_no_distribution_is_named(space: gymnasium.Space[Any], squash: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        action_distribution(space, squash)


def test_every_distribution_says_what_it_is() -> None:
    spaces = [Discrete(2), MultiDiscrete([2]), MultiBinary(2), BOX]
    found: list[Distribution] = [*map(action_distribution, spaces), action_distribution(BOX, squash=True)]
    assert [each.kind for each in found] == ["discrete", "multi_discrete", "multi_binary", "continuous", "squashed"]
