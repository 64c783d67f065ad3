"""The numbers that working may use: those that are given, and those that are explained."""

import operator as operators
import re
from collections import Counter
from contextlib import suppress
from fractions import Fraction
from itertools import accumulate, product

from loomrl.gym.domains.math.expressions import NotAFormula, Tree, parse
from loomrl.gym.domains.math.trees import is_plain, names_in, numbers_in

Chain = list[Tree]  # the sides of `a = b = c`
_NUMBER = re.compile(r"(?<![\^.0-9])[0-9]{1,20}(?:\.[0-9]{1,20})?", re.ASCII)
_FORMULA = re.compile(r"[-+*/^() .0-9xy]+", re.ASCII)
_OPERATIONS = (operators.add, operators.sub, operators.mul, operators.truediv, operators.floordiv)
_FEW = tuple(Fraction(number) for number in range(1, 5))
"""What a given number is doubled, halved or counted down by in the head: an urn's balls, a polygon's corners less 2."""
_LIST = 6
"""The most stated numbers of which any two may be combined: 7 have 49 pairs and five operations, so that nearly every
small number is one of them, and would explain nothing."""
_SMALL = 12
"""The largest number that needs no explanation: a dozen, months, the faces and legs of things."""
_HALF_TURN = 180
"""Degrees: the angles of a triangle, of which those of a polygon are made."""


class KnownNumbers:
    """The numbers that are given and those that are explained, as working goes on."""

    def __init__(self, prompt: str) -> None:
        stated = [Fraction(number) for number in _NUMBER.findall(prompt)]
        sums = {total for start in range(len(stated)) for total in accumulate(stated[start:])}
        pairs = [pair for pair in product(stated, (*stated, *_FEW)) if pair[1]] if len(stated) <= _LIST else []
        self.formulas = formulas_in(prompt)
        self._stated = Counter(stated)
        self._given = {*stated, sum(stated, Fraction())}  # a mean's sum is taken in the head
        self._made = {abs(Fraction(operation(*pair))) for operation in _OPERATIONS for pair in pairs}
        self._made |= sums | {total - few for total in sums for few in _FEW} | {Fraction(len(stated))}
        self._made.add(sum(stated, Fraction()) / max(1, len(stated)))

    def explain(self, number: Fraction) -> bool:
        """Whether a number is given, made of given ones, or common."""
        return self._is_of_the_task(number) or _is_common(number)

    def telling(self, numbers: list[Fraction], least: int = 2) -> list[Fraction]:
        """The numbers of a formula that have to matter in it, of which there are none if it says nothing of the task.

        All must be explained, or chance numbers could lead anywhere. Then those that are given tell of the task; so do
        all where each is of the task and they are enough (`least`, two of them different) not to be there by chance.
        0 and 1 tell nothing.
        """
        if not all(map(self.explain, numbers)):
            return []
        found = [number for number in dict.fromkeys(numbers) if number not in (0, 1)]
        if len(numbers) >= least and len(found) > 1 and all(map(self._is_of_the_task, numbers)):
            return found
        return [number for number in found if number in self._given]

    def num_stated(self, number: Fraction) -> int:
        """How often the task states a number."""
        return self._stated[number]

    def learn(self, chain: Chain) -> None:
        """What equals an explained side is given from then on: a number, the factors of a given one, a formula."""
        sides = [numbers_in(side) for side in chain]
        stated = any(side[0] == "number" and Fraction(side[1]) in self._given for side in chain)
        explained = [
            not is_plain(tree) and (bool(self.telling(side)) or (stated and all(map(self.explain, side))))
            for tree, side in zip(chain, sides, strict=True)
        ]
        if stated:
            self._given.update(number for side in sides for number in side if self.explain(number))
        if any(explained):
            for tree, side, is_explained in zip(chain, sides, explained, strict=True):
                if is_explained or is_plain(tree) or names_in(tree):
                    self._given.update(side)

    def _is_of_the_task(self, number: Fraction) -> bool:
        return number in self._given or number in self._made


def formulas_in(text: str) -> list[Tree]:
    """The formulas that stand in a text, such as both sides of an equation."""
    found = []
    for formula in _FORMULA.findall(text):
        with suppress(NotAFormula):
            found.append(parse(formula.rstrip(". ")))
    return found


def _is_common(number: Fraction) -> bool:
    """Small, round as 300 is, or a whole number of half turns."""
    digits = str(number).rstrip("0") or "0"
    return number.denominator == 1 and (int(digits) <= _SMALL or number % _HALF_TURN == 0)
