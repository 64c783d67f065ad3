"""Numbers by hand, agreement with SciPy, and coverage by simulation."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from loomrl.statistics import intervals as statistics


def test_interquartile_mean_drops_the_outer_quarters() -> None:
    assert statistics.interquartile_mean([0, 0, 1, 2, 3, 4, 100, 100]) == pytest.approx(2.5)
    values = np.random.default_rng(0).normal(size=(5, 103))
    assert np.allclose(statistics.interquartile_mean(values), scipy.stats.trim_mean(values, 0.25, axis=-1))


def test_bootstrap_is_deterministic_and_covers_the_mean() -> None:
    covered = 0
    for seed in range(200):
        sample = np.random.default_rng(seed).exponential(size=80)
        first = statistics.bootstrap_interval(sample, statistics.mean, 0.9, 400, np.random.default_rng(1))
        again = statistics.bootstrap_interval(sample, statistics.mean, 0.9, 400, np.random.default_rng(1))
        assert first == again
        assert first.low <= first.estimate <= first.high
        covered += first.low <= 1.0 <= first.high
    assert 165 <= covered <= 195  # 180 expected


def test_bootstrap_in_chunks_equals_the_number_of_replicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_CHUNK", 50)
    interval = statistics.bootstrap_interval(
        [1.0, 2.0, 3.0], statistics.interquartile_mean, 0.9, 101, np.random.default_rng(0)
    )
    assert 1.0 <= interval.low <= 2.0 <= interval.high <= 3.0


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]]])
def test_bootstrap_refuses_what_is_not_a_vector(values: list[float]) -> None:
    with pytest.raises(ValueError, match="non-empty vector"):
        statistics.bootstrap_interval(values, statistics.mean, 0.9, 100, np.random.default_rng(0))


@given(trials=st.integers(1, 500), share=st.floats(0, 1), confidence=st.sampled_from([0.9, 0.95, 0.99]))
def test_clopper_pearson_agrees_with_scipy(trials: int, share: float, confidence: float) -> None:
    successes = round(share * trials)
    expected = scipy.stats.binomtest(successes, trials).proportion_ci(confidence, "exact")
    interval = statistics.clopper_pearson(successes, trials, confidence)
    assert interval.low == pytest.approx(expected.low, abs=1e-9)
    assert interval.high == pytest.approx(expected.high, abs=1e-9)


def test_clean_episodes_needed() -> None:
    """The reference's figures: 299 for 1 %, 2,995 for 0.1 %; two limits at once need 368."""
    assert statistics.trials_needed(0, 0.01, 0.95) == 299
    assert statistics.trials_needed(0, 0.001, 0.95) == 2995
    assert statistics.trials_needed(0, 0.01, 0.975) == 368
    assert statistics.clopper_pearson_upper(0, 299, 0.95) <= 0.01 < statistics.clopper_pearson_upper(0, 298, 0.95)


@given(trials=st.integers(1, 400), share=st.floats(0, 1), limit=st.floats(0.01, 0.5))
def test_p_value_and_bound_say_the_same(trials: int, share: float, limit: float) -> None:
    successes = round(share * trials)
    for confidence in (0.9, 0.975):
        p = statistics.binomial_p_below(successes, trials, limit)
        upper = statistics.clopper_pearson_upper(successes, trials, confidence)
        if abs(p - (1 - confidence)) > 1e-9:
            assert (p <= 1 - confidence) == (upper <= limit)
        p = statistics.binomial_p_above(successes, trials, limit)
        lower = statistics.clopper_pearson_lower(successes, trials, confidence)
        if abs(p - (1 - confidence)) > 1e-9:
            assert (p <= 1 - confidence) == (lower >= limit)


def test_bounded_mean_is_as_sharp_as_binomial_without_violations() -> None:
    zeros = np.zeros(320)
    assert statistics.bounded_mean_upper(zeros, 0.95) == pytest.approx(1 - 0.05 ** (1 / 320))
    assert statistics.bounded_mean_lower(zeros, 0.95) == pytest.approx(0.0)
    assert statistics.bounded_mean_p_below(zeros, 0.01) == pytest.approx(0.99**320)


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=60), limit=st.floats(0.01, 0.99))
def test_bounded_mean_p_value_and_bound_say_the_same(values: list[float], limit: float) -> None:
    p = statistics.bounded_mean_p_below(values, limit)
    upper = statistics.bounded_mean_upper(values, 0.95)
    if abs(p - 0.05) > 1e-6:
        assert (p <= 0.05) == (upper <= limit)
    assert statistics.bounded_mean_lower(values, 0.95) <= np.mean(values) + 1e-9 <= upper + 2e-9


def test_bounded_mean_holds_its_level_where_steps_of_an_episode_depend() -> None:
    """Episodes violate entirely or not at all, the worst case of dependence: the step rate is 5 %."""
    rng = np.random.default_rng(0)
    above = [statistics.bounded_mean_upper((rng.random(100) < 0.05).astype(float), 0.9) >= 0.05 for _ in range(500)]
    assert np.mean(above) >= 0.9
    # Counting steps as if they were independent claims far too much: 100 episodes of 50 steps each.
    naive = [
        statistics.clopper_pearson_upper(50 * int(rng.binomial(100, 0.05)), 5_000, 0.9) >= 0.05 for _ in range(500)
    ]
    assert np.mean(naive) < 0.75


@pytest.mark.parametrize("values", [[], [0.5, 1.1], [math.nan]])
def test_bounded_mean_refuses_other_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match="within"):
        statistics.bounded_mean_upper(values, 0.95)


def test_holm_by_hand() -> None:
    p = [0.04, 0.001, 0.03, 0.005]
    assert statistics.holm_adjusted(p) == pytest.approx([0.06, 0.004, 0.06, 0.015])
    assert statistics.holm(p, 0.05) == [False, True, False, True]
    assert statistics.holm_confidence(p, 0.95) == pytest.approx([0.95, 0.9875, 0.975, 1 - 0.05 / 3])
    assert statistics.holm([], 0.05) == []


def test_holm_controls_the_chance_of_any_false_rejection() -> None:
    rng = np.random.default_rng(0)
    false_alarms = sum(any(statistics.holm(list(rng.random(5)), 0.1)) for _ in range(2_000))
    assert false_alarms / 2_000 < 0.12


def test_paired_difference_sees_what_unpaired_means_hide() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(scale=50, size=200)
    interval = statistics.paired_difference(base + 1 + rng.normal(size=200), base, 0.95, 500, rng)
    assert 0 < interval.low < 1.0 < interval.high < 2
    with pytest.raises(ValueError, match="equal shapes"):
        statistics.paired_difference([1.0], [1.0, 2.0], 0.9, 100, rng)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        statistics.clopper_pearson(successes, trials, 0.9)
