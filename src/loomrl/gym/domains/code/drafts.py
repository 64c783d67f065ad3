"""What is asked about a program: to write it, to mend it, to find the line that is wrong."""

from typing import Any

import numpy as np

from loomrl.gym.domains.code import algorithms
from loomrl.gym.domains.code.judging import Cases
from loomrl.gym.domains.code.mutants import Mutant, tidy, wrong_mutants
from loomrl.gym.tasks import Draft, Kind

_NUM_EXAMPLES, _NUM_WRONG = 2, 5


def implement(rng: np.random.Generator, level: int) -> Draft:
    """A task: write a function from its description and two examples."""
    algorithm, tests, facts = _drawn(rng, level)
    examples = list(zip(tests.small, tests.expected, strict=True))[:_NUM_EXAMPLES]
    calls = [f"{algorithm.name}({', '.join(map(repr, case))}) == {result!r}\n" for case, result in examples]
    prompt = (
        f"Write a Python function `{algorithm.name}({algorithm.parameters})` that returns {algorithm.description}.\n"
        f"Examples:\n{''.join(calls)}Answer with the code alone."
    )
    wrong = [mutant.source for mutant in _mutants(algorithm, tests, rng)]
    return Draft(prompt, tidy(algorithm.source), wrong, facts)


def debug(rng: np.random.Generator, level: int) -> Draft:
    """A task: mend a program in which one thing was changed."""
    algorithm, tests, facts = _drawn(rng, level)
    wrong = [mutant.source for mutant in _mutants(algorithm, tests, rng)]
    prompt = (
        f"`{algorithm.name}` shall return {algorithm.description}. It has a bug:\n\n{wrong[0]}\n"
        "Answer with the mended code alone."
    )
    return Draft(prompt, tidy(algorithm.source), wrong, facts)


def review(rng: np.random.Generator, level: int) -> Draft:
    """A task: name the line of a program in which one thing was changed."""
    algorithm, tests, facts = _drawn(rng, level)
    mutant = _mutants(algorithm, tests, rng)[0]
    lines = mutant.source.rstrip("\n").split("\n")
    numbered = "\n".join(f"{number:2} {line}" for number, line in enumerate(lines, 1))
    prompt = (
        f"`{algorithm.name}` shall return {algorithm.description}. One line is wrong:\n\n{numbered}\n\n"
        "Which one? Answer with its number."
    )
    others = [str(number) for number in range(1, max(len(lines), 5) + 1) if number != mutant.line]
    return Draft(prompt, str(mutant.line), others, facts)


def _drawn(rng: np.random.Generator, level: int) -> tuple[algorithms.CodeAlgorithm, Cases, dict[str, Any]]:
    """An algorithm and its tests, and the seeds that give them again."""
    facts = {"algorithm": int(rng.integers(2**31)), "tests": int(rng.integers(2**31)), "level": level}
    algorithm = algorithms.draw(np.random.default_rng(facts["algorithm"]), level)
    return algorithm, Cases(algorithm, facts["tests"]), facts


def _mutants(algorithm: algorithms.CodeAlgorithm, tests: Cases, rng: np.random.Generator) -> list[Mutant]:
    """Some mutants, in an order that is drawn; every algorithm has at least one."""
    mutants = wrong_mutants(algorithm, tests.small, tests.expected)
    return [mutants[index] for index in rng.permutation(len(mutants))[:_NUM_WRONG]]


KINDS = {"implement": Kind(0, implement), "debug": Kind(0, debug), "review": Kind(1, review)}
