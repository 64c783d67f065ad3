"""What the fields of mathematics share when they write tasks."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from loomrl.gym.tasks import Draft, Task

INSTRUCTION = "Equations may lead to it, one a line; the last line is `Answer: ...`."


def asks_for_working(task: Task) -> bool:
    """Whether the prompt asks for the equations that lead to the answer."""
    return task.prompt.endswith(INSTRUCTION)


def pick(rng: np.random.Generator, low: int, high: int) -> int:
    """A whole number drawn uniformly from [low, high], both included."""
    return int(rng.integers(low, high, endpoint=True))


def nonzero(rng: np.random.Generator, limit: int) -> int:
    """A whole number from [-limit, limit] that is not 0."""
    return pick(rng, 1, limit) * (1 if rng.integers(2) else -1)


def number_draft(
    prompt: str, right: Fraction | int, slips: Iterable[Fraction | int], solution: Mapping[str, str] | None = None
) -> Draft:
    """A task whose answer is a number. `slips` are what usual mistakes lead to; near numbers make up for those missing.

    `solution` gives the unknowns' values, at which equations of the working must hold.
    """
    answer = Fraction(right)
    near = [answer + step for step in (1, -1, 2, -2, 10, -10)]
    wrong = [str(Fraction(slip)) for slip in (*slips, *near) if Fraction(slip) != answer]
    facts: dict[str, Any] = {"form": "number"} | ({"solution": dict(solution)} if solution else {})
    return Draft(f"{prompt}\n{INSTRUCTION}", str(answer), list(dict.fromkeys(wrong))[:6], facts)


def formula_draft(prompt: str, right: str, slips: Iterable[str], form: str = "formula") -> Draft:
    """A task whose answer is a formula; `form` "expanded" allows no parentheses."""
    return Draft(f"{prompt}\n{INSTRUCTION}", right, list(dict.fromkeys(slips)), {"form": form})
