"""Does more of one input move an output one way, everywhere in a box? Branch and bound on the derivative.

Where the derivative's bounds are not negative, the output rises. A choice of actions needs that only where it can
change: on its way from chosen to not chosen, the margin to some other action passes 0 and does not rise there.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loomrl.safety.certified import kernels
from loomrl.safety.certified.kernels import Packed
from loomrl.safety.certified.search import NARROWEST, SLACK, SolverVerdict

Array = NDArray[np.float64]
_BATCH = 256


@dataclass(frozen=True)
class MonotoneResponse:
    """`row` @ outputs rises with input `component` in [low, high]; where `at_zero`, only at its zeros."""

    low: Array  # (num_inputs,)
    high: Array
    row: Array  # (num_outputs,)
    component: int
    at_zero: bool


@dataclass(frozen=True)
class MonotoneOutcome:
    """`inputs` (B, num_inputs) are where the search had to stop, or could not go on: places to look for exceptions."""

    verdict: SolverVerdict  # UNSAT: it rises everywhere; UNKNOWN, TIMEOUT: open
    num_boxes: int
    inputs: Array


def rises(network: Packed, response: MonotoneResponse, max_boxes: int) -> MonotoneOutcome:
    """Decide a response; boxes that are open are halved until so many were bounded."""
    shape = (1, network.bias.size)
    stack: list[tuple[Array, ...]] = [
        (response.low[None], response.high[None], np.full(shape, -np.inf), np.full(shape, np.inf))
    ]
    num_boxes = 0
    stuck: list[Array] = []
    while stack:
        low, high, floor, ceiling = stack.pop()
        if len(low) > _BATCH:
            stack.append((low[:-_BATCH], high[:-_BATCH], floor[:-_BATCH], ceiling[:-_BATCH]))
            low, high, floor, ceiling = (part[-_BATCH:].copy() for part in (low, high, floor, ceiling))
        if num_boxes >= max_boxes:
            return MonotoneOutcome(SolverVerdict.TIMEOUT, num_boxes, 0.5 * (low + high))
        num_boxes += len(low)
        is_open, score = _examine(network, response, low, high, floor, ceiling)
        low, high, floor, ceiling, score = (part[is_open] for part in (low, high, floor, ceiling, score))
        width = high - low
        dimension = np.where(width > NARROWEST, score + 1e-12 * width, -1.0).argmax(1)
        can = width[np.arange(len(low)), dimension] > NARROWEST
        if not can.all():
            stuck.append(0.5 * (low + high)[~can])
        if can.any():
            stack.append(_halves(low[can], high[can], floor[can], ceiling[can], dimension[can]))
    if stuck:
        return MonotoneOutcome(SolverVerdict.UNKNOWN, num_boxes, np.concatenate(stuck))
    return MonotoneOutcome(SolverVerdict.UNSAT, num_boxes, np.empty((0, len(response.low))))


def _examine(
    network: Packed, response: MonotoneResponse, low: Array, high: Array, floor: Array, ceiling: Array
) -> tuple[NDArray[np.bool_], Array]:
    """Which boxes are open, (B,), and how much each input is to blame, (B, num_inputs)."""
    count = len(low)
    rows = np.stack([response.row, -response.row])[None]  # at least 0, at most 0
    least, slopes = np.empty((count, 2)), np.empty((count, 2, network.num_inputs))
    score, nothing = np.empty((count, network.num_inputs)), np.zeros(count, np.int64)
    kernels.bound_boxes(network, low, high, rows, np.zeros((1, 2)), nothing, floor, ceiling, least, slopes, score)
    lowest, highest = np.empty(count), np.empty(count)
    kernels.bound_slopes(network, floor, ceiling, response.row, response.component, lowest, highest)
    span = float(response.high[response.component] - response.low[response.component])
    is_open = ~(lowest * span >= -SLACK)  # by so little the output may fall over the whole range; NaN stays open
    if response.at_zero:
        is_open &= ~(least > SLACK).any(axis=1)
    return is_open, score


def _halves(low: Array, high: Array, floor: Array, ceiling: Array, dimension: NDArray[np.int64]) -> tuple[Array, ...]:
    twice = np.repeat(np.arange(len(low)), 2)
    lows, highs = low[twice], high[twice]
    first = np.arange(0, len(twice), 2)
    middle = 0.5 * (low + high)[np.arange(len(low)), dimension]
    highs[first, dimension] = middle
    lows[first + 1, dimension] = middle
    return lows, highs, floor[twice], ceiling[twice]
