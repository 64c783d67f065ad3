"""Estimators against numbers worked out by hand, and against loops over episodes."""

import numpy as np
import pytest

from loomrl.promotion.comparison.off_policy import estimators

# Two episodes: the second ended after one step.
RATIOS = np.array([[2.0, 0.5], [0.5, 1.0]])
REWARDS = np.array([[1.0, 2.0], [4.0, 0.0]])


def test_two_episodes_by_hand() -> None:
    weights = estimators.cumulative(RATIOS)
    assert weights.tolist() == [[2.0, 1.0], [0.5, 0.5]]
    assert estimators.importance_terms(weights, REWARDS).tolist() == [3.0, 2.0]
    assert estimators.self_normalised(weights, REWARDS) == pytest.approx((1 * 3 + 0.5 * 4) / 1.5)
    assert estimators.per_decision_terms(weights, REWARDS).tolist() == [2 * 1 + 1 * 2, 0.5 * 4]
    assert estimators.per_decision_self_normalised(weights, REWARDS) == pytest.approx((2 + 2) / 2.5 + 2 / 1.5)
    assert estimators.effective_sample_size(weights[:, -1]) == pytest.approx(1.5**2 / 1.25)


def test_a_doubly_robust_term_by_hand() -> None:
    q, v = np.array([[2.5, 1.5]]), np.array([[2.0, 1.0]])
    # 2 + 2 (1 + 1 - 2.5) + 1 (2 + 0 - 1.5)
    assert estimators.doubly_robust_terms(np.array([[2.0, 1.0]]), REWARDS[:1], q, v).tolist() == [1.5]


def test_a_model_that_knows_nothing_leaves_importance_sampling_per_decision() -> None:
    weights, nothing = estimators.cumulative(RATIOS), np.zeros_like(REWARDS)
    terms = estimators.doubly_robust_terms(weights, REWARDS, nothing, nothing)
    assert terms.tolist() == estimators.per_decision_terms(weights, REWARDS).tolist()


def test_loops_over_episodes_find_the_same() -> None:
    rng = np.random.default_rng(3)
    ratios, rewards = rng.exponential(1.0, (30, 5)), rng.normal(size=(30, 5))
    q, v = rng.normal(size=(2, 30, 5))
    weights = estimators.cumulative(ratios)
    whole, by_step, robust = [], [], []
    for i in range(30):
        weight, sums = 1.0, [0.0, 0.0, v[i, 0]]
        for t in range(5):
            weight *= ratios[i, t]
            sums[0] += rewards[i, t]
            sums[1] += weight * rewards[i, t]
            sums[2] += weight * (rewards[i, t] + (v[i, t + 1] if t < 4 else 0.0) - q[i, t])
        whole.append(weight * sums[0])
        by_step.append(sums[1])
        robust.append(sums[2])
    assert estimators.importance_terms(weights, rewards) == pytest.approx(np.array(whole))
    assert estimators.per_decision_terms(weights, rewards) == pytest.approx(np.array(by_step))
    assert estimators.doubly_robust_terms(weights, rewards, q, v) == pytest.approx(np.array(robust))


def test_weights_that_are_all_zero_are_worth_nothing() -> None:
    assert estimators.effective_sample_size(np.zeros(5)) == 0.0
    assert estimators.effective_sample_size(np.ones(5)) == 5.0
    assert estimators.per_decision_self_normalised(np.zeros((2, 2)), REWARDS) == 0.0
