"""Evidence that may be looked at after every value: how often it is wrong, how soon it is right."""

import numpy as np
import pytest

from loomrl.errors import ConfigError
from loomrl.statistics import sequential
from loomrl.statistics.sequential import _ABOVE, _BELOW, _STAKES, LimitTest


def first_alarms(values: np.ndarray, limit: float, alpha: float = 0.05) -> np.ndarray:
    """When each stream, (streams, length), first reaches 1 / alpha, 0 where never: the same arithmetic, in rows."""
    wealth, first = np.zeros((len(values), len(_STAKES))), np.zeros(len(values), np.int64)
    for count in range(1, values.shape[1] + 1):
        factor = 1.0 + _STAKES * (values[:, [count - 1]] / limit - 1.0)
        wealth = (wealth + 1.0 / (count * (count + 1.0))) * factor
        e_value = wealth.mean(axis=1) + 1.0 / (count + 1.0)
        first[(first == 0) & (e_value >= 1.0 / alpha)] = count
    return first


def test_rows_are_what_the_test_computes() -> None:
    values = (np.random.default_rng(1).random((3, 200)) < 0.2).astype(float)
    for row in values:
        test, alarm = LimitTest(limit=0.05), 0
        for count, value in enumerate(row, start=1):
            test = test.updated([value])
            alarm = alarm or (count if test.e_value >= 20 else 0)
        assert alarm == first_alarms(row[None], 0.05)[0] > 0
        again = LimitTest(limit=0.05).updated(row[:77]).updated(row[77:])
        assert again == test


def test_one_value_by_hand() -> None:
    """Half of all is staked at once; the other half waits for later values."""
    test = LimitTest(limit=0.25).updated([1.0])
    assert test.e_value == pytest.approx(np.mean(0.5 * (1 + _STAKES * 3)) + 0.5)
    assert LimitTest(limit=0.25).e_value == 1.0
    assert LimitTest(limit=0.25).updated([0.25] * 10).e_value == pytest.approx(1.0)  # at its limit nothing is won


@pytest.mark.parametrize(("rate", "limit"), [(0.05, 0.05), (0.01, 0.01), (0.5, 0.5), (0.03, 0.05)])
def test_false_alarms_under_continuous_looking(rate: float, limit: float) -> None:
    """5,000 streams of 1,000 episodes, looked at after each: at most 5 % ever alarm."""
    values = (np.random.default_rng(7).random((5_000, 1_000)) < rate).astype(float)
    assert np.mean(first_alarms(values, limit) > 0) <= 0.05


def test_false_alarms_of_shares() -> None:
    values = np.random.default_rng(8).beta(0.4, 3.6, (2_000, 1_000))  # mean 0.1
    assert np.mean(first_alarms(values, 0.1) > 0) <= 0.05


def test_what_is_broken_is_seen_soon() -> None:
    rng = np.random.default_rng(9)
    seen = first_alarms((rng.random((1_000, 2_000)) < 0.10).astype(float), 0.05)
    assert (seen > 0).mean() > 0.99
    assert np.median(seen[seen > 0]) < 221  # what a beta-binomial confidence sequence needs
    late = np.hstack([rng.random((300, 2_000)) < 0.03, rng.random((300, 1_500)) < 0.10]).astype(float)
    seen = first_alarms(late, 0.05)
    assert np.median(seen) < 2_000 + 900
    assert np.mean((seen > 0) & (seen <= 2_000)) <= 0.05


def test_evidence_beyond_any_level_stays_a_number() -> None:
    test = LimitTest(limit=0.01).updated(np.ones(2_000))
    assert np.isfinite(test.e_value)
    assert LimitTest.model_validate(test.to_json()) == test


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_value_that_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=r"values of a limit lie in \[0, 1\], found"):
        LimitTest(limit=0.1).updated([0.5, value])


# --- confidence sequences ---


def p_of_streams(values: np.ndarray, limit: float, bets: sequential.Bets) -> np.ndarray:
    """P-value of "the mean is at most `limit`" of each stream, (streams, length), after its last value: in rows."""
    fortunes = np.tile(bets.weights, (len(values), 1))
    peak = np.ones(len(values))
    for column in values.T:
        fortunes = fortunes * (1.0 + bets.stakes * (column[:, None] / limit - 1.0))
        peak = np.maximum(peak, fortunes.sum(axis=1))
    return 1.0 / peak


def clean_needed(limit: float, alpha: float, violating: int = 0) -> int:
    count = violating + 1
    while sequential.p_below([1.0] * violating + [0.0] * (count - violating), limit) > alpha:
        count += 1
    return count


def test_streams_are_what_the_functions_compute() -> None:
    values = np.random.default_rng(1).beta(0.4, 3.6, (5, 300))
    above, below = p_of_streams(values, 0.08, _ABOVE), p_of_streams(1.0 - values, 1.0 - 0.13, _BELOW)
    assert [sequential.p_above(row, 0.08) for row in values] == pytest.approx(above)
    assert [sequential.p_below(row, 0.13) for row in values] == pytest.approx(below)
    assert np.min([above, below]) < 0.5


def test_two_values_by_hand() -> None:
    """Against a mean of 1/2, a stake c becomes 1 + c with one value and 1 - c with the other."""
    shares, weights = np.array([15, 14, 12, 8, 4, 2]) / 16, 0.5 * np.array([15, 14, 12, 8, 4, 2]) / 55
    assert sequential.p_below([0.0], 0.5) == pytest.approx(1 / (0.5 * 2 + (weights * (1 + shares)).sum()))
    after_two = 0.5 * 4 + (weights * (1 + shares) ** 2).sum()
    assert sequential.p_below([0.0, 0.0], 0.5) == pytest.approx(1 / after_two)
    assert sequential.p_below([0.0, 0.0, 1.0], 0.5) == pytest.approx(1 / after_two)  # what was won once has been won
    assert sequential.p_below([1.0], 0.5) == 1.0
    assert sequential.p_above([1.0], 0.5) == pytest.approx(1 / np.mean(1 + _STAKES))


@pytest.mark.parametrize("limit", [0.01, 0.05, 0.5])
@pytest.mark.long_cases("0.05")
def test_how_often_a_sequence_that_is_always_looked_at_is_wrong(limit: float) -> None:
    """2,000 streams of 2,000 values whose mean is the limit: at most 5 % are ever called below it, or above it.

    So many streams tell a rate to within 1 %.
    """
    rng = np.random.default_rng(11)
    for values in (
        (rng.random((2_000, 2_000)) < limit).astype(float),
        rng.beta(4 * limit, 4 * (1 - limit), (2_000, 2_000)),
    ):
        assert np.mean(p_of_streams(values, limit, _ABOVE) <= 0.05) <= 0.06
        assert np.mean(p_of_streams(1.0 - values, 1.0 - limit, _BELOW) <= 0.05) <= 0.06


def test_clean_values_are_few_more_than_a_fixed_number_needs() -> None:
    assert clean_needed(0.01, 0.05) == 326  # a number fixed before: 299
    assert clean_needed(0.01, 0.025) == 398  # 368
    assert clean_needed(0.05, 0.05) == 64  # 59
    assert clean_needed(0.01, 0.05, violating=1) == 698  # 473


@pytest.mark.parametrize("values", [[], [0.0], [1.0, 0.0], [0.0] * 30 + [1.0] * 3, [0.02, 0.3] * 20])
def test_zeros_that_are_needed_are_those_that_decide(values: list[float]) -> None:
    count = sequential.zeros_needed(values, 0.05, 0.95)
    assert sequential.p_below([*values, *[0.0] * count], 0.05) <= 0.05 + 1e-12
    assert sequential.p_below([*values, *[0.0] * (count - 1)], 0.05) > 0.05


def test_a_rare_limit_is_counted_and_not_played_through() -> None:
    """One stake of a half is never lost, so ln(2 * 20) / limit zeros would do, and the others save a few of them."""
    count = sequential.zeros_needed([0.0, 1.0], 1e-12, 0.95)
    assert sequential.zeros_needed([0.0], 1e-12, 0.95) < 3.7e12 < count < 8e12


def test_what_is_far_from_its_limit_is_decided_soon() -> None:
    rng = np.random.default_rng(12)
    often = (rng.random((500, 400)) < 0.10).astype(float)
    assert np.mean(p_of_streams(often, 0.05, _ABOVE) <= 0.05) > 0.85
    rarely = rng.beta(0.05, 4.95, (500, 400))  # mean 0.01
    assert np.mean(p_of_streams(1.0 - rarely, 1.0 - 0.05, _BELOW) <= 0.05) > 0.99


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.5, 1.0])
def test_bounds_are_where_a_limit_is_just_excluded_and_only_close_in(rate: float) -> None:
    values = (np.random.default_rng(13).random(400) < rate).astype(float)
    low, high = 0.0, 1.0
    for count in (1, 50, 200, 400):
        seen = values[:count]
        lower, upper = sequential.lower_bound(seen, 0.95), sequential.upper_bound(seen, 0.95)
        assert low <= lower <= rate <= upper <= high
        assert upper == 1.0 or sequential.p_below(seen, upper) == pytest.approx(0.05)
        assert lower == 0.0 or sequential.p_above(seen, lower) == pytest.approx(0.05)
        low, high = lower, upper
    assert high - low < 0.2
