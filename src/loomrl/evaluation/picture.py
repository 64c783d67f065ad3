"""The picture of an evaluation: how returns and episode lengths are distributed. Equal data give equal bytes."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.system.files import write_atomic
from loomrl.types import Interval

_INK, _QUIET, _GRID = "#1f2933", "#616e7c", "#e4e7eb"
_RETURNS, _ESTIMATE, _THRESHOLD, _LENGTHS = "#4c78a8", "#d1495b", "#2d8659", "#8da0b8"


def draw_returns(
    path: Path,
    returns: NDArray[np.float64],
    lengths: NDArray[np.int64],
    threshold: float | None,
    robust_mean: Interval,
) -> None:
    """Write a PNG: every return as a dot over their histogram, the threshold, the interquartile mean with its
    interval, and the lengths below. `returns` and `lengths` are (N,); a threshold of None is left out.

    Raises:
        ArtifactError: when the file cannot be written.
    """
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style.context(["default", {"font.family": "DejaVu Sans", "font.size": 9}]):  # not the user's matplotlibrc
        figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        upper, lower = figure.subplots(2, 1, height_ratios=[2.4, 1.0])
        _draw_return_panel(upper, returns, threshold, robust_mean)
        _draw_length_panel(lower, lengths)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


def _draw_return_panel(axes: Any, returns: NDArray[np.float64], threshold: float | None, robust_mean: Interval) -> None:
    from matplotlib.ticker import MaxNLocator

    counts, _, _ = axes.hist(returns, bins=_bins(returns), color=_RETURNS, alpha=0.35, edgecolor="white", linewidth=0.6)
    top = float(np.max(counts))
    strip = np.linspace(-0.20, -0.08, 5)[np.arange(len(returns)) % 5] * top  # five rows, so that equal returns show
    axes.scatter(returns, strip, s=9, color=_RETURNS, alpha=0.7, linewidths=0)
    percent = f"{robust_mean.confidence:.0%}"
    label = (
        f"interquartile mean {robust_mean.estimate:.1f}  ({percent}: {robust_mean.low:.1f} to {robust_mean.high:.1f})"
    )
    axes.axvspan(robust_mean.low, robust_mean.high, color=_ESTIMATE, alpha=0.15, linewidth=0)
    axes.axvline(robust_mean.estimate, color=_ESTIMATE, linewidth=1.8, label=label)
    if threshold is not None:
        share = float(np.mean(returns >= threshold))
        shown = f"threshold {threshold:g}  ({share:.0%} of episodes reach it)"
        axes.axvline(threshold, color=_THRESHOLD, linewidth=1.5, linestyle=(0, (5, 3)), label=shown)
    axes.set_ylim(-0.28 * top, 1.08 * top)
    axes.set_yticks([tick for tick in MaxNLocator(5, integer=True).tick_values(0, top) if tick <= 1.08 * top])
    axes.set_xlabel("return of one episode")
    axes.set_ylabel("episodes")
    title = f"Returns of {len(returns)} episodes on held-out seeds"
    axes.set_title(title, loc="left", pad=26, fontsize=11, fontweight="bold", color=_INK)
    legend = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "ncols": 2, "frameon": False, "labelcolor": _INK}
    axes.legend(**legend)
    _plain(axes)


def _draw_length_panel(axes: Any, lengths: NDArray[np.int64]) -> None:
    axes.hist(lengths, bins=_bins(lengths.astype(np.float64)), color=_LENGTHS, edgecolor="white", linewidth=0.6)
    axes.set_xlabel(f"steps of one episode  (shortest {lengths.min()}, longest {lengths.max()})")
    axes.set_ylabel("episodes")
    axes.yaxis.get_major_locator().set_params(integer=True, nbins=4)
    _plain(axes)


def _bins(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Thirty-one bins; around one value, in the middle one, where all are equal."""
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-9 * max(1.0, abs(high)):
        margin = max(1.0, abs(high) * 0.05)
        low, high = low - margin, high + margin
    return np.linspace(low, high, 32)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_QUIET)
    axes.tick_params(colors=_QUIET, length=0)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
