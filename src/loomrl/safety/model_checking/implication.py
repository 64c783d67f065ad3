"""Which property of a model follows from which, whatever the policy: by rules that need no chain, and miss some.

Formulas are compared part by part. Of two upper limits the lower one is the stricter, of two lower ones the higher. A
path is likelier the more states it may pass through, the more it may reach, and the more steps it may take; what is
earned until then, where no step takes some of it away, is the more the less ends it. Not seen is what follows from
several parts together: P<=0.1 [ F a ] and P<=0.1 [ F b ] give P<=0.2 [ F a|b ].
"""

import math
from dataclasses import dataclass

import numpy as np

from loomrl.environment.finite.model import FiniteModel, Mask
from loomrl.environment.finite.prism.expressions import evaluate
from loomrl.environment.finite.prism.syntax import Expression
from loomrl.safety.model_checking.forms import as_until
from loomrl.safety.model_checking.pctl import asks, limit_of, num_steps, reward_of


@dataclass(frozen=True, eq=False)
class _Where:
    """In which of the states that it is about a condition without P and R is so."""

    mask: Mask


@dataclass(frozen=True, eq=False)
class _Joined:
    """Formulas of which all hold, or any."""

    parts: "tuple[_Formula, ...]"
    is_all: bool


@dataclass(frozen=True, eq=False)
class _Limited:
    """A path's probability, or what is earned on it, is at most `limit`, or at least."""

    path: "_Path"
    is_upper: bool
    limit: float


_Formula = _Where | _Joined | _Limited


@dataclass(frozen=True, eq=False)
class _Path:
    """X, U, and of a reward F and C, by the grammar's names: a U passes through `through` or its `goal`. `reward` is
    the name of what is earned, and `grows` says that no step takes some of it away."""

    op: str
    goal: _Formula | None = None
    through: _Formula | None = None
    steps: float = math.inf
    reward: str | None = None
    grows: bool = False


class Requirement:
    """A property of a model's initial states, in a form that can be compared.

    Raises:
        ConfigError: for a name, label or reward that does not exist, or a part of PCTL that has no meaning here.
    """

    def __init__(self, model: FiniteModel, prop: Expression) -> None:
        initial = model.states.initial > 0.0
        self._formula = _Reader(model).formula(prop, initial)
        # One limit alone is on the expectation over the initial states; one among others holds in each of them.
        self._is_expected = prop.op in ("probability", "reward_value") and int(initial.sum()) > 1

    def implies(self, other: "Requirement") -> bool:
        """Whether the other one surely holds where this one does."""
        return (other._is_expected or not self._is_expected) and _implies(self._formula, other._formula)


class _Reader:
    """Of formulas about one model."""

    def __init__(self, model: FiniteModel) -> None:
        self.model, self.states = model, model.states
        self.everywhere = np.ones(len(model.states), np.bool_)

    def formula(self, formula: Expression, at: Mask, is_denied: bool = False) -> _Formula:
        """A formula, or that it does not hold, about the states of `at`."""
        op, args = formula.op, formula.args
        if not asks(formula):
            mask = np.asarray(evaluate(formula, self.states.scope(), self.states.labels), np.bool_)
            return _Where(np.broadcast_to(mask, at.shape)[at] ^ is_denied)
        if op == "not_":
            return self.formula(args[0], at, not is_denied)
        if op in ("probability", "reward_value"):
            return self._limited(formula, is_denied)
        if op == "iff":
            ways = (Expression("implies", pair) for pair in (args, args[::-1]))
            return self.formula(Expression("and_", tuple(ways)), at, is_denied)
        first = self.formula(args[0], at, is_denied ^ (op == "implies"))
        return _Joined((first, self.formula(args[1], at, is_denied)), (op == "and_") ^ is_denied)

    def _limited(self, formula: Expression, is_denied: bool) -> _Limited:
        relation, limit = limit_of(formula, self.states.constants)
        is_upper = relation.startswith("<") ^ is_denied
        if (relation in ("<", ">")) ^ is_denied:  # the next number beyond
            limit = float(np.nextafter(limit, -np.inf if is_upper else np.inf))
        if formula.op == "reward_value":
            return _Limited(self._earned(formula), is_upper, limit)
        path, is_missed = as_until(formula.args[-1])
        return _Limited(self._path(path), is_upper ^ is_missed, 1.0 - limit if is_missed else limit)

    def _path(self, path: Expression) -> _Path:
        if path.op == "next":
            return _Path(path.op, self.formula(path.args[0], self.everywhere))
        through, steps, goal = path.args
        count = math.inf
        if steps is not None:
            relation, term = steps.args
            count = num_steps(relation, term, self.states.constants)
        either = self.formula(Expression("or_", (through, goal)), self.everywhere)
        return _Path(path.op, self.formula(goal, self.everywhere), either, count)

    def _earned(self, formula: Expression) -> _Path:
        name, reward = reward_of(formula, self.model.rewards)
        path, grows = formula.args[-1], bool((reward >= 0.0).all())
        if path.op == "cumulated":
            count = num_steps("<=", path.args[0], self.states.constants)
            return _Path(path.op, steps=count, reward=name, grows=grows)
        return _Path(path.op, self.formula(path.args[0], self.everywhere), reward=name, grows=grows)


def _implies(one: _Formula | None, other: _Formula | None) -> bool:
    if isinstance(other, _Joined) and other.is_all:
        return all(_implies(one, part) for part in other.parts)
    if isinstance(one, _Joined) and not one.is_all:
        return all(_implies(part, other) for part in one.parts)
    if isinstance(one, _Joined) and any(_implies(part, other) for part in one.parts):
        return True
    if isinstance(other, _Joined):
        return any(_implies(one, part) for part in other.parts)
    if isinstance(one, _Where) and not one.mask.any():
        return True
    if isinstance(other, _Where):
        return bool(other.mask.all()) or (isinstance(one, _Where) and not (one.mask & ~other.mask).any())
    if not (isinstance(one, _Limited) and isinstance(other, _Limited) and one.is_upper is other.is_upper):
        return False
    if one.is_upper:
        return one.limit <= other.limit and _is_as_much(one.path, other.path)
    return one.limit >= other.limit and _is_as_much(other.path, one.path)


def _is_as_much(one: _Path, other: _Path) -> bool:
    """Whether a path surely is as likely as another one, or as much is earned on it."""
    if (one.op, other.op) == ("until", "next"):  # it may be reached at once, too
        passes = isinstance(one.through, _Where) and bool(one.through.mask.all())
        return passes and one.steps >= 1 and _implies(other.goal, one.goal)
    if (one.op, one.reward) != (other.op, other.reward):
        return False
    if one.op == "next":
        return _implies(other.goal, one.goal)
    if one.op == "until":
        wider = _implies(other.goal, one.goal) and _implies(other.through, one.through)
        return wider and one.steps >= other.steps
    if one.op == "cumulated":
        return one.steps >= other.steps if one.grows else one.steps == other.steps
    return _implies(one.goal, other.goal) and (one.grows or _implies(other.goal, one.goal))
