"""Geometry of the learning curves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomrl.runs.report.charts import MARGIN_BOTTOM, MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, draw, nice_ticks, thin
from loomrl.runs.report.curves import read_curves
from loomrl.runs.report.document import Curve, Series


def curve(values: list[float | None], reference: float | None = None) -> Curve:
    steps = list(range(0, 100 * len(values), 100))
    return Curve(
        title="Entropy",
        explanation="",
        series=[Series(label="entropy", env_steps=steps, values=values)],
        reference=reference,
        reference_label="limit",
    )


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 500, 6, [0, 100, 200, 300, 400, 500]),
        (0.2, 0.69, 4, [0.2, 0.4, 0.6, 0.8]),
        (-3, 4, 4, [-5, 0, 5]),
        (7, 7, 3, [6, 7, 8]),
    ],
)
def test_ticks_by_hand(low: float, high: float, count: int, expected: list[float]) -> None:
    assert nice_ticks(low, high, count) == pytest.approx(expected)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 8))
def test_ticks_span_the_values_evenly(low: float, span: float, count: int) -> None:
    ticks = nice_ticks(low, low + span, count)
    step = ticks[1] - ticks[0]
    rounding = 1e-6 * step + 4 * math.ulp(abs(low) + span)  # far from 0, neighbouring floats lie apart
    assert ticks[0] <= low + rounding
    assert ticks[-1] >= low + span - rounding
    assert len(ticks) <= count + 2
    assert all(math.isclose(b - a, step, rel_tol=1e-6, abs_tol=1e-6) for a, b in zip(ticks, ticks[1:], strict=False))


def test_first_and_last_value_land_in_the_corners() -> None:
    chart = draw(curve([0.0, 50.0, 100.0]), 500, 200)
    assert chart is not None
    assert chart.lines[0].points[0] == (MARGIN_LEFT, 200 - MARGIN_BOTTOM)
    assert chart.lines[0].points[-1] == (500 - MARGIN_RIGHT, MARGIN_TOP)
    assert "from 0 to 100 at 200 steps" in chart.summary


def test_missing_values_break_the_line() -> None:
    chart = draw(curve([1.0, 2.0, None, 3.0]), 500, 200)
    assert chart is not None
    assert len(chart.lines[0].polylines) == 2
    assert draw(curve([None, None]), 500, 200) is None


def test_reference_is_always_inside() -> None:
    chart = draw(curve([1.0, 2.0], reference=475.0), 500, 200)
    assert chart is not None
    assert chart.reference is not None
    assert MARGIN_TOP <= chart.reference.position <= 200 - MARGIN_BOTTOM


def test_thinning_keeps_every_spike() -> None:
    points = [(float(index), 0.0) for index in range(10_000)]
    points[4321] = (4321.0, 9.0)
    points[7777] = (7777.0, -9.0)
    kept = thin(points, 400)
    assert len(kept) <= 400
    assert points[4321] in kept
    assert points[7777] in kept
    assert kept == sorted(kept)


def test_one_row_draws() -> None:
    chart = draw(curve([0.5]), 340, 210)
    assert chart is not None
    assert len(chart.lines[0].points) == 1


def test_curves_leave_out_what_no_row_has_and_keep_gaps() -> None:
    document = {
        "updates": [{"step": 10, "entropy": 0.5}, {"step": 20, "entropy": math.nan, "episode_return": 3.0}],
        "validations": [{"step": 20, "mean_return": 4.0}],
    }
    curves = {one.title: one for one in read_curves(document, 475.0)}
    assert list(curves) == ["Episode return", "Entropy"]
    assert curves["Entropy"].series[0].values == [0.5, None]
    assert [one.label for one in curves["Episode return"].series] == ["training", "validation"]
    assert curves["Episode return"].series[0].env_steps == [20]


def test_successes_and_errors_of_values_have_charts_of_their_own() -> None:
    document = {
        "updates": [{"step": 10, "td_error": 0.5, "q_value": 2.0}, {"step": 20, "td_error": 0.25}],
        "validations": [{"step": 10, "mean_return": 4.0, "success_rate": 0.0}, {"step": 20, "success_rate": 0.75}],
    }
    curves = {one.title: one.series for one in read_curves(document, None)}
    assert list(curves) == ["Episode return", "Success rate", "TD error", "Q value"]
    ((successes,), (errors,)) = curves["Success rate"], curves["TD error"]
    assert (successes.label, successes.env_steps, successes.values) == ("validation", [10, 20], [0.0, 0.75])
    assert (errors.env_steps, errors.values) == ([10, 20], [0.5, 0.25])


def test_labels_of_close_ticks_differ() -> None:
    chart = draw(curve([499.9, 500.1]), 340, 210)
    assert chart is not None
    labels = [tick.label for tick in chart.y_ticks]
    assert len(set(labels)) == len(labels) > 2
