"""The parts of formulas, and formulas with other parts. All of it takes time in proportion to a formula's length."""

from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache

from loomrl.gym.domains.math.expressions import Tree


def all_parts(tree: Tree) -> Iterator[Tree]:
    """The tree, and its parts of all sizes, from left to right."""
    ahead = [tree]
    while ahead:
        part = ahead.pop()
        yield part
        ahead.extend(one for one in reversed(part) if isinstance(one, tuple))


def numbers_in(tree: Tree) -> list[Fraction]:
    """The numbers that stand in a formula, from left to right."""
    return [_number(part[1]) for part in all_parts(tree) if part[0] == "number"]


def names_in(tree: Tree) -> set[str]:
    """The variables and constants that stand in a formula."""
    return {part[1] for part in all_parts(tree) if part[0] == "name"}


def symbols_in(*trees: Tree) -> list[str]:
    """Operators, names and numbers of formulas, sorted: those of an equation are the same with its sides swapped."""
    return sorted(text for tree in trees for part in all_parts(tree) for text in part if isinstance(text, str))


def unsigned(tree: Tree) -> Tree:
    """A formula without the signs before it."""
    return unsigned(tree[1]) if tree[0] == "negative" else tree


def is_plain(tree: Tree) -> bool:
    """Whether a formula is a number or a fraction, with or without a sign."""
    return tree[0] == "number" or (tree[0] in ("negative", "/") and all(map(is_plain, tree[1:])))


def renamed(tree: Tree, names: Mapping[Fraction, str], where: Collection[int] | None = None) -> Tree:
    """With names for numbers; for those at some places only, if these are given: the first number has place 0."""
    leaves = [
        ("name", names[number]) if number in names and (where is None or index in where) else None
        for index, number in enumerate(numbers_in(tree))
    ]
    return _filled(tree, iter(leaves))


def replaced(tree: Tree, is_worth_it: Callable[[Tree], bool], by: Tree) -> Tree:
    """With another for each part of which something holds, the biggest first."""
    if is_worth_it(tree):
        return by
    return tuple(replaced(part, is_worth_it, by) if isinstance(part, tuple) else part for part in tree)


def _filled(tree: Tree, leaves: Iterator[Tree | None]) -> Tree:
    if tree[0] == "number":
        return next(leaves) or tree
    return tuple(_filled(part, leaves) if isinstance(part, tuple) else part for part in tree)


@lru_cache(maxsize=4096)
def _number(text: str) -> Fraction:
    return Fraction(text)
