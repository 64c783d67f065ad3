"""Versions are compared by the units that were dealt to them, exactly, and what is unfinished counts as its worst."""

import itertools
import math

import numpy as np
import pytest

from loomrl.statistics.assignment import MeanBounds, Units, log_evidence, mean_bounds


def units(chosen: np.ndarray, values: np.ndarray, probability: float = 0.5) -> Units:
    chance = np.full(len(values), probability)
    return Units(chosen.astype(bool), chance, values.astype(float), values.astype(float))


def drawn(rng: np.random.Generator, number: int, effect: float, probability: float = 0.5) -> Units:
    chosen = rng.random(number) < probability
    return units(chosen, rng.normal(size=number) + effect * chosen, probability)


def test_over_all_ways_to_deal_a_block_the_evidence_is_one_on_average() -> None:
    values = np.array([3.0, 1.0, 1.0, 7.0, -2.0, 1.0, 7.0, 0.0, 100.0, 4.0])
    for number in (1, 4, 8):
        found = []
        for chosen in itertools.combinations(range(10), number):
            dealt = np.isin(np.arange(10), chosen)
            found.append(one_block(dealt, values))
        assert np.mean(found) == pytest.approx(1.0)
        assert min(found) < 0.5 < 2.0 < max(found)


def one_block(dealt: np.ndarray, values: np.ndarray) -> float:
    """By the definition, over all choices of as many: a second implementation."""
    above = np.sign(values[:, None] - values[None, :]).sum(axis=1) / len(values)
    everyone = [np.array(chosen) for chosen in itertools.combinations(range(len(values)), int(dealt.sum()))]
    slopes = (1.0, 2.0, 4.0)
    each = [
        math.exp(slope * above[dealt].sum()) / np.mean([math.exp(slope * above[one].sum()) for one in everyone])
        for slope in slopes
    ]
    peak = max(0.0, math.log(np.mean(each)))
    assert log_evidence(units(dealt, values))[0] == pytest.approx(peak, abs=1e-9)
    return float(np.mean(each))


def test_what_is_unfinished_counts_as_the_worst_it_can_become() -> None:
    rng = np.random.default_rng(3)
    for number in range(100):
        whole = units(rng.random(20) < 0.5, rng.integers(0, 6, 20))
        unknown = rng.random(20) < 0.3
        known = Units(
            whole.is_challenger,
            whole.probability,
            np.where(unknown, rng.integers(0, whole.low + 1), whole.low),
            np.where(unknown, 5.0, whole.high),
        )
        for before, after in zip(log_evidence(known), log_evidence(whole), strict=True):
            assert before <= after + 1e-9
        if number < 10:
            wide, narrow = (mean_bounds(one, (0.0, 5.0), 0.95) for one in (known, whole))
            assert wide.high - wide.low >= narrow.high - narrow.low - 1e-9


@pytest.mark.parametrize("number", [0, 2, 9])
def test_few_units_say_nothing(number: int) -> None:
    assert log_evidence(units(np.arange(number) % 2 == 0, np.arange(number) * 100.0)) == (0.0, 0.0)
    found = mean_bounds(units(np.arange(number) % 2 == 0, np.zeros(number)), (0.0, 1.0), 0.95)
    assert found.low <= -0.3
    assert found.high >= 0.3


def test_units_that_could_not_be_dealt_otherwise_are_left_out() -> None:
    chance = np.repeat([1.0, 0.0], 50)
    certain = Units(chance == 1.0, chance, chance.copy(), chance.copy())
    assert log_evidence(certain) == (0.0, 0.0)
    assert mean_bounds(certain, (0.0, 1.0), 0.95) == MeanBounds(-1.0, 1.0, 0)


def test_a_difference_of_one_standard_deviation_is_found_and_none_is_not() -> None:
    rng = np.random.default_rng(4)
    apart = [log_evidence(drawn(rng, 100, 1.0))[0] >= math.log(80) for _ in range(200)]
    alike = [max(log_evidence(drawn(rng, 100, 0.0))) >= math.log(40) for _ in range(200)]
    assert np.mean(apart) >= 0.8
    assert np.mean(alike) <= 0.05


def test_the_range_of_values_and_their_order_of_finishing_do_not_matter_to_the_evidence() -> None:
    rng = np.random.default_rng(5)
    some = drawn(rng, 60, 1.0)
    wide = Units(some.is_challenger, some.probability, np.exp(some.low * 9), np.exp(some.high * 9))
    assert log_evidence(some) == pytest.approx(log_evidence(wide))


def test_mean_bounds_close_in_on_the_effect_and_turn_with_the_sign() -> None:
    rng = np.random.default_rng(6)
    widths = []
    for number in (50, 500, 5_000):
        chosen = rng.random(number) < 0.3
        some = units(chosen, 0.4 + 0.2 * rng.random(number) + 0.1 * chosen, 0.3)
        found = mean_bounds(some, (0.0, 1.0), 0.95)
        assert found.low < 0.1 < found.high
        turned = mean_bounds(some.negated(), (-1.0, 0.0), 0.95)
        assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))
        widths.append(found.high - found.low)
    assert widths[2] < widths[1] < widths[0]
    assert widths[2] < 0.1
