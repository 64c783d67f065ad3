"""Workings that people would write above the answers of math tasks, from the prompt alone."""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate, pairwise
from math import comb, gcd, isqrt, lcm

import sympy

from loomrl.gym.tasks import Task

X, Y = sympy.symbols("x y")
LEGS = {
    "human": 2, "chicken": 2, "dog": 4, "cow": 4, "horse": 4, "sheep": 4, "goat": 4, "tiger": 4, "lion": 4, "cat": 4,
    "elephant": 4, "giraffe": 4, "bird": 2, "duck": 2,
}  # fmt: skip


def workings(task: Task) -> list[str]:
    """Some ways to work a task out, each of them lines; none for a kind in which nothing is computed."""
    make = _KINDS.get(task.kind)
    return [] if make is None else ["\n".join(lines) for lines in make(_question(task), task.right)]


def _question(task: Task) -> str:
    return task.prompt.split("\n")[0]


def _whole(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


def _positive(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _sides(equation: str) -> tuple[sympy.Expr, sympy.Expr]:
    left, right = equation.split("=")
    return sympy.sympify(left.replace("^", "**")), sympy.sympify(right.replace("^", "**"))


def _show(expression: object) -> str:
    return str(expression).replace("**", "^")


def _in(number: object) -> str:
    return f"({number})" if str(number).startswith("-") or "/" in str(number) else str(number)


def _sum(numbers: list[object]) -> str:
    return " + ".join(map(_in, numbers))


def linear(question: str, right: str) -> list[list[str]]:
    left, other = _sides(question.split(": ")[1])
    a, b, c, d = left.coeff(X, 1), left.coeff(X, 0), other.coeff(X, 1), other.coeff(X, 0)
    found = [
        [f"{a}*x - {_in(c)}*x = {d} - {_in(b)}", f"{a - c}*x = {d - b}", f"x = {d - b}/{_in(a - c)}"],
        [f"{a - c}*x = {d - b}"],
        [f"x = ({d} - {_in(b)})/({a} - {_in(c)}) = {right}"],
        [f"({d} - {_in(b)})/({a} - {_in(c)}) = {right}"],
        [f"{d} - {_in(b)} = {d - b}", f"{a} - {_in(c)} = {a - c}", f"x = {d - b}/{_in(a - c)}"],
    ]
    if a - c == 1:
        del found[1]  # it is the answer
    if c == 0:
        found.append([f"{a}x = {d} - {_in(b)} = {d - b}"])
    return found


def quadratic(question: str, right: str) -> list[list[str]]:
    text = re.search(r"solution x of (.*) = 0", question).group(1)
    formula = sympy.sympify(text.replace("^", "**"))
    a, b, c = (formula.coeff(X, power) for power in (2, 1, 0))
    root = sympy.sqrt(b**2 - 4 * a * c)
    larger = Fraction(right)
    inner = f"{_in(b)}^2 - 4*{_in(a)}*{_in(c)}"
    return [
        [_show(sympy.factor(formula)) + " = 0"],
        [f"x = (-{_in(b)} + sqrt({inner}))/(2*{_in(a)}) = {right}"],
        [f"{inner} = {root**2}", f"sqrt({root**2}) = {root}", f"x = ({-b} + {root})/{_in(2 * a)} = {larger}"],
    ]


def system(question: str, right: str) -> list[list[str]]:
    first, second = (_sides(one) for one in question.split(": ")[1].split(" and "))
    (a, b, p), (c, d, q) = ((one[0].coeff(X), one[0].coeff(Y), one[1]) for one in (first, second))
    one, two = (_show(sympy.expand(side)) for side in (first[0] * d, second[0] * b))
    return [
        [f"x = ({p}*{_in(d)} - {_in(q)}*{_in(b)})/({a}*{_in(d)} - {_in(c)}*{_in(b)}) = {right}"],
        [f"{one} = {p * d}", f"{two} = {q * b}", f"{a * d - c * b}*x = {p * d - q * b}"],
        [f"y = ({p} - {_in(a)}*x)/{_in(b)}", f"{c}*x + {_in(d)}*({p} - {_in(a)}*x)/{_in(b)} = {q}"],
    ]


def expansion(question: str, right: str) -> list[list[str]]:
    text = question.split(": ")[1]
    factors = text[1:-1].split(")*(")
    lines, made = [], factors[0]
    for factor in factors[1:]:
        one, two = (sympy.sympify(part.replace("^", "**")) for part in (made, factor))
        terms = " + ".join(
            f"({_show(s)})*({_show(t)})" for s in sympy.Add.make_args(one) for t in sympy.Add.make_args(two)
        )
        done = _show(sympy.expand(one * two))
        lines.append(f"({made})*({factor}) = {terms} = {done}" if len(terms) < 190 else f"({made})*({factor}) = {done}")
        made = done
    return [lines, [f"{text} = {right}"]]


def derivative(question: str, right: str) -> list[list[str]]:
    function = sympy.sympify(question.split(": ")[1].replace("^", "**"))
    shown = []
    for term in sympy.Add.make_args(function):
        factor, rest = term.as_coeff_Mul()
        power = rest.as_base_exp()[1]
        if rest == 1:
            continue
        if rest.as_base_exp()[0] == X:
            shown.append(f"{_in(factor)}*{power}*x^{power - 1}")
        elif rest.func in (sympy.sin, sympy.cos, sympy.exp):
            inner = rest.args[0].coeff(X)
            outer = _show(rest.func(Y).diff(Y).subs(Y, rest.args[0]))
            shown.append(f"{_in(factor)}*{_in(inner)}*({outer})")
        else:
            shown.append(f"({_show(sympy.diff(term, X))})")
    return [[f"{' + '.join(shown)} = {right}"]]


def integral(question: str, right: str) -> list[list[str]]:
    text, start, end = re.fullmatch(r"Integrate (.*) over x from (-?\d+) to (-?\d+)\.", question).groups()
    function = sympy.sympify(text.replace("^", "**"))
    terms = [(term.as_coeff_Mul()[0], sympy.degree(term, X)) for term in sympy.Add.make_args(function)]
    at = [[f"{_in(c)}*{_in(limit)}^{n + 1}/{n + 1}" for c, n in terms] for limit in (end, start)]
    values = [sympy.integrate(function, X).subs(X, limit) for limit in (end, start)]
    return [
        [
            f"{' + '.join(at[0])} = {values[0]}",
            f"{' + '.join(at[1])} = {values[1]}",
            f"{values[0]} - {_in(values[1])} = {right}",
        ]
    ]


def limit(question: str, right: str) -> list[list[str]]:
    above, below = re.search(r"limit of \((.*)\)/\((.*)\) as", question).groups()
    top, bottom = (sympy.Poly(sympy.sympify(part.replace("^", "**")), X) for part in (above, below))
    if "without bound" in question:
        fraction = f"{top.LC()}/{_in(bottom.LC())}"
        return [] if fraction == right or Fraction(right) == top.LC() else [[f"{fraction} = {right}"]]
    root = int(question.rsplit(" ", 1)[1].rstrip("?"))
    quotient = sympy.div(top, bottom)[0].as_expr()
    a, b = quotient.coeff(X, 1), quotient.coeff(X, 0)
    return [
        [f"({above})/({below}) = {_show(quotient)}", f"{_in(a)}*{_in(root)} + {_in(b)} = {right}"],
        [f"2*{_in(top.nth(2))}*{_in(root)} + {_in(top.nth(1))} = {right}"],
    ]


def rectangle(question: str, right: str) -> list[list[str]]:
    one, two = _positive(question)
    if "wide" in question:
        return [[f"{one}*{two} = {right}"]]
    half, root = two // 2, isqrt((two // 2) ** 2 - 4 * one)
    return [
        [f"{two}/2 = {half}", f"x*({half} - x) = {one}"],
        [f"x^2 - {half}*x + {one} = 0"],
        [f"x = ({half} + sqrt({half}^2 - 4*{one}))/2 = {right}"],
        [f"{half}^2 - 4*{one} = {root**2}", f"sqrt({root**2}) = {root}", f"({half} + {root})/2 = {right}"],
    ]


def right_triangle(question: str, right: str) -> list[list[str]]:
    one, two = _positive(question)
    sign = "-" if "other leg" in question else "+"
    total = one**2 + two**2 if sign == "+" else one**2 - two**2
    return [
        [f"sqrt({one}^2 {sign} {two}^2) = {right}"],
        [f"{one}^2 {sign} {two}^2 = {one**2} {sign} {two**2} = {total}", f"sqrt({total}) = {right}"],
    ]


def circle(question: str, right: str) -> list[list[str]]:
    radii = _positive(question)
    if len(radii) == 1:
        return [[f"pi*{radii[0]}^2 = {right}"], [f"{radii[0]}*{radii[0]}*pi = {right}"]]
    outer, inner = radii
    return [
        [f"pi*{outer}^2 - pi*{inner}^2 = {right}"],
        [f"{outer}^2 = {outer**2}", f"{inner}^2 = {inner**2}", f"({outer**2} - {inner**2})*pi = {right}"],
        [f"({outer} - {inner})*({outer} + {inner})*pi = {right}"],
    ]


def distance(question: str, right: str) -> list[list[str]]:
    a, b, c, d = _whole(question)
    across, up = c - a, d - b
    return [
        [f"({c} - {_in(a)})^2 + ({d} - {_in(b)})^2 = {right}"],
        [f"{c} - {_in(a)} = {across}", f"{d} - {_in(b)} = {up}", f"{_in(across)}^2 + {_in(up)}^2 = {right}"],
        [f"{_in(across)}^2 + {_in(up)}^2 = {across**2} + {up**2} = {right}"],
    ]


def polygon_angle(question: str, right: str) -> list[list[str]]:
    given = _positive(question)
    sides = len(given) + 1
    minus = "".join(f" - {one}" for one in given)
    return [
        [f"180*({sides} - 2){minus} = {right}"],
        [
            f"180*{sides - 2} = {180 * (sides - 2)}",
            f"{_sum(given)} = {sum(given)}",
            f"{180 * (sides - 2)} - {sum(given)} = {right}",
        ],
        [f"{180 * (sides - 2)}{minus} = {right}"],
    ]


def mean(question: str, right: str) -> list[list[str]]:
    numbers = _positive(question)
    total, count = sum(numbers), len(numbers)
    found = [[f"({_sum(numbers)})/{count} = {right}"]]
    if f"{total}/{count}" != right:
        found += [[f"{_sum(numbers)} = {total}", f"{total}/{count} = {right}"], [f"{total}/{count} = {right}"]]
    return found


def median(question: str, right: str) -> list[list[str]]:
    numbers = sorted(_positive(question))
    if len(numbers) % 2 or numbers[len(numbers) // 2 - 1] == numbers[len(numbers) // 2]:
        return []  # it is there to read
    one, two = numbers[len(numbers) // 2 - 1 : len(numbers) // 2 + 1]
    return [[f"({one} + {two})/2 = {right}"]]


def variance(question: str, right: str) -> list[list[str]]:
    numbers = _positive(question)
    count, middle = len(numbers), Fraction(sum(numbers), len(numbers))
    squares = " + ".join(f"({one} - {middle})^2" for one in numbers)
    found = [
        [
            f"({_sum(numbers)})/{count} = {middle}",
            f"({' + '.join(f'{one}^2' for one in numbers)})/{count} - ({middle})^2 = {right}",
        ],
    ]
    if len(squares) < 180:
        found.append([f"({squares})/{count} = {right}"])
    return found


def urn(question: str, right: str) -> list[list[str]]:
    red, blue, *rest = _positive(question)
    draws = rest[0] if rest else 1
    fractions = [f"{red - drawn}/{red + blue - drawn}" for drawn in range(draws)]
    if draws == 1:
        return [[f"{red}/({red} + {blue}) = {right}"]]
    ways, all_ways = comb(red, draws), comb(red + blue, draws)
    found = [["*".join(fractions) + f" = {right}"]]
    if f"{ways}/{all_ways}" != right:
        down = ["*".join(str(top - drawn) for drawn in range(draws)) for top in (red, red + blue)]
        up = "*".join(map(str, range(1, draws + 1)))
        found.append([f"{down[0]}/({up}) = {ways}", f"{down[1]}/({up}) = {all_ways}", f"{ways}/{all_ways} = {right}"])
    return found


def dice(question: str, right: str) -> list[list[str]]:
    count, sides, _ = _positive(question)
    ways = Fraction(right) * sides**count
    found = [[f"{ways}/{sides}^{count} = {right}"]]
    if f"{ways}/{sides**count}" != right:
        found.append([f"{sides}^{count} = {sides**count}", f"{ways}/{sides**count} = {right}"])
    return found


def products(question: str, right: str) -> list[list[str]]:
    one, two = _positive(question)
    parts = [int(digit) * 10**place for place, digit in enumerate(reversed(str(two))) if digit != "0"]
    lines = [f"{one}*{part} = {one * part}" for part in parts]
    found = [[f"{one}*{two} = {right}"]]
    if len(parts) > 1:
        found.append([*lines, f"{_sum([one * part for part in parts])} = {right}"])
        found.append([f"{one}*{two} = {' + '.join(f'{one}*{part}' for part in parts)} = {right}"])
    return found


def basic_arithmetic(question: str, right: str) -> list[list[str]]:
    text = question.removeprefix("Calculate ").rstrip(".").strip()
    return [[f"{text} = {right}"]]


def greatest_divisor(question: str, right: str) -> list[list[str]]:
    numbers = _positive(question)
    lines, found = [], numbers[0]
    for number in numbers[1:]:
        one, two = max(found, number), min(found, number)
        while one % two:
            lines.append(f"{one} - {one // two}*{two} = {one % two}")
            one, two = two, one % two
        found = gcd(found, number)
    factors = [" * ".join(str(p) for p, n in sympy.factorint(number).items() for _ in range(n)) for number in numbers]
    shared = " * ".join(str(p) for p, n in sympy.factorint(found).items() for _ in range(n))
    ways = [lines] if int(right) in [int(line.rsplit(" ", 1)[1]) for line in lines] else []
    if " * " in shared and all(" * " in one for one in factors):
        ways.append(
            [*(f"{number} = {one}" for number, one in zip(numbers, factors, strict=True)), f"{shared} = {right}"]
        )
    return ways


def least_multiple(question: str, right: str) -> list[list[str]]:
    numbers = _positive(question)
    lines = []
    for so_far, number in pairwise_over(numbers):
        shared = gcd(so_far, number)
        lines.append(f"{so_far}*{number}/{shared} = {lcm(so_far, number)}")
    return [] if int(right) in numbers else [lines]


def pairwise_over(numbers: list[int]) -> list[tuple[int, int]]:
    return list(zip(accumulate(numbers, lcm), numbers[1:], strict=False))


def number_sequence(question: str, right: str) -> list[list[str]]:
    numbers = _whole(question)
    steps = [after - before for before, after in pairwise(numbers)]
    if len(set(steps)) > 1 or steps[0] == 0:
        return []
    last, before = numbers[-1], numbers[-2]
    return [
        [f"{last} + ({last} - {_in(before)}) = {right}"],
        [f"{last} - {_in(before)} = {steps[0]}", f"{last} + {_in(steps[0])} = {right}"],
    ]


def leg_counting(question: str, right: str) -> list[list[str]]:
    animals = re.findall(r"(\d+) ([a-z ]+?)s?[,?]", question.split("if you have ")[1])
    if not all(name in LEGS for _, name in animals):
        return []
    products = [(int(count), LEGS[name]) for count, name in animals]
    return [
        [f"{' + '.join(f'{count}*{legs}' for count, legs in products)} = {right}"],
        [
            *(f"{count}*{legs} = {count * legs}" for count, legs in products),
            f"{_sum([c * n for c, n in products])} = {right}",
        ][: None if len(products) > 1 else -1],
    ]


_KINDS: dict[str, Callable[[str, str], list[list[str]]]] = {
    "linear": linear, "quadratic": quadratic, "system": system, "expansion": expansion, "derivative": derivative,
    "integral": integral, "limit": limit, "rectangle": rectangle, "right_triangle": right_triangle, "circle": circle,
    "distance": distance, "polygon_angle": polygon_angle, "mean": mean, "median": median, "variance": variance,
    "urn": urn, "dice": dice, "products": products, "basic_arithmetic": basic_arithmetic, "gcd": greatest_divisor,
    "lcm": least_multiple, "number_sequence": number_sequence, "leg_counting": leg_counting,
}  # fmt: skip
