"""Geometry of line charts: numbers in, coordinates for an SVG template out. No drawing here."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from loomrl.runs.report.document import Curve, Series
from loomrl.runs.report.text import number

MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 62, 14, 14, 42
MAX_POINTS = 400  # per line; more cannot be seen


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis, in pixels."""

    position: float
    label: str


@dataclass(frozen=True)
class Line:
    """One series: polylines (broken where values are missing) and its points."""

    label: str
    polylines: list[str]  # each "X,Y X,Y ...", as SVG takes it
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """All a template needs to draw one chart: places and sizes are in pixels."""

    title: str
    summary: str  # the chart in words
    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Line]
    reference: Tick | None  # a horizontal line


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers that span [low, high] (steps of 1, 2 or 5 times a power of ten)."""
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if raw <= factor * power * (1 + 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def thin(points: list[tuple[float, float]], limit: int = MAX_POINTS) -> list[tuple[float, float]]:
    """At most about `limit` points: each bucket keeps its lowest and highest, so that no spike is lost."""
    if len(points) <= limit:
        return points
    size = math.ceil(2 * len(points) / limit)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        extremes = {min(bucket, key=lambda point: point[1]), max(bucket, key=lambda point: point[1])}
        kept.extend(sorted(extremes))
    return kept


def draw(curve: Curve, width: int, height: int) -> Chart | None:
    """Lay a curve out on `width` x `height` pixels; None where it has no finite value."""
    values = [value for one in curve.series for value in one.values if value is not None]
    if not values:
        return None
    steps = [step for one in curve.series for step in one.env_steps]
    shown = [*values, curve.reference] if curve.reference is not None else values
    y_values = nice_ticks(min(shown), max(shown), 6 if height > 200 else 4)
    x_values = nice_ticks(0, max(steps), 6 if width > 500 else 4)
    left, right = MARGIN_LEFT, width - MARGIN_RIGHT
    top, bottom = MARGIN_TOP, height - MARGIN_BOTTOM
    x_high = max(steps) or 1

    def x(step: float) -> float:
        return round(left + (right - left) * step / x_high, 1)

    def y(value: float) -> float:
        return round(bottom - (bottom - top) * (value - y_values[0]) / (y_values[-1] - y_values[0]), 1)

    return Chart(
        title=curve.title,
        summary=_summary(curve),
        width=width,
        height=height,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        x_ticks=_ticks([value for value in x_values if value <= x_high], x),
        y_ticks=_ticks(y_values, y),
        lines=[_line(one, x, y) for one in curve.series],
        reference=None if curve.reference is None else Tick(y(curve.reference), curve.reference_label),
    )


def _line(one: Series, x: Callable[[float], float], y: Callable[[float], float]) -> Line:
    pieces: list[list[tuple[float, float]]] = [[]]
    for step, value in zip(one.env_steps, one.values, strict=True):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((x(step), y(value)))
    thinned = [thin(piece) for piece in pieces if piece]
    return Line(
        label=one.label,
        polylines=[" ".join(f"{px:g},{py:g}" for px, py in piece) for piece in thinned],
        points=[point for piece in thinned for point in piece],
    )


def _summary(curve: Curve) -> str:
    parts = []
    for one in curve.series:
        known = [(step, value) for step, value in zip(one.env_steps, one.values, strict=True) if value is not None]
        if known:
            (_, first), (last_step, last) = known[0], known[-1]
            parts.append(f"{one.label} from {number(first)} to {number(last)} at {last_step:,} steps")
    return f"{curve.title}: " + "; ".join(parts)


def _ticks(values: list[float], position: Callable[[float], float]) -> list[Tick]:
    """Ticks with as few digits as tell them apart."""
    labels: list[str] = []
    for digits in range(2, 16):
        labels = [_axis_label(value, digits) for value in values]
        if len(set(labels)) == len(values):
            break
    return [Tick(position(value), label) for value, label in zip(values, labels, strict=True)]


def _axis_label(value: float, digits: int) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            divisor = 1e3 if suffix == "k" else size
            return f"{number(value / divisor, digits)}{suffix}"
    return number(value, digits)
