"""Numbers, times and names as people read them."""

import math

import pytest

from loomrl.runs.report import text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (0, "0"),
        (500.0, "500"),
        (120832, "120,832"),
        (498.2345, "498.2"),
        (0.0093, "0.0093"),
        (1.6e-7, "1.6e−7"),
        (-0.25, "−0.25"),
        (math.inf, "∞"),
        (math.nan, "NaN"),
        (12345.678, "12,346"),
        (3.0e18, "3e18"),
    ],
)
def test_number(value: float | None, expected: str) -> None:
    assert text.number(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "–"), (0.12, "0.12 s"), (4.26, "4.3 s"), (41.2, "41 s"), (74.0, "1 min 14 s"), (11_520, "3 h 12 min")],
)
def test_duration(seconds: float | None, expected: str) -> None:
    assert text.duration(seconds) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(0.00041, "410 µs"), (0.0023, "2.3 ms"), (1.5, "1.5 s")])
def test_latency(seconds: float, expected: str) -> None:
    assert text.latency(seconds) == expected


def test_moment_is_told_in_utc() -> None:
    assert text.moment("2026-11-20T11:30:15.120+02:00") == "2026-11-20 09:30:15 UTC"
    assert text.moment("soon") == "soon"
    assert text.moment(None) == "–"


def test_middle_keeps_both_ends() -> None:
    assert text.middle("20261120-093015-3f9a1c", 16) == "20261120…-3f9a1c"
    assert text.middle("champion", 16) == "champion"


def test_percent() -> None:
    assert text.percent(0.9823) == "98.2 %"
    assert text.percent(None) == "–"
