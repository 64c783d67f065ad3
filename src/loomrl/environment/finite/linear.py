"""Solutions of x = c + A x with a bound of their error that anyone can check.

A (m, m) holds the probabilities of moving inside a set of states that is left with probability 1. However x was found,
a vector h >= 0 with h - A h >= 1/2 proves |x - x*| <= 2 max|c + A x - x| h: then the inverse of I - A exists and has no
negative entry, so (I - A)^-1 1 <= 2 h. h approximates the expected number of steps inside. Residuals are bounded with
their rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from loomrl.environment.finite.chain_kernels import residuals, sweep
from loomrl.environment.finite.model import Floats, Ints

_SMALL = 3_000  # states up to which a factorisation is no matter
_FACTORISED = 3_000_000  # entries above which none is tried
_SWEEPS = 300
_ITERATIONS = 1_000
_CONVERGED = 1e-15  # relative change of a sweep
_ACCURATE = 1e-9  # a larger error than this asks for a factorisation
_FILL = 40  # times the entries of A that an incomplete factorisation may have
_REFINEMENTS = 8
_ROUNDED = 1.0 + 1e-12  # for the few products behind a bound


@dataclass(frozen=True)
class SparseRows:
    """A, as sparse rows. `longest` is how many numbers were summed at most for a row of A and its entry of c."""

    row_start: Ints  # (m + 1,)
    columns: Ints  # (N,)
    values: Floats  # (N,)
    longest: int

    def __len__(self) -> int:
        return len(self.row_start) - 1


@dataclass(frozen=True)
class Solution:
    """The solution is within `error` of `value`, entry by entry; infinite where nothing could be proved."""

    value: Floats  # (m,)
    error: Floats  # (m,)


def solve(matrix: SparseRows, gain: Floats) -> Solution:
    """Solve x = gain + A x: small systems directly, large ones by iteration, directly where that does not converge.

    Where no method's solution can be proved, the one returned is zeros with infinite errors.
    """
    best = Solution(np.zeros(len(gain)), np.full(len(gain), np.inf))
    for method in _methods(matrix):
        found = _certified(matrix, gain, method)
        if found is None:
            continue
        if np.max(found.error) < np.max(best.error):
            best = found
        if np.all(best.error <= _ACCURATE * max(1.0, float(np.max(np.abs(best.value))))):
            break
    return best


def _methods(matrix: SparseRows) -> Iterator[Callable[[SparseRows, Floats], Floats | None]]:
    """The cheapest first; the last is sure to work for what is small enough for it."""
    if len(matrix) > _SMALL:
        yield _gauss_seidel
        yield _krylov
    if len(matrix.values) <= _FACTORISED:
        yield _factorised


def _certified(
    matrix: SparseRows, gain: Floats, method: Callable[[SparseRows, Floats], Floats | None]
) -> Solution | None:
    """A method's solution with its error; None where the method fails, or what it says about h is not enough."""
    try:
        steps = method(matrix, np.ones(len(matrix)))
        value = None if steps is None else method(matrix, gain)
    except RuntimeError:  # SuperLU: the matrix is singular, as far as doubles can tell
        return None
    if steps is None or value is None:
        return None
    left, rounding = _residual(matrix, np.zeros(len(matrix)), steps)
    if not (np.all(steps >= 0.0) and np.all(-left - rounding >= 0.5)):
        return None
    signed, rounding = _residual(matrix, gain, value)
    return Solution(value, 2.0 * float(np.max(np.abs(signed) + rounding)) * _ROUNDED * steps)


def _gauss_seidel(matrix: SparseRows, gain: Floats) -> Floats | None:
    """Forwards and backwards in turn; None where it has not converged in time."""
    value = np.zeros(len(gain))
    for index in range(_SWEEPS):
        change, largest = sweep(matrix.row_start, matrix.columns, matrix.values, gain, value, index % 2 == 1)
        if change <= _CONVERGED * largest:
            return value
    return None


def _krylov(matrix: SparseRows, gain: Floats) -> Floats:
    """BiCGSTAB (van der Vorst 1992), started again from what it found until that stops to help."""
    from scipy.sparse.linalg import bicgstab

    system = _system(matrix)

    def solve(right: Floats) -> Floats:
        found, _ = bicgstab(system, right, rtol=1e-13, maxiter=_ITERATIONS)
        return np.asarray(found)

    return _refined(matrix, gain, solve)


def _factorised(matrix: SparseRows, gain: Floats) -> Floats:
    """By a factorisation of I - A, incomplete where a complete one needed too much memory; refinement mends that."""
    from scipy.sparse.linalg import spilu, splu

    system, complete = _system(matrix).tocsc(), len(matrix) <= _SMALL
    factors = splu(system) if complete else spilu(system, drop_tol=1e-12, fill_factor=_FILL)
    return _refined(matrix, gain, factors.solve)


def _system(matrix: SparseRows) -> Any:
    """I - A."""
    from scipy.sparse import csr_array, eye_array

    size = len(matrix)
    inside = csr_array((matrix.values, matrix.columns, matrix.row_start), shape=(size, size))
    return (eye_array(size, format="csr") - inside).tocsr()


def _refined(matrix: SparseRows, gain: Floats, solve: Callable[[Floats], Floats]) -> Floats:
    """A solver's solution, and what it says about the remainder added, as long as that becomes smaller."""
    value, least = np.zeros(len(gain)), np.inf
    following, left = value, gain
    for _ in range(_REFINEMENTS):
        following = value + solve(left)
        left, _ = _residual(matrix, gain, following)
        worst = float(np.max(np.abs(left)))
        if not worst < least:
            break
        value, least = following, worst
    return value


def _residual(matrix: SparseRows, gain: Floats, value: Floats) -> tuple[Floats, Floats]:
    """gain + A x - x, and how far each entry may be from its real number."""
    signed, rounding = np.empty(len(value)), np.empty(len(value))
    residuals(matrix.row_start, matrix.columns, matrix.values, gain, value, matrix.longest, signed, rounding)
    return signed, rounding
