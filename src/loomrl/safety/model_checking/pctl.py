"""Properties in PCTL, decided on a chain with bounds: true, false, or open where a limit lies between the bounds.

    P<=0.01 [ F<=100 "crash" ]      P>=0.9 [ !"crash" U "goal" ]      R{"cost"}<=25 [ F "done" ]      P=? [ G x<3 ]

Hansson and Jonsson, A logic for reasoning about time and reliability (1994). A state formula is known to hold in some
states (`sure`) and not to hold outside others (`possible`). Bounds of a path formula use whichever of the two makes
them sound, so that also what is asked about P inside P is decided soundly.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from loomrl.environment.finite import reachability
from loomrl.environment.finite.model import Chain, FiniteModel, Floats, Mask, States
from loomrl.environment.finite.prism.expressions import evaluate, is_boolean
from loomrl.environment.finite.prism.syntax import Expression
from loomrl.environment.finite.reachability import ProbabilityBounds
from loomrl.errors import ConfigError
from loomrl.safety.model_checking import any_policy

_LARGEST = 1e300  # limit
_ROUNDING = 1e-12  # of a limit
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class PropertyResult:
    """`holds` is None where it is open, or where only a number was asked for. `low` and `high` bound that number.

    The number is the expectation over the initial states; None where the property is no single P or R. `relation` and
    `limit` are what it is compared with, None where it is not.
    """

    holds: bool | None
    low: float | None
    high: float | None
    relation: str | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Truth:
    """The states in which a formula surely holds, and those in which it may: bool (S,) each."""

    sure: Mask
    possible: Mask

    def __invert__(self) -> "Truth":
        return Truth(~self.possible, ~self.sure)

    def __and__(self, other: "Truth") -> "Truth":
        return Truth(self.sure & other.sure, self.possible & other.possible)

    def __or__(self, other: "Truth") -> "Truth":
        return Truth(self.sure | other.sure, self.possible | other.possible)

    @property
    def is_decided(self) -> bool:
        """Whether in every state it is known if the formula holds."""
        return bool(np.array_equal(self.sure, self.possible))


def check(chain: Chain, prop: Expression) -> PropertyResult:
    """Decide a property of a chain's initial states.

    A limit on a single P or R is one on the expectation over initial states; any other formula must hold in each.

    Raises:
        ConfigError: for a name, label or reward that does not exist, or a part of PCTL that has no meaning here.
    """
    return _checked(_Checker(chain, reachability), prop)


def check_all(model: FiniteModel, prop: Expression) -> PropertyResult:
    """Decide whether whichever actions are taken in a model the property holds: it surely does where that is True.

    Of a single P or R, `low` and `high` bound what it comes to under any policy. Of parts that are joined, or stand in
    each other, each is bounded alone: what they have in common is not seen, and leaves open whether they hold. A single
    one holds, too, where the worst differs from its limit by rounding, at most 1e-12 of the limit.

    Raises:
        ConfigError: as `check` does, and where what R leads to depends on P or R.
    """
    result = _checked(_Checker(any_policy.reachable(model), any_policy), prop)
    if result.holds is None and result.low is not None and result.high is not None and result.limit is not None:
        worst, way = (result.high, 1.0) if result.relation == "<=" else (result.low, -1.0)
        is_certain = prop.op == "probability" and result.limit in (0.0, 1.0)  # the graph alone says so
        slack = 0.0 if is_certain else _ROUNDING * abs(result.limit)
        if result.relation in ("<=", ">=") and way * (worst - result.limit) <= slack:
            return replace(result, holds=True)
    return result


def _checked(checker: "_Checker", prop: Expression) -> PropertyResult:
    states = checker.world.states
    if prop.op in ("probability", "reward_value"):
        bounds = checker.bounds(prop)
        likely = states.initial > 0.0
        shares = states.initial[likely]
        low, high = _expected(ProbabilityBounds(bounds.low[likely], bounds.high[likely]), shares)
        if _is_question(prop):
            return PropertyResult(None, low, high)
        relation, limit = limit_of(prop, states.constants)
        return PropertyResult(_holds(relation, low, high, limit), low, high, relation, limit)
    truth = checker.truth(prop)
    initial = states.initial > 0.0
    if truth.sure[initial].all():
        return PropertyResult(True, None, None)
    return PropertyResult(None if truth.possible[initial].all() else False, None, None)


def states_where(chain: Chain, formula: Expression) -> Truth:
    """The states of a chain in which a state formula surely holds, and those in which it may.

    Raises:
        ConfigError: for a name, label or reward that does not exist, or a part of PCTL that has no meaning here.
    """
    return _Checker(chain, reachability).truth(formula)


class _Solver(Protocol):
    """What bounds paths: of a chain (`reachability`), or under any policy of a model (`any_policy`)."""

    def until(self, world: Any, through: Mask, target: Mask, /) -> ProbabilityBounds: ...
    def bounded_until(self, world: Any, through: Mask, target: Mask, steps: int, /) -> ProbabilityBounds: ...
    def next_step(self, world: Any, target: Mask, /) -> ProbabilityBounds: ...
    def reward_until(self, world: Any, reward: Floats, target: Mask, /) -> ProbabilityBounds: ...
    def cumulated_reward(self, world: Any, reward: Floats, steps: int, /) -> ProbabilityBounds: ...


class _Checker:
    def __init__(self, world: Chain | FiniteModel, solver: _Solver) -> None:
        self.world, self.solver = world, solver

    def truth(self, formula: Expression) -> Truth:
        """Where a state formula holds."""
        op, args = formula.op, formula.args
        if not asks(formula):
            return self._of_state(formula)
        if op == "not_":
            return ~self.truth(args[0])
        if op in ("and_", "or_", "implies", "iff"):
            return _CONNECT[op](self.truth(args[0]), self.truth(args[1]))
        if op not in ("probability", "reward_value"):
            raise ConfigError(f"P and R stand among conditions joined by !, &, |, => and <=>, not in {op!r}")
        bounds, (relation, limit) = self.bounds(formula), limit_of(formula, self.world.states.constants)
        compare = _COMPARE[relation]
        first, second = compare(bounds.low, limit), compare(bounds.high, limit)
        return Truth(first & second, first | second)

    def bounds(self, formula: Expression) -> ProbabilityBounds:
        """The number that P or R is, in every state."""
        if formula.op == "probability":
            return self._probability(formula.args[1])
        path, (_, reward) = formula.args[-1], reward_of(formula, self.world.rewards)
        if path.op == "cumulated":
            return self.solver.cumulated_reward(
                self.world, reward, num_steps("<=", path.args[0], self.world.states.constants)
            )
        target = self.truth(path.args[0])
        if not target.is_decided:
            raise ConfigError(
                "R [ F ... ]: what is reached depends on a P or R that lies at its limit; change that limit"
            )
        return self.solver.reward_until(self.world, reward, target.sure)

    def _of_state(self, formula: Expression) -> Truth:
        mask = where(formula, self.world.states)
        return Truth(mask, mask)

    def _probability(self, path: Expression) -> ProbabilityBounds:
        op, args = path.op, path.args
        if op == "next":
            target = self.truth(args[0])
            return _between(lambda mask: self.solver.next_step(self.world, mask), target)
        if op == "until":
            return self._until(self.truth(args[0]), self.truth(args[2]), args[1])
        every = np.ones(len(self.world.states), np.bool_)
        if op == "finally":
            return self._until(Truth(every, every), self.truth(args[1]), args[0])
        if op == "globally":
            return _complement(self._until(Truth(every, every), ~self.truth(args[1]), args[0]))
        left, right = self.truth(args[0]), self.truth(args[1])  # a W b is broken by leaving a before b
        return _complement(self._until(left & ~right, ~left & ~right, None))

    def _until(self, through: Truth, target: Truth, steps: Expression | None) -> ProbabilityBounds:
        if steps is None:

            def solve(left: Mask, right: Mask) -> ProbabilityBounds:
                return self.solver.until(self.world, left, right)
        else:
            relation, term = steps.args
            count = num_steps(relation, term, self.world.states.constants)

            def solve(left: Mask, right: Mask) -> ProbabilityBounds:
                return self.solver.bounded_until(self.world, left, right, count)

        if through.is_decided and target.is_decided:
            return solve(through.sure, target.sure)
        return ProbabilityBounds(solve(through.sure, target.sure).low, solve(through.possible, target.possible).high)


_CONNECT: dict[str, Callable[[Truth, Truth], Truth]] = {
    "and_": operator.and_,
    "or_": operator.or_,
    "implies": lambda left, right: ~left | right,
    "iff": lambda left, right: (left & right) | (~left & ~right),
}


def asks(formula: Expression) -> bool:
    """Whether P or R is in a formula."""
    if formula.op in ("probability", "reward_value"):
        return True
    return any(asks(arg) for arg in formula.args if isinstance(arg, Expression))


def where(condition: Expression, states: States) -> Mask:
    """The states, (S,), in which a condition without P and R is so.

    Raises:
        ConfigError: for a name or label that does not exist, or a number in a condition's place.
    """
    value = evaluate(condition, states.scope(), states.labels)
    if not is_boolean(value):
        raise ConfigError("a number stands where a condition is needed")
    return np.broadcast_to(np.asarray(value, np.bool_), (len(states),))


def limit_of(formula: Expression, constants: Mapping[str, Any]) -> tuple[str, float]:
    """The relation and the number that a P or R is compared with.

    Raises:
        ConfigError: for a constant that does not exist, or a limit that is none.
    """
    if _is_question(formula):
        raise ConfigError("=? asks for a number, and stands alone; inside a property give a limit")
    relation, term = (formula.args[0] if formula.op == "probability" else formula.args[1]).args
    value = evaluate(term, constants)
    if is_boolean(value):
        raise ConfigError("a limit is a number")
    if not -_LARGEST <= value <= _LARGEST:
        raise ConfigError(f"a limit lies between -{_LARGEST:g} and {_LARGEST:g}")
    if formula.op == "probability" and not 0.0 <= float(value) <= 1.0:
        raise ConfigError(f"a probability's limit lies between 0 and 1, found {float(value):g}")
    return relation, float(value)


def num_steps(relation: str, term: Expression, constants: Mapping[str, Any]) -> int:
    """How many steps a path may take at most.

    Raises:
        ConfigError: for a constant that does not exist, or what is no number of steps.
    """
    value = np.asarray(evaluate(term, constants))
    if relation not in ("<=", "<") or value.dtype.kind != "i":
        raise ConfigError("steps are bounded by <= or < and an integer")
    count = int(value) - (relation == "<")
    if count < 0:
        raise ConfigError(f"{relation}{int(value)} allows no step")
    return count


def reward_of(formula: Expression, rewards: Mapping[str, Floats]) -> tuple[str, Floats]:
    """The name and the values of what an R is about: the first reward where it names none.

    Raises:
        ConfigError: for a reward that does not exist.
    """
    name = formula.args[0]
    wanted = next(iter(rewards), None) if name is None else name[1:-1]
    if wanted is None or wanted not in rewards:
        known = ", ".join(f'"{one}"' for one in rewards) or "there are none"
        raise ConfigError(f'there are no rewards "{wanted or ""}"; rewards: {known}')
    return wanted, rewards[wanted]


def _is_question(formula: Expression) -> bool:
    return "=?" in formula.args


def _between(solve: Callable[[Mask], ProbabilityBounds], target: Truth) -> ProbabilityBounds:
    low = solve(target.sure)
    return low if target.is_decided else ProbabilityBounds(low.low, solve(target.possible).high)


def _complement(bounds: ProbabilityBounds) -> ProbabilityBounds:
    """1 - P, rounded outwards but where P is exactly 0 or 1."""
    low, high = 1.0 - bounds.high, 1.0 - bounds.low
    low = np.where((bounds.high == 0.0) | (bounds.high == 1.0), low, np.nextafter(low, 0.0))
    high = np.where((bounds.low == 0.0) | (bounds.low == 1.0), high, np.minimum(np.nextafter(high, 2.0), 1.0))
    return ProbabilityBounds(low, high)


def _expected(bounds: ProbabilityBounds, shares: Floats) -> tuple[float, float]:
    """Bounds of the expectation over states, which lies between the extremes of what is averaged."""
    slack = (len(shares) + 3) * 2.0**-52
    ends = []
    for values, way in ((bounds.low, -1.0), (bounds.high, 1.0)):
        if np.all(values == values[0]) or not np.all(np.isfinite(values)):
            unknown = way * np.inf  # where any end is: nothing is known of the expectation at that end
            infinite = np.inf if np.any(values == np.inf) and not np.any(values == -np.inf) else unknown
            ends.append(float(values[0]) if np.all(values == values[0]) else float(infinite))
            continue
        mean = float(np.dot(values, shares)) / float(shares.sum())
        ends.append(float(np.nextafter(mean + way * slack * float(np.abs(values).max()), way * np.inf)))
    return max(ends[0], float(bounds.low.min())), min(ends[1], float(bounds.high.max()))


def _holds(relation: str, low: float, high: float, limit: float) -> bool | None:
    first, second = bool(_COMPARE[relation](low, limit)), bool(_COMPARE[relation](high, limit))
    return first if first == second else None
