"""Actions that are there to break a property: those that make the paths it names the likeliest, or the least likely,
or earn the most on them, or the least."""

from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

import numpy as np

from loomrl.environment.finite.model import FiniteModel, Floats, Ints, Mask
from loomrl.environment.finite.prism.syntax import Expression
from loomrl.environment.finite.reachability import reward_until
from loomrl.safety.model_checking.forms import as_until
from loomrl.safety.model_checking.pctl import asks, num_steps, reward_of, where

_SWEEPS = 1_000
_CHANGED = 1e-12
_MOST_PAIRS = 200  # of things to be done one after the other; of more, some in even distances
_ROUNDS = 100  # of policy iteration, which rounding might keep from ending


class _Aim(NamedTuple):
    """What is passed through, what is reached, and in how many steps at most; `reward` (C,) is what each choice earns
    until then, None where only the probability of reaching it is asked for. `is_next` asks for the next state alone,
    wherever one is."""

    through: Mask
    target: Mask
    num_steps: int = _SWEEPS
    reward: Floats | None = None
    is_next: bool = False

    @property
    def goes_on(self) -> Mask:
        """The states in which it matters what is done."""
        return np.ones_like(self.target) if self.is_next else self.through & ~self.target


def spoilers(model: FiniteModel, formula: Expression) -> Iterator[Ints]:
    """For each P and R in a formula an action in each state, (S,), for the most that it can be, and for the least; of
    several also those that do the one first, and another one where that is done. Of a P or R about another one, there
    are none.

    They are the same at every step, also where a number of steps is given.

    Raises:
        ConfigError: for a name, label or reward that does not exist, or one in another's place.
    """
    aims = [_aim(model, part) for part in _plain_parts(formula)]
    extremes = [(aim, _extreme(model, aim, is_most)) for aim in aims for is_most in (True, False)]
    extremes += [(aim, _least_earned(model, aim)) for aim in aims if aim.reward is not None and aim.target.any()]
    for _, actions in extremes:
        yield actions
    pairs = [(one, other) for one, other in permutations(extremes, 2) if one[0] is not other[0]]
    for (aim, first), (_, then) in pairs[:: 1 + len(pairs) // _MOST_PAIRS]:
        yield np.where(_on_the_way(model, aim, first), first, then)


def _on_the_way(model: FiniteModel, aim: _Aim, actions: Ints) -> Mask:
    """The states, (S,), that are met before what is aimed at, while there are steps left to reach it."""
    chain, goes_on = model.chain(model.choice_start[:-1] + actions), aim.goes_on
    rows = np.repeat(np.arange(len(goes_on)), np.diff(chain.row_start))
    met = frontier = (model.states.initial > 0.0) & goes_on
    for _ in range(aim.num_steps - 1):
        following = np.zeros_like(met)
        following[chain.columns[frontier[rows]]] = True
        frontier = following & goes_on & ~met
        if not frontier.any():
            break
        met = met | frontier
    return met


def _plain_parts(formula: Expression) -> Iterator[Expression]:
    """Each P and R whose conditions are on states alone."""
    for part in formula.args:
        if isinstance(part, Expression):
            yield from _plain_parts(part)
    if formula.op in ("probability", "reward_value") and not asks(formula.args[-1]):
        yield formula


def _aim(model: FiniteModel, part: Expression) -> _Aim:
    states = model.states
    everywhere, nowhere = np.ones(len(states), np.bool_), np.zeros(len(states), np.bool_)

    def number(relation: str, term: Expression) -> int:
        return min(_SWEEPS, num_steps(relation, term, states.constants))

    path = part.args[-1]
    if part.op == "reward_value":
        _, reward = reward_of(part, model.rewards)
        if path.op == "cumulated":
            return _Aim(everywhere, nowhere, number("<=", path.args[0]), reward)
        return _Aim(everywhere, where(path.args[0], states), reward=reward)
    path, _ = as_until(path)
    if path.op == "next":
        return _Aim(everywhere, where(path.args[0], states), 1, is_next=True)
    through, steps, target = path.args
    if steps is None:
        return _Aim(where(through, states), where(target, states))
    return _Aim(where(through, states), where(target, states), number(*steps.args))


def _extreme(model: FiniteModel, aim: _Aim, is_most: bool) -> Ints:
    """Value iteration (Baier & Katoen, section 10.6.1). Of actions that are alike, the way to the most takes the one
    that was so first: another one may go in circles."""
    size, reward = len(aim.target), aim.reward
    value = np.zeros(size) if reward is not None else aim.target.astype(np.float64)
    chosen = np.zeros(size, np.int64)
    for _ in range(aim.num_steps):
        after = np.add.reduceat(model.probabilities * value[model.columns], model.row_start[:-1])
        after = (after if reward is None else after + reward).reshape(size, -1)
        if aim.is_next:
            chosen = after.argmax(axis=1) if is_most else after.argmin(axis=1)
            break
        best = after.max(axis=1) if is_most else after.min(axis=1)
        changed = aim.goes_on & (np.abs(best - value) > _CHANGED)
        chosen = np.where(changed, after.argmax(axis=1), chosen) if is_most else after.argmin(axis=1)
        if not changed.any():
            break
        value = np.where(changed, best, value)
    return chosen


def _least_earned(model: FiniteModel, aim: _Aim) -> Ints:
    """The least that is earned by who surely arrives: policy iteration from the likeliest way there (Bertsekas and
    Tsitsiklis, An analysis of stochastic shortest path problems, 1991). To earn nothing for ever is no way to it."""
    assert aim.reward is not None, "of what is earned"
    chosen = _extreme(model, aim._replace(reward=None), is_most=True)
    for _ in range(_ROUNDS):
        choices = model.choice_start[:-1] + chosen
        value = reward_until(model.chain(choices), aim.reward[choices], aim.target).high
        after = aim.reward + np.add.reduceat(model.probabilities * value[model.columns], model.row_start[:-1])
        after = after.reshape(len(value), -1)
        slack = np.where(np.isfinite(value), _CHANGED * np.abs(value), 0.0)
        better = ~aim.target & (after.min(axis=1) < value - slack)
        if not better.any():
            break
        chosen = np.where(better, after.argmin(axis=1), chosen)
    return chosen
