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
    before = test.paid()
    test.correct(3)
    assert [generation.begun for generation in test.generations] == [1, 65]
    assert np.all(np.array(test.generations[0].wealth) > before[0].wealth)
    assert test.generations[1] == before[1]


class OneByOne:
    """The test as it is defined: every bet is paid out at once."""

    def __init__(self, limit: float) -> None:
        self.limit, self.count, self.generations = limit, 0, []  # (number of the first value, fortunes)

    def add(self, value: float) -> None:
        if self.count % 64 == 0:
            number = self.count // 64 + 1
            self.generations.append((self.count + 1, np.full(6, 1 / (number * (number + 1) * 6))))
            self.generations = self.generations[:1] + self.generations[1:][-2:]
        self.count += 1
        self.pay(1 + STAKES * (value / self.limit - 1), self.count)

    def correct(self, number: int) -> None:
        self.pay((1 + STAKES * (1 / self.limit - 1)) / (1 - STAKES), number)

    def pay(self, gains: np.ndarray, number: int) -> None:
        self.generations = [(one, wealth * gains if one <= number else wealth) for one, wealth in self.generations]

    @property
    def e_value(self) -> float:
        return sum(wealth.sum() for _, wealth in self.generations) + 1 / (-(-self.count // 64) + 1)


@pytest.mark.parametrize("limit", [0.01, 0.1, 0.525])
@pytest.mark.parametrize("seed", range(8))
def test_zeros_that_are_paid_out_together_are_worth_what_they_are_one_by_one(limit: float, seed: int) -> None:
    rng, test, defined, corrected = np.random.default_rng(seed), MeanTest(limit), OneByOne(limit), set[int]()
    for _ in range(200):
        zeros, value = int(rng.integers(150)), float(rng.choice([0.0, 1.0, rng.random()]))
        first = test.count + 1
        test.add_zeros(zeros)
        assert test.add(value) == first + zeros
        for one in [0.0] * zeros + [value]:
            defined.add(one)
        number = int(rng.integers(first, test.count + 1))
        if rng.random() < 0.3 and number <= first + zeros - 1 and number not in corrected:
            corrected.add(number)
            test.correct(number)
            defined.correct(number)
        if rng.random() < 0.5:  # whoever looks changes nothing
            assert test.e_value == pytest.approx(defined.e_value, rel=1e-9)
    assert test.e_value == pytest.approx(defined.e_value, rel=1e-9)
    assert [one.begun for one in test.paid()] == [begun for begun, _ in defined.generations]


def test_a_monitor_draws_the_same_points_however_zeros_come() -> None:
    one_by_one, together = Monitor.at(Level(0.1, 100.0)), Monitor.at(Level(0.1, 100.0))
    for count in (1, 63, 64, 500, 7, 3_000):
        together.add_zeros(count)
        for monitor, values in ((one_by_one, [0.0] * count + [1.0]), (together, [1.0])):
            for value in values:
                monitor.add(value)
    assert together.describe() == one_by_one.describe()


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
