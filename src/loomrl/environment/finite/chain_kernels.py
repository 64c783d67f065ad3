"""Loops over the sparse rows of a chain as machine code: `row_start` (S + 1,), `columns` (N,)."""

import numpy as np

from loomrl.system.machine_code import njit

compiled = njit(nogil=True)


@compiled
def transpose(row_start, columns, num_columns):  # type: ignore[no-untyped-def]
    """The rows that lead to each column, as sparse rows: where each column's begin, (num_columns + 1,), and which they
    are, (N,).

    `row_start` (R + 1,) and `columns` (N,) are the sparse rows of the matrix.
    """
    start = np.zeros(num_columns + 1, np.int64)
    for column in columns:
        start[column + 1] += 1
    for index in range(num_columns):
        start[index + 1] += start[index]
    place = start[:-1].copy()
    rows = np.empty(len(columns), np.int64)
    for row in range(len(row_start) - 1):
        for entry in range(row_start[row], row_start[row + 1]):
            rows[place[columns[entry]]] = row
            place[columns[entry]] += 1
    return start, rows


@compiled
def within_steps(row_start, columns, through, target, steps):  # type: ignore[no-untyped-def]
    """From which states `target` may be, and from which it must be, reached in so many steps by a path in `through`.

    Returns two masks (S,). `through` and `target` are masks (S,), too.
    """
    can, must = target.copy(), target.copy()
    for _ in range(steps):
        before_can, before_must = can.copy(), must.copy()
        changed = False
        for row in range(len(target)):
            if target[row] or not through[row]:
                continue
            any_can, all_must = False, True
            for entry in range(row_start[row], row_start[row + 1]):
                any_can |= before_can[columns[entry]]
                all_must &= before_must[columns[entry]]
            changed |= any_can != before_can[row] or all_must != before_must[row]
            can[row], must[row] = any_can, all_must
        if not changed:
            break
    return can, must


@compiled
def step(row_start, columns, probabilities, value, moving, gain, after):  # type: ignore[no-untyped-def]
    """One step backwards in time: writes gain + P value into `after` in the rows `moving`; whether anything changed.

    `value`, `gain` and `after` are (S,); `moving` are numbers of rows.
    """
    changed = False
    for row in moving:
        total = gain[row]
        for entry in range(row_start[row], row_start[row + 1]):
            total += probabilities[entry] * value[columns[entry]]
        changed |= total != value[row]
        after[row] = total
    return changed


@compiled
def sweep(row_start, columns, values, gain, solution, forwards):  # type: ignore[no-untyped-def]
    """One Gauss-Seidel pass over x = gain + A x, in place in `solution` (S,); the last row first unless `forwards`.

    Returns the largest change and the largest value, both without their signs.
    """
    change, largest = 0.0, 0.0
    size = len(solution)
    for index in range(size):
        row = index if forwards else size - 1 - index
        total, diagonal = gain[row], 1.0
        for entry in range(row_start[row], row_start[row + 1]):
            if columns[entry] == row:
                diagonal -= values[entry]
            else:
                total += values[entry] * solution[columns[entry]]
        total /= diagonal
        change = max(change, abs(total - solution[row]))
        largest = max(largest, abs(total))
        solution[row] = total
    return change, largest


@compiled
def residuals(row_start, columns, values, gain, solution, longest, signed, rounding):  # type: ignore[no-untyped-def]
    """Write gain + A x - x into `signed` (S,), where x is `solution`, and into `rounding` (S,) how far float64 may be
    from the real number, where no sum has more than `longest` terms.

    Higham, Accuracy and Stability of Numerical Algorithms (2002), section 3.1.
    """
    for row in range(len(solution)):
        total, size = gain[row] - solution[row], abs(gain[row]) + abs(solution[row])
        for entry in range(row_start[row], row_start[row + 1]):
            product = values[entry] * solution[columns[entry]]
            total += product
            size += abs(product)
        signed[row] = total
        rounding[row] = (longest + 4) * 2.0**-52 * size


@compiled
def losing(choice_start, row_start, columns, unsafe):  # type: ignore[no-untyped-def]
    """Which states, (S,), cannot keep `unsafe` (S,) out of reach for ever: every choice there may lead to such a state.

    The choices of state s are `choice_start[s]` to `choice_start[s + 1]`, the transitions of choice c `row_start[c]` to
    `row_start[c + 1]`; `columns` are the states they lead to.
    """
    lost = unsafe.copy()
    changed = True
    while changed:
        changed = False
        for state in range(len(lost) - 1, -1, -1):
            if lost[state]:
                continue
            escape = False
            for choice in range(choice_start[state], choice_start[state + 1]):
                safe = True
                for entry in range(row_start[choice], row_start[choice + 1]):
                    if lost[columns[entry]]:
                        safe = False
                        break
                if safe:
                    escape = True
                    break
            if not escape:
                lost[state] = True
                changed = True
    return lost
