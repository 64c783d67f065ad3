"""Calculus: derivatives, definite integrals, limits, made and solved by sympy."""

from fractions import Fraction

import numpy as np
import sympy

from loomrl.gym.domains.math.drafts import formula_draft, nonzero, number_draft, pick
from loomrl.gym.tasks import Draft, Kind

_X = sympy.Symbol("x")


def derivative(rng: np.random.Generator, level: int) -> Draft:
    """A task: differentiate a polynomial, at higher levels sines, exponentials and products of them."""
    function = _polynomial(rng, 2 + level // 2, 3 + level)
    if level >= 3:
        function += nonzero(rng, 5) * _elementary(rng)
    if level >= 6:
        function = sympy.Add(function, _elementary(rng) * _polynomial(rng, 1, 4))
    right = sympy.diff(function, _X)
    slips = [right + 1, -right, sympy.diff(function, _X, 2), sympy.expand(right + _X)]
    wrong = [_show(slip) for slip in slips if sympy.expand(slip - right) != 0]
    return formula_draft(f"Differentiate with respect to x: {_show(function)}", _show(right), wrong)


def integral(rng: np.random.Generator, level: int) -> Draft:
    """A task: integrate a polynomial from a to b; the answer is a fraction."""
    function = _polynomial(rng, 1 + level // 2, 3 + level)
    start = pick(rng, -1 - level // 3, 1)
    end = start + pick(rng, 1, 2 + level // 3)
    antiderivative = sympy.integrate(function, _X)
    high, low = (_fraction(antiderivative.subs(_X, limit)) for limit in (end, start))
    prompt = f"Integrate {_show(function)} over x from {start} to {end}."
    values = [_fraction(function.subs(_X, limit)) for limit in (end, start)]
    return number_draft(prompt, high - low, (high, low - high, high + low, values[0] - values[1]))


def limit(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the limit of a quotient with a common root, or of one of polynomials at infinity."""
    if rng.integers(2) and level >= 5:
        degree, top, bottom = 1 + level // 4, nonzero(rng, 4 + level), nonzero(rng, 4 + level)
        above = top * _X**degree + _polynomial(rng, degree - 1, 9)
        below = bottom * _X**degree + _polynomial(rng, degree - 1, 9)
        prompt = f"What is the limit of ({_show(above)})/({_show(below)}) as x grows without bound?"
        return number_draft(prompt, Fraction(top, bottom), (Fraction(bottom, top), 0, top, Fraction(-top, bottom)))
    root, other = nonzero(rng, 3 + level), nonzero(rng, 3 + level)
    scale = nonzero(rng, 1 + level)
    above = sympy.expand(scale * (_X - root) * (_X - other))
    right = scale * (root - other)
    prompt = f"What is the limit of ({_show(above)})/({_show(_X - root)}) as x approaches {root}?"
    return number_draft(prompt, right, (0, -right, scale * (root + other), root))


def _polynomial(rng: np.random.Generator, degree: int, limit: int) -> sympy.Expr:
    terms = [nonzero(rng, limit) * _X**power for power in range(degree + 1)]
    return sympy.Add(*terms)


def _elementary(rng: np.random.Generator) -> sympy.Expr:
    function = (sympy.sin, sympy.cos, sympy.exp)[int(rng.integers(3))]
    return function(nonzero(rng, 4) * _X)


def _fraction(number: sympy.Expr) -> Fraction:
    rational = sympy.Rational(number)
    return Fraction(int(rational.p), int(rational.q))


def _show(expression: sympy.Expr) -> str:
    return str(expression).replace("**", "^")


KINDS = {"derivative": Kind(3, derivative), "integral": Kind(4, integral), "limit": Kind(5, limit)}
