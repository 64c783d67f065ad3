"""Branch and bound over the inputs: boxes whose bounds decide nothing are halved until none is open, or time is up.

A box is done when one limit of its case cannot be met anywhere in it. Counterexamples are looked for where the bounds
are lowest, and by projected gradient descent from there.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.safety.certified import kernels
from loomrl.safety.certified.kernels import Packed
from loomrl.safety.certified.vnnlib import Case
from loomrl.types import Verdict

Array = NDArray[np.float64]
SLACK = 1e-9  # by which a limit must be missed: far above what float64 rounds here
NARROWEST = 1e-9  # boxes are not halved below this width
_BATCH = 256  # boxes bounded at once by each thread
_STARTS, _DESCENT_STEPS = 32, 24

Confirm = Callable[[Array, Case], NDArray[np.float32] | None]


class SolverVerdict(StrEnum):
    """A verifier's verdict, in the words of the competition VNN-COMP: SAT where some input breaks the property, UNSAT
    where none does; it is open where it is UNKNOWN, and where time or the number of boxes ran out, TIMEOUT."""

    SAT = "sat"  # some input breaks the property
    UNSAT = "unsat"  # none does
    UNKNOWN = "unknown"  # it could not be decided
    TIMEOUT = "timeout"  # nor before time, or the number of boxes, ran out


@dataclass(frozen=True)
class SearchOutcome:
    """What came of a search, after `num_boxes` boxes were bounded. `inputs` (d,) are a counterexample's, as float32,
    confirmed; None where there is none."""

    verdict: SolverVerdict
    num_boxes: int
    inputs: NDArray[np.float32] | None = None

    @property
    def claimed(self) -> Verdict:
        """The verdict of a claim that no input breaks the property."""
        verdicts = {SolverVerdict.UNSAT: Verdict.PROVED, SolverVerdict.SAT: Verdict.REFUTED}
        return verdicts.get(self.verdict, Verdict.UNDECIDED)


@dataclass(frozen=True)
class Boxes:
    """Inputs in [low, high], (B, d); the number of the case each box is about, (B,); and intervals, (B, N), that hold
    what each activation is taken of."""

    low: Array
    high: Array
    case: NDArray[np.int64]
    floor: Array
    ceiling: Array

    def __len__(self) -> int:
        return len(self.case)

    def __getitem__(self, chosen: NDArray[np.generic] | slice) -> "Boxes":
        return Boxes(*(values[chosen] for values in self._arrays()))

    def _arrays(self) -> tuple[Any, ...]:
        return self.low, self.high, self.case, self.floor, self.ceiling

    @staticmethod
    def joined(parts: Sequence["Boxes"]) -> "Boxes":
        """The boxes of several parts, one part after the other; there must be one part at least."""
        if len(parts) == 1:
            return parts[0]
        return Boxes(*(np.concatenate(values) for values in zip(*(part._arrays() for part in parts), strict=True)))

    @classmethod
    def whole(cls, low: Array, high: Array, num_neurons: int) -> "Boxes":
        """One box for each case, (K, d) its ends, of whose activations nothing is known yet."""
        shape = len(low), num_neurons
        return cls(low, high, np.arange(len(low)), np.full(shape, -np.inf), np.full(shape, np.inf))

    def to_halve(self, score: Array) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The index of the input along which each box is halved, (B,), by the inputs' scores (B, d), and whether it is
        wide enough, (B,)."""
        width = self.high - self.low
        dimension = np.where(width > NARROWEST, score + 1e-12 * width, -1.0).argmax(1)
        return dimension, width[np.arange(len(self)), dimension] > NARROWEST

    def halves(self, dimension: NDArray[np.intp]) -> "Boxes":
        """Both halves of each box along the input of this index, (B,), one after the other: 2 B boxes."""
        halves = self[np.repeat(np.arange(len(self)), 2)]
        lower = np.arange(0, len(halves), 2)
        middle = 0.5 * (self.low + self.high)[np.arange(len(self)), dimension]
        halves.high[lower, dimension] = middle
        halves.low[lower + 1, dimension] = middle
        return halves


class PropertySearch:
    """The search for an input that breaks one property of one network.

    `confirm` replays a candidate, (d,), in the runtime that ships: it returns the input in float32 where it breaks the
    property there, too, else None.
    """

    def __init__(self, network: Packed, cases: Sequence[Case], confirm: Confirm, num_threads: int = 1) -> None:
        self._network, self._cases, self._confirm = network, cases, confirm
        self._num_threads = num_threads
        most = max(len(case.limits) for case in cases)
        self._rows = np.stack([_padded(case.rows, most) for case in cases])  # (K, R, num_outputs)
        self._limits = np.stack([_padded(case.limits, most) for case in cases])  # (K, R)
        self._num_boxes = 0
        self._is_stuck = False

    def run(self, deadline: float, max_boxes: float = math.inf) -> SearchOutcome:
        """Search until everything is decided, `time.monotonic()` reaches the deadline, or so many boxes were bounded.

        The verdict is SAT with the input, UNSAT, TIMEOUT, or UNKNOWN where a box was too narrow to be halved. With one
        thread and no deadline the same question always has the same answer, counterexample included.
        """
        with ThreadPoolExecutor(self._num_threads) as threads:
            return self._run(deadline, max_boxes, threads)

    def _run(self, deadline: float, max_boxes: float, threads: ThreadPoolExecutor) -> SearchOutcome:
        low, high = (np.stack([getattr(case, end) for case in self._cases]) for end in ("low", "high"))
        stack = [Boxes.whole(low, high, self._network.bias.size)]
        is_first = True
        while stack:
            if time.monotonic() > deadline or self._num_boxes >= max_boxes:
                return SearchOutcome(SolverVerdict.TIMEOUT, self._num_boxes)
            found, left = self._step(_pop(stack, _BATCH * self._num_threads), threads, is_first)
            is_first = False
            if found is not None:
                return SearchOutcome(SolverVerdict.SAT, self._num_boxes, found)
            if left is not None:
                stack.append(left)
        return SearchOutcome(SolverVerdict.UNKNOWN if self._is_stuck else SolverVerdict.UNSAT, self._num_boxes)

    def _step(
        self, boxes: Boxes, threads: ThreadPoolExecutor, attacks: bool
    ) -> tuple[NDArray[np.float32] | None, Boxes | None]:
        """Bound some boxes: a counterexample, or the halves of those that stay open."""
        self._num_boxes += len(boxes)
        least, slopes, score = self._bound(boxes, threads)
        row = least.argmax(1)
        margin = least[np.arange(len(boxes)), row]
        is_open = ~(margin > SLACK)
        if not is_open.any():
            return None, None
        boxes, margin, slopes = boxes[is_open], margin[is_open], slopes[is_open, row[is_open]]
        lowest = np.where(slopes > 0, boxes.low, boxes.high)
        found = self._examine(lowest, boxes.case)
        if found is None and attacks:
            found = self._descend(boxes, lowest)
        if found is not None:
            return found, None
        return None, self._halves(boxes, score[is_open], margin)

    def _bound(self, boxes: Boxes, threads: ThreadPoolExecutor) -> tuple[Array, Array, Array]:
        count, num_rows = len(boxes), self._limits.shape[1]
        least, slopes = np.empty((count, num_rows)), np.empty((count, num_rows, self._network.num_inputs))
        score = np.empty((count, self._network.num_inputs))
        size = -(-count // self._num_threads)

        def bound(start: int) -> None:
            part = slice(start, start + size)
            kernels.bound_boxes(
                self._network, boxes.low[part], boxes.high[part], self._rows, self._limits, boxes.case[part],
                boxes.floor[part], boxes.ceiling[part], least[part], slopes[part], score[part],
            )  # fmt: skip

        parts = range(0, count, size)
        if len(parts) == 1:  # to start a thread takes longer than to bound a few boxes
            bound(0)
        else:
            list(threads.map(bound, parts))
        return least, slopes, score

    def _halves(self, boxes: Boxes, score: Array, margin: Array) -> Boxes | None:
        dimension, can = boxes.to_halve(score)
        if not can.all():
            self._is_stuck = True
        order = np.argsort(-margin[can], kind="stable")  # the most promising counterexamples are taken from the end
        return boxes[can][order].halves(dimension[can][order]) if len(order) else None

    # --- counterexamples ---

    def _examine(self, inputs: Array, case: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """A confirmed counterexample among inputs (B, d)."""
        excess, _ = self._excess(inputs, case)
        for index in np.flatnonzero(excess <= 0)[:_STARTS]:
            found = self._confirm(inputs[index], self._cases[case[index]])
            if found is not None:
                return found
        return None

    def _excess(self, inputs: Array, case: NDArray[np.int64]) -> tuple[Array, Array]:
        """By how much the worst limit is missed, (B,), and the gradient, (B, d)."""
        excess, gradient = np.empty(len(inputs)), np.empty_like(inputs)
        kernels.excess(self._network, inputs, self._rows, self._limits, case, excess, gradient)
        return excess, gradient

    def _descend(self, boxes: Boxes, lowest: Array) -> NDArray[np.float32] | None:
        """Projected gradient descent on the worst limit, by signs, from given and from random inputs."""
        rng = np.random.default_rng(0)
        chosen = np.arange(_STARTS) % len(boxes)
        low, high, case = boxes.low[chosen], boxes.high[chosen], boxes.case[chosen]
        drawn = rng.uniform(low, high)
        inputs = np.where((np.arange(_STARTS) < _STARTS // 4)[:, None], lowest[chosen], drawn)
        for number in range(_DESCENT_STEPS):
            excess, gradient = self._excess(inputs, case)
            if (excess <= 0).any():
                found = self._examine(inputs, case)
                if found is not None:
                    return found
            inputs = np.clip(inputs - 0.25 * 0.85**number * (high - low) * np.sign(gradient), low, high)
        return self._examine(inputs, case)


def _pop(stack: list[Boxes], room: int) -> Boxes:
    """Some of what was left last, up to so many."""
    taken: list[Boxes] = []
    while stack and room:
        last = stack.pop()
        if len(last) > room:
            stack.append(last[: len(last) - room])
            last = last[len(last) - room :]
        taken.append(last)
        room -= len(last)
    return Boxes.joined(taken)


def _padded(values: Array, size: int) -> Array:
    """The last row again until there are `size`: a limit said twice is one limit."""
    return np.concatenate([values, np.repeat(values[-1:], size - len(values), axis=0)])
