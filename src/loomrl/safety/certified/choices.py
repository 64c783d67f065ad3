"""Which actions a policy may take somewhere in a box of observations, by bounds: none that it takes is left out.

Bounds are in real arithmetic, and the policy computes in float32: both may differ by as much as reader and runtime may
(`verify.DIFFERENCE`), so that actions between which so little decides are all possible.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.safety.certified import kernels
from loomrl.safety.certified.network import Network
from loomrl.safety.certified.packed import pack
from loomrl.safety.certified.regions import preferred
from loomrl.safety.certified.verify import DIFFERENCE

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Possible = Callable[[Array, Array], tuple[Ints, Array, Array]]


def possible_actions(network: Network, space: Any) -> Possible:
    """A function that says which actions the policy may take in boxes of observations; none that it takes is left out.

    It takes the lows and highs of N boxes, (N, d) each, and returns for each of M possibilities the number of its box,
    (M,), and the lows and highs of a range of actions, (M, A) each. `network` gives logits for a Discrete space, whose
    actions are listed one by one (A is 1, both ends are the action), and the action itself for a Box: then there is one
    range for each box. Observations are float32, so boxes are taken up to the next one on either side.
    """
    packed = pack(network)
    size = network.num_outputs
    signs = np.stack([np.eye(size), -np.eye(size)])

    def outputs(low: Array, high: Array) -> tuple[Array, Array, Array]:
        """Lows and highs of the outputs, and how far what is computed may be from them, (N, size) each."""
        least = _bounds(packed, low, high, signs)
        unsure = DIFFERENCE * (1.0 + np.abs(least).max(axis=1))
        return least[:, 0], -least[:, 1], unsure

    if isinstance(space, spaces.Discrete):
        rows = np.stack([preferred(choice, size) for choice in range(size)])

        def choices(low: Array, high: Array) -> tuple[Ints, Array, Array]:
            is_possible = np.ones((len(low), size), np.bool_)
            if size > 1:  # excluded where another one's logit is larger everywhere in the box
                observed = _as_observed(low, high)
                unsure = 2.0 * outputs(*observed)[2].max(axis=1)
                is_possible = ~(_bounds(packed, *observed, rows).max(axis=2) > unsure[:, None])
            box, choice = np.nonzero(is_possible)
            action = (choice + int(space.start)).astype(np.float64)[:, None]
            return box, action, action

        return choices

    def ranges(low: Array, high: Array) -> tuple[Ints, Array, Array]:
        least, most, unsure = outputs(*_as_observed(low, high))
        return np.arange(len(low)), least - unsure, most + unsure

    return ranges


def all_actions(space: Any) -> Possible:
    """As `possible_actions`, for whoever may take any action of a Discrete space, or of a Box with finite ends."""
    if isinstance(space, spaces.Discrete):
        each = np.arange(space.start, space.start + space.n, dtype=np.float64)[:, None]

        def choices(low: Array, high: Array) -> tuple[Ints, Array, Array]:  # noqa: ARG001 - it is so in every box
            action = np.tile(each, (len(low), 1))
            return np.repeat(np.arange(len(low)), len(each)), action, action

        return choices

    def ranges(low: Array, high: Array) -> tuple[Ints, Array, Array]:  # noqa: ARG001 - it is so in every box
        least, most = (np.tile(end.astype(np.float64).reshape(1, -1), (len(low), 1)) for end in (space.low, space.high))
        return np.arange(len(low)), least, most

    return ranges


def _as_observed(low: Array, high: Array) -> tuple[Array, Array]:
    ends = ((low, np.float32(-np.inf)), (high, np.float32(np.inf)))
    least, most = (np.nextafter(end.astype(np.float32), beyond).astype(np.float64) for end, beyond in ends)
    return least, most


def _bounds(packed: kernels.Packed, low: Array, high: Array, rows: Array) -> Array:
    """Numbers (N, K, R) that are not above `rows` (K, R, num_outputs) @ outputs, anywhere in boxes (N, d)."""
    count, num_cases, num_rows = len(low), len(rows), rows.shape[1]
    total = count * num_cases
    low, high = np.repeat(low, num_cases, axis=0), np.repeat(high, num_cases, axis=0)
    floor, ceiling = np.full((total, packed.bias.size), -np.inf), np.full((total, packed.bias.size), np.inf)
    least, slopes = np.empty((total, num_rows)), np.empty((total, num_rows, packed.num_inputs))
    kernels.bound_boxes(
        packed, low, high, rows, np.zeros((num_cases, num_rows)), np.tile(np.arange(num_cases), count), floor, ceiling,
        least, slopes, np.empty((total, packed.num_inputs)),
    )  # fmt: skip
    return least.reshape(count, num_cases, num_rows)
