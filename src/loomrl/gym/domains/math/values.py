"""What formulas are worth: computed with 300 digits and within bounds, each part once, until a budget is spent.

Two formulas are equal when they agree to 250 digits wherever they are tested. Numbers that could hide below that, and
those that would take long, are refused while computing; a `StepBudget` bounds what is computed for one answer. So no
answer needs a time limit.
"""

import hashlib
import math
import operator as operators
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Any

import mpmath

from loomrl.gym.domains.math.expressions import CONSTANTS, VARIABLES, NotAFormula, Tree, parse

Points = list[dict[str, Any]]  # where formulas are compared: the value of each name
_CANCELLING = ("+", "-", "sin", "cos", "tan", "log", "ln")  # where rounding leaves a little of a zero
_PYTHONS: dict[str, Callable[..., Any]] = {
    "+": operators.add,
    "-": operators.sub,
    "*": operators.mul,
    "/": operators.truediv,
    "negative": operators.neg,
    "abs": abs,
}
_MPMATHS = {"^": "power", "ln": "log"}  # mpmath's names of what is called otherwise here
_STEPS_OF_A_FUNCTION, _TIMES_COMPLEX = 5, 4
"""Measured: to find a part and add takes some 25 us in a long formula, a function 100, a complex power 460."""
_MAX_EXPONENT = 64
_LARGEST, _SMALLEST, _ZERO, _EQUAL = "1e60", "1e-60", "1e-200", "1e-250"
_SIGNS = ((1, -1), (-1, 1), (1, 1), (-1, -1), (1, -1))  # of x and y: roots and logarithms differ on either side
_NUMERATOR_BYTES, _DENOMINATOR = 6, 10**14  # points lie within 3 of zero


class TooMuchToCompute(Exception):
    """The steps that may be taken for one answer are spent, and there is no verdict."""


class StepBudget:
    """How many more steps may be taken for an answer; one is about a sum of two numbers at one point."""

    def __init__(self, steps: float = math.inf) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Take some steps.

        Raises:
            TooMuchToCompute: where fewer are left.
        """
        self._left -= steps
        if self._left < 0:
            raise TooMuchToCompute


class FormulaValues:
    """The values of formulas at some points. Each formula, and each part of one, is computed once."""

    def __init__(self, at: Points, budget: StepBudget) -> None:
        self._at, self._budget = at, budget
        self._known: dict[Tree, list[Any]] = {}  # one value for all points, or one each; an error where undefined
        self._elsewhere: dict[tuple[tuple[Fraction, str], ...], FormulaValues] = {}

    def of(self, tree: Tree) -> list[Any]:
        """What a formula is at each point: a number of 300 digits, real or complex, or the `NotAFormula` that says why
        it is none."""
        return _spread(self._compact(tree), len(self._at))

    def equal(self, left: Tree, right: Tree) -> bool:
        """Whether two formulas agree at all points at which the right one is defined, of which there must be one."""
        found = self._agreement(left, right)
        return False not in found and True in found

    def equal_somewhere(self, left: Tree, right: Tree) -> bool:
        """Whether two formulas agree at a point or more."""
        return True in self._agreement(left, right)

    def with_names(self, names: Mapping[Fraction, str]) -> "FormulaValues":
        """The values at twice as many points, where the names of numbers have two other values each."""
        key = tuple(names.items())
        if key not in self._elsewhere:
            steps = [{name: _other(number, step, index) for index, (number, name) in enumerate(key)} for step in (1, 2)]
            self._elsewhere[key] = FormulaValues(
                [{**point, **step} for point in self._at for step in steps], self._budget
            )
        return self._elsewhere[key]

    def _agreement(self, left: Tree, right: Tree) -> list[bool | None]:
        """By point whether the left one is as the right one; None where the right one is not defined."""
        found, expected = self._compact(left), self._compact(right)
        count = max(len(found), len(expected))
        self._budget.spend(count)
        return list(map(_agree, _spread(found, count), _spread(expected, count)))

    def _compact(self, tree: Tree) -> list[Any]:
        self._budget.spend(1)
        known = self._known.get(tree)
        if known is None:
            known = self._known[tree] = self._computed(tree)
        return known

    def _computed(self, tree: Tree) -> list[Any]:
        operator, *parts = tree
        if operator == "number":
            return [arithmetic().mpf(parts[0])]
        if operator == "name":
            return _named(parts[0], self._at)
        if operator == "call":
            operator, *parts = parts
        found = [self._compact(part) for part in parts]
        count = max(map(len, found))
        rows = list(zip(*(_spread(one, count) for one in found), strict=True))
        self._budget.spend(sum(_steps(operator, numbers) for numbers in rows))
        return [_result(operator, numbers) for numbers in rows]


def value(tree: Tree, point: Mapping[str, Any]) -> Any:
    """What a formula is at a point, the values of its names: an mpmath number of 300 digits, real or complex.

    Raises:
        NotAFormula: where it is not defined or out of bounds, or a name has no value.
    """
    [found] = FormulaValues([dict(point)], StepBudget()).of(tree)
    if isinstance(found, NotAFormula):
        raise found
    return found


def equal(left: Tree, right: Tree, at: Points) -> bool:
    """Whether two formulas agree at all points at which the right one is defined, of which there must be one."""
    return FormulaValues(at, StepBudget()).equal(left, right)


def points(text: str, solution: Mapping[str, str] | None = None) -> Points:
    """Where formulas are compared: at a solution, or at five points that follow from the text that is judged.

    Nobody can write a formula that is right at just the points that it leads to. A point is the value of each name.
    """
    if solution:
        return [{name: value(parse(number), {}) for name, number in solution.items()}]
    digest = iter(hashlib.sha512(text.encode(errors="replace")).digest())
    return [{name: sign * _coordinate(digest) for name, sign in zip(VARIABLES, signs, strict=True)} for signs in _SIGNS]


def is_tiny(number: Any) -> bool:
    """Whether rounding may have left that much of a zero."""
    return bool(abs(number) < _constant(_ZERO))


@cache
def arithmetic() -> Any:
    """An mpmath context of our own with 300 digits."""
    context = mpmath.mp.clone()
    context.dps = 300
    return context


@cache
def _constant(text: str) -> Any:
    return arithmetic().mpf(text)


def _coordinate(digest: Iterator[int]) -> Any:
    numerator = int.from_bytes(bytes(islice(digest, _NUMERATOR_BYTES)))
    return arithmetic().mpf(numerator + 1) / _DENOMINATOR


def _other(number: Fraction, step: int, index: int) -> Any:
    return arithmetic().mpf(number.numerator) / number.denominator + step + arithmetic().mpf(index + 1) / 7


def _spread(numbers: list[Any], count: int) -> list[Any]:
    return numbers * count if len(numbers) == 1 else numbers


def _agree(found: Any, expected: Any) -> bool | None:
    if isinstance(expected, NotAFormula):
        return None
    if isinstance(found, NotAFormula):
        return False
    return bool(abs(found - expected) <= _constant(_EQUAL) * (1 + abs(expected)))


def _named(name: str, at: Points) -> list[Any]:
    if name in CONSTANTS:
        return [+getattr(arithmetic(), name)]
    return [point[name] if name in point else NotAFormula(f"{name} has no value") for point in at]


def _steps(operator: str, numbers: tuple[Any, ...]) -> int:
    is_complex = any(isinstance(number, arithmetic().mpc) for number in numbers)
    return (1 if operator in _PYTHONS else _STEPS_OF_A_FUNCTION) * (_TIMES_COMPLEX if is_complex else 1)


def _result(operator: str, numbers: tuple[Any, ...]) -> Any:
    """What an operation makes of numbers, or the error that says why it makes nothing of them."""
    for number in numbers:
        if isinstance(number, NotAFormula):
            return number
    try:
        return _bounded(_apply(operator, numbers), operator)
    except NotAFormula as error:
        return error
    except (ArithmeticError, ValueError) as error:
        return NotAFormula(f"not defined: {error}")


def _apply(operator: str, numbers: tuple[Any, ...]) -> Any:
    if operator in _PYTHONS:
        return _PYTHONS[operator](*numbers)
    if operator == "^" and abs(numbers[1]) > _MAX_EXPONENT:
        raise NotAFormula(f"an exponent is above {_MAX_EXPONENT}")
    return getattr(arithmetic(), _MPMATHS.get(operator, operator))(*numbers)


def _bounded(number: Any, operator: str) -> Any:
    size = abs(number)
    if size == 0:
        return number
    if operator in _CANCELLING and size < _constant(_ZERO):
        return arithmetic().mpf(0)
    if not _constant(_SMALLEST) <= size <= _constant(_LARGEST):
        raise NotAFormula("a number is too big or too small")
    return number
