"""The most that a policy can come to, and numbers that are proved not to be below it, rounding included.

Each step of value iteration is rounded up. What is no less than its own next step is an upper bound: Park induction, as
in Hartmanns and Kaminski, Optimistic value iteration (2020). The first such bound is the value that was found, and its
largest residual times a bound on the expected number of steps; further steps bring it down as in Baier, Klein,
Leuschner, Parker and Wunderlich, Ensuring the reliability of your model checker: interval iteration for Markov decision
processes (2017). The least is minus the most of what is negated.
"""

from dataclasses import dataclass, replace

import numpy as np

from loomrl.environment.finite.kernels import gather_rows
from loomrl.environment.finite.model import FiniteModel, Floats, Ints, Mask
from loomrl.system.machine_code import njit

WORK = 1_000_000_000  # transitions that are looked at, some seconds

compiled = njit(nogil=True)


@compiled
def _best(choice_start, row_start, columns, probabilities, gain, value, state, rounded_up):  # type: ignore[no-untyped-def]
    """The most that gain + P value can be in a state. Rounded up it is by no less than all roundings can have lost:
    Higham, Accuracy and Stability of Numerical Algorithms (2002), section 3.1; 5e-324 where numbers vanish."""
    best = -np.inf
    for choice in range(choice_start[state], choice_start[state + 1]):
        total, size, roundings = gain[choice], abs(gain[choice]), 0
        for entry in range(row_start[choice], row_start[choice + 1]):
            if value[columns[entry]] != 0.0:
                term = probabilities[entry] * value[columns[entry]]
                before = total
                total += term
                size += abs(term)
                roundings += probabilities[entry] != 1.0
                roundings += total - before != term or total - term != before
        if roundings > 0 and rounded_up:
            total += (roundings + 2) * (2.0**-53 * size + 5e-324)
        best = max(best, total if size < np.inf else np.inf)
    return best


@compiled
def _step_by_step(choice_start, row_start, columns, probabilities, gain, value, steps):  # type: ignore[no-untyped-def]
    """The value after so many steps backwards in time, rounded up, or once nothing changes any more."""
    value, after = value.copy(), value.copy()
    for _ in range(steps):
        changed = False
        for state in range(len(choice_start) - 1):
            after[state] = _best(choice_start, row_start, columns, probabilities, gain, value, state, True)
            changed |= after[state] != value[state]
        if not changed:
            break
        value, after = after, value
    return value


@compiled
def _sweep(choice_start, row_start, columns, probabilities, gain, value, is_bound, slack, sweeps):  # type: ignore[no-untyped-def]
    """Passes of Gauss and Seidel in place, there and back, until no change is above `slack` and above the last bit: of
    the value, or of the largest one. Where `value` `is_bound`, an upper one, it stays one and only falls. Returns how
    many passes there were."""
    largest = 0.0
    for sweep in range(sweeps):
        changed, scale, largest = False, largest, 0.0
        for index in range(len(choice_start) - 1):
            state = index if sweep % 2 else len(choice_start) - 2 - index
            best = _best(choice_start, row_start, columns, probabilities, gain, value, state, is_bound)
            if is_bound:
                best = min(best, value[state])
            change = abs(best - value[state])
            changed |= change > slack and change > 2.0**-52 * (abs(best) if is_bound else scale)
            largest = max(largest, abs(best))
            value[state] = best
        if not changed:
            return sweep + 1
    return sweeps


@compiled
def _excess(choice_start, row_start, columns, probabilities, gain, value):  # type: ignore[no-untyped-def]
    """By how much the next step may be above `value` at most, rounded up; infinite where that is unknown."""
    most = 0.0
    for state in range(len(choice_start) - 1):
        best = _best(choice_start, row_start, columns, probabilities, gain, value, state, True)
        excess = np.nextafter(best - value[state], np.inf) if best > value[state] else 0.0
        if not np.isfinite(best) or not np.isfinite(value[state]):
            return np.inf
        most = max(most, excess)
    return most


@dataclass(frozen=True)
class Decisions:
    """Choices in K states, and the value of what follows them elsewhere: state K is worth nothing, K + 1 `end`.

    Values are (K + 2,), those of K and K + 1 among them; infinite where nothing was proved.
    """

    choice_start: Ints  # (K + 1,)
    row_start: Ints  # (C + 1,)
    columns: Ints  # (N,), up to K + 1
    probabilities: Floats  # (N,)
    gain: Floats  # (C,): what a choice earns
    end: float = 0.0

    @classmethod
    def of(
        cls, model: FiniteModel, number: Ints, num_states: int, kept: Mask, gain: Floats, end: float = 0.0
    ) -> "Decisions":
        """The choices `kept`, (C,), of a model in which state s is `number[s]`, (S,); several may be one."""
        owner = np.repeat(number, np.diff(model.choice_start))
        chosen = np.flatnonzero(kept & (owner < num_states))
        chosen = chosen[np.argsort(owner[chosen], kind="stable")]
        choice_start = np.searchsorted(owner[chosen], np.arange(num_states + 1))
        row_start, entries = gather_rows(model.row_start, chosen)
        columns, probabilities = number[model.columns[entries]], model.probabilities[entries]
        return cls(choice_start, row_start, columns, probabilities, gain[chosen], end)

    def most_after(self, start: Floats, steps: int) -> Floats:
        """No less than what any policy comes to in so many steps, with `start`, (K,), after them."""
        if steps * self._size > WORK:
            return self._values(np.full(len(start), np.inf))
        after: Floats = _step_by_step(*self._arrays, self._values(start), steps)
        return after

    def most_from(self, bound: Floats, sweeps: int | None = None) -> Floats:
        """No less than what any policy comes to. Nor is `bound`, (K,), which is brought down."""
        value = self._values(bound)
        _sweep(*self._arrays, value, True, 0.0, self._sweeps if sweeps is None else sweeps)
        return value

    def most(self) -> Floats:
        """No less than what any policy comes to, where none stays in these states for ever."""
        value, steps = self._values(np.zeros(len(self.choice_start) - 1)), self._expected_steps()
        unknown = self._values(np.full(len(self.choice_start) - 1, np.inf))
        if steps is None:
            return unknown
        sweeps = _sweep(*self._arrays, value, False, 0.0, self._sweeps)
        excess = _excess(*self._arrays, value)
        if not np.isfinite(excess):
            return unknown
        bound = value[:-2]
        if excess > 0.0:
            bound = np.nextafter(bound + np.nextafter(excess * steps, np.inf), np.inf)
        return self.most_from(bound, sweeps)

    def _expected_steps(self) -> Floats | None:
        """w (K,) with w - P w >= 1 whatever is chosen, so no less than the expected number of steps in these states;
        None where none was found."""
        each = replace(self, gain=np.ones(len(self.gain)), end=0.0)
        value = each._values(np.zeros(len(self.choice_start) - 1))
        _sweep(*each._arrays, value, False, 0.25, self._sweeps)
        half = replace(each, gain=np.full(len(self.gain), 0.5))
        return 2.0 * value[:-2] if _excess(*half._arrays, value) == 0.0 else None

    @property
    def _size(self) -> int:
        return len(self.columns) + len(self.gain)

    @property
    def _sweeps(self) -> int:
        return WORK // 8 // max(1, self._size)  # the least takes as many, the most three times as many

    @property
    def _arrays(self) -> tuple[Ints, Ints, Ints, Floats, Floats]:
        return self.choice_start, self.row_start, self.columns, self.probabilities, self.gain

    def _values(self, inside: Floats) -> Floats:
        return np.concatenate([inside, [0.0, self.end]])
