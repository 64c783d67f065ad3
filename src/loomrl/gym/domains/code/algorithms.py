"""The functions tasks are about: what each does, a reference, inputs, and inputs that only an efficient one survives.

References have no `while` and no recursion, so that whatever one constant or operator is changed to, they end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arguments = list[Any]


@dataclass(frozen=True)
class CodeAlgorithm:
    """A function to write. `large` makes inputs on which a naive solution runs out of time."""

    name: str
    parameters: str  # as they stand in its `def`
    description: str  # what it returns, as the end of a sentence
    body: str  # the reference's statements, without indentation
    small: Callable[[np.random.Generator], Arguments]  # draws the arguments of one call
    large: Callable[[np.random.Generator], Arguments] | None = None

    @property
    def source(self) -> str:
        """The reference implementation, as the Python source of one function."""
        lines = "\n".join(f"    {line}" for line in self.body.strip("\n").split("\n"))
        return f"def {self.name}({self.parameters}):\n{lines}\n"


def draw(rng: np.random.Generator, level: int) -> CodeAlgorithm:
    """An algorithm drawn for a level, with constants that are drawn too."""
    makers = [make for first, make in _MAKERS if first <= level]
    easiest = max(0, len(makers) - 6)  # as the level grows, the first ones are left behind
    return makers[int(rng.integers(easiest, len(makers)))](rng)


def _numbers(rng: np.random.Generator, size: int | None = None, limit: int = 20) -> list[int]:
    size = int(rng.integers(0, 12)) if size is None else size
    return [int(number) for number in rng.integers(-limit, limit, size=size)]


def _word(rng: np.random.Generator, letters: str, most: int = 14) -> str:
    return "".join(letters[index] for index in rng.integers(len(letters), size=int(rng.integers(0, most))))


def _select_and_sum(rng: np.random.Generator) -> CodeAlgorithm:
    divisor, power = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    remainder = int(rng.integers(divisor))
    what = {1: "numbers", 2: "squares", 3: "cubes"}[power]
    term = "number" if power == 1 else f"number ** {power}"
    body = f"""
total = 0
for number in numbers:
    if number % {divisor} == {remainder}:
        total += {term}
return total
"""
    description = f"the sum of the {what} of those numbers whose remainder by {divisor} is {remainder}"
    if power == 1:
        description = f"the sum of those numbers whose remainder by {divisor} is {remainder}"
    return CodeAlgorithm("select_and_sum", "numbers", description, body, lambda rng: [_numbers(rng)])


def _count_above(rng: np.random.Generator) -> CodeAlgorithm:
    limit = int(rng.integers(-5, 6))
    body = f"""
count = 0
for number in numbers:
    if number > {limit}:
        count += 1
return count
"""
    what = f"how many of the numbers are greater than {limit}"
    return CodeAlgorithm("count_above", "numbers", what, body, lambda rng: [_numbers(rng, limit=8)])


def _clamp(rng: np.random.Generator) -> CodeAlgorithm:
    low = int(rng.integers(-9, 0))
    high = low + int(rng.integers(3, 12))
    body = f"return [max({low}, min({high}, number)) for number in numbers]"
    what = f"the numbers as a list in which those below {low} became {low} and those above {high} became {high}"
    return CodeAlgorithm("clamp", "numbers", what, body, lambda rng: [_numbers(rng)])


def _rotate(rng: np.random.Generator) -> CodeAlgorithm:
    steps = int(rng.integers(1, 5))
    body = f"""
if not items:
    return []
steps = {steps} % len(items)
return items[steps:] + items[:steps]
"""
    what = f"the list rotated by {steps} to the left: the first {steps} items come last"
    return CodeAlgorithm("rotate", "items", what, body, lambda rng: [_numbers(rng)])


def _run_lengths(rng: np.random.Generator) -> CodeAlgorithm:
    longest = bool(rng.integers(2))
    body = """
runs = []
for letter in text:
    if runs and runs[-1][0] == letter:
        runs[-1][1] += 1
    else:
        runs.append([letter, 1])
return runs
"""
    what = "the runs of equal letters, as a list of [letter, length]"
    if longest:
        body = body.replace("return runs", "return max([length for _, length in runs], default=0)")
        what = "the length of the longest run of equal letters, 0 for an empty text"
    return CodeAlgorithm("run_lengths", "text", what, body, lambda rng: [_word(rng, "aab")])


def _shift_letters(rng: np.random.Generator) -> CodeAlgorithm:
    shift = int(rng.integers(1, 25))
    body = f"""
letters = "abcdefghijklmnopqrstuvwxyz"
shifted = ""
for letter in text:
    if letter in letters:
        shifted += letters[(letters.index(letter) + {shift}) % 26]
    else:
        shifted += letter
return shifted
"""
    what = f"the text with each letter from a to z moved by {shift} in the alphabet, a after z; all else stays"
    return CodeAlgorithm("shift_letters", "text", what, body, lambda rng: [_word(rng, "abcxyz ,A")])


def _balanced(rng: np.random.Generator) -> CodeAlgorithm:
    pairs = ("()", "[]", "{}")[: int(rng.integers(2, 4))]
    opening = {pair[1]: pair[0] for pair in pairs}
    body = f"""
opening = {opening!r}
stack = []
for letter in text:
    if letter in opening.values():
        stack.append(letter)
    elif letter in opening:
        if not stack or stack.pop() != opening[letter]:
            return False
return len(stack) == 0
"""
    what = f"whether the brackets {' '.join(pairs)} in the text are balanced and properly nested"
    return CodeAlgorithm("is_balanced", "text", what, body, lambda rng: [_bracketed(rng, pairs)])


def _bracketed(rng: np.random.Generator, pairs: tuple[str, ...]) -> str:
    """Balanced, or with one of the faults that a program which only counts does not see."""
    text = ""
    for _ in range(int(rng.integers(0, 6))):
        pair = pairs[int(rng.integers(len(pairs)))]
        text = pair[0] + text + pair[1] if rng.integers(2) else text + pair
    one, other = (pairs[index] for index in rng.permutation(len(pairs))[:2])
    crossed, mixed = one[0] + other[0] + text + one[1] + other[1], one[0] + text + other[1]
    reverse, open_end = one[1] + text + one[0], text + one[0]
    return (text, text, text, crossed, mixed, reverse, open_end)[int(rng.integers(7))]


def _best_window(rng: np.random.Generator) -> CodeAlgorithm:
    best, word = (("max", "largest"), ("min", "smallest"))[int(rng.integers(2))]
    body = f"""
window = sum(numbers[:size])
best = window
for entering, leaving in zip(numbers[size:], numbers):
    window += entering - leaving
    best = {best}(best, window)
return best
"""

    def small(rng: np.random.Generator) -> Arguments:
        numbers = _numbers(rng, int(rng.integers(2, 12)))
        return [numbers, int(rng.integers(1, len(numbers)))]

    what = f"the {word} sum of `size` numbers that stand next to each other; there are at least as many"
    return CodeAlgorithm("best_window", "numbers, size", what, body, small, lambda rng: [_numbers(rng, 80_000), 40_000])


def _pairs_with_sum(rng: np.random.Generator) -> CodeAlgorithm:
    goal = int(rng.integers(-6, 7))
    body = f"""
seen = {{}}
pairs = 0
for number in numbers:
    pairs += seen.get({goal} - number, 0)
    seen[number] = seen.get(number, 0) + 1
return pairs
"""
    what = f"how many pairs of positions hold numbers whose sum is {goal}"

    def large(rng: np.random.Generator) -> Arguments:
        return [_numbers(rng, 40_000, 10**6)]

    return CodeAlgorithm("pairs_with_sum", "numbers", what, body, lambda rng: [_numbers(rng, limit=6)], large)


def _distinct_in_order(rng: np.random.Generator) -> CodeAlgorithm:
    body = """
seen = set()
kept = []
for number in numbers:
    if number not in seen:
        seen.add(number)
        kept.append(number)
return kept
"""
    order = bool(rng.integers(2))
    what = "the numbers without repetitions, in the order in which each occurs first"
    if order:
        body = body.replace("return kept", "return kept[::-1]")
        what = "the numbers without repetitions, in the reverse of the order in which each occurs first"

    def large(rng: np.random.Generator) -> Arguments:
        return [_numbers(rng, 120_000, 40_000)]

    return CodeAlgorithm("distinct", "numbers", what, body, lambda rng: [_numbers(rng, limit=5)], large)


def _coin_ways(rng: np.random.Generator) -> CodeAlgorithm:
    coins = sorted({1, *rng.integers(2, 9, size=3).tolist()})
    body = f"""
ways = [1] + [0] * amount
for coin in {coins}:
    for value in range(coin, amount + 1):
        ways[value] += ways[value - coin]
return ways[amount]
"""
    what = f"in how many ways coins of {', '.join(map(str, coins))} pay the amount, the order being of no matter"
    return CodeAlgorithm(
        "coin_ways",
        "amount",
        what,
        body,
        lambda rng: [int(rng.integers(0, 25))],
        lambda rng: [int(rng.integers(2_000, 2_500))],
    )


def _longest_rise(rng: np.random.Generator) -> CodeAlgorithm:
    strict = bool(rng.integers(2))
    bisect = "bisect_left" if strict else "bisect_right"
    body = f"""
from bisect import {bisect}
tails = []
for number in numbers:
    place = {bisect}(tails, number)
    tails[place:place + 1] = [number]
return len(tails)
"""
    word = "strictly increasing" if strict else "never decreasing"
    what = f"the length of the longest {word} subsequence; its items need not stand next to each other"

    def large(rng: np.random.Generator) -> Arguments:
        return [_numbers(rng, 30_000, 10**6)]

    return CodeAlgorithm("longest_rise", "numbers", what, body, lambda rng: [_numbers(rng, limit=7)], large)


def _edits(rng: np.random.Generator) -> CodeAlgorithm:
    price = int(rng.integers(1, 4))
    body = f"""
costs = list(range(len(right) + 1))
for row, letter in enumerate(left, 1):
    before, costs[0] = costs[0], row
    for column, other in enumerate(right, 1):
        change = before + (0 if letter == other else {price})
        before = costs[column]
        costs[column] = min(change, costs[column] + 1, costs[column - 1] + 1)
return costs[-1]
"""
    what = f"the least cost of turning `left` into `right`: 1 to insert or delete a letter, {price} to replace one"

    def small(rng: np.random.Generator) -> Arguments:
        return [_word(rng, "abc", 9), _word(rng, "abc", 9)]

    def large(rng: np.random.Generator) -> Arguments:
        return [_word(rng, "ab", 400) + "a" * 200, _word(rng, "ab", 400) + "b" * 200]

    return CodeAlgorithm("edits", "left, right", what, body, small, large)


_MAKERS = (
    (0, _count_above),
    (0, _select_and_sum),
    (0, _clamp),
    (1, _rotate),
    (2, _run_lengths),
    (2, _shift_letters),
    (3, _balanced),
    (4, _distinct_in_order),
    (4, _pairs_with_sum),
    (5, _best_window),
    (6, _coin_ways),
    (7, _longest_rise),
    (8, _edits),
)
