"""Judging an answer to a math task: its last line, and the working above it."""

import re
from fractions import Fraction
from typing import Any

from loomrl.gym.domains.math.expressions import NotAFormula, Tree, equal, parse, points
from loomrl.gym.tasks import MAX_ANSWER_CHARACTERS, Rewards, Task

MAX_LINES = 50
_MARK = "answer:"
_UNKNOWN = re.compile(r"^x ?= ?|\.$", re.ASCII)  # of `x = 4` and `4.` the answer is 4; no task asks for y
_NEUTRAL = {"+": "0", "-": "0", "*": "1", "/": "1", "^": "1"}  # an operand, of some the second, that changes nothing
_NUMBER = re.compile(r"-?[0-9]{1,20}(?:/[0-9]{1,20})?", re.ASCII)


def judge(task: Task, answer: str) -> Rewards | None:
    """What an answer earns, 0 to 1 by component, or None where it is wrong.

    The last line is the answer; where there is more than one it begins with `Answer:`, and no other line does. Above it
    stand equations. `correctness` is the answer's value, `final_accuracy` its form, and `logical_progression` the share
    of the lines of working that hold. Without a right answer all of them are worth nothing.
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

    0 without working, and for working that leads nowhere: at least one equation that holds computes something (`x = 4`,
    `x = 5/3` and `4 + 0 = 4` only say the answer again), and names an unknown of the task or has the answer on one
    side.
    """
    chains = [_chain(line, task) for line in dict.fromkeys(working)]
    holding, answer = [chain for chain in chains if chain is not None], _unsigned(_plain(parse(final)))
    computing = [chain for chain in holding if any(_computes(tree, answer) for tree in chain)]
    arrives = any(_names_unknown(tree, task) or _is_answer(tree, final) for chain in computing for tree in chain)
    return len(holding) / len(working) if arrives else 0.0


def _chain(line: str, task: Task) -> list[Tree] | None:
    """The sides of `a = b = c`; None where it does not hold, at the task's solution where there is one, or where a side
    merely repeats the one before."""
    at: list[dict[str, Any]] = points(line, task.facts.get("solution"))
    try:
        trees = [parse(side) for side in line.split("=")]
    except NotAFormula:
        return None
    steps = list(zip(trees[:-1], trees[1:], strict=True))
    return trees if steps and all(left != right and equal(left, right, at) for left, right in steps) else None


def _computes(tree: Tree, answer: Tree) -> bool:
    """Whether a side is more than a number, a name or the answer, with what changes none of them: `4`, `-x`, `5/3`,
    `4 + 0` and `1*4` are not."""
    plain = _unsigned(_plain(tree))
    return plain[0] not in ("number", "name") and plain != answer


def _unsigned(tree: Tree) -> Tree:
    while tree[0] == "negative":
        tree = tree[1]
    return tree


def _plain(tree: Tree) -> Tree:
    """Without the operands that change nothing, and double signs."""
    operator, *parts = tree
    if operator in ("number", "name"):
        return tree
    plain: list[Any] = [_plain(part) if isinstance(part, tuple) else part for part in parts]
    first: Tree = plain[0]
    if operator == "negative" and first[0] == "negative":
        return tuple(first[1])
    if (neutral := _NEUTRAL.get(operator)) is not None:
        second: Tree = plain[1]
        if _is_number(second, neutral):
            return first
        if operator in "+*" and _is_number(first, neutral):
            return second
    return (operator, *plain)


def _is_number(tree: Tree, number: str) -> bool:
    return tree[0] == "number" and equal(tree, parse(number), [{}])


def _names_unknown(tree: Tree, task: Task) -> bool:
    operator, *parts = tree
    if operator == "name":
        return parts[0] in task.facts.get("solution", ())
    return any(isinstance(part, tuple) and _names_unknown(part, task) for part in parts)


def _is_answer(tree: Tree, final: str) -> bool:
    return equal(tree, parse(final), points(final))
