"""Loops over blocks of cells of a grid as machine code.

`counts` (D,) are the cells along each component; blocks are their first and last places, (M, K, D) each.
"""

import numpy as np

from loomrl.system.machine_code import njit

compiled = njit(nogil=True)

_LEAST = 2.0**-1074  # the smallest double above 0: what may happen, however seldom, is not what cannot


@compiled
def _first_cell(counts, first, place):  # type: ignore[no-untyped-def]
    """The number of a block's first cell; `place` (D,) is put there."""
    cell = 0
    for axis in range(len(counts)):
        place[axis] = first[axis]
        cell = cell * counts[axis] + first[axis]
    return cell


@compiled
def _next_cell(counts, first, last, place, cell):  # type: ignore[no-untyped-def]
    """The next cell of a block, whose last component counts fastest; -1 after the last one."""
    stride = 1
    for axis in range(len(counts) - 1, -1, -1):
        if place[axis] < last[axis]:
            place[axis] += 1
            return cell + stride
        cell -= (place[axis] - first[axis]) * stride
        place[axis] = first[axis]
        stride *= counts[axis]
    return -1


@compiled
def mark_blocks(counts, first, last, marked):  # type: ignore[no-untyped-def]
    """Set `marked` (S,) to True for every cell of the blocks from `first` to `last`, places (M, K, D) both.

    `counts` (D,) are the cells of the grid along each component.
    """
    place = np.empty(len(counts), np.int64)
    for move in range(first.shape[0]):
        for outcome in range(first.shape[1]):
            cell = _first_cell(counts, first[move, outcome], place)
            while cell >= 0:
                marked[cell] = True
                cell = _next_cell(counts, first[move, outcome], last[move, outcome], place, cell)


@compiled
def worst_values(counts, cells, shares, first, last, outside, value, after):  # type: ignore[no-untyped-def]
    """Raise `after` (S,) of each move's cell (M,) to what the move is worth at worst, one step before `value` (S,).

    A move has K outcomes of probabilities `shares` (K,). Each leads into the block from `first` to `last`, places
    (M, K, D), or is worth 1 where it reaches beyond the grid, `outside` (M, K).
    """
    place = np.empty(len(counts), np.int64)
    for move in range(len(cells)):
        total = 0.0
        for outcome in range(len(shares)):
            worst = 1.0 if outside[move, outcome] else 0.0
            cell = _first_cell(counts, first[move, outcome], place)
            while cell >= 0 and worst < 1.0:
                worst = max(worst, value[cell])
                cell = _next_cell(counts, first[move, outcome], last[move, outcome], place, cell)
            if worst > 0.0:
                total += max(shares[outcome] * worst, _LEAST)
        after[cells[move]] = max(after[cells[move]], min(total, 1.0))
