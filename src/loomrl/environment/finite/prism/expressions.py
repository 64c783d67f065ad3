"""Values of expressions, in many states at once.

A value is a number or a boolean, or an array of them with one entry for each state. Integers are int64, reals float64.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loomrl.environment.finite.prism.syntax import Expression
from loomrl.errors import ConfigError

Value = Any
Scope = Mapping[str, Value]

_BOOLEAN: dict[str, Callable[..., Value]] = {
    "and_": np.logical_and,
    "or_": np.logical_or,
    "not_": np.logical_not,
    "implies": lambda left, right: np.logical_or(np.logical_not(left), right),
    "iff": np.equal,
}
_NUMERIC: dict[str, Callable[..., Value]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "minus": np.negative,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_ROUNDED: dict[str, Callable[..., Value]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round": lambda value: np.floor(value + 0.5),
}
_EITHER: dict[str, Callable[..., Value]] = {"=": np.equal, "!=": np.not_equal}


def evaluate(expression: Expression, scope: Scope, labels: Mapping[str, Value] | None = None) -> Value:
    """The value of an expression, where `scope` has that of every name in it, and `labels` those of labels.

    It is a number or a boolean, or an array (S,) of them where one of those values is. A division by 0 gives infinity
    or NaN.

    Raises:
        ConfigError: for a name or label that is not known, a boolean in a number's place or the other way round, a
            wrong number of arguments, or an integer to a negative power; with the line where that is known.
    """
    op, args = expression.op, expression.args
    if op == "number":
        return args[0]
    if op in ("true", "false"):
        return op == "true"
    if op == "name":
        if args[0] not in scope:
            raise _wrong(expression, f"{args[0]!r} is not known; names: {', '.join(sorted(scope))}")
        return scope[args[0]]
    if op == "label":
        if labels is None or args[0] not in labels:
            known = ", ".join(f'"{name}"' for name in sorted(labels or {})) or "there are none"
            raise _wrong(expression, f'there is no label "{args[0]}"; labels: {known}')
        return labels[args[0]]
    if op in ("probability", "reward_value"):
        raise _wrong(expression, "P and R stand in properties only")
    if op == "call":
        return _called(expression, [_number(arg, scope, labels) for arg in args[1:]])
    if op == "if":
        condition = _boolean(args[0], scope, labels)
        return np.where(condition, evaluate(args[1], scope, labels), evaluate(args[2], scope, labels))
    if op in _BOOLEAN:
        return _BOOLEAN[op](*(_boolean(arg, scope, labels) for arg in args))
    if op in _NUMERIC:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return _NUMERIC[op](*(_number(arg, scope, labels) for arg in args))
    left, right = (evaluate(arg, scope, labels) for arg in args)
    if is_boolean(left) != is_boolean(right):
        raise _wrong(expression, f"{op!r} compares a boolean with a number")
    return _EITHER[op](left, right)


def is_boolean(value: Value) -> bool:
    """Whether a value, or what an array holds, is a boolean."""
    return np.asarray(value).dtype == np.bool_


def _boolean(expression: Expression, scope: Scope, labels: Mapping[str, Value] | None) -> Value:
    value = evaluate(expression, scope, labels)
    if not is_boolean(value):
        raise _wrong(expression, "a number stands where a condition is needed")
    return value


def _number(expression: Expression, scope: Scope, labels: Mapping[str, Value] | None) -> Value:
    value = evaluate(expression, scope, labels)
    if is_boolean(value):
        raise _wrong(expression, "a condition stands where a number is needed")
    return value


def _called(expression: Expression, args: list[Value]) -> Value:
    name = expression.args[0]
    counts = {"floor": 1, "ceil": 1, "round": 1, "pow": 2, "mod": 2, "log": 2}
    if len(args) != counts.get(name, len(args)):
        raise _wrong(expression, f"{name} takes {counts[name]} arguments, found {len(args)}")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if name in ("min", "max"):
            combine = np.minimum if name == "min" else np.maximum
            found = args[0]
            for arg in args[1:]:
                found = combine(found, arg)
            return found
        if name == "pow":
            return _power(expression, *args)
        if name == "mod":
            return np.mod(*args)
        if name == "log":
            return np.log(args[0]) / np.log(args[1])
        return np.asarray(_ROUNDED[name](np.asarray(args[0]))).astype(np.int64)


def _power(expression: Expression, base: Value, exponent: Value) -> Value:
    """Integers have an integer power, as in PRISM."""
    if np.asarray(base).dtype.kind == "i" and np.asarray(exponent).dtype.kind == "i":
        if np.any(np.asarray(exponent) < 0):
            raise _wrong(expression, "an integer to a negative power; write one of them as a real number")
        return np.power(np.asarray(base), np.asarray(exponent))
    return np.power(np.asarray(base, np.float64), exponent)


def _wrong(expression: Expression, problem: str) -> ConfigError:
    place = f"line {expression.line}: " if expression.line else ""
    return ConfigError(f"{place}{problem}")
