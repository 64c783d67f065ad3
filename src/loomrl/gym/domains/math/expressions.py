"""Formulas that strangers wrote: parsed by a grammar of our own, never executed. `values` computes them."""

import re
from typing import Any, NamedTuple

Tree = tuple[Any, ...]
MAX_CHARACTERS = 200
CONSTANTS = ("pi", "e")
VARIABLES = ("x", "y")
_TOKEN = re.compile(r" *(?:([0-9]+(?:\.[0-9]+)?)|([a-z]+)|(\*\*|[-+*/^(),]))", re.ASCII)
_FUNCTIONS = ("sqrt", "sin", "cos", "tan", "exp", "log", "ln", "abs")
_MAX_DEPTH, _MAX_DIGITS = 40, 20


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


def _tokens(text: str) -> _Tokens:
    tokens, position = _Tokens([], []), 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise NotAFormula(f"{text[position]!r} is no part of a formula")
        number, name, sign = found.groups()
        if number and len(number) > _MAX_DIGITS:
            raise NotAFormula(f"a number has more than {_MAX_DIGITS} digits")
        if name and name not in (*_FUNCTIONS, *CONSTANTS, *VARIABLES):
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
