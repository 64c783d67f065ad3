"""Arithmetic and algebra: sums, equations, systems, polynomials."""

from fractions import Fraction

import numpy as np
import sympy

from loomrl.gym.domains.math.drafts import formula_draft, nonzero, number_draft, pick
from loomrl.gym.tasks import Draft, Kind

_X = sympy.Symbol("x")


def addition(rng: np.random.Generator, level: int) -> Draft:
    """A task: `47+38=`, with more digits every other level.

    The prompt is bare, so that the smallest policies can learn it.
    """
    digits = 1 + (level + 1) // 2
    left, right = (int(rng.integers(10 ** (digits - 1) - (digits == 1), 10**digits)) for _ in range(2))
    total = left + right
    carry = 10 ** int(rng.integers(1, digits + 1))
    wrong = [str(total + carry), str(total + 1), str(total - 1), str(abs(total - carry))]
    facts = {"form": "number"}
    return Draft(f"{left}+{right}=", str(total), [one for one in dict.fromkeys(wrong) if one != str(total)], facts)


def linear(rng: np.random.Generator, level: int) -> Draft:
    """A task: solve a x + b = c x + d for x, which is a whole number, from level 5 on a fraction."""
    limit = 5 + 4 * level
    a, b, solution = nonzero(rng, limit), nonzero(rng, limit), Fraction(nonzero(rng, limit))
    c = nonzero(rng, limit) if level >= 2 else 0
    if level >= 5:
        solution /= pick(rng, 2, 9)
    if a == c:
        a += 1
    if a == 0:
        a, c = 1, c + 1
    d = (a - c) * solution + b
    scale = d.denominator
    left, right = scale * (a * _X + b), scale * c * _X + int(scale * d)
    slips = (-solution, Fraction(d + b, a - c), solution * (a - c))
    prompt = f"Solve for x: {_show(left)} = {_show(right)}"
    return number_draft(prompt, solution, slips, {"x": f"({solution})"})


def quadratic(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the larger root of a quadratic with rational roots."""
    limit = 3 + 2 * level
    first, second = Fraction(nonzero(rng, limit)), Fraction(nonzero(rng, limit))
    if level >= 5:
        first /= pick(rng, 2, 5)
    if first == second:
        second += 1
    leading = first.denominator * (1 if level < 4 else pick(rng, 1, 4))
    equation = sympy.expand(leading * (_X - _rational(first)) * (_X - _rational(second)))
    larger, smaller = max(first, second), min(first, second)
    prompt = f"What is the larger solution x of {_show(equation)} = 0?"
    return number_draft(prompt, larger, (smaller, -smaller, -larger, larger + smaller), {"x": f"({larger})"})


def system(rng: np.random.Generator, level: int) -> Draft:
    """A task: find x from two linear equations in x and y."""
    limit = 3 + level
    x, y = nonzero(rng, 2 * limit), nonzero(rng, 2 * limit)
    a, b = nonzero(rng, limit), nonzero(rng, limit)
    c, d = nonzero(rng, limit), nonzero(rng, limit)
    while a * d == b * c or d == 0:
        d += 1
    lines = [f"{_show(p * _X + q * sympy.Symbol('y'))} = {p * x + q * y}" for p, q in ((a, b), (c, d))]
    prompt = f"Find x: {lines[0]} and {lines[1]}"
    return number_draft(prompt, x, (y, -x, -y, x + y), {"x": f"({x})", "y": f"({y})"})


def expansion(rng: np.random.Generator, level: int) -> Draft:
    """A task: expand a product of linear factors."""
    factors = [nonzero(rng, 3 + level) * _X + nonzero(rng, 4 + level) for _ in range(2 + level // 4)]
    right = sympy.expand(sympy.prod(factors))
    slips = [right + slip for slip in (_X, -_X, 2 * factors[0].coeff(_X, 0), -1)]
    shown = "*".join(f"({_show(factor)})" for factor in factors)
    return formula_draft(
        f"Expand, without parentheses: {shown}", _show(right), [_show(sympy.expand(slip)) for slip in slips], "expanded"
    )


def _rational(number: Fraction) -> sympy.Rational:
    return sympy.Rational(number.numerator, number.denominator)


def _show(expression: sympy.Expr) -> str:
    return str(expression).replace("**", "^")


KINDS = {
    "addition": Kind(0, addition),
    "linear": Kind(0, linear),
    "quadratic": Kind(2, quadratic),
    "system": Kind(3, system),
    "expansion": Kind(1, expansion),
}
