"""Whether equations lead to an answer: they compute it from numbers of the task, or say something of its unknown.

A number is *given* where it stands in the task, or follows from such in an earlier line. It is *explained* where it is
given, small or round, or what one operation makes of two given ones. One number that nobody need explain would make
any equation hold.
"""

import operator as operators
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from itertools import accumulate, combinations, product
from typing import Any

from loomrl.gym.domains.math.expressions import NotAFormula, Tree, arithmetic, equal, parse, points, value
from loomrl.gym.tasks import Task

Chain = list[Tree]  # the sides of `a = b = c`
_NUMBER = re.compile(r"(?<![\^.0-9])[0-9]{1,20}(?:\.[0-9]{1,20})?", re.ASCII)
_EQUATION = re.compile(r"[-+*/^() .0-9xy]+=[-+*/^() .0-9xy]+", re.ASCII)
_FORMULA = re.compile(r"[-+*/^() .0-9xy]+", re.ASCII)
_OPERATIONS = (operators.add, operators.sub, operators.mul, operators.truediv, operators.floordiv)
_FEW = tuple(Fraction(number) for number in range(1, 5))  # what a given number is doubled, halved or counted down by
_LIST = 6  # pairs of more numbers make nearly all small ones
_SMALL, _HALF_TURN = 12, 180
_MAX_PLACES = 6  # of which all choices are tried
_ONE = Fraction(1)
_ZERO: Tree = ("number", "0")


def leads(chains: Iterable[Chain], task: Task, final: str) -> bool:
    """Whether one of the chains, all of which hold, leads to the answer from the task, or from chains before it."""
    numbers, answer, at = _Numbers(task.prompt), parse(final), points(final)
    solution = task.facts.get("solution", {})
    asked = [sides for text in _EQUATION.findall(task.prompt) if len(sides := _formulas(text)) == 2]
    for chain in chains:
        if any(_computes(part, answer, numbers, at) for side in chain for part in _all_parts(side)):
            return True
        if any(_tells(*step, solution, asked, numbers) for step in zip(chain[:-1], chain[1:], strict=True)):
            return True
        numbers.learn(chain)
    return False


class _Numbers:
    """The numbers that are given and those that are explained, as working goes on."""

    def __init__(self, prompt: str) -> None:
        stated = [Fraction(number) for number in _NUMBER.findall(prompt)]
        sums = {total for start in range(len(stated)) for total in accumulate(stated[start:])}
        pairs = [pair for pair in product(stated, (*stated, *_FEW)) if pair[1]] if len(stated) <= _LIST else []
        self.formulas = _formulas(prompt)
        self._stated = Counter(stated)
        self._given = {*stated, sum(stated, Fraction())}  # a mean's sum is taken in the head
        self._made = {abs(Fraction(operation(*pair))) for operation in _OPERATIONS for pair in pairs}
        self._made |= sums | {total - few for total in sums for few in _FEW} | {Fraction(len(stated))}
        self._made.add(sum(stated, Fraction()) / max(1, len(stated)))

    def explain(self, number: Fraction) -> bool:
        """Whether a number is given, made of given ones, or common."""
        return number in self._given or number in self._made or _is_common(number)

    def telling(self, numbers: list[Fraction], least: int = 2) -> list[Fraction]:
        """Those that are given; all, where there are at least so many, no one merely common and two different; none,
        where one is not explained. 0 and 1 tell nothing."""
        if not all(map(self.explain, numbers)):
            return []
        found = [number for number in dict.fromkeys(numbers) if number != int(number) or number > 1]
        given = [number for number in found if number in self._given]
        is_made = (
            len(numbers) >= least
            and len(found) > 1
            and all(number in self._made or number in self._given for number in numbers)
        )
        return found if is_made else given

    def num_stated(self, number: Fraction) -> int:
        """How often the task states a number."""
        return self._stated[number]

    def learn(self, chain: Chain) -> None:
        """What equals an explained side is given from then on: a number, the factors of a given one, a formula."""
        sides = [_numbers(side) for side in chain]
        stated = any(side[0] == "number" and Fraction(side[1]) in self._given for side in chain)
        explained = [
            not _is_plain(tree) and (bool(self.telling(side)) or (stated and all(map(self.explain, side))))
            for tree, side in zip(chain, sides, strict=True)
        ]
        if stated:
            self._given.update(number for side in sides for number in side if self.explain(number))
        if any(explained):
            for tree, side, is_explained in zip(chain, sides, explained, strict=True):
                if is_explained or _is_plain(tree) or _names(tree):
                    self._given.update(side)


def _formulas(text: str) -> list[Tree]:
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


def _computes(side: Tree, answer: Tree, numbers: _Numbers, at: list[dict[str, Any]]) -> bool:
    """Whether a formula comes to the answer from the task: it is the task's, or its numbers are explained and do not
    just carry the answer through."""
    if _unsigned(side)[0] in ("number", "name") or not _names(side) <= _names(answer) | {"pi", "e"}:
        return False
    if side in numbers.formulas:
        return equal(side, answer, at)
    telling = numbers.telling(_numbers(side), least=3)  # any two make small numbers
    return (
        bool(telling)
        and equal(side, answer, at)
        and not _carries(side, answer, at)
        and all(_matters(number, side, answer, at, alone=numbers.num_stated(number) > 1) for number in telling)
    )


def _tells(left: Tree, right: Tree, solution: Mapping[str, str], questions: list[Chain], numbers: _Numbers) -> bool:
    """Whether an equation that holds at the solution says something of an unknown: it does not hold elsewhere, is not
    the question again, and not just `x = 4`, though in other words."""
    elsewhere = points(f"{left}={right}")
    if not (_names(left) | _names(right)) & solution.keys() or any(equal(left, right, [one]) for one in elsewhere):
        return False
    if any(sorted(_symbols(*question)) == sorted(_symbols(left, right)) for question in questions):
        return False
    difference: Tree = ("-", left, right)
    if any(_is_multiple(difference, ("-", *question), elsewhere[0]) for question in questions):
        return True
    if any(equal(side, ("name", name), elsewhere) for side in (left, right) for name in solution):
        return False  # `x = 8/2` computes it, or does not
    telling, there = numbers.telling(_numbers(difference)), points("", solution)
    return (
        bool(telling)
        and not _says_again(difference, solution, elsewhere)
        and all(_matters(number, difference, _ZERO, there, alone=True) for number in telling)
    )


def _matters(number: Fraction, tree: Tree, target: Tree, at: list[dict[str, Any]], alone: bool) -> bool:
    """Whether with another in place of a number, in all places or `alone` in one, a tree would miss its target: in
    `0*7` 7 does not matter, nor does 3 in all places of `3 - 3 + 8`."""
    names, elsewhere = {number: "changed"}, _with(at, {number: "changed"})
    places = [index for index, one in enumerate(_numbers(tree)) if one == number]
    choices = [set(places), *({index} for index in places if alone)]
    return any(not equal(_renamed(tree, names, where), target, elsewhere) for where in choices)


def _carries(side: Tree, answer: Tree, at: list[dict[str, Any]]) -> bool:
    """Whether a side would come to the answer whatever numbers that had: `4 + 1 - 1`, `2*(5/3)/2`, `1 + 2*x - 1`."""
    names = {number: f"changed{index}" for index, number in enumerate(dict.fromkeys(_numbers(answer)))}
    asked, changed = _renamed(answer, names), _with(at, names)
    places = [index for index, number in enumerate(_numbers(side)) if number in names]
    sizes = range(1, len(places)) if len(names) == 1 and len(places) <= _MAX_PLACES else ()
    some = [set(places), *(set(chosen) for size in sizes for chosen in combinations(places, size))]
    whole: Tree = ("name", "changed")
    carried = (side[0], *(_replaced(part, answer, whole, at) if isinstance(part, tuple) else part for part in side[1:]))
    return any(equal(_renamed(side, names, where), asked, changed) for where in some) or equal(
        carried, whole, _with(at, {_ONE: "changed"})
    )


def _says_again(difference: Tree, solution: Mapping[str, str], elsewhere: list[dict[str, Any]]) -> bool:
    """Whether `difference = 0` is `x = 4` with the same done to both sides: it holds anywhere once 4 reads `x`."""
    for name, number in solution.items():
        worth, unknown = parse(number), ("name", name)
        difference = _replaced(difference, worth, unknown, [{}])
        difference = _replaced(difference, ("negative", worth), ("negative", unknown), [{}])
    return equal(difference, _ZERO, elsewhere)


def _is_multiple(tree: Tree, question: Tree, start: Mapping[str, Any]) -> bool:
    """Whether `tree = 0` is the question, times a number: `(x - 2)*(x - 3)` is `x^2 - 5*x + 6`. Of straight lines all
    through one zero are, so that it says nothing of those."""
    at = [{**start, "x": start["x"] + step} for step in range(3)]
    try:
        found, asked = ([value(one, point) for point in at] for one in (tree, question))
    except NotAFormula:
        return False
    tiny = arithmetic().mpf("1e-200")
    is_straight = abs(asked[0] - 2 * asked[1] + asked[2]) < tiny
    return not is_straight and all(abs(found[0] * asked[step] - found[step] * asked[0]) < tiny for step in (1, 2))


def _unsigned(tree: Tree) -> Tree:
    return _unsigned(tree[1]) if tree[0] == "negative" else tree


def _is_plain(tree: Tree) -> bool:
    """A number or a fraction, with or without a sign."""
    return tree[0] == "number" or (tree[0] in ("negative", "/") and all(map(_is_plain, tree[1:])))


def _numbers(tree: Tree) -> list[Fraction]:
    return [Fraction(leaf[1]) for leaf in _leaves(tree)]


def _leaves(tree: Tree) -> list[Tree]:
    """Its numbers, from left to right."""
    return [tree] if tree[0] == "number" else [leaf for part in _parts(tree) for leaf in _leaves(part)]


def _all_parts(tree: Tree) -> Iterator[Tree]:
    """The tree, and its parts of all sizes."""
    yield tree
    for part in _parts(tree):
        yield from _all_parts(part)


def _parts(tree: Tree) -> Iterator[Tree]:
    return (part for part in tree[1:] if isinstance(part, tuple))


def _names(tree: Tree) -> set[str]:
    return {tree[1]} if tree[0] == "name" else set().union(*(_names(part) for part in _parts(tree)))


def _symbols(*trees: Tree) -> list[str]:
    """Operators, names and numbers, in some order."""
    return [
        text for tree in trees for text in (*(one for one in tree if isinstance(one, str)), *_symbols(*_parts(tree)))
    ]


def _renamed(tree: Tree, names: Mapping[Fraction, str], where: Collection[int] | None = None) -> Tree:
    """With names for numbers; for those at some places only, if these are given."""
    leaves = [
        ("name", names[number]) if number in names and (where is None or index in where) else leaf
        for index, (leaf, number) in enumerate(zip(_leaves(tree), _numbers(tree), strict=True))
    ]
    return _filled(tree, iter(leaves))


def _filled(tree: Tree, leaves: Iterator[Tree]) -> Tree:
    if tree[0] == "number":
        return next(leaves)
    return tuple(_filled(part, leaves) if isinstance(part, tuple) else part for part in tree)


def _with(at: list[dict[str, Any]], names: Mapping[Fraction, str]) -> list[dict[str, Any]]:
    """Points, with two other values each for numbers that have names."""
    steps = [
        {name: _other(number, step, index) for index, (number, name) in enumerate(names.items())} for step in (1, 2)
    ]
    return [{**point, **step} for point in at for step in steps]


def _other(number: Fraction, step: int, index: int) -> Any:
    return arithmetic().mpf(number.numerator) / number.denominator + step + arithmetic().mpf(index + 1) / 7


def _replaced(tree: Tree, worth: Tree, by: Tree, at: list[dict[str, Any]]) -> Tree:
    """With another for each part that is worth that much."""
    if equal(tree, worth, at):
        return by
    return tuple(_replaced(part, worth, by, at) if isinstance(part, tuple) else part for part in tree)
