"""Which property of a model follows from which, whatever the policy: by rules that need no chain, and miss some.

Formulas are compared part by part. Each P is a lower limit on the probability of a path, or of missing one: at most 0.1
to reach a is at least 0.9 to miss it. A path is likelier the more states it may pass through, the more it may reach,
and the more steps it may take; what is earned until then, where no step takes some of it away, is the more the less
ends it. Not seen is what follows from several parts together: P<=0.1 [ F a ] and P<=0.1 [ F b ] give
P<=0.2 [ F a|b ].
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from loomrl.environment.finite.model import FiniteModel, Mask
from loomrl.environment.finite.prism.syntax import Expression
from loomrl.errors import ConfigError
from loomrl.safety.model_checking.pctl import asks, limit_of, num_steps, reward_of, where

_TRUE = Expression("true")
_SURE, _ALWAYS = (Fraction(1), False), (Fraction(0), False)  # at least 1, and at least 0


@dataclass(frozen=True, eq=False)
class _Where:
    """In which of the states that it is about a condition without P and R is so."""

    mask: Mask


@dataclass(frozen=True, eq=False)
class _Joined:
    """Formulas of which all hold, or any: none of them is one of the same kind, and one at most is a `_Where`."""

    parts: "tuple[_Formula, ...]"
    is_all: bool


@dataclass(frozen=True, eq=False)
class _Limited:
    """What is asked of a path. Of two claims about one path the one with the larger `strictness` asks for more: the
    number that is the least, or the negative of the one that is the most, and whether it does not count itself."""

    path: "_Path"
    strictness: tuple[float | Fraction, bool]


_Formula = _Where | _Joined | _Limited


@dataclass(frozen=True, eq=False)
class _Path:
    """X and U, and of a reward F and C, by the grammar's names: a U passes through `through` or its `goal`.

    `reward` is the name of what is earned, at most or at least so much, as `is_most` says; `grows`, that no step takes
    some of it away.
    """

    op: str
    goal: "_Formula | None" = None
    not_goal: "_Formula | None" = None
    through: "_Formula | None" = None
    not_through: "_Formula | None" = None
    steps: float = math.inf
    is_missed: bool = False  # it is about all paths but these
    reward: str | None = None
    is_most: bool = False
    grows: bool = False


class Requirement:
    """What a property asks of a model's initial states, in a form that can be compared.

    Raises:
        ConfigError: for a name, label or reward that does not exist, or a part of PCTL that has no meaning here.
    """

    def __init__(self, model: FiniteModel, prop: Expression) -> None:
        initial = model.states.initial > 0.0
        self._formula = _Reader(model).formula(prop, initial)
        # One limit alone is on the expectation over the initial states; one among others holds in each of them.
        is_alone, formula = prop.op in ("probability", "reward_value"), self._formula
        is_sure = isinstance(formula, _Limited) and formula.path.reward is None and formula.strictness == _SURE
        self._is_expected = is_alone and int(initial.sum()) > 1 and not is_sure

    def implies(self, other: "Requirement") -> bool:
        """Whether the other one surely holds where this one does."""
        is_as_wide = other._is_expected or not self._is_expected
        return is_as_wide and _Rules().implies(self._formula, other._formula)


class _Reader:
    """Of formulas about one model, each read once."""

    def __init__(self, model: FiniteModel) -> None:
        self.model, self.states = model, model.states
        self.everywhere = np.ones(len(model.states), np.bool_)
        self._read: dict[tuple[Expression, bool, bool], _Formula] = {}

    def formula(self, formula: Expression, at: Mask, is_denied: bool = False) -> _Formula:
        """A formula, or that it does not hold, about the states of `at`."""
        key = (formula, at is self.everywhere, is_denied)
        if key not in self._read:
            self._read[key] = self._formula(formula, at, is_denied)
        return self._read[key]

    def _formula(self, formula: Expression, at: Mask, is_denied: bool) -> _Formula:
        op, args = formula.op, formula.args
        if not asks(formula):
            return _Where(where(formula, self.states)[at] ^ is_denied)
        if op == "not_":
            return self.formula(args[0], at, not is_denied)
        if op == "probability":
            return self._probability(formula, at, is_denied)
        if op == "reward_value":
            return self._earned(formula, is_denied)
        if op == "iff":
            ways = (Expression("implies", pair) for pair in (args, args[::-1]))
            return self.formula(Expression("and_", tuple(ways)), at, is_denied)
        if op not in ("and_", "or_", "implies"):
            raise ConfigError(f"P and R stand among conditions joined by !, &, |, => and <=>, not in {op!r}")
        first = self.formula(args[0], at, is_denied ^ (op == "implies"))
        return _joined((first, self.formula(args[1], at, is_denied)), (op == "and_") ^ is_denied)

    def _probability(self, formula: Expression, at: Mask, is_denied: bool) -> _Formula:
        relation, limit = limit_of(formula, self.states.constants)
        path, is_missed = _as_until(formula.args[-1])
        number, is_strict = Fraction(repr(limit)), relation in ("<", ">")
        if is_denied:
            is_strict = not is_strict
        if relation.startswith("<") ^ is_denied:  # at most so often it is met: at least so often it is missed
            number, is_missed = 1 - number, not is_missed
        strictness = (number, is_strict)
        if strictness <= _ALWAYS or strictness > _SURE:
            return _Where(np.full(int(at.sum()), strictness <= _ALWAYS))
        return _Limited(self._path(path, is_missed), strictness)

    def _path(self, path: Expression, is_missed: bool) -> _Path:
        if path.op == "next":
            goal, not_goal = self._either(path.args[0])
            return _Path(path.op, not_goal, goal) if is_missed else _Path(path.op, goal, not_goal)
        through, steps, goal = path.args
        count = math.inf
        if steps is not None:
            relation, term = steps.args
            count = num_steps(relation, term, self.states.constants)
        passed = self._either(Expression("or_", (through, goal)))
        return _Path(path.op, *self._either(goal), *passed, count, is_missed)

    def _either(self, formula: Expression) -> tuple[_Formula, _Formula]:
        """A formula about all states, and that it does not hold."""
        return self.formula(formula, self.everywhere), self.formula(formula, self.everywhere, is_denied=True)

    def _earned(self, formula: Expression, is_denied: bool) -> _Limited:
        relation, limit = limit_of(formula, self.states.constants)
        name, reward = reward_of(formula, self.model.rewards)
        path, is_most = formula.args[-1], relation.startswith("<") ^ is_denied
        strictness = (-limit if is_most else limit, (relation in ("<", ">")) ^ is_denied)
        asked = _Path(path.op, reward=name, is_most=is_most, grows=bool((reward >= 0.0).all()))
        if path.op == "cumulated":
            return _Limited(replace(asked, steps=num_steps("<=", path.args[0], self.states.constants)), strictness)
        return _Limited(replace(asked, goal=self.formula(path.args[0], self.everywhere)), strictness)


def _joined(parts: tuple[_Formula, ...], is_all: bool) -> _Formula:
    flat: list[_Formula] = []
    for part in parts:
        flat += part.parts if isinstance(part, _Joined) and part.is_all is is_all else [part]
    masks = [part.mask for part in flat if isinstance(part, _Where)]
    asked = [part for part in flat if not isinstance(part, _Where)]
    if not masks:
        return _Joined(tuple(asked), is_all)
    mask = (np.logical_and if is_all else np.logical_or).reduce(masks)
    says_all, says_nothing = (not mask.any(), mask.all()) if is_all else (mask.all(), not mask.any())
    if says_all or not asked:
        return _Where(mask)
    if not says_nothing:
        return _Joined((*asked, _Where(mask)), is_all)
    return asked[0] if len(asked) == 1 else _Joined(tuple(asked), is_all)


class _Rules:
    """What follows from what, each pair judged once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}

    def implies(self, one: _Formula | None, other: _Formula | None) -> bool:
        """Whether the other one holds wherever the one does."""
        key = (id(one), id(other))
        if key not in self._known:
            self._known[key] = self._implies(one, other)
        return self._known[key]

    def _implies(self, one: _Formula | None, other: _Formula | None) -> bool:
        if isinstance(other, _Joined) and other.is_all:
            return all(self.implies(one, part) for part in other.parts)
        if isinstance(one, _Joined) and not one.is_all:
            return all(self.implies(part, other) for part in one.parts)
        if isinstance(one, _Joined) and any(self.implies(part, other) for part in one.parts):
            return True
        if isinstance(other, _Joined):
            return any(self.implies(one, part) for part in other.parts)
        if isinstance(one, _Where) and not one.mask.any():
            return True
        if isinstance(other, _Where):
            return bool(other.mask.all()) or (isinstance(one, _Where) and not (one.mask & ~other.mask).any())
        if isinstance(one, _Limited) and isinstance(other, _Limited) and one.strictness >= other.strictness:
            mine, its = one.path, other.path
            return self._is_as_likely(its, mine) if mine.reward is None else self._asks_as_much(mine, its)
        return False

    def _is_as_likely(self, one: _Path, other: _Path) -> bool:
        """Whether a path is gone wherever another one is: so it is as likely at least."""
        if one.reward is not None:
            return False
        if one.op == other.op == "next":
            return self.implies(other.goal, one.goal)
        if other.op == "next":  # a U may be met at once, too
            return not one.is_missed and self._has_next(one, other.goal)
        if one.op == "next":
            return other.is_missed and self._has_next(other, one.not_goal)
        if one.is_missed and other.is_missed:
            return self._is_wider(other, one)
        if one.is_missed:  # neither is met before the other, nor at once
            return self.implies(other.goal, one.not_through) and self.implies(one.goal, other.not_through)
        return not other.is_missed and self._is_wider(one, other)

    def _is_wider(self, one: _Path, other: _Path) -> bool:
        """Whether a U is met wherever another U is."""
        wider = self.implies(other.goal, one.goal) and self.implies(other.through, one.through)
        return wider and one.steps >= other.steps

    def _has_next(self, until: _Path, goal: _Formula | None) -> bool:
        """Whether a U is met wherever the next state is in `goal`."""
        passes = isinstance(until.through, _Where) and bool(until.through.mask.all())
        return passes and until.steps >= 1 and self.implies(goal, until.goal)

    def _asks_as_much(self, one: _Path, other: _Path) -> bool:
        """Whether a limit on what is earned on a path is one on another path, too."""
        if (one.op, one.reward, one.is_most) != (other.op, other.reward, other.is_most):
            return False
        longer, shorter = (one, other) if one.is_most else (other, one)
        if one.op == "cumulated":
            return longer.steps >= shorter.steps if one.grows else one.steps == other.steps
        return self.implies(longer.goal, shorter.goal) and (one.grows or self.implies(shorter.goal, longer.goal))


def _as_until(path: Expression) -> tuple[Expression, bool]:
    """F, G and W as a U, and whether a path of the form that was given is one that does not meet it.

    Any other path is as it was.
    """
    op, args = path.op, path.args
    if op == "finally":
        return Expression("until", (_TRUE, *args)), False
    if op == "globally":  # never is it otherwise
        return Expression("until", (_TRUE, args[0], _opposite(args[1]))), True
    if op == "weak_until":  # the first is not left before the second
        left, right = args
        not_yet = _opposite(right)
        through, missed = (Expression("and_", (one, not_yet)) for one in (left, _opposite(left)))
        return Expression("until", (through, None, missed)), True
    return path, False


def _opposite(formula: Any) -> Any:
    is_negated = isinstance(formula, Expression) and formula.op == "not_"
    return formula.args[0] if is_negated else Expression("not_", (formula,))
