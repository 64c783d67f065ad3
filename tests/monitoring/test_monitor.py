"""The bets of one monitor against numbers worked out by hand, and how often they are wrong."""

import numpy as np
import pytest

from loomrl.monitoring.monitor import MeanTest, Monitor
from loomrl.monitoring.watch import Level

STAKES = np.array([0.9, 0.45, 0.225, 0.1125, 0.05625, 0.028125])


def fed(limit: float, values: list[float]) -> MeanTest:
    test = MeanTest(limit)
    for value in values:
        test.add(value)
    return test


def test_bets_begin_with_half_of_the_fortune() -> None:
    assert MeanTest(0.1).e_value == 1.0
    # half is not staked yet; of the other half each stake s becomes 1 + 9 s with a 1 and 1 - s with a 0
    assert fed(0.1, [1.0]).e_value == pytest.approx(0.5 + 0.5 * np.mean(1 + 9 * STAKES))
    both = 0.5 + 0.5 * np.mean((1 + 9 * STAKES) * (1 - STAKES))
    assert fed(0.1, [1.0, 0.0]).e_value == pytest.approx(both)
    assert fed(0.1, [0.0, 1.0]).e_value == pytest.approx(both)
    assert fed(0.1, [0.1] * 50).e_value == pytest.approx(1.0)  # exactly at the limit nothing is won


def test_a_second_generation_begins_with_the_65th_value() -> None:
    old = 0.5 * np.mean((1 - STAKES) ** 64 * (1 + 9 * STAKES))
    new = (1 / 2 - 1 / 3) * np.mean(1 + 9 * STAKES)
    assert fed(0.1, [0.0] * 64 + [1.0]).e_value == pytest.approx(old + new + 1 / 3)


def test_a_value_that_becomes_1_later_counts_as_one_that_was() -> None:
    late = fed(0.1, [0.0] * 5)
    late.correct(3)
    assert late.e_value == pytest.approx(fed(0.1, [0.0, 0.0, 1.0, 0.0, 0.0]).e_value)
    assert late.mean == 0.2


def test_who_did_not_bet_on_a_value_gains_nothing_when_it_changes() -> None:
    test = fed(0.1, [0.0] * 70)
    before = [list(generation.wealth) for generation in test.generations]
    test.correct(3)
    assert [generation.begun for generation in test.generations] == [1, 65]
    assert np.all(np.array(test.generations[0].wealth) > before[0])
    assert test.generations[1].wealth == before[1]


def test_what_changes_late_is_seen() -> None:
    test, count = fed(0.01, [0.0] * 20_000), 0
    while test.e_value < 100:
        test.add(1.0)
        count += 1
    assert count < 12 + 64  # the next generation begins with nothing lost


@pytest.mark.parametrize("limit", [0.01, 0.1, 0.525])
def test_looking_after_every_value_it_is_wrong_as_seldom_as_stated(limit: float) -> None:
    """At the limit itself, where it is hardest: 1,000 streams, a level of 10 %."""
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(1_000):
        test = MeanTest(limit)
        wrong += any(test.add(value) and test.e_value >= 10 for value in (rng.random(300) < limit).astype(float))
    assert wrong <= 100


def test_the_trace_keeps_its_size() -> None:
    monitor = Monitor.at(Level(0.1, 100.0))
    for number in range(5_000):
        monitor.add(float(number % 20 == 0))
    shown = monitor.describe()
    numbers = [number for number, _ in shown["trace"]]
    assert 64 <= len(numbers) <= 129
    assert numbers == sorted(numbers)
    assert shown["trace"][-1] == (5_000, monitor.test.e_value)
    assert (shown["num_values"], shown["mean"], shown["threshold"]) == (5_000, 0.05, 100.0)
