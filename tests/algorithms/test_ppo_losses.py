"""Losses against hand calculations, a second implementation in NumPy, and torch.distributions."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from loomrl.algorithms.policies.distributions import categorical_log_prob_and_entropy, gaussian_log_prob_and_entropy
from loomrl.algorithms.ppo.learner import clipped_policy_loss, squared_value_loss


def test_policy_loss_by_hand() -> None:
    # ratios 1.5, 0.5, 1.5, 0.5 with clip 0.2: the clipped term counts only where it is the smaller one.
    # A=+1, r=1.5: min(1.5, 1.2) = 1.2;  A=+1, r=0.5: min(0.5, 0.8) = 0.5
    # A=-1, r=1.5: min(-1.5, -1.2) = -1.5;  A=-1, r=0.5: min(-0.5, -0.8) = -0.8;  mean -0.15
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5], dtype=torch.float64)
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    loss = clipped_policy_loss(ratio.log(), torch.zeros(4, dtype=torch.float64), advantage, 0.2)
    assert float(loss) == pytest.approx(0.15)


def test_policy_gradient_vanishes_where_clipped() -> None:
    log_prob = torch.tensor([1.5, 0.5, 1.5, 0.5], dtype=torch.float64).log().requires_grad_()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    clipped_policy_loss(log_prob, torch.zeros(4, dtype=torch.float64), advantage, 0.2).backward()
    # d(-mean(A * r))/d(log r) = -A * r / 4 where the unclipped term is the smaller one, else 0.
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == pytest.approx([0.0, -0.125, 0.375, 0.0])


def test_value_loss_by_hand() -> None:
    value, target = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 1.0])
    assert float(squared_value_loss(value, target, None, None)) == pytest.approx((1 + 4) / 2)
    # Old values 0 and 2.9, clip 0.5: near values 0.5 and 3.0; squares 2.25 and 4; the worse: 2.25 and 4.
    clipped = squared_value_loss(value, target, torch.tensor([0.0, 2.9]), 0.5)
    assert float(clipped) == pytest.approx((2.25 + 4) / 2)


def test_losses_equal_a_second_implementation() -> None:
    rng = np.random.default_rng(0)
    log_prob, old, advantage, value, target, old_value = rng.normal(size=(6, 200))
    ratio = np.exp(log_prob - old)
    expected_policy = -np.mean([min(a * r, a * min(max(r, 0.8), 1.2)) for a, r in zip(advantage, ratio, strict=True)])
    near = old_value + np.clip(value - old_value, -0.3, 0.3)
    expected_value = np.mean(np.maximum((value - target) ** 2, (near - target) ** 2))
    tensors = [torch.from_numpy(array) for array in (log_prob, old, advantage, value, target, old_value)]
    assert float(clipped_policy_loss(*tensors[:3], 0.2)) == pytest.approx(expected_policy, rel=1e-12)
    assert float(squared_value_loss(*tensors[3:], 0.3)) == pytest.approx(expected_value, rel=1e-12)


def test_categorical_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 5, generator=generator, dtype=torch.float64) * 3
    action = torch.randint(0, 5, (50,), generator=generator)
    log_prob, entropy = categorical_log_prob_and_entropy(logits, action)
    reference = Categorical(logits=logits)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())


def test_gaussian_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, action = torch.randn(2, 50, 3, generator=generator, dtype=torch.float64)
    log_std = torch.tensor([-1.0, 0.0, 0.7], dtype=torch.float64)
    log_prob, entropy = gaussian_log_prob_and_entropy(mean, log_std, action)
    reference = Independent(Normal(mean, log_std.exp()), 1)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy.expand(50), reference.entropy())
