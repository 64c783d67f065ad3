"""Triton's statistics, counted by hand."""

import time

import pytest

from loomrl.serving.telemetry.statistics import InferenceStatistics


def test_sums_by_version_and_batch_size() -> None:
    statistics = InferenceStatistics()
    statistics.count("1", 1, (10.0, 10.5, 10.75, 11.0), 1)
    statistics.count("1", 1, (11.0, 11.25, 11.5, 12.0), 1)
    statistics.count("1", 64, (20.0, 21.0, 23.0, 26.0), 1)
    statistics.count("2", 8, (30.0, 30.0, 31.0, 31.0), 1)
    statistics.count_failure("1", 0.5)
    statistics.count_failure("1", 0.25)
    one, two, three = statistics.report("cartpole", {"3", "1", "2"})["model_stats"]
    assert (one["name"], one["version"], one["inference_count"], one["execution_count"]) == ("cartpole", "1", 66, 3)
    second = 1_000_000_000
    assert one["inference_stats"] == {
        "success": {"count": 3, "ns": 8 * second},
        "fail": {"count": 2, "ns": 3 * second // 4},
        "queue": {"count": 3, "ns": 0},
        "compute_input": {"count": 3, "ns": 7 * second // 4},
        "compute_infer": {"count": 3, "ns": 5 * second // 2},
        "compute_output": {"count": 3, "ns": 15 * second // 4},
        "cache_hit": {"count": 0, "ns": 0},
        "cache_miss": {"count": 0, "ns": 0},
    }
    assert [(batch["batch_size"], batch["compute_infer"]) for batch in one["batch_stats"]] == [
        (1, {"count": 2, "ns": second // 2}),
        (64, {"count": 1, "ns": 2 * second}),
    ]
    assert (two["version"], two["inference_count"]) == ("2", 8)
    assert (three["execution_count"], three["last_inference"], three["batch_stats"]) == (0, 0, [])


def test_the_last_inference_is_told_in_milliseconds_since_1970() -> None:
    statistics, now = InferenceStatistics(), time.perf_counter()
    expected = time.time() * 1e3
    statistics.count("1", 1, (now, now, now, now), 1)
    (one,) = statistics.report("p", {"1"})["model_stats"]
    assert one["last_inference"] == pytest.approx(expected, abs=60_000)


def test_versions_that_only_failed_are_known() -> None:
    statistics = InferenceStatistics()
    statistics.count("1", 4, (0.0, 0.0, 0.0, 0.0), 1)
    statistics.count_failure("2", 0.1)
    assert statistics.versions() == {"1", "2"}
