"""What the transitions of a model decide without their probabilities: what some policy, or every one, reaches.

Baier and Katoen, Principles of Model Checking (2008), section 10.6; end components: algorithm 47 there, and de Alfaro,
Formal verification of probabilistic systems (1997).
"""

from functools import cached_property

import numpy as np

from loomrl.environment.finite.chain_kernels import transpose
from loomrl.environment.finite.model import FiniteModel, Ints, Mask
from loomrl.system.machine_code import njit

_NEVER = 2**62  # more transitions than there are
_WORK = 50_000_000  # transitions that are looked at in rounds, some seconds: each takes longer than in value iteration

compiled = njit(nogil=True)


@compiled
def _attractor(owner, start, before, of_choice, of_state, through, target, steps):  # type: ignore[no-untyped-def]
    """Which states, (S,), are in `target`, or come to it in so many steps in `through`: a choice does once `of_choice`
    (C,) of its transitions lead to such states, a state once `of_state` (S,) of its choices do.

    `owner` (C,) is the state of a choice; `start` and `before` are the choices that lead to each state, as sparse rows.
    """
    of_choice, of_state, seen = of_choice.copy(), of_state.copy(), target.copy()
    waiting = np.empty(len(seen), np.int64)
    done, count = 0, 0
    for state in range(len(seen)):
        if seen[state]:
            waiting[count] = state
            count += 1
    for _ in range(steps):
        if done == count:
            break
        for index in range(done, count):
            for entry in range(start[waiting[index]], start[waiting[index] + 1]):
                choice = before[entry]
                state = owner[choice]
                of_choice[choice] -= 1
                if of_choice[choice] == 0 and through[state] and not seen[state]:
                    of_state[state] -= 1
                    if of_state[state] == 0:
                        seen[state] = True
                        waiting[count] = state
                        count += 1
            done += 1
    return seen


class Graph:
    """The states, choices and transitions of a model."""

    def __init__(self, model: FiniteModel) -> None:
        self.model, self.num_states = model, len(model.states)
        self.num_choices = np.diff(model.choice_start)  # (S,)
        self.owner: Ints = np.repeat(np.arange(self.num_states), self.num_choices)  # (C,): whose a choice is

    @cached_property
    def _before(self) -> tuple[Ints, Ints]:
        start, choices = transpose(self.model.row_start, self.model.columns, self.num_states)
        return start, choices

    def some_reach(self, through: Mask, target: Mask, steps: int | None = None, allowed: Mask | None = None) -> Mask:
        """From which states, (S,), some policy may reach `target`; all that is done is `allowed` (C,)."""
        of_choice = np.ones(len(self.owner), np.int64)
        if allowed is not None:
            of_choice[~allowed] = _NEVER
        return self._attractor(of_choice, np.ones(self.num_states, np.int64), through, target, steps)

    def all_may_reach(self, through: Mask, target: Mask, steps: int | None = None, allowed: Mask | None = None) -> Mask:
        """From which states, (S,), no policy surely misses `target`: every choice may lead nearer to it."""
        of_choice, of_state = np.ones(len(self.owner), np.int64), self.num_choices
        if allowed is not None:
            of_choice[~allowed] = _NEVER
            of_state = np.bincount(self.owner[allowed], minlength=self.num_states)
        return self._attractor(of_choice, of_state, through, target, steps)

    def all_reach_within(self, through: Mask, target: Mask, steps: int) -> Mask:
        """From which states, (S,), every path reaches `target` in so many steps."""
        return self._attractor(np.diff(self.model.row_start), self.num_choices, through, target, steps)

    def all_reach(self, through: Mask, target: Mask) -> Mask:
        """From which states, (S,), every policy reaches `target` with probability 1: none comes to where it can be
        missed."""
        missed = ~self.all_may_reach(through, target)
        return ~self.some_reach(through & ~target, missed)

    def some_surely_reach(self, target: Mask) -> Mask:
        """From which states, (S,), some policy reaches `target` with probability 1, or more where that takes long."""
        every = np.ones(self.num_states, np.bool_)
        missing = ~self.some_reach(every, target)
        for _ in range(self._rounds()):
            missing = self.all_may_reach(~target, missing)
            lost = ~self.some_reach(~missing, target, allowed=self.lead_into(~missing))
            if np.array_equal(lost, missing):
                break
            missing = lost
        return ~missing

    def lead_into(self, states: Mask) -> Mask:
        """Which choices, (C,), surely lead into `states` (S,)."""
        into: Mask = np.logical_and.reduceat(states[self.model.columns], self.model.row_start[:-1])
        return into

    def every_choice(self, choices: Mask) -> Mask:
        """In which states, (S,), every choice is one of `choices`, (C,)."""
        every: Mask = np.bincount(self.owner[choices], minlength=self.num_states) == self.num_choices
        return every

    def end_components(self, allowed: Mask) -> tuple[Ints, Mask] | None:
        """The maximal end components that the choices `allowed`, (C,), make: a number for each state, (S,), the same
        for states of one, and the choices that stay inside, (C,). None where that takes too long."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        model, every = self.model, np.ones(self.num_states, np.bool_)
        length = np.diff(model.row_start)
        for _ in range(self._rounds()):
            ends = np.bincount(self.owner[allowed], minlength=self.num_states) == 0
            inside = ~self.all_may_reach(every, ends, allowed=allowed)
            allowed = allowed & self.lead_into(inside) & inside[self.owner]
            used = np.repeat(allowed, length)
            edges = np.repeat(self.owner, length)[used], model.columns[used]
            shape = (self.num_states, self.num_states)
            _, number = connected_components(csr_array((np.ones(len(edges[0])), edges), shape), connection="strong")
            leaves = number[np.repeat(self.owner, length)] != number[model.columns]
            stays = allowed & ~np.logical_or.reduceat(leaves, model.row_start[:-1])
            if np.array_equal(stays, allowed):
                return number.astype(np.int64), allowed
            allowed = stays
        return None

    def _rounds(self) -> int:
        return 2 + _WORK // len(self.model.columns)

    def _attractor(self, of_choice: Ints, of_state: Ints, through: Mask, target: Mask, steps: int | None) -> Mask:
        most = self.num_states if steps is None else min(steps, self.num_states)
        seen: Mask = _attractor(self.owner, *self._before, of_choice, of_state, through, target, most)
        return seen
