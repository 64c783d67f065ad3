"""A higher level is more work, measured by what the work consists of in each domain."""

import ast
import json
import re
from collections.abc import Callable

import numpy as np
import pytest

from loomrl.gym.domains import get_domain, own_names
from loomrl.gym.tasks import Task


def math_work(task: Task) -> float:
    """Symbols and digits to go through."""
    return len(re.findall(r"[0-9]|[-+*/^=(]", task.prompt.partition("\n")[0])) + 2 * len(task.right)


def game_work(task: Task) -> float:
    """Moves to look ahead, or how seldom an opponent errs."""
    if "mistakes" in task.facts:
        return 4.0 * (1.0 - task.facts["mistakes"])
    ahead = re.search(r"next (\d) moves", task.prompt)
    return float(ahead[1]) if ahead else 1.0


def code_work(task: Task) -> float:
    """Parts of the program."""
    source = task.right if task.kind != "review" else "\n".join(re.findall(r"^ ?\d+ (.*)$", task.prompt, re.MULTILINE))
    return float(len(list(ast.walk(ast.parse(source)))))


def tool_call_work(task: Task) -> float:
    """What there is to look through, and to send."""
    return float(len(json.dumps(task.facts["world"])) + len(task.right))


def language_work(task: Task) -> float:
    """Words to read and to write."""
    return len(task.prompt.split()) + 2 * len(task.right.split())


def multimodal_work(task: Task) -> float:
    """Things in the picture."""
    return float(len(task.facts["things"]))


WORK: dict[str, Callable[[Task], float]] = {
    "math": math_work,
    "game": game_work,
    "code": code_work,
    "tool_call": tool_call_work,
    "language": language_work,
    "multimodal": multimodal_work,
}


@pytest.mark.parametrize("name", own_names())
@pytest.mark.long_cases("code", "game")
def test_work_grows_with_the_level(name: str) -> None:
    domain, means = get_domain(name), []
    for level in (0, 3, 6, 9):
        rng = np.random.default_rng(level)
        count = 8 if name == "game" else 60
        # Of every kind alike, so that what is measured is the level.
        tasks = [
            domain.generate(rng, level, [kind])
            for kind in domain.kinds
            for _ in range(max(2, count // len(domain.kinds)))
        ]
        means.append(np.mean([WORK[name](task) for task in tasks]))
    assert means == sorted(means), means
    assert means[-1] > 1.3 * means[0], means
