"""Pictures of coloured shapes on a grid of three by three places, drawn by Pillow."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SIDE = 64
SHAPE = (SIDE, SIDE, 3)
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 210, 40),
    "purple": (150, 50, 180),
    "white": (250, 250, 250),
}
SHAPES = ("circle", "square", "triangle", "cross")
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
PLACES = tuple(f"{row} {column}" for row in ROWS for column in COLUMNS)
_BACKGROUNDS = ((20, 20, 25), (70, 70, 75), (110, 95, 80))


class Thing(NamedTuple):
    """A shape in a picture; `place` is a number from 0 to 8, row by row from the top left."""

    colour: str
    shape: str
    place: int

    @property
    def name(self) -> str:
        """Colour and shape of the thing, such as `red circle`."""
        return f"{self.colour} {self.shape}"


def draw_things(rng: np.random.Generator, count: int) -> list[Thing]:
    """`count` things, at most 9, of different names in different places, in reading order."""
    names = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    chosen = rng.permutation(len(names))[:count]
    places = sorted(rng.permutation(len(PLACES))[:count].tolist())
    return [Thing(names[index][0], names[index][1], place) for index, place in zip(chosen, places, strict=True)]


def render(things: list[Thing], rng: np.random.Generator) -> NDArray[np.uint8]:
    """The picture (64, 64, 3); background and sizes vary, and each thing lies somewhere in its place."""
    image = Image.new("RGB", (SIDE, SIDE), _BACKGROUNDS[int(rng.integers(len(_BACKGROUNDS)))])
    pencil = ImageDraw.Draw(image)
    for thing in things:
        row, column = divmod(thing.place, len(COLUMNS))
        half = int(rng.integers(6, 9))
        x, y = (11 + 21 * index + int(rng.integers(-1, 2)) for index in (column, row))
        _pencil(pencil, thing, (x - half, y - half, x + half, y + half))
    return np.asarray(image, np.uint8).copy()


def _pencil(pencil: ImageDraw.ImageDraw, thing: Thing, box: tuple[int, int, int, int]) -> None:
    colour = COLOURS[thing.colour]
    left, top, right, bottom = box
    middle, centre, thick = (left + right) // 2, (top + bottom) // 2, (right - left) // 5
    match thing.shape:
        case "circle":
            pencil.ellipse(box, fill=colour)
        case "square":
            pencil.rectangle(box, fill=colour)
        case "triangle":
            pencil.polygon([(middle, top), (left, bottom), (right, bottom)], fill=colour)
        case _:
            pencil.rectangle((middle - thick, top, middle + thick, bottom), fill=colour)
            pencil.rectangle((left, centre - thick, right, centre + thick), fill=colour)
