"""Whether equations lead to an answer: they compute it from numbers of the task, or say something of its unknown.

A number is *given* where it stands in the task, or follows from such in an earlier line. It is *explained* where it is
given, small or round, or what one operation makes of two given ones. One number that nobody need explain would make
any equation hold.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from itertools import combinations

from loomrl.gym.domains.math.expressions import NotAFormula, Tree, parse
from loomrl.gym.domains.math.known import Chain, KnownNumbers, formulas_in
from loomrl.gym.domains.math.trees import (
    all_parts,
    names_in,
    numbers_in,
    renamed,
    replaced,
    symbols_in,
    unsigned,
)
from loomrl.gym.domains.math.values import FormulaValues, StepBudget, is_tiny, points
from loomrl.gym.tasks import Task

_EQUATION = re.compile(r"[-+*/^() .0-9xy]+=[-+*/^() .0-9xy]+", re.ASCII)
_MAX_PLACES = 6
"""The most places of the answer's number in a formula of which all choices are tried whether they carry it through:
2^6 of them. With more, all at once are the only choice."""
_LEAST_COMPUTING = 3
"""So many numbers made of the task's own compute an answer, if none of them is given: any two make small numbers."""
_PARTS_A_STEP = 4  # walked in the time of a step
_ONE = Fraction(1)
_ZERO: Tree = ("number", "0")


def leads(chains: Iterable[Chain], task: Task, final: str, budget: StepBudget) -> bool:
    """Whether one of the chains, all of which hold, leads to the answer from the task, or from chains before it.

    Raises:
        TooMuchToCompute: where the budget does not suffice to tell.
    """
    search = _Search(task, final, budget)
    return any(search.ends_with(chain) for chain in chains)


class _Search:
    """A search for the step that leads to the answer, from the first line to the last."""

    def __init__(self, task: Task, final: str, budget: StepBudget) -> None:
        self._numbers, self._answer, self._budget = KnownNumbers(task.prompt), parse(final), budget
        self._values = FormulaValues(points(final), budget)
        self._solution = {name: parse(number) for name, number in task.facts.get("solution", {}).items()}
        self._solved = FormulaValues(points("", task.facts.get("solution", {})), budget)
        self._constants = FormulaValues([{}], budget)
        self._questions = [sides for text in _EQUATION.findall(task.prompt) if len(sides := formulas_in(text)) == 2]
        self._questions_symbols = [symbols_in(*question) for question in self._questions]

    def ends_with(self, chain: Chain) -> bool:
        """Whether a chain leads to the answer; if not, the next ones may use its numbers."""
        if any(self._computes(part) for side in chain for part in all_parts(side)):
            return True
        if any(self._tells(*step) for step in zip(chain[:-1], chain[1:], strict=True)):
            return True
        self._numbers.learn(chain)
        return False

    def _computes(self, part: Tree) -> bool:
        """Whether a formula comes to the answer from the task: it is the task's, or its numbers are explained and do
        not just carry the answer through."""
        if unsigned(part)[0] in ("number", "name") or not self._values.equal(part, self._answer):
            return False
        self._budget.spend(_num_steps(part))
        if not names_in(part) <= names_in(self._answer) | {"pi", "e"}:
            return False
        if part in self._numbers.formulas:
            return True
        telling = self._numbers.telling(numbers_in(part), least=_LEAST_COMPUTING)
        return (
            bool(telling)
            and not self._carries(part)
            and all(
                self._matters(number, part, self._answer, self._values, alone=self._numbers.num_stated(number) > 1)
                for number in telling
            )
        )

    def _tells(self, left: Tree, right: Tree) -> bool:
        """Whether an equation that holds at the solution says something of an unknown: it does not hold elsewhere, is
        not the question again, and not just `x = 4`, though in other words."""
        if not (names_in(left) | names_in(right)) & self._solution.keys():
            return False
        self._budget.spend(_num_steps(left) + _num_steps(right))
        at = points(f"{left}={right}")
        elsewhere = FormulaValues(at, self._budget)
        if elsewhere.equal_somewhere(left, right) or symbols_in(left, right) in self._questions_symbols:
            return False
        difference: Tree = ("-", left, right)
        start = at[0]
        line = FormulaValues([{**start, "x": start["x"] + step} for step in range(3)], self._budget)
        if any(_is_multiple(difference, ("-", *question), line) for question in self._questions):
            return True
        if any(elsewhere.equal(side, ("name", name)) for side in (left, right) for name in self._solution):
            return False  # `x = 8/2` computes it, or does not
        telling = self._numbers.telling(numbers_in(difference))
        return (
            bool(telling)
            and not self._says_again(difference, elsewhere)
            and all(self._matters(number, difference, _ZERO, self._solved, alone=True) for number in telling)
        )

    def _matters(self, number: Fraction, tree: Tree, target: Tree, values: FormulaValues, alone: bool) -> bool:
        """Whether with another in place of a number, in all places or `alone` in one, a tree would miss its target: in
        `0*7` 7 does not matter, nor does 3 in all places of `3 - 3 + 8`."""
        names = {number: "changed"}
        places = [index for index, one in enumerate(numbers_in(tree)) if one == number]
        choices = [set(places), *({index} for index in places if alone)]
        elsewhere = values.with_names(names)
        return any(not elsewhere.equal(self._renamed(tree, names, where), target) for where in choices)

    def _carries(self, side: Tree) -> bool:
        """Whether a side would come to the answer whatever numbers that had: `4 + 1 - 1`, `2*(5/3)/2`,
        `1 + 2*x - 1`."""
        names = {number: f"changed{index}" for index, number in enumerate(dict.fromkeys(numbers_in(self._answer)))}
        asked, changed = renamed(self._answer, names), self._values.with_names(names)
        places = [index for index, number in enumerate(numbers_in(side)) if number in names]
        sizes = range(1, len(places)) if len(names) == 1 and len(places) <= _MAX_PLACES else ()
        some = [set(places), *(set(chosen) for size in sizes for chosen in combinations(places, size))]
        return any(changed.equal(self._renamed(side, names, where), asked) for where in some) or self._holds_it(side)

    def _holds_it(self, side: Tree) -> bool:
        """Whether a part of a side is the answer, and the side whatever that part is."""
        whole: Tree = ("name", "changed")
        carried = tuple(replaced(part, self._is_answer, whole) if isinstance(part, tuple) else part for part in side)
        return self._values.with_names({_ONE: "changed"}).equal(carried, whole)

    def _is_answer(self, part: Tree) -> bool:
        return self._values.equal(part, self._answer)

    def _says_again(self, difference: Tree, elsewhere: FormulaValues) -> bool:
        """Whether `difference = 0` is `x = 4` with the same done to both sides: it holds anywhere once 4 reads `x`."""
        for name, worth in self._solution.items():
            unknown: Tree = ("name", name)
            difference = self._replaced(difference, worth, unknown)
            difference = self._replaced(difference, ("negative", worth), ("negative", unknown))
        return elsewhere.equal(difference, _ZERO)

    def _replaced(self, tree: Tree, worth: Tree, by: Tree) -> Tree:
        return replaced(tree, lambda part: self._constants.equal(part, worth), by)

    def _renamed(self, tree: Tree, names: Mapping[Fraction, str], where: Collection[int] | None = None) -> Tree:
        self._budget.spend(_num_steps(tree))
        return renamed(tree, names, where)


def _is_multiple(tree: Tree, question: Tree, line: FormulaValues) -> bool:
    """Whether `tree = 0` is the question, times a number: `(x - 2)*(x - 3)` is `x^2 - 5*x + 6`. Of straight lines all
    through one zero are, so that it says nothing of those. `line` has three points, a step apart."""
    found, asked = line.of(tree), line.of(question)
    if any(isinstance(one, NotAFormula) for one in (*found, *asked)):
        return False
    is_straight = is_tiny(asked[0] - 2 * asked[1] + asked[2])
    return not is_straight and all(is_tiny(found[0] * asked[step] - found[step] * asked[0]) for step in (1, 2))


def _num_steps(tree: Tree) -> int:
    """What it takes to walk a formula once, in steps of a budget."""
    return 1 + sum(1 for _ in all_parts(tree)) // _PARTS_A_STEP
