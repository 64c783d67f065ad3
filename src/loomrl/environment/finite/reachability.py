"""Probabilities and expectations of paths in a chain, between bounds.

Baier & Katoen, Principles of Model Checking (2008), chapter 10. What graph search decides is decided by it: where a
probability is 0 or 1, or an expectation infinite, the bounds are exactly that.
"""

from dataclasses import dataclass

import numpy as np

from loomrl.environment.finite.chain_kernels import step, transpose, within_steps
from loomrl.environment.finite.kernels import gather_rows, mark_reachable
from loomrl.environment.finite.linear import SparseRows, solve
from loomrl.environment.finite.model import Chain, Floats, Ints, Mask

_ULP = 2.0**-52


@dataclass(frozen=True)
class ProbabilityBounds:
    """For every state a number not above, and one not below, the true probability or expectation: (S,) each."""

    low: Floats
    high: Floats


def until(chain: Chain, through: Mask, target: Mask) -> ProbabilityBounds:
    """P(through U target): bounds on the probability that `target` is reached, and that all states before it are in
    `through`, masks (S,) both. Where nothing could be proved they are 0 and 1."""
    before = transpose(chain.row_start, chain.columns, len(chain.states))
    can = mark_reachable(*before, target, through & ~target)
    surely = ~mark_reachable(*before, ~can, can & ~target)
    value = surely.astype(np.float64)
    inside = np.flatnonzero(can & ~surely)
    if len(inside) == 0:
        return ProbabilityBounds(value, value)
    matrix, gain = _inside(chain, inside, value)
    found = solve(matrix, gain)
    low, high = value.copy(), value.copy()
    low[inside] = np.clip(found.value - found.error, 0.0, 1.0)
    high[inside] = np.clip(found.value + found.error, 0.0, 1.0)
    return ProbabilityBounds(low, high)


def bounded_until(chain: Chain, through: Mask, target: Mask, steps: int) -> ProbabilityBounds:
    """P(through U<=steps target): bounds on the probability that `target` is reached within `steps` steps, and that all
    states before it are in `through`, masks (S,) both."""
    before = transpose(chain.row_start, chain.columns, len(chain.states))
    moving = np.flatnonzero(mark_reachable(*before, target, through & ~target) & ~target)
    start = target.astype(np.float64)
    value = _iterate(chain, start, moving, np.zeros(len(start)), steps)
    slack = steps * (_longest(chain) + 3) * _ULP
    can, must = within_steps(chain.row_start, chain.columns, through, target, steps)
    return _decided(value, slack, can, must)


def next_step(chain: Chain, target: Mask) -> ProbabilityBounds:
    """P(X target): bounds on the probability that the next step leads to `target`."""
    every = np.arange(len(chain.states))
    value = _iterate(chain, target.astype(np.float64), every, np.zeros(len(every)), 1)
    hits, rows = target[chain.columns], chain.row_start[:-1]  # no row is empty
    can, must = np.logical_or.reduceat(hits, rows), np.logical_and.reduceat(hits, rows)
    return _decided(value, (_longest(chain) + 3) * _ULP, can, must)


def reward_until(chain: Chain, reward: Floats, target: Mask) -> ProbabilityBounds:
    """E[what is earned before `target`]: bounds on the expected sum of `reward` (S,) before `target`, a mask (S,).

    Both are infinite where `target` may never be reached; -infinity and infinity where nothing could be proved.
    """
    every = np.ones(len(chain.states), np.bool_)
    before = transpose(chain.row_start, chain.columns, len(chain.states))
    can = mark_reachable(*before, target, every)
    surely = ~mark_reachable(*before, ~can, ~target)
    low = np.where(surely, 0.0, np.inf)
    high = low.copy()
    inside = np.flatnonzero(surely & ~target)
    if len(inside):
        matrix, _ = _inside(chain, inside, np.zeros(len(every)))
        found = solve(matrix, reward[inside])
        low[inside], high[inside] = found.value - found.error, found.value + found.error
    return ProbabilityBounds(low, high)


def _decided(value: Floats, slack: float, can: Mask, must: Mask) -> ProbabilityBounds:
    """Probabilities within a slack, and exactly 0 or 1 where that is known of the graph alone."""
    least, most = float(np.finfo(np.float64).tiny), float(np.nextafter(1.0, 0.0))
    low = np.where(must, 1.0, np.where(can, np.clip(value - slack, 0.0, most), 0.0))
    high = np.where(must, 1.0, np.where(can, np.clip(value + slack, least, 1.0), 0.0))
    return ProbabilityBounds(low, high)


def cumulated_reward(chain: Chain, reward: Floats, steps: int) -> ProbabilityBounds:
    """E[C<=steps]: bounds on the expected sum of a reward over the next `steps` steps."""
    every = np.arange(len(chain.states))
    value = _iterate(chain, np.zeros(len(every)), every, reward, steps)
    largest = float(np.max(np.abs(reward), initial=0.0)) * steps
    slack = steps * (_longest(chain) + 3) * _ULP * largest
    return ProbabilityBounds(value - slack, value + slack)


def _iterate(chain: Chain, start: Floats, moving: Ints, gain: Floats, steps: int) -> Floats:
    """The values after so many steps, or once nothing changes any more."""
    value, after = start.copy(), start.copy()
    for _ in range(steps):
        if not step(chain.row_start, chain.columns, chain.probabilities, value, moving, gain, after):
            break
        value, after = after, value
    return value


def _inside(chain: Chain, inside: Ints, value: Floats) -> tuple[SparseRows, Floats]:
    """Moves inside a set of states, and what moves out of it are worth."""
    number = np.full(len(chain.states), -1, np.int64)
    number[inside] = np.arange(len(inside))
    row_start, entries = gather_rows(chain.row_start, inside)
    columns, shares = chain.columns[entries], chain.probabilities[entries]
    rows = np.repeat(np.arange(len(inside)), np.diff(row_start))
    stays = number[columns] >= 0
    gain = np.bincount(rows, weights=np.where(stays, 0.0, shares * value[columns]), minlength=len(inside))
    counts = np.bincount(rows[stays], minlength=len(inside))
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return SparseRows(start, number[columns[stays]], shares[stays], _longest(chain)), np.asarray(gain, np.float64)


def _longest(chain: Chain) -> int:
    return int(np.max(np.diff(chain.row_start), initial=1))
