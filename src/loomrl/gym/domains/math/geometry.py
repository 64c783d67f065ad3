"""Geometry: areas, right triangles, circles, distances, angles."""

from fractions import Fraction
from math import gcd

import numpy as np

from loomrl.gym.domains.math.drafts import formula_draft, nonzero, number_draft, pick
from loomrl.gym.tasks import Draft, Kind


def rectangle(rng: np.random.Generator, level: int) -> Draft:
    """A task: find a rectangle's area from its sides, or, from level 2 on, a side from area and perimeter."""
    width, height = (pick(rng, 2, 6 + 6 * level) for _ in range(2))
    if level < 2:
        prompt = f"A rectangle is {width} wide and {height} high. What is its area?"
        return number_draft(prompt, width * height, (2 * (width + height), width + height))
    area, perimeter, longer = width * height, 2 * (width + height), max(width, height)
    prompt = f"A rectangle has the area {area} and the perimeter {perimeter}. How long is its longer side?"
    solution = (min(width, height), perimeter // 2, Fraction(area, perimeter))
    return number_draft(prompt, longer, solution, {"x": str(longer)})


def right_triangle(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the third side of a right triangle with whole sides."""
    scale, short, long = pick(rng, 1, 1 + level), pick(rng, 1, 2 + level // 3), 0
    long = short + pick(rng, 1, 2 + level // 3)
    shared = gcd(short, long)
    short, long = short // shared, long // shared
    legs = scale * (long**2 - short**2), scale * 2 * long * short
    hypotenuse = scale * (long**2 + short**2)
    if level >= 3 and rng.integers(2):
        prompt = f"A right triangle has the hypotenuse {hypotenuse} and a leg of {legs[0]}. How long is the other leg?"
        return number_draft(prompt, legs[1], (hypotenuse - legs[0], legs[1] ** 2))
    prompt = f"The legs of a right triangle are {legs[0]} and {legs[1]}. How long is its hypotenuse?"
    return number_draft(prompt, hypotenuse, (sum(legs), hypotenuse**2))


def circle(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the area of a circle, from level 4 on of a ring, as a multiple of pi."""
    radius = pick(rng, 2, 5 + 3 * level)
    if level < 4:
        prompt = f"A circle has the radius {radius}. What is its area? Give a multiple of pi."
        return _multiple_of_pi(prompt, radius**2, (2 * radius, 4 * radius**2, radius))
    inner = pick(rng, 1, radius - 1)
    prompt = (
        f"A ring has the outer radius {radius} and the inner radius {inner}. What is its area, as a multiple of pi?"
    )
    return _multiple_of_pi(prompt, radius**2 - inner**2, ((radius - inner) ** 2, radius**2 + inner**2, radius - inner))


def distance(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the squared distance of two points, which is whole."""
    first, second = ([nonzero(rng, 3 + 3 * level) for _ in range(2)] for _ in range(2))
    steps = [right - left for left, right in zip(first, second, strict=True)]
    prompt = f"What is the square of the distance between ({first[0]}, {first[1]}) and ({second[0]}, {second[1]})?"
    return number_draft(prompt, sum(step**2 for step in steps), (sum(map(abs, steps)), sum(steps) ** 2))


def polygon_angle(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the last interior angle of a polygon, in degrees."""
    sides = pick(rng, 3, 3 + (level + 1) // 2)
    total = 180 * (sides - 2)
    middle = total // sides
    given = [middle + pick(rng, -middle // 3, middle // 3) for _ in range(sides - 1)]
    right = total - sum(given)
    prompt = (
        f"All interior angles of a polygon but one are {', '.join(map(str, given))} degrees. How big is the last one?"
    )
    return number_draft(prompt, right, (360 - sum(given), right + 180, right - 180))


def _multiple_of_pi(prompt: str, right: int, slips: tuple[int, ...]) -> Draft:
    wrong = [f"{slip}*pi" for slip in (*slips, right + 1, 2 * right) if slip != right]
    return formula_draft(prompt, f"{right}*pi", wrong)


KINDS = {
    "rectangle": Kind(0, rectangle),
    "right_triangle": Kind(1, right_triangle),
    "circle": Kind(2, circle),
    "distance": Kind(3, distance),
    "polygon_angle": Kind(2, polygon_angle),
}
