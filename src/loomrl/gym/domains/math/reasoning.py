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


def _settings(name: str, level: int) -> dict[str, Any]:
    """How hard a data set's tasks are at a level."""
    match name:
        case "leg_counting":
            return {"min_animals": 1 + level // 2, "max_animals": 2 + level, "max_instances": 3 + level}
        case "gcd":
            return {"max_value": 20 * 2**level, "max_numbers": 2 + level // 4}
        case "lcm":
            return {"max_value": 10 + 10 * level, "max_numbers": 2 + level // 5}
        case "products":
            return {"min_digits": 1 + level // 4, "max_digits": 1 + level // 2}
        case "basic_arithmetic":
            return {"min_terms": 2 + level // 3, "max_terms": 3 + level // 2, "max_digits": 1 + level // 3}
        case "number_sequence":
            return {"max_complexity": 1 + level // 4, "max_value": 10 + 20 * level, "min_value": 0}
    return {"max_n": 50 * (1 + level) ** 2}  # count_primes


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
    return reasoning_gym.create_dataset(name, seed=seed, size=1, **_settings(name, level))


_FIRST_LEVELS = {
    "leg_counting": 1,
    "products": 1,
    "basic_arithmetic": 2,
    "gcd": 3,
    "number_sequence": 4,
    "lcm": 5,
    "count_primes": 6,
}
KINDS = {name: Kind(level, _from(name)) for name, level in _FIRST_LEVELS.items()}
