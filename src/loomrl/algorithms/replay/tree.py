"""A sum tree over priorities, for sampling in proportion to them (Schaul et al., 2016, appendix B.2.1).

Every node has `FANOUT` children, one cache line of sums: seven levels for a million leaves where a binary tree has
twenty. A node is always the sum of its children anew, never corrected by a difference, so that rounding does not
pile up and the tree follows from its leaves alone.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.replay.compiled import compiled
from loomrl.algorithms.replay.storage import Storage

Array = NDArray[Any]

FANOUT = 8
NO_FAULT = -1


class PriorityTree:
    """Priorities of all leaves, their sums and their smallest, in arrays of a storage. A leaf of 0 is never drawn.

    A node has FANOUT children. `offsets` (levels + 1,) says where each level begins in `sums`, the leaves first and the
    root last; `smallest` holds, for the inner nodes, the least positive leaf below. Making it raises ArtifactError when
    the storage has no room.
    """

    def __init__(self, num_leaves: int, storage: Storage) -> None:
        sizes = [num_leaves]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // FANOUT))
        self.num_leaves = num_leaves
        self.offsets = np.concatenate([[0], np.cumsum(sizes)])  # (levels + 1,): where a level begins in `sums`
        self.sums = storage.array("priority_sums", (int(self.offsets[-1]),), np.float64)  # leaves first, root last
        inner = int(self.offsets[-1]) - num_leaves
        self.smallest = storage.array("priority_smallest", (inner,), np.float64)  # of the positive leaves below
        self.sums.fill(0.0)  # whatever an earlier run left: a saved state brings its own

    @property
    def leaves(self) -> Array:
        """The priorities (num_leaves,) as a view, one for each slot; call `rebuild` after changing them."""
        return self.sums[: self.num_leaves]

    @property
    def total(self) -> float:
        """The sum of all priorities in the tree, float64."""
        return float(self.sums[-1])

    def rebuild(self) -> None:
        """Compute the sums and the smallest of all inner nodes anew from the leaves."""
        refresh(self.sums, self.smallest, self.offsets, 0, self.num_leaves - 1)


@compiled
def _sum_children(sums: Array, smallest: Array, offsets: Array, level: int, node: int) -> None:
    num_leaves = offsets[1]
    first = offsets[level - 1] + node * FANOUT
    stop = min(first + FANOUT, offsets[level])
    total, least = 0.0, np.inf
    for child in range(first, stop):
        value = sums[child]
        total += value
        if level > 1:
            value = smallest[child - num_leaves]
        if value > 0.0 and value < least:
            least = value
    sums[offsets[level] + node] = total
    smallest[offsets[level] + node - num_leaves] = least


@compiled
def refresh(sums: Array, smallest: Array, offsets: Array, first: int, last: int) -> None:
    """Compute the sums and the smallest of all ancestors of leaves `first` to `last` (inclusive) anew, after these
    leaves have changed."""
    for level in range(1, offsets.shape[0] - 1):
        first //= FANOUT
        last //= FANOUT
        for node in range(first, last + 1):
            _sum_children(sums, smallest, offsets, level, node)


@compiled
def fill(
    sums: Array,
    smallest: Array,
    offsets: Array,
    num_envs: int,
    num_slots: int,
    first_row: int,
    stop_row: int,
    priority: float,
) -> None:
    """Give rows `first_row` to `stop_row` (exclusive, `num_slots` at most) of every environment one priority, and
    update the nodes above."""
    slot, count = first_row % num_slots, stop_row - first_row
    for b in range(num_envs):
        before_wrap = min(count, num_slots - slot)
        for part in range(2):
            first = b * num_slots + (slot if part == 0 else 0)
            length = before_wrap if part == 0 else count - before_wrap
            if length > 0:
                for leaf in range(first, first + length):
                    sums[leaf] = priority
                refresh(sums, smallest, offsets, first, first + length - 1)


@compiled
def update(
    sums: Array,
    smallest: Array,
    offsets: Array,
    num_envs: int,
    num_slots: int,
    oldest_row: int,
    written: int,
    index: Array,  # (N,): r * B + b
    priority: Array,  # (N,)
    epsilon: float,
    alpha: float,
) -> tuple[int, float]:
    """Set leaves to (priority + epsilon)^alpha, in order; rows older than `oldest_row` are passed over.

    Returns a pair: the position of the first pair with a bad index or priority, in which case nothing was changed, or
    `NO_FAULT`; and the largest leaf that was set, 0.0 where none was.
    """
    count, largest = index.shape[0], 0.0
    for i in range(count):
        if not (0.0 <= priority[i] < 1e38) or index[i] < 0 or index[i] >= written * num_envs:
            return i, 0.0
    leaves = np.empty(count, np.int64)
    kept = 0
    for i in range(count):
        row, b = index[i] // num_envs, index[i] % num_envs
        if row >= oldest_row:
            value = (priority[i] + epsilon) ** alpha
            leaves[kept] = b * num_slots + row % num_slots
            sums[leaves[kept]] = value
            largest = max(largest, value)
            kept += 1
    # Level by level for all leaves: their sums do not wait for each other.
    for level in range(1, offsets.shape[0] - 1):
        for i in range(kept):
            leaves[i] //= FANOUT
            _sum_children(sums, smallest, offsets, level, leaves[i])
    return NO_FAULT, largest


@compiled
def draw(
    sums: Array,
    smallest: Array,
    offsets: Array,
    num_envs: int,
    num_slots: int,
    written: int,
    uniform: Array,  # (N,) in [0, 1)
    beta: float,
    out_index: Array,  # (N,)
    out_weight: Array,  # (N,)
) -> None:
    """Stratified proportional sampling: draw one leaf from each of N equal parts of the total, and write the
    transitions' indices r * B + b to `out_index` (N,), their weights to `out_weight` (N,).

    Weights are (N P(i))^-beta over the largest there could be, that of the smallest priority in the buffer (equation 2
    of section 3.4), in which N and the total cancel.
    """
    count, levels = uniform.shape[0], offsets.shape[0] - 1
    least = smallest[-1] if levels > 1 else sums[0]
    rest = np.empty(count)
    for i in range(count):
        rest[i] = (i + uniform[i]) / count * sums[-1]
        out_index[i] = 0
    for level in range(levels - 1, 0, -1):
        for i in range(count):
            first = offsets[level - 1] + out_index[i] * FANOUT
            stop = min(first + FANOUT, offsets[level])
            chosen, before, passed = first, 0.0, 0.0
            for child in range(first, stop):
                if sums[child] > 0.0:
                    chosen, before = child, passed
                    passed += sums[child]
                    if rest[i] < passed:
                        break
            rest[i] -= before  # where rounding left nothing below, the last child above zero was chosen
            out_index[i] = chosen - offsets[level - 1]
    for i in range(count):
        leaf = out_index[i]
        newest = written - 1
        row = newest - (newest - leaf % num_slots) % num_slots
        out_weight[i] = (least / sums[leaf]) ** beta
        out_index[i] = row * num_envs + leaf // num_slots
