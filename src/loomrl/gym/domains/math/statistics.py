"""Statistics and probability: exact fractions throughout."""

from fractions import Fraction
from math import comb
from statistics import mean, median, pvariance

import numpy as np

from loomrl.gym.domains.math.drafts import number_draft, pick
from loomrl.gym.tasks import Draft, Kind


def average(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the mean of a list of numbers."""
    numbers = _sample(rng, level)
    prompt = f"What is the mean of {_listed(numbers)}? Give a whole number or a fraction."
    return number_draft(
        prompt, mean(numbers), (median(numbers), sum(numbers), Fraction(sum(numbers), len(numbers) + 1))
    )


def middle(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the median of a list of numbers."""
    numbers = _sample(rng, level)
    prompt = f"What is the median of {_listed(numbers)}? Give a whole number or a fraction."
    return number_draft(prompt, Fraction(median(numbers)), (mean(numbers), max(numbers), numbers[len(numbers) // 2]))


def variance(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the variance of a whole population."""
    numbers = _sample(rng, level - 2)
    right = pvariance(numbers)
    count = len(numbers)
    prompt = f"What is the variance of the population {_listed(numbers)}? Give a whole number or a fraction."
    return number_draft(prompt, right, (right * count / (count - 1), right * count, mean(numbers)))


def urn(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the probability of drawing only red balls, without putting any back."""
    red, blue = pick(rng, 2, 3 + level), pick(rng, 1, 3 + level)
    draws = pick(rng, 1, min(red, 1 + level // 3))
    right = Fraction(comb(red, draws), comb(red + blue, draws))
    balls = "a ball is drawn. What is the probability that it is red" if draws == 1 else (
        f"{draws} balls are drawn without putting any back. What is the probability that all are red"
    )  # fmt: skip
    prompt = f"From an urn with {red} red and {blue} blue balls {balls}? Give a fraction."
    return number_draft(prompt, right, (Fraction(red, red + blue) ** draws * Fraction(1, 2), 1 - right, 1 / right))


def two_dice(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the probability of a sum of dice."""
    sides, count = pick(rng, 4, 6 + level), 2 + (level >= 7)
    ways = _ways(sides, count)
    goal = pick(rng, count + 1, count * sides - 1)
    right = Fraction(ways[goal], sides**count)
    prompt = (
        f"{count} fair dice with {sides} sides are rolled. What is the probability of the sum {goal}? Give a fraction."
    )
    return number_draft(
        prompt, right, (Fraction(1, count * sides - count + 1), 1 - right, Fraction(goal, sides**count))
    )


def _ways(sides: int, count: int) -> dict[int, int]:
    ways = {0: 1}
    for _ in range(count):
        rolled: dict[int, int] = {}
        for total, number in ways.items():
            for side in range(1, sides + 1):
                rolled[total + side] = rolled.get(total + side, 0) + number
        ways = rolled
    return ways


def _sample(rng: np.random.Generator, level: int) -> list[Fraction]:
    return [Fraction(pick(rng, 1, 9 + 10 * level)) for _ in range(3 + level)]


def _listed(numbers: list[Fraction]) -> str:
    return ", ".join(map(str, numbers))


KINDS = {
    "mean": Kind(0, average),
    "median": Kind(1, middle),
    "variance": Kind(4, variance),
    "urn": Kind(3, urn),
    "dice": Kind(5, two_dice),
}
