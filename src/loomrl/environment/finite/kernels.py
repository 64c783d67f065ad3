"""Loops over finite models as machine code.

`row_start` (R + 1,) and `columns` (N,) are the sparse rows of a model or chain.
"""

import numpy as np

from loomrl.system.machine_code import njit

compiled = njit(nogil=True)


@compiled
def gather_rows(row_start, rows):  # type: ignore[no-untyped-def]
    """Some rows of a sparse matrix: where each of them starts, (len(rows) + 1,), and the numbers of their entries."""
    start = np.zeros(len(rows) + 1, np.int64)
    for index in range(len(rows)):
        start[index + 1] = start[index] + row_start[rows[index] + 1] - row_start[rows[index]]
    entries = np.empty(start[-1], np.int64)
    for index in range(len(rows)):
        for offset in range(start[index + 1] - start[index]):
            entries[start[index] + offset] = row_start[rows[index]] + offset
    return start, entries


@compiled
def mark_reachable(start, columns, sources, through):  # type: ignore[no-untyped-def]
    """Which states, (S,), are in `sources`, (S,), or reached from there by a path in `through`, (S,).

    Of transposed rows: which reach `sources` so. `start` (S + 1,) and `columns` (N,) are the sparse rows.
    """
    seen = sources.copy()
    waiting = np.empty(len(seen), np.int64)
    count = 0
    for state in range(len(seen)):
        if seen[state]:
            waiting[count] = state
            count += 1
    done = 0
    while done < count:
        state = waiting[done]
        done += 1
        for entry in range(start[state], start[state + 1]):
            following = columns[entry]
            if through[following] and not seen[following]:
                seen[following] = True
                waiting[count] = following
                count += 1
    return seen


@compiled
def _hashed(words):  # type: ignore[no-untyped-def]
    """A hash of a row of words, (W,)."""
    hashed = np.uint64(0x9E3779B97F4A7C15)
    for word in words:
        hashed = (hashed ^ word) * np.uint64(0xFF51AFD7ED558CCD)
        hashed ^= hashed >> np.uint64(32)
    return hashed


@compiled
def intern(words, known, num_known, table, numbers):  # type: ignore[no-untyped-def]
    """Number the rows of `words` (n, W): rows seen before keep their number, new ones are added to `known` (K, W).

    `table` is an open hash table of numbers, its size a power of 2 and at least twice what it will hold; -1 is free.
    `numbers` (n,) gets the number of each row. Returns how many are known then; `known` must have room for them.
    """
    mask = len(table) - 1
    width = words.shape[1]
    for index in range(len(words)):
        slot = np.int64(_hashed(words[index]) & np.uint64(mask))
        while True:
            number = table[slot]
            if number < 0:
                for part in range(width):
                    known[num_known, part] = words[index, part]
                table[slot] = num_known
                numbers[index] = num_known
                num_known += 1
                break
            equal = True
            for part in range(width):
                if known[number, part] != words[index, part]:
                    equal = False
                    break
            if equal:
                numbers[index] = number
                break
            slot = (slot + 1) & mask
    return num_known


@compiled
def rehash(known, num_known, table):  # type: ignore[no-untyped-def]
    """Fill a larger hash table, which is -1 everywhere, with the numbers of the first `num_known` rows of `known`."""
    mask = len(table) - 1
    for number in range(num_known):
        slot = np.int64(_hashed(known[number]) & np.uint64(mask))
        while table[slot] >= 0:
            slot = (slot + 1) & mask
        table[slot] = number
