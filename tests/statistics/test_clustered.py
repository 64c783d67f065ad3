"""Intervals over episodes: hand calculations, coverage, and what dependence does to them."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from loomrl.statistics import intervals
from loomrl.statistics.clustered import (
    bounded_mean_over_units,
    clustered_mean,
    clustered_proportion,
    net_rate_over_units,
    rate_over_units,
    units_needed,
)


def test_the_mean_interval_by_hand() -> None:
    """Clusters (1, 3) and (5, 7): mean 4, cluster sums of residuals -4 and 4, variance 2/1 * 32 / 16 = 4."""
    interval = clustered_mean([1, 3, 5, 7], [0, 0, 1, 1], 0.95)
    assert interval is not None
    assert interval.estimate == 4.0
    assert interval.high - interval.estimate == pytest.approx(stats.t.ppf(0.975, 1) * 2.0)


def test_one_episode_gives_no_interval() -> None:
    assert clustered_mean([1.0, 2.0], [0, 0], 0.95) is None
    assert clustered_proportion([True, False], [0, 0], 0.95) is None
    assert clustered_proportion([], [], 0.95) is None


def test_with_one_step_per_episode_it_is_close_to_clopper_pearson() -> None:
    events = np.arange(200) < 30
    interval = clustered_proportion(events, np.arange(200), 0.95)
    exact = stats.binomtest(30, 200).proportion_ci(0.95)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((exact.low, exact.high), abs=2e-3)


@pytest.mark.parametrize("event", [False, True])
def test_all_alike_counts_the_episodes(event: bool) -> None:
    interval = clustered_proportion(np.full(1_000, event), np.repeat(np.arange(10), 100), 0.95)
    exact = stats.binomtest(10 if event else 0, 10).proportion_ci(0.95)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((exact.low, exact.high))


def test_dependent_steps_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(20), 100)
    dependent = np.repeat(rng.random(20) < 0.5, 100)
    independent = rng.random(2_000) < 0.5
    wide, narrow = (clustered_proportion(events, clusters, 0.95) for events in (dependent, independent))
    assert wide is not None
    assert narrow is not None
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_coverage_under_dependence() -> None:
    """Episodes differ in their own rate; 95 % intervals must cover the mean rate about that often."""
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(20), 50)
    covered = []
    for _ in range(400):
        events = rng.random(1_000) < np.repeat(rng.beta(2, 6, 20), 50)  # mean 0.25
        interval = clustered_proportion(events, clusters, 0.95)
        assert interval is not None
        covered.append(interval.low <= 0.25 <= interval.high)
    assert np.mean(covered) > 0.92


@pytest.mark.parametrize("num_episodes", [10, 20, 40])
def test_rates_of_whole_episodes_are_not_called_rarer_than_they_are(num_episodes: int) -> None:
    """One episode in 20 breaks a limit, at each of its steps: at most one stream in 20 may be told 'at most 1 %'."""
    rng = np.random.default_rng(2)
    fooled = {"steps": 0, "units": 0}
    for _ in range(200):
        breaks = rng.random(num_episodes) < 0.05
        interval = clustered_proportion(np.repeat(breaks, 100), np.repeat(np.arange(num_episodes), 100), 0.95)
        assert interval is not None
        fooled["steps"] += interval.high <= 0.01
        fooled["units"] += rate_over_units(breaks, 0.95).high <= 0.01
    assert fooled == {"steps": 0, "units": 0}


def test_a_rate_over_units_holds_its_bounds_for_shares_and_counts() -> None:
    shares = rate_over_units([0.0, 0.5, 0.25, 0.0], 0.95)
    assert shares.low < shares.estimate == 0.1875 < shares.high
    counts = rate_over_units(np.arange(320) < 9, 0.95)
    assert counts.high <= 0.05 < rate_over_units(np.arange(320) < 10, 0.95).high
    assert rate_over_units(np.arange(320) < 9, 0.95, 0.99).low < counts.low


def betting_bound(distance: float, count: int, alpha: float) -> float:
    """What the mean of values that all are `distance` exceeds, by hand: a fortune of 1, an equal part at each of twelve
    stakes on every value being above it, comes to 1 / alpha."""
    stakes = 0.9 / 2.0 ** np.arange(12)

    def surplus(bound: float) -> float:
        return float(np.mean((1.0 + stakes * (distance / bound - 1.0)) ** count)) - 1.0 / alpha

    return float(brentq(surplus, 1e-3 * distance, distance))


def test_bounds_of_a_mean_within_a_span_by_hand() -> None:
    interval = bounded_mean_over_units(np.full(40, 1.5), (-4.0, 2.0), 0.95, 0.99)
    assert interval.estimate == 1.5
    assert interval.low == pytest.approx(-4.0 + betting_bound(5.5, 40, 0.01))
    assert interval.high == pytest.approx(2.0 - betting_bound(0.5, 40, 0.05))


@pytest.mark.parametrize("values", [[], [0.0, 2.1], [-4.1]])
def test_values_outside_their_span_have_no_bounds(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"expected values within \[-4, 2\]"):
        bounded_mean_over_units(values, (-4.0, 2.0), 0.95, 0.99)


def test_as_many_units_as_are_needed_bring_the_bound_below_zero() -> None:
    needed = units_needed([-0.3, 0.1], (-4.0, 2.0), 0.95)
    assert needed is not None
    above, below = (bounded_mean_over_units(np.full(n, -0.1), (-4.0, 2.0), 0.95, 0.99) for n in (needed - 1, needed))
    assert below.high <= 0.0 < above.high
    assert units_needed([-1e-6], (-4.0, 2.0), 0.95) is None


@pytest.mark.parametrize(("events", "units"), [(0, 64), (3, 480), (40, 480), (24, 24)])
def test_a_net_rate_without_opposite_events_has_clopper_and_pearsons_bound(events: int, units: int) -> None:
    high = net_rate_over_units(events, 0, units, 0.95, 0.99).high
    assert high == pytest.approx(intervals.clopper_pearson_upper(events, units, 0.95), abs=1e-3)
    low = net_rate_over_units(0, events, units, 0.99, 0.95).low
    assert low == pytest.approx(-intervals.clopper_pearson_upper(events, units, 0.95), abs=1e-3)


@pytest.mark.parametrize(("more", "less"), [(0.05, 0.0), (0.13, 0.08), (0.02, 0.3)])
def test_the_bounds_of_a_net_rate_are_seldom_wrong(more: float, less: float) -> None:
    """A few trials: `benchmarks/calibration` makes a thousand of each kind."""
    rng, wrong = np.random.default_rng(5), np.zeros(2)
    for drawn in rng.multinomial(200, [more, less, 1.0 - more - less], size=30):
        found = net_rate_over_units(int(drawn[0]), int(drawn[1]), 200, 0.9, 0.9)
        wrong += found.low > more - less, found.high < more - less
    assert wrong.max() <= 9  # of 30; more have a chance of 0.05 % where one in ten is


def test_a_net_rate_of_more_events_than_units_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 5 events of one unit or more, found 4 and 2"):
        net_rate_over_units(4, 2, 5, 0.95, 0.95)
