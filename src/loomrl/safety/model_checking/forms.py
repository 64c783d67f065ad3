"""Properties in one form, so that they can be compared and worked against, however they are written."""

from typing import Any

import numpy as np

from loomrl.environment.finite.model import States
from loomrl.environment.finite.prism.expressions import evaluate, is_boolean
from loomrl.environment.finite.prism.syntax import Expression
from loomrl.safety.model_checking.pctl import asks

_TRUE = Expression("true")
# What says how paths go, or joins such parts: no condition on a state, and no number.
_OF_PATHS = ("next", "until", "finally", "globally", "weak_until", "reward_until", "cumulated", "steps", "limit")


def as_until(path: Expression) -> tuple[Expression, bool]:
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


def plain(part: Any, states: States) -> Any:
    """A part of a property by what it means for these states: a condition is the states where it is so, a term its
    number, `<n` steps are `<=n-1`, and F is a U.

    Raises:
        ConfigError: for a name or label that does not exist, or one in another's place.
    """
    if not isinstance(part, Expression):
        return part
    if part.op not in _OF_PATHS and not asks(part):
        value = evaluate(part, states.scope(), states.labels)
        if not is_boolean(value):
            return Expression("number", (value,))
        return Expression("states", (np.broadcast_to(np.asarray(value), (len(states),)).tobytes(),))
    if part.op == "finally":
        part, _ = as_until(part)
    args = tuple(plain(one, states) for one in part.args)
    if part.op == "steps" and args[0] == "<":
        args = ("<=", Expression("number", (args[1].args[0] - 1,)))
    return Expression(part.op, args)


def _opposite(formula: Any) -> Any:
    is_negated = isinstance(formula, Expression) and formula.op == "not_"
    return formula.args[0] if is_negated else Expression("not_", (formula,))
