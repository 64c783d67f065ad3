"""Bounds cover: over 300 simulated logs with known truth, for every estimator that has one."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.report import OffPolicyReport, estimate
from tests.support.simulated_logs import CHALLENGER, CHAMPION, MOVES_ON, STAYS, Bandit, Chain, greedy, softmax

NUM_LOGS = 300
BOUNDED = {"importance sampling", "self-normalised", "doubly robust"}


def reports(linear: Any, world: Any, pair: Any, behaviour: Any, number: int, **config: Any) -> list[OffPolicyReport]:
    champion, challenger = linear(pair[0], "1"), linear(pair[1], "2")
    settings = OffPolicyConfig.model_validate(config)
    return [
        estimate("p", world.log(np.random.default_rng(seed), number, behaviour), champion, challenger, settings)
        for seed in range(NUM_LOGS)
    ]


def check(found: list[OffPolicyReport], truth: float, gain: float, bounded: set[str]) -> None:
    assert not any(report.refused for report in found)
    names = [one.estimator for one in found[0].estimates]
    lows = {name: [report.estimates[names.index(name)].low for report in found] for name in names}
    assert {name for name in names if None not in lows[name]} == bounded
    for name in bounded:
        assert np.mean(np.array(lows[name], dtype=float) <= truth) >= 0.95, name
    gains = [report.improvement for report in found if report.improvement is not None]
    assert np.mean([one.low is not None and one.low <= gain for one in gains]) >= 0.95
    assert np.mean([one.high is None or one.high >= gain for one in gains]) >= 0.95
    for name in names:  # they are about the same thing, and bounds are not merely low
        mean = np.mean([report.estimates[names.index(name)].value for report in found])
        assert mean == pytest.approx(truth, abs=0.03), name


@pytest.mark.long
def test_single_decisions_by_a_champion_with_epsilon(linear: Any) -> None:
    world, behaviour = Bandit(), partial(greedy, weights=CHAMPION, epsilon=0.2)
    truth, base = (world.value(partial(greedy, weights=weights)) for weights in (CHALLENGER, CHAMPION))
    declared = {"reward_range": (0.0, 1.0), "min_propensity": 0.1}
    found = reports(linear, world, (CHAMPION, CHALLENGER), behaviour, 300, **declared)
    check(found, truth, truth - base, BOUNDED)


@pytest.mark.long
def test_single_decisions_sampled_by_both(linear: Any) -> None:
    world = Bandit()
    truth, base = (world.value(partial(sampled, weights=weights)) for weights in (CHALLENGER, CHAMPION))
    declared = {"acting": "sampled", "min_effective_sample_size": 5.0}
    found = reports(linear, world, (CHAMPION, CHALLENGER), partial(sampled, weights=CHAMPION), 300, **declared)
    check(found, truth, truth - base, {"importance sampling"})


@pytest.mark.long
def test_episodes_of_three_steps(linear: Any) -> None:
    world, behaviour = Chain(), partial(greedy, weights=MOVES_ON, epsilon=0.8)
    truth, base = (world.value(partial(greedy, weights=weights)) for weights in (STAYS, MOVES_ON))
    declared = {"reward_range": (-0.5, 1.0), "min_propensity": 0.4}
    found = reports(linear, world, (MOVES_ON, STAYS), behaviour, 500, **declared)
    check(found, truth, truth - base, BOUNDED | {"per decision"})


def sampled(observations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return softmax((observations @ weights).astype(np.float64))
