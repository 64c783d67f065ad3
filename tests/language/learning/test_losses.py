"""Losses and advantages by hand, and by a second implementation."""

import math

import numpy as np
import pytest
import torch

from loomrl.language.learning.losses import (
    clipped_surrogate,
    group_advantages,
    importance_weights,
    mean_of_samples,
    mean_of_tokens,
    reference_divergence,
    standardized,
    token_advantages,
)


def test_group_advantages_by_hand() -> None:
    torch.testing.assert_close(group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0])), torch.tensor([1.0, -1, -1, 1]))
    # mean 1/4, deviation sqrt(3)/4
    expected = torch.tensor([3.0, -1.0, -1.0, -1.0]) / math.sqrt(3.0)
    torch.testing.assert_close(group_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0])), expected)


@pytest.mark.parametrize("score", [0.0, 0.1, 0.3, 0.7, 1 / 3, 0.9999, 1.0, 1e6 + 0.1, -0.3])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 16, 100])
def test_equal_scores_have_no_advantage(score: float, size: int) -> None:
    """Their mean may be another number in 32 bits, and a deviation of rounding makes that an advantage of 1 for all."""
    assert group_advantages(torch.full((size,), score)).tolist() == [0.0] * size
    assert standardized(torch.full((size,), score), 1e-8).tolist() == [0.0] * size


def test_token_advantages_by_hand_pass_over_what_was_read() -> None:
    value = torch.tensor([[0.5, 9.0, 0.2, 0.1], [0.3, 7.0, 7.0, 7.0]])
    learnt = torch.tensor([[True, False, True, True], [True, False, False, False]])
    found = token_advantages(torch.tensor([1.0, 0.0]), value, learnt, gamma=0.9, gae_lambda=0.5)
    third = 1.0 - 0.1
    second = 0.9 * 0.1 - 0.2 + 0.9 * 0.5 * third
    first = 0.9 * 0.2 - 0.5 + 0.9 * 0.5 * second
    torch.testing.assert_close(found, torch.tensor([[first, 0.0, second, third], [-0.3, 0.0, 0.0, 0.0]]))


def test_token_advantages_against_the_definition() -> None:
    """Equation 16 of arXiv 1506.02438, summed as it stands, for random masks."""
    rng = np.random.default_rng(0)
    value, learnt, score = rng.normal(size=(20, 6)), rng.random((20, 6)) < 0.6, rng.random(20)
    found = token_advantages(*map(torch.tensor, (score, value, learnt)), 0.97, 0.8).numpy()  # type: ignore[arg-type]
    for row in range(20):
        steps = np.flatnonzero(learnt[row])
        values = [*value[row, steps], 0.0]
        rewards = [score[row] if number == len(steps) - 1 else 0.0 for number in range(len(steps))]
        errors = [rewards[i] + 0.97 * values[i + 1] - values[i] for i in range(len(steps))]
        expected = np.zeros(6)
        for i, step in enumerate(steps):
            expected[step] = sum((0.97 * 0.8) ** (j - i) * errors[j] for j in range(i, len(steps)))
        np.testing.assert_allclose(found[row], expected, atol=1e-12)


def test_with_lambda_1_an_advantage_is_the_score_less_the_value() -> None:
    value = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    found = token_advantages(torch.ones(3), value, torch.ones(3, 5, dtype=torch.bool), 1.0, 1.0)
    torch.testing.assert_close(found, 1.0 - value)


def test_clipped_surrogate_by_hand() -> None:
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5, 1.1])
    advantage = torch.tensor([2.0, 2.0, -2.0, -2.0, 2.0])
    found = clipped_surrogate(ratio.log(), torch.zeros(5), advantage, 0.2)
    torch.testing.assert_close(found, -torch.tensor([2.4, 1.0, -3.0, -1.6, 2.2]))


def test_reference_divergence_by_hand_and_its_gradient() -> None:
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    found = reference_divergence(log_prob, torch.tensor([-1.0, -1.0]))
    torch.testing.assert_close(found.detach(), torch.tensor([0.0, math.e - 2.0]))
    found.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(log_prob.grad, torch.tensor([0.0, 1.0 - math.e]))


def test_reference_divergence_estimates_the_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 8, generator=generator).log_softmax(-1)
    drawn = torch.multinomial(policy.exp(), 200_000, replacement=True, generator=generator)
    exact = (policy.exp() * (policy - reference)).sum()
    estimated = reference_divergence(policy[drawn], reference[drawn]).mean()
    torch.testing.assert_close(estimated, exact, rtol=0.02, atol=0.0)


def test_importance_weights_are_cut_off_above_alone() -> None:
    found = importance_weights(torch.tensor([0.0, 0.0, -3.0]), torch.tensor([0.0, -3.0, 0.0]), 2.0)
    torch.testing.assert_close(found, torch.tensor([1.0, 2.0, math.exp(-3.0)]))


def test_means_by_hand() -> None:
    per_token = torch.tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    learnt = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert mean_of_samples(per_token, learnt).item() == pytest.approx((1.5 + 4.0 + 0.0) / 3)
    assert mean_of_tokens(per_token, learnt).item() == pytest.approx(7.0 / 3)
