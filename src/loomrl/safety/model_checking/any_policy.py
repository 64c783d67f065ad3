"""What P and R come to whichever actions are taken, with memory or by chance: bounds over all policies of a model.

Where it is 0 or 1 for all, or infinite for some, is decided by graph search, the rest by value iteration: Baier and
Katoen, Principles of Model Checking (2008), section 10.6; for rewards Bertsekas and Tsitsiklis, An analysis of
stochastic shortest path problems (1991). The bounds are those of value iteration, `ERROR` wider at both ends.
"""

import numpy as np

from loomrl.environment.finite.chain_kernels import transpose
from loomrl.environment.finite.kernels import mark_reachable
from loomrl.environment.finite.model import FiniteModel, Floats, Ints, Mask
from loomrl.environment.finite.reachability import ProbabilityBounds
from loomrl.system.machine_code import njit

ERROR = 1e-8  # of a probability; of what is earned, times its size
_CONVERGED = 1e-13  # relative change of a sweep
_WORK = 1_000_000_000  # transitions that are looked at, some seconds; where more were needed nothing is said
_SWEEPS = 100_000  # where what is earned without ever arriving grows without end, a small model takes no longer

_TINY = float(np.finfo(np.float64).tiny)

compiled = njit(nogil=True)


@compiled
def _improve(choice_start, row_start, columns, probabilities, gain, value, moving, is_most, forwards, after):  # type: ignore[no-untyped-def]
    """Write the best that gain + P value can be into `after`, in the states `moving`; returns the largest change and
    the largest finite number, both without their signs. With `value` as `after` it is a pass of Gauss and Seidel, the
    last state first unless `forwards`."""
    change, largest = 0.0, 0.0
    for index in range(len(moving)):
        state = moving[index] if forwards else moving[len(moving) - 1 - index]
        best = -np.inf if is_most else np.inf
        for choice in range(choice_start[state], choice_start[state + 1]):
            total = gain[choice]
            for entry in range(row_start[choice], row_start[choice + 1]):
                total += probabilities[entry] * value[columns[entry]]
            best = max(best, total) if is_most else min(best, total)
        if best != value[state]:
            change = max(change, abs(best - value[state]))
        if np.isfinite(best):
            largest = max(largest, abs(best))
        after[state] = best
    return change, largest


@compiled
def _avoiding(choice_start, row_start, columns, through, target):  # type: ignore[no-untyped-def]
    """From which states, (S,), somebody surely misses `target`, or leaves `through` before: masks (S,) both."""
    avoids = ~target
    changed = True
    while changed:
        changed = False
        for state in range(len(avoids) - 1, -1, -1):
            if not avoids[state] or not through[state]:
                continue
            escapes = False
            for choice in range(choice_start[state], choice_start[state + 1]):
                stays = True
                for entry in range(row_start[choice], row_start[choice + 1]):
                    if not avoids[columns[entry]]:
                        stays = False
                        break
                if stays:
                    escapes = True
                    break
            if not escapes:
                avoids[state] = False
                changed = True
    return avoids


def until(model: FiniteModel, through: Mask, target: Mask) -> ProbabilityBounds:
    """P(through U target) under any policy; `through` and `target` are masks (S,)."""
    avoids, mays = _reaching(model, through, target)
    moving = np.flatnonzero(through & ~target)
    least, most = (_solved(model, target.astype(np.float64), moving, None, is_most) for is_most in (False, True))
    size = len(target)
    low = np.zeros(size) if least is None else least
    high = np.ones(size) if most is None else most
    low, high = _probabilities(np.where(avoids, 0.0, np.maximum(low, _TINY)), np.where(mays, high, 0.0))
    return ProbabilityBounds(np.where(_surely(model, avoids, through, target), 1.0, low), high)


def bounded_until(model: FiniteModel, through: Mask, target: Mask, steps: int) -> ProbabilityBounds:
    """P(through U<=steps target) under any policy."""
    moving = np.flatnonzero(through & ~target)
    if _is_much(model, steps):
        return ProbabilityBounds(np.zeros(len(target)), np.ones(len(target)))
    low, high = (_after(model, target.astype(np.float64), moving, None, is_most, steps) for is_most in (False, True))
    return ProbabilityBounds(*_probabilities(low, high))


def next_step(model: FiniteModel, target: Mask) -> ProbabilityBounds:
    """P(X target) under any policy."""
    every = np.arange(len(target))
    low, high = (_after(model, target.astype(np.float64), every, None, is_most, 1) for is_most in (False, True))
    return ProbabilityBounds(*_probabilities(low, high))


def reward_until(model: FiniteModel, reward: Floats, target: Mask) -> ProbabilityBounds:
    """E[what is earned before `target`] under any policy; `reward` is (C,). Infinite for who may miss `target`. Where
    some do, and something can be lost on the way, nothing is said of the least: who waits may lose any amount."""
    every = np.ones(len(target), np.bool_)
    avoids, mays = _reaching(model, every, target)
    arrive = _surely(model, avoids, every, target)
    loses = bool((reward[~np.repeat(target, np.diff(model.choice_start))] < 0.0).any())
    low, high = np.where(mays, -np.inf, np.inf), np.full(len(target), np.inf)
    for end, counted, is_most in ((low, arrive if loses else mays, False), (high, arrive, True)):
        start = np.where(mays, 0.0, np.inf)  # never to arrive is to earn infinitely much
        solved = _solved(model, start, np.flatnonzero(counted & ~target), reward, is_most)
        if solved is not None:
            end[counted] = solved[counted]
    return ProbabilityBounds(low - _error(low), high + _error(high))


def cumulated_reward(model: FiniteModel, reward: Floats, steps: int) -> ProbabilityBounds:
    """E[C<=steps] under any policy; `reward` is (C,)."""
    size = len(model.states)
    if _is_much(model, steps):
        return ProbabilityBounds(np.full(size, -np.inf), np.full(size, np.inf))
    low, high = (_after(model, np.zeros(size), np.arange(size), reward, is_most, steps) for is_most in (False, True))
    return ProbabilityBounds(low - _error(low), high + _error(high))


def _reaching(model: FiniteModel, through: Mask, target: Mask) -> tuple[Mask, Mask]:
    """From which states some policy surely misses `target`, and from which some may reach it."""
    start = model.row_start[model.choice_start]  # whichever choice is made
    mays = mark_reachable(*transpose(start, model.columns, len(target)), target, through & ~target)
    return _avoiding(model.choice_start, model.row_start, model.columns, through, target), mays


def _surely(model: FiniteModel, avoids: Mask, through: Mask, target: Mask) -> Mask:
    """From which states every policy reaches `target`: none comes to where it can be missed."""
    start = model.row_start[model.choice_start]
    misses: Mask = mark_reachable(*transpose(start, model.columns, len(target)), avoids, through & ~target)
    return ~misses


def _solved(model: FiniteModel, start: Floats, moving: Ints, reward: Floats | None, is_most: bool) -> Floats | None:
    """The limit of value iteration from below; None where it does not come to one."""
    gain, value = np.zeros(model.num_choices) if reward is None else reward, start
    for index in range(min(_SWEEPS, _WORK // max(1, len(model.columns)))):
        rows = model.choice_start, model.row_start, model.columns, model.probabilities
        change, largest = _improve(*rows, gain, value, moving, is_most, index % 2 == 0, value)
        if change <= _CONVERGED * largest:
            return value
    return value if not is_most and (reward is None or (reward >= 0.0).all()) else None  # it only grows


def _is_much(model: FiniteModel, steps: int) -> bool:
    return steps * len(model.columns) > _WORK


def _after(model: FiniteModel, start: Floats, moving: Ints, reward: Floats | None, is_most: bool, steps: int) -> Floats:
    """The values after so many steps; what is done may depend on how many are left."""
    gain, value, after = np.zeros(model.num_choices) if reward is None else reward, start.copy(), start.copy()
    for _ in range(steps):
        rows = model.choice_start, model.row_start, model.columns, model.probabilities
        change, _ = _improve(*rows, gain, value, moving, is_most, True, after)
        if change == 0.0:
            break
        value, after = after, value
    return value


def _probabilities(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Wider by the error, but where they are 0, or the least 1."""
    wider = np.clip(low - ERROR, _TINY, 1.0)
    low = np.where(low >= 1.0, 1.0, np.where(low > 0.0, wider, 0.0))
    return low, np.where(high > 0.0, np.minimum(high + ERROR, 1.0), 0.0)


def _error(value: Floats) -> Floats:
    return np.where(np.isfinite(value), ERROR * np.maximum(1.0, np.abs(value)), 0.0)
