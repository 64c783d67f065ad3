"""Tasks from reasoning-gym whose answer is a whole number or a fraction, judged by our own verifier.

Its scorers give part of the reward to texts that merely contain the answer; here the answer alone counts.
"""

import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from loomrl.gym.domains.math.drafts import number_draft
from loomrl.gym.tasks import Draft, Kind

_NUMBER = re.compile(r"-?[0-9]+(/[0-9]+)?", re.ASCII)
_TRIES = 100


def _from(name: str) -> Callable[[np.random.Generator, int], Draft]:
    def make(rng: np.random.Generator, level: int) -> Draft:
        """The first of its tasks whose answer is a number."""
        for _ in range(_TRIES):
            item = _data_set(name, int(rng.integers(2**31)), level)[0]
            question, answer = " ".join(str(item["question"]).split()), str(item["answer"]).strip()
            if _NUMBER.fullmatch(answer):
                return number_draft(question, Fraction(answer), (-Fraction(answer), 2 * Fraction(answer)))
        raise AssertionError(f"reasoning-gym's {name} gave no number in {_TRIES} tasks")

    return make


def _data_set(name: str, seed: int, level: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of a package it imports, when that is compiled first
        import reasoning_gym
    _, settings = _DATA_SETS[name]
    return reasoning_gym.create_dataset(name, seed=seed, size=1, **settings(level))


_DATA_SETS: dict[str, tuple[int, Callable[[int], dict[str, int]]]] = {  # the first level, and how hard tasks are at one
    "leg_counting": (1, lambda at: {"min_animals": 1 + at // 2, "max_animals": 2 + at, "max_instances": 3 + at}),
    "products": (1, lambda at: {"min_digits": 1 + at // 4, "max_digits": 1 + at // 2}),
    "basic_arithmetic": (2, lambda at: {"min_terms": 2 + at // 3, "max_terms": 3 + at // 2, "max_digits": 1 + at // 3}),
    "gcd": (3, lambda at: {"max_value": 20 * 2**at, "max_numbers": 2 + at // 4}),
    "number_sequence": (4, lambda at: {"max_complexity": 1 + at // 4, "max_value": 10 + 20 * at, "min_value": 0}),
    "lcm": (5, lambda at: {"max_value": 10 + 10 * at, "max_numbers": 2 + at // 5}),
    "count_primes": (6, lambda at: {"max_n": 50 * (1 + at) ** 2}),
}
KINDS = {name: Kind(level, _from(name)) for name, (level, _) in _DATA_SETS.items()}
