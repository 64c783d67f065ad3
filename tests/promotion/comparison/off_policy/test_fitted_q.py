"""The model learns what follows, also where the log ends before the episode does."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from loomrl.promotion.comparison.off_policy import fitted_q
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.log import LoggedEpisodes, read_logged
from tests.support.simulated_logs import MOVES_ON, STAYS, Chain, episode, greedy


def chain_log(number: int) -> LoggedEpisodes:
    world = Chain()
    episodes = world.log(np.random.default_rng(1), number, partial(greedy, weights=MOVES_ON, epsilon=0.8))
    return read_logged(episodes, "1", OffPolicyConfig())[0]


def test_a_short_chain_is_worth_what_recursion_says(linear: Any) -> None:
    logged = chain_log(4_000)
    for weights in (STAYS, MOVES_ON):
        model = fitted_q.regression(logged, linear(weights, "2"), OffPolicyConfig())
        truth = Chain().value(partial(greedy, weights=weights))
        assert fitted_q.value(logged, model, -0.5, 1.0) == pytest.approx(truth, abs=0.05)


def test_values_stay_within_what_the_steps_to_come_can_earn(linear: Any) -> None:
    logged = chain_log(40)
    model = fitted_q.regression(logged, linear(STAYS, "2"), OffPolicyConfig())
    found = fitted_q.fitted(logged, model, np.ones(40, np.bool_), 0.0, 0.1)
    to_go = logged.lengths.max() - logged.step
    for values in (found.q, found.v):
        assert np.all((values >= 0.0) & (values <= 0.1 * to_go + 1e-12))


def test_what_is_expected_of_an_episode_does_not_depend_on_what_came_of_it(linear: Any) -> None:
    logged = chain_log(80)
    changed = LoggedEpisodes(**{**vars(logged), "reward": logged.reward.copy()})
    first_of_half = int(np.sum(logged.lengths[:40]))
    changed.reward[first_of_half:] += 1.0
    challenger, settings = linear(STAYS, "2"), OffPolicyConfig()
    before, after = (
        fitted_q.forward(one, fitted_q.regression(one, challenger, settings), -0.5, 2.0) for one in (logged, changed)
    )
    assert before.v.tolist() == after.v.tolist()
    assert before.v[: int(np.sum(logged.lengths[:10]))].tolist() == [0.0] * int(np.sum(logged.lengths[:10]))
    assert np.any(before.v != 0.0)


def test_an_action_that_was_never_tried_is_worth_nothing_to_the_model(linear: Any) -> None:
    steps = [([1.0, 0.0, 0.0, 0.0], 0, 0.5, 1.0)]
    logged, *_ = read_logged([episode(steps)] * 20, "1", OffPolicyConfig())
    tried, untried = (
        fitted_q.value(logged, fitted_q.regression(logged, linear(weights, "2"), OffPolicyConfig()), 0.0, 1.0)
        for weights in (STAYS, MOVES_ON)
    )
    assert (tried, untried) == (pytest.approx(1.0, abs=1e-3), 0.0)


def test_the_newest_episodes_are_taken_whole() -> None:
    logged = read_logged([episode([([float(n)] * 4, 0, 0.5, 1.0)] * n) for n in (1, 2, 3)], "1", OffPolicyConfig())[0]
    assert logged.newest(5).lengths.tolist() == [2, 3]
    assert logged.newest(4).observation[:, 0].tolist() == [3.0] * 3
    assert logged.newest(1).lengths.tolist() == [3]
    assert logged.newest(99).reward.tolist() == logged.reward.tolist()
