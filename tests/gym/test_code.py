"""Programs judged in the sandbox: other right ones count, slow and unreadable ones earn less, cheats nothing."""

import numpy as np
import pytest

from loomrl.gym.domains import get_domain
from loomrl.gym.domains.code.algorithms import _MAKERS, CodeAlgorithm
from loomrl.gym.domains.code.judging import Cases, extract, judge
from loomrl.gym.domains.code.mutants import results, tidy, wrong_mutants

CODE = get_domain("code")
ALGORITHMS = [make(np.random.default_rng(1)) for _, make in _MAKERS]


def named(name: str) -> CodeAlgorithm:
    return next(one for one in ALGORITHMS if one.name == name)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_every_reference_runs_in_the_sandbox(algorithm: CodeAlgorithm) -> None:
    source = algorithm.source + "\n# of somebody else\n"
    assert judge(source, algorithm, Cases(algorithm, 2)) == {"working": 1.0, "efficient": 1.0, "readable": 1.0}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_mutants_are_wrong_in_one_line(algorithm: CodeAlgorithm) -> None:
    tests = Cases(algorithm, 4)
    mutants = wrong_mutants(algorithm, tests.small, tests.expected)
    assert mutants
    right = tidy(algorithm.source).split("\n")
    for mutant in mutants:
        lines = mutant.source.split("\n")
        assert [place for place, line in enumerate(lines) if line != right[place]] == [mutant.line - 1]
    assert judge(mutants[0].source + "# changed", algorithm, tests) is None


SLOW = {
    "distinct": (
        "kept = []\nfor number in numbers:\n    if number not in kept:\n        kept.append(number)\nreturn kept"
    ),
    "pairs_with_sum": (
        "pairs = 0\nfor place, one in enumerate(numbers):\n    pairs += numbers[:place].count(GOAL - one)\nreturn pairs"
    ),
    "best_window": "return BEST(sum(numbers[i:i + size]) for i in range(len(numbers) - size + 1))",
}


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_program_works_and_is_not_efficient(name: str) -> None:
    algorithm = named(name)
    words = algorithm.description.split()
    body = SLOW[name].replace("GOAL", words[-1]).replace("BEST", "max" if "largest" in words else "min")
    if "reverse" in words:
        body = body.replace("return kept", "return kept[::-1]")
    source = CodeAlgorithm(algorithm.name, algorithm.parameters, "", body, algorithm.small).source
    assert judge(source, algorithm, Cases(algorithm, 2)) == {"working": 1.0, "efficient": 0.0, "readable": 1.0}


NEARLY = {
    "is_balanced": "return all(text.count(pair[0]) == text.count(pair[1]) for pair in ('()', '[]', '{}'))",
    "edits": "return abs(len(left) - len(right)) + sum(one != other for one, other in zip(left, right))",
    "longest_rise": "rise = 0\nfor one, next in zip(numbers, numbers[1:]):\n    rise += next > one\nreturn rise + 1",
}


@pytest.mark.parametrize("name", NEARLY)
def test_a_program_that_is_right_at_first_sight_fails(name: str) -> None:
    algorithm = named(name)
    source = CodeAlgorithm(name, algorithm.parameters, "", NEARLY[name], algorithm.small).source
    for seed in range(3):
        assert judge(source, algorithm, Cases(algorithm, seed)) is None


def test_slow_work_in_many_processes_is_not_efficient() -> None:
    algorithm = named("pairs_with_sum")
    goal = algorithm.description.split()[-1]
    counted = f"sum(numbers[:place].count({goal} - numbers[place]) for place in range(start, end))"
    body = f"""
import os
if len(numbers) < 100:
    start, end = 0, len(numbers)
    return {counted}
pairs = 0
for start in range(0, len(numbers), 2_000):
    end = min(start + 2_000, len(numbers))
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, str({counted}).encode())
        os._exit(0)
    os.wait()
    pairs += int(os.read(reading, 20))
return pairs
"""
    source = CodeAlgorithm(algorithm.name, algorithm.parameters, "", body, algorithm.small).source
    rewards = judge(source, algorithm, Cases(algorithm, 2))
    assert rewards is not None
    assert rewards["efficient"] == 0.0


def test_what_cannot_be_read_earns_less() -> None:
    algorithm = named("count_above")
    limit = algorithm.description.split()[-1]
    unreadable = f"def count_above(a):\n    b = eval('0')\n    for c in a: b += c > {limit}\n    return b{' ' * 100}\n"
    rewards = judge(unreadable, algorithm, Cases(algorithm, 2))
    assert rewards == {"working": 1.0, "efficient": 1.0, "readable": pytest.approx(0.4)}


def test_a_program_that_knows_the_examples_only_fails() -> None:
    task = CODE.generate(np.random.default_rng(3), 0, ["implement"])
    examples = [line.split(" == ") for line in task.prompt.split("\n") if " == " in line]
    name = examples[0][0].partition("(")[0]
    known = ", ".join(f"{call[len(name) + 1 : -1]!r}: {result}" for call, result in examples)
    cheat = f"def {name}(given):\n    return {{{known}}}.get(repr(given), 0)\n"
    assert CODE.score(task, cheat).total == 0.0


def test_a_program_may_print_and_change_its_arguments() -> None:
    algorithm = named("clamp")
    source = algorithm.source.replace("return", "print('working'); numbers = numbers + []; return")
    assert judge(source, algorithm, Cases(algorithm, 2)) is not None


def test_one_fenced_block_is_a_program() -> None:
    assert extract("```python\nx = 1\n```") == "x = 1\n"
    assert extract(" ```\nx = 1\n```\n") == "x = 1\n"
    assert extract("x = 1") == "x = 1"
    assert extract("Look:\n```python\nx = 1\n```") is None
    assert extract("```python\nx = 1\n```\n```python\nx = 2\n```") is None
    assert extract("x" * 4_001) is None


def test_a_review_takes_a_line() -> None:
    task = CODE.generate(np.random.default_rng(0), 3, ["review"])
    for answer in (f"line {task.right}", f" {task.right}.\n", f"Line {task.right}"):
        assert CODE.score(task, answer).total == pytest.approx(1.0)
    assert CODE.score(task, f"{task.right}, {task.wrong[0]}").total == 0.0


def test_references_are_right_by_hand() -> None:
    assert results(named("run_lengths").source, "run_lengths", [["aab"], [""]])[1] in ([], 0)
    assert results("def twice(number):\n    return number + number", "twice", [[4], ["a"]]) == [8, "aa"]
    assert results("def broken(number):\n    return 1 / number", "broken", [[0]]) == [{"raised": "ZeroDivisionError"}]
