"""GAE against numbers worked out by hand, and against the definition; reward scaling against a plain loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loomrl.algorithms.advantages import (
    RewardScaler,
    explained_variance,
    generalized_advantages,
    needs_successor_value,
    successor_values,
)


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


def flags(*values: int) -> np.ndarray:
    return np.array(values, bool)[:, None]


def test_episode_that_goes_on() -> None:
    # gamma 0.5, lambda 0.5, so gamma * lambda = 0.25.
    # delta2 = 3 + 0.5 * 4 - 2 = 3        A2 = 3
    # delta1 = 2 + 0.5 * 2 - 1 = 2        A1 = 2 + 0.25 * 3    = 2.75
    # delta0 = 1 + 0.5 * 1 - 0.5 = 1      A0 = 1 + 0.25 * 2.75 = 1.6875
    advantage = generalized_advantages(
        column(1, 2, 3), column(0.5, 1, 2), column(1, 2, 4), flags(0, 0, 0), flags(0, 0, 0), 0.5, 0.5
    )
    assert advantage.ravel().tolist() == [1.6875, 2.75, 3.0]


def test_termination_does_not_bootstrap() -> None:
    # The episode ends by termination at step 1; the value 100 of its last state must not matter.
    # delta2 = 3 + 0.5 * 4 - 2 = 3        A2 = 3
    # delta1 = 2 - 1 = 1                  A1 = 1
    # delta0 = 1 + 0.5 * 1 - 0.5 = 1      A0 = 1 + 0.25 * 1 = 1.25
    advantage = generalized_advantages(
        column(1, 2, 3), column(0.5, 1, 2), column(1, 100, 4), flags(0, 1, 0), flags(0, 0, 0), 0.5, 0.5
    )
    assert advantage.ravel().tolist() == [1.25, 1.0, 3.0]


def test_truncation_bootstraps_from_the_true_successor() -> None:
    # A time limit at step 1, true successor worth 6; the next row (value 2) is another episode.
    # delta1 = 2 + 0.5 * 6 - 1 = 4        A1 = 4, nothing of A2
    # delta0 = 1 + 0.5 * 1 - 0.5 = 1      A0 = 1 + 0.25 * 4 = 2
    advantage = generalized_advantages(
        column(1, 2, 3), column(0.5, 1, 2), column(1, 6, 4), flags(0, 0, 0), flags(0, 1, 0), 0.5, 0.5
    )
    assert advantage.ravel().tolist() == [2.0, 4.0, 3.0]


def test_successor_values_are_next_rows_except_at_ends() -> None:
    value = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    ended = np.array([[False, True], [False, False], [False, True]])
    assert needs_successor_value(ended).tolist() == [[False, True], [False, False], [True, True]]
    next_value = successor_values(value, ended, np.array([-1.0, -2.0, -3.0]))
    assert next_value.tolist() == [[2.0, -1.0], [3.0, 30.0], [-2.0, -3.0]]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.floats(0, 1), gae_lambda=st.floats(0, 1))
def test_equals_the_sum_of_discounted_residuals(seed: int, gamma: float, gae_lambda: float) -> None:
    """Equation 16 of arXiv 1506.02438, summed forwards from every step to the end of its episode."""
    rng = np.random.default_rng(seed)
    num_steps, num_envs = 7, 3
    reward, value, next_value = rng.normal(size=(3, num_steps, num_envs))
    terminated = rng.random((num_steps, num_envs)) < 0.2
    truncated = (rng.random((num_steps, num_envs)) < 0.2) & ~terminated
    advantage = generalized_advantages(reward, value, next_value, terminated, truncated, gamma, gae_lambda)
    for env in range(num_envs):
        for start in range(num_steps):
            total, weight = 0.0, 1.0
            for step in range(start, num_steps):
                bootstrap = 0.0 if terminated[step, env] else gamma * next_value[step, env]
                total += weight * (reward[step, env] + bootstrap - value[step, env])
                weight *= gamma * gae_lambda
                if terminated[step, env] or truncated[step, env]:
                    break
            assert advantage[start, env] == pytest.approx(total, abs=1e-12)


def test_explained_variance() -> None:
    target = np.array([1.0, 2.0, 3.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(np.full(3, 2.0), target) == 0.0
    assert explained_variance(-target, target) == pytest.approx(-3.0)  # Var(2 * target) is 4 Var(target)
    assert explained_variance(target, np.ones(3)) == 0.0


def test_reward_scale_is_the_deviation_of_discounted_returns() -> None:
    rng = np.random.default_rng(3)
    reward, ended = rng.normal(2.0, 3.0, (40, 2)), rng.random((40, 2)) < 0.1
    scaler = RewardScaler(num_envs=2, gamma=0.9)
    first = scaler(reward[:25], ended[:25])
    second = scaler(reward[25:], ended[25:])
    returns, running = [], np.zeros(2)
    for step in range(40):
        running = 0.9 * running + reward[step]
        returns.append(running)
        running = np.where(ended[step], 0.0, running)
    assert first == pytest.approx(reward[:25] / np.std(returns[:25]))
    assert second == pytest.approx(reward[25:] / np.std(returns))


def test_reward_scaler_continues_from_its_state() -> None:
    rng = np.random.default_rng(4)
    reward, ended = rng.normal(size=(20, 2)), rng.random((20, 2)) < 0.1
    whole, first, second = (RewardScaler(2, 0.9) for _ in range(3))
    whole(reward[:10], ended[:10])
    first(reward[:10], ended[:10])
    second.load_state_dict(first.state_dict())
    assert second(reward[10:], ended[10:]).tobytes() == whole(reward[10:], ended[10:]).tobytes()
