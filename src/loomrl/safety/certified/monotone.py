"""Does more of one input move an output one way, everywhere in a box? Branch and bound on the derivative.

Where the derivative's bounds are not negative, the output rises. A choice of actions needs that only where it can
change: on its way from chosen to not chosen, the margin to some other action passes 0 and does not rise there.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loomrl.safety.certified import kernels
from loomrl.safety.certified.kernels import Packed
from loomrl.safety.certified.search import SLACK, Boxes, SolverVerdict

Array = NDArray[np.float64]
_BATCH = 256


@dataclass(frozen=True)
class MonotoneResponse:
    """The question whether `row` @ outputs rises with input `component` everywhere in [low, high]; where `at_zero`,
    only at its zeros."""

    low: Array  # (num_inputs,)
    high: Array
    row: Array  # (num_outputs,)
    component: int
    at_zero: bool


@dataclass(frozen=True)
class MonotoneOutcome:
    """What came of the question, after `num_boxes` boxes were bounded.

    `inputs` (B, num_inputs) are where the search had to stop, or could not go on: places to look for exceptions.
    """

    verdict: SolverVerdict  # UNSAT: it rises everywhere; UNKNOWN, TIMEOUT: open
    num_boxes: int
    inputs: Array


def rises(network: Packed, response: MonotoneResponse, max_boxes: int) -> MonotoneOutcome:
    """Decide whether an output rises; boxes that are open are halved until so many were bounded.

    The verdict is UNSAT where it rises everywhere, TIMEOUT where `max_boxes` were bounded before, and UNKNOWN where
    boxes are too narrow to be halved. It is never SAT: an exception is for others to look for.
    """
    stack = [Boxes.whole(response.low[None], response.high[None], network.bias.size)]
    num_boxes = 0
    stuck: list[Array] = []
    while stack:
        boxes = stack.pop()
        if len(boxes) > _BATCH:
            stack.append(boxes[:-_BATCH])
            boxes = boxes[-_BATCH:]
        if num_boxes >= max_boxes:
            return MonotoneOutcome(SolverVerdict.TIMEOUT, num_boxes, 0.5 * (boxes.low + boxes.high))
        num_boxes += len(boxes)
        is_open, score = _examine(network, response, boxes)
        boxes = boxes[is_open]
        dimension, can = boxes.to_halve(score[is_open])
        if not can.all():
            stuck.append(0.5 * (boxes.low + boxes.high)[~can])
        if can.any():
            stack.append(boxes[can].halves(dimension[can]))
    if stuck:
        return MonotoneOutcome(SolverVerdict.UNKNOWN, num_boxes, np.concatenate(stuck))
    return MonotoneOutcome(SolverVerdict.UNSAT, num_boxes, np.empty((0, len(response.low))))


def _examine(network: Packed, response: MonotoneResponse, boxes: Boxes) -> tuple[NDArray[np.bool_], Array]:
    """Which boxes are open, (B,), and how much each input is to blame, (B, num_inputs)."""
    count = len(boxes)
    rows = np.stack([response.row, -response.row])[None]  # at least 0, at most 0
    least, slopes = np.empty((count, 2)), np.empty((count, 2, network.num_inputs))
    score = np.empty((count, network.num_inputs))
    kernels.bound_boxes(
        network, boxes.low, boxes.high, rows, np.zeros((1, 2)), boxes.case, boxes.floor, boxes.ceiling, least, slopes,
        score,
    )  # fmt: skip
    lowest, highest = np.empty(count), np.empty(count)
    kernels.bound_slopes(network, boxes.floor, boxes.ceiling, response.row, response.component, lowest, highest)
    span = float(response.high[response.component] - response.low[response.component])
    is_open = ~(lowest * span >= -SLACK)  # by so little the output may fall over the whole range; NaN stays open
    if response.at_zero:
        is_open &= ~(least > SLACK).any(axis=1)
    return is_open, score
