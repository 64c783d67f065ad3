"""Evidence that may be looked at after every value: how often it is wrong, how soon it is right."""

import numpy as np
import pytest

from loomrl.errors import ConfigError
from loomrl.sequential import _STAKES, LimitTest, spent


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


def test_a_level_is_spent_over_all_looks() -> None:
    assert sum(spent(0.05, look) for look in range(1, 100_000)) == pytest.approx(0.05, abs=1e-6)


def test_evidence_beyond_any_level_stays_a_number() -> None:
    test = LimitTest(limit=0.01).updated(np.ones(2_000))
    assert np.isfinite(test.e_value)
    assert LimitTest.model_validate(test.to_json()) == test


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_value_that_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=r"values of a limit lie in \[0, 1\], found"):
        LimitTest(limit=0.1).updated([0.5, value])
