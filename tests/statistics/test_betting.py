"""Bounds by betting: worked out by hand, by another implementation, and covering at every look."""

import numpy as np
import pytest

from loomrl.statistics.betting import lower_bound, ratio_lower_bound

STAKES = [0.9 / 2**number for number in range(12)]


def by_search(values: np.ndarray, weights: np.ndarray, greatest: float, confidence: float) -> float:
    """The same bound by trying ratios one after the other, fortunes multiplied value by value."""
    for ratio in np.linspace(values.sum() / weights.sum(), 0.0, 4_001)[:-1]:
        fortunes = [1.0 / len(STAKES)] * len(STAKES)
        for value, weight in zip(values, weights, strict=True):
            gain = (value - ratio * weight) / (ratio * greatest)
            fortunes = [fortune * (1.0 + stake * gain) for fortune, stake in zip(fortunes, STAKES, strict=True)]
        if sum(fortunes) >= 1.0 / (1.0 - confidence):
            return float(ratio)
    return 0.0


def test_one_value_by_hand() -> None:
    # the fortune against m is 1 + (mean stake) (1 / m - 1), and 20 is enough
    stake = 0.9 * (2 - 2**-11) / 12
    assert lower_bound(np.array([1.0]), 0.95) == pytest.approx(1 / (1 + 19 / stake), abs=1e-9)
    assert lower_bound(np.array([3.0]), 0.95) == pytest.approx(3 / (1 + 19 / stake), abs=1e-9)


def test_nothing_is_known_of_no_values_and_of_none_above_zero() -> None:
    assert lower_bound(np.zeros(0), 0.95) == 0.0
    assert lower_bound(np.zeros(100), 0.95) == 0.0
    assert ratio_lower_bound(np.zeros(10), np.zeros(10), 1.0, 0.95) == 0.0


def test_a_search_finds_the_same_bounds() -> None:
    rng = np.random.default_rng(1)
    values, weights = rng.exponential(2.0, 40), rng.choice([0.0, 1.0, 4.0], 40)
    assert lower_bound(values, 0.9) == pytest.approx(by_search(values, np.ones(40), 1.0, 0.9), abs=1e-3)
    earned = weights * rng.random(40)
    assert ratio_lower_bound(earned, weights, 4.0, 0.9) == pytest.approx(by_search(earned, weights, 4.0, 0.9), abs=1e-3)


def test_many_values_are_bet_on_block_by_block() -> None:
    values = np.tile([0.2, 0.8], 35_000)
    assert 0.49 < lower_bound(values, 0.95) < 0.5
    assert lower_bound(np.sort(values), 0.95) == pytest.approx(lower_bound(values, 0.95), rel=1e-9)


def test_bounds_cover_at_every_look_also_where_values_have_no_greatest() -> None:
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(100):
        values = rng.lognormal(0.0, 1.0, 300)
        looks = [lower_bound(values[:number], 0.9) for number in range(15, 301, 15)]
        wrong += max(looks) > np.exp(0.5)
    assert wrong <= 10
