"""Paths in one form, so that they can be compared and worked against, however they are written."""

from typing import Any

from loomrl.environment.finite.prism.syntax import Expression

_TRUE = Expression("true")


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


def _opposite(formula: Any) -> Any:
    is_negated = isinstance(formula, Expression) and formula.op == "not_"
    return formula.args[0] if is_negated else Expression("not_", (formula,))
