"""Formulas that strangers wrote: parsed by a grammar of our own, computed with bounds, never executed.

Two formulas are equal when they agree to 250 digits wherever they are tested. Numbers that could hide below that, and
those that would take long, are refused while computing, so that no answer needs a time limit.
"""

import hashlib
import operator as operators
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import mpmath

Tree = tuple[Any, ...]
MAX_CHARACTERS = 200
_TOKEN = re.compile(r" *(?:([0-9]+(?:\.[0-9]+)?)|([a-z]+)|(\*\*|[-+*/^(),]))", re.ASCII)
_FUNCTIONS = ("sqrt", "sin", "cos", "tan", "exp", "log", "ln", "abs")
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
_CONSTANTS = ("pi", "e")
_VARIABLES = ("x", "y")
_MAX_DEPTH, _MAX_DIGITS, _MAX_EXPONENT = 40, 20, 64
_LARGEST, _SMALLEST, _ZERO, _EQUAL = "1e60", "1e-60", "1e-200", "1e-250"
_SIGNS = ((1, -1), (-1, 1), (1, 1), (-1, -1), (1, -1))  # of x and y: roots and logarithms differ on either side
_NUMERATOR_BYTES, _DENOMINATOR = 6, 10**14  # points lie within 3 of zero


class NotAFormula(ValueError):
    """A text is not a formula, or one too big to compute."""


class _Tokens(NamedTuple):
    kinds: list[str]
    texts: list[str]


def parse(text: str) -> Tree:
    """The syntax tree of a formula such as `2x^2 - sqrt(3)/4`: (operator, part, ...), with trees or texts as parts.

    Raises:
        NotAFormula: for a text that is none, has an unknown name, or is too long or nested too deep.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotAFormula(f"longer than {MAX_CHARACTERS} characters")
    parser = _Parser(_tokens(text.strip(" ")))
    tree = parser.sum(0)
    if parser.kind != "end":
        raise NotAFormula(f"{parser.text!r} stands where the formula should end")
    return tree


def value(tree: Tree, point: Mapping[str, Any]) -> Any:
    """What a formula is at a point, the values of its names: an mpmath number of 300 digits, real or complex.

    Raises:
        NotAFormula: where it is not defined or out of bounds, or a name has no value.
    """
    operator, *parts = tree
    context = arithmetic()
    if operator == "number":
        return context.mpf(parts[0])
    if operator == "name":
        return _named(parts[0], point)
    if operator == "call":
        operator, *parts = parts
    numbers = [value(part, point) for part in parts]
    try:
        return _bounded(_apply(operator, numbers), operator)
    except (ArithmeticError, ValueError) as error:
        raise NotAFormula(f"not defined: {error}") from error


def points(text: str, solution: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Where formulas are compared: at a solution, or at five points that follow from the text that is judged.

    Nobody can write a formula that is right at just the points that it leads to. A point is the value of each name.
    """
    if solution:
        return [{name: value(parse(number), {}) for name, number in solution.items()}]
    digest = iter(hashlib.sha512(text.encode(errors="replace")).digest())
    return [
        {name: sign * _coordinate(digest) for name, sign in zip(_VARIABLES, signs, strict=True)} for signs in _SIGNS
    ]


def _coordinate(digest: Iterator[int]) -> Any:
    numerator = int.from_bytes(bytes(islice(digest, _NUMERATOR_BYTES)))
    return arithmetic().mpf(numerator + 1) / _DENOMINATOR


def equal(left: Tree, right: Tree, at: list[dict[str, Any]]) -> bool:
    """Whether two formulas agree at all points at which the right one is defined, of which there must be one."""
    compared = 0
    for point in at:
        try:
            expected = value(right, point)
        except NotAFormula:
            continue
        try:
            found = value(left, point)
        except NotAFormula:
            return False
        if abs(found - expected) > arithmetic().mpf(_EQUAL) * (1 + abs(expected)):
            return False
        compared += 1
    return compared > 0


@cache
def arithmetic() -> Any:
    """An mpmath context of our own with 300 digits."""
    context = mpmath.mp.clone()
    context.dps = 300
    return context


def _named(name: str, point: Mapping[str, Any]) -> Any:
    context = arithmetic()
    if name in _CONSTANTS:
        return +getattr(context, name)
    if name not in point:
        raise NotAFormula(f"{name} has no value")
    return point[name]


def _apply(operator: str, numbers: list[Any]) -> Any:
    if operator in _PYTHONS:
        return _PYTHONS[operator](*numbers)
    if operator == "^" and abs(numbers[1]) > _MAX_EXPONENT:
        raise NotAFormula(f"an exponent is above {_MAX_EXPONENT}")
    return getattr(arithmetic(), _MPMATHS.get(operator, operator))(*numbers)


def _bounded(number: Any, operator: str) -> Any:
    context = arithmetic()
    size = abs(number)
    if size == 0:
        return number
    if operator in _CANCELLING and size < context.mpf(_ZERO):
        return context.mpf(0)
    if not context.mpf(_SMALLEST) <= size <= context.mpf(_LARGEST):
        raise NotAFormula("a number is too big or too small")
    return number


def _tokens(text: str) -> _Tokens:
    tokens, position = _Tokens([], []), 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise NotAFormula(f"{text[position]!r} is no part of a formula")
        number, name, sign = found.groups()
        if number and len(number) > _MAX_DIGITS:
            raise NotAFormula(f"a number has more than {_MAX_DIGITS} digits")
        if name and name not in (*_FUNCTIONS, *_CONSTANTS, *_VARIABLES):
            raise NotAFormula(f"{name!r} is unknown")
        tokens.kinds.append("number" if number else "name" if name else "sign")
        tokens.texts.append(number or name or sign.replace("**", "^"))
        position = found.end()
    return tokens


class _Parser:
    """Recursive descent: sum, product, power, atom; `2x` and `2(x + 1)` are products."""

    def __init__(self, tokens: _Tokens) -> None:
        self._tokens, self._next = tokens, 0

    @property
    def kind(self) -> str:
        return self._tokens.kinds[self._next] if self._next < len(self._tokens.kinds) else "end"

    @property
    def text(self) -> str:
        return self._tokens.texts[self._next] if self._next < len(self._tokens.texts) else ""

    def sum(self, depth: int) -> Tree:
        """a + b - c"""
        tree = self._product(depth)
        while self.kind == "sign" and self.text in "+-":
            tree = (self._take(), tree, self._product(depth))
        return tree

    def _product(self, depth: int) -> Tree:
        tree = self._negative(depth)
        while True:
            if self.kind == "sign" and self.text in "*/":
                tree = (self._take(), tree, self._negative(depth))
            elif self.kind == "name" or self.text == "(":
                tree = ("*", tree, self._power(depth))
            else:
                return tree

    def _negative(self, depth: int) -> Tree:
        if self.kind == "sign" and self.text in "+-":
            sign = self._take()
            inner = self._negative(self._deeper(depth))
            return ("negative", inner) if sign == "-" else inner
        return self._power(depth)

    def _power(self, depth: int) -> Tree:
        base = self._atom(depth)
        if self.text == "^":
            self._take()
            return ("^", base, self._negative(self._deeper(depth)))
        return base

    def _atom(self, depth: int) -> Tree:
        if self.kind == "number":
            return ("number", self._take())
        if self.kind == "name":
            name = self._take()
            return ("call", name, self._inside(depth)) if name in _FUNCTIONS else ("name", name)
        return self._inside(depth)

    def _inside(self, depth: int) -> Tree:
        self._expect("(")
        tree = self.sum(self._deeper(depth))
        self._expect(")")
        return tree

    def _take(self) -> str:
        text = self.text
        self._next += 1
        return text

    def _expect(self, sign: str) -> None:
        if self.text != sign:
            raise NotAFormula(f"{sign!r} is missing")
        self._take()

    def _deeper(self, depth: int) -> int:
        if depth >= _MAX_DEPTH:
            raise NotAFormula(f"nested deeper than {_MAX_DEPTH}")
        return depth + 1
