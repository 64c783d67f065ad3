"""What is asked about a picture: a caption, a question, and what picture and text say together."""

import numpy as np

from loomrl.gym.domains.multimodal.captions import caption
from loomrl.gym.domains.multimodal.pictures import COLOURS, PLACES, SHAPES, Thing, draw_things, render
from loomrl.gym.tasks import Draft, Kind

_WORD = "Answer with one word or number."


def describe(rng: np.random.Generator, level: int) -> Draft:
    """A task: describe all things in a picture with their places."""
    things = draw_things(rng, 1 + level // 2)
    prompt = "Describe the picture, row by row, as in: a red circle at the top left, a blue square at the middle centre"
    wrong = [caption(_altered(things, rng)) for _ in range(8)]
    return Draft(prompt, caption(things), list(dict.fromkeys(wrong))[:5], _facts(things), render(things, rng))


def question(rng: np.random.Generator, level: int) -> Draft:
    """A task: name the colour or shape of one thing, or how many there are, which a level does not tell."""
    things = draw_things(rng, int(rng.integers(1, 4 + level // 2)))
    one = things[int(rng.integers(len(things)))]
    asked, right, others = (
        (f"What colour is the thing at the {PLACES[one.place]}?", one.colour, list(COLOURS)),
        (f"What shape is the thing at the {PLACES[one.place]}?", one.shape, list(SHAPES)),
        ("How many things are in the picture?", str(len(things)), [str(number) for number in range(1, 9)]),
        _count(things, SHAPES[int(rng.integers(len(SHAPES)))]),
    )[int(rng.integers(4))]
    wrong = [other for other in others if other != right]
    return Draft(f"{asked} {_WORD}", right, _some(rng, wrong), _facts(things), render(things, rng))


def reasoning(rng: np.random.Generator, level: int) -> Draft:
    """A task: add up the prices, in the text, of the things in the picture; from level 5 on some things are free."""
    things = draw_things(rng, 2 + level // 2)
    prices = {shape: int(rng.integers(2, 5 + 3 * level)) for shape in SHAPES}
    listed = ", ".join(f"a {shape} costs {price}" for shape, price in prices.items())
    free = things[int(rng.integers(len(things)))].colour if level >= 5 else ""
    total = sum(prices[thing.shape] for thing in things if thing.colour != free)
    exception = f", but what is {free} is free" if free else ""
    prompt = f"In this shop {listed}{exception}. What does everything in the picture cost? {_WORD}"
    slips = [sum(prices[thing.shape] for thing in things), sum(prices.values()), total + 1, total - 1, total + 2]
    wrong = [str(slip) for slip in dict.fromkeys(slips) if slip != total]
    return Draft(prompt, str(total), wrong, _facts(things), render(things, rng))


def relation(rng: np.random.Generator, level: int) -> Draft:
    """A task: name what lies to the right of a thing that the text names."""
    names = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    first, second = (names[index] for index in rng.permutation(len(names))[:2])
    row, column = int(rng.integers(3)), int(rng.integers(2))
    place = 3 * row + column
    left, right = Thing(first[0], first[1], place), Thing(second[0], second[1], place + 1)
    crowd = [
        thing
        for thing in draw_things(rng, level)
        if thing.place // 3 != row and thing.name not in (left.name, right.name)
    ]
    things = sorted([left, right, *crowd], key=lambda thing: thing.place)
    prompt = f"What lies directly to the right of the {left.name}? Answer as in: red circle"
    others = [f"{colour} {shape}" for colour, shape in names if (colour, shape) not in (first, second)]
    return Draft(prompt, right.name, [left.name, *_some(rng, others)], _facts(things), render(things, rng))


def _count(things: list[Thing], shape: str) -> tuple[str, str, list[str]]:
    count = sum(thing.shape == shape for thing in things)
    return f"How many things of the shape {shape} are in the picture?", str(count), [str(number) for number in range(9)]


def _altered(things: list[Thing], rng: np.random.Generator) -> list[Thing]:
    """With another colour or place for one of them."""
    index = int(rng.integers(len(things)))
    thing = things[index]
    if rng.integers(2):
        taken = {other.name for other in things}
        colours = [colour for colour in COLOURS if f"{colour} {thing.shape}" not in taken]
        changed = thing._replace(colour=colours[int(rng.integers(len(colours)))])
    else:
        free = [place for place in range(len(PLACES)) if place not in {other.place for other in things}]
        changed = thing._replace(place=free[int(rng.integers(len(free)))])
    return [*things[:index], changed, *things[index + 1 :]]


def _some(rng: np.random.Generator, wrong: list[str]) -> list[str]:
    return [wrong[index] for index in rng.permutation(len(wrong))[:5]]


def _facts(things: list[Thing]) -> dict[str, list[list[str | int]]]:
    return {"things": [list(thing) for thing in things]}


KINDS = {
    "caption": Kind(0, describe),
    "question": Kind(0, question),
    "relation": Kind(2, relation),
    "reasoning": Kind(3, reasoning),
}
