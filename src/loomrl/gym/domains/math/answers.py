"""Judging an answer to a math task: its last line, and the working above it."""

import re
from fractions import Fraction

from loomrl.gym.domains.math.expressions import NotAFormula, Tree, parse
from loomrl.gym.domains.math.values import FormulaValues, StepBudget, TooMuchToCompute, equal, points
from loomrl.gym.domains.math.working import leads
from loomrl.gym.tasks import MAX_ANSWER_CHARACTERS, Rewards, Task

MAX_LINES = 50
MAX_STEPS = 30_000
"""Of a `StepBudget`, to judge the working of an answer: about a second on one core at most. The longest of 1,566
workings that people would write, a derivative of nine terms, takes 12,400 (`tests/support/gym_workings.py`)."""
_MARK = "answer:"
_UNKNOWN = re.compile(r"^x ?= ?|\.$", re.ASCII)  # of `x = 4` and `4.` the answer is 4; no task asks for y
_NUMBER = re.compile(r"-?[0-9]{1,20}(?:/[0-9]{1,20})?", re.ASCII)


def judge(task: Task, answer: str) -> Rewards | None:
    """What an answer earns, 0 to 1 by component, or None where it is wrong.

    The last line is the answer; where there is more than one it begins with `Answer:`, and no other line does. Above it
    stand equations. `correctness` is the answer's value, `final_accuracy` its form, and `logical_progression` the share
    of the lines of working that hold. Working that would take more than `MAX_STEPS` to judge earns none of it. Without
    a right answer all of them are worth nothing.
    """
    lines = [line.strip(" \t\r") for line in answer.split("\n") if line.strip(" \t\r")]
    if not lines or len(lines) > MAX_LINES or len(answer) > MAX_ANSWER_CHARACTERS:
        return None
    *working, last = lines
    if any(line.lower().startswith(_MARK) for line in working) or (working and not last.lower().startswith(_MARK)):
        return None
    final = _UNKNOWN.sub("", last[len(_MARK) :].strip(" ") if last.lower().startswith(_MARK) else last)
    if not is_right(task, final):
        return None
    return {
        "correctness": 1.0,
        "logical_progression": _progression(working, task, final),
        "final_accuracy": float(_is_in_form(task, final)),
    }


def is_right(task: Task, final: str) -> bool:
    """Whether a final answer has the value asked for, in a form that is not the question itself."""
    form = task.facts["form"]
    try:
        if form == "number":
            return _NUMBER.fullmatch(final) is not None and Fraction(final) == Fraction(task.right)
        if form == "expanded" and "(" in final:
            return False
        return equal(parse(final), parse(task.right), points(final))
    except (NotAFormula, ZeroDivisionError):
        return False


def _is_in_form(task: Task, final: str) -> bool:
    """Numbers as whole numbers or fractions in lowest terms, formulas without detours."""
    if task.facts["form"] == "number":
        return final == str(Fraction(final))
    return len(final.replace(" ", "")) <= 2 * len(task.right.replace(" ", "")) + 8


def _progression(working: list[str], task: Task, final: str) -> float:
    """The share of the lines that are equations which hold; a line that was there before counts as one that does not.

    0 without working, where none of those that hold leads to the answer, and where it would take more than `MAX_STEPS`
    to tell.
    """
    budget = StepBudget(MAX_STEPS)
    try:
        chains = [_chain(line, task, budget) for line in dict.fromkeys(working)]
        holding = [chain for chain in chains if chain is not None]
        return len(holding) / len(working) if leads(holding, task, final, budget) else 0.0
    except TooMuchToCompute:
        return 0.0


def _chain(line: str, task: Task, budget: StepBudget) -> list[Tree] | None:
    """The sides of `a = b = c`; None where it does not hold, at the task's solution where there is one, or where a side
    merely repeats the one before."""
    values = FormulaValues(points(line, task.facts.get("solution")), budget)
    try:
        trees = [parse(side) for side in line.split("=")]
    except NotAFormula:
        return None
    steps = list(zip(trees[:-1], trees[1:], strict=True))
    return trees if steps and all(left != right and values.equal(left, right) for left, right in steps) else None
