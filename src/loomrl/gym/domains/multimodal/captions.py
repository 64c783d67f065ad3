"""Captions: read by a small grammar, compared with what the picture holds."""

import re
from collections import Counter
from collections.abc import Sequence

from loomrl.gym.domains.multimodal.pictures import COLOURS, PLACES, SHAPES, Thing
from loomrl.gym.tasks import Rewards

_ITEM = re.compile(
    rf"(?:there is |and )?an? ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})(?: (?:at|in) the ({'|'.join(PLACES)}))?"
)
MAX_CHARACTERS = 600


def caption(things: Sequence[Thing]) -> str:
    """The reference caption of a picture: each thing with its place, separated by commas."""
    return ", ".join(f"a {thing.name} at the {PLACES[thing.place]}" for thing in things)


def judge(things: Sequence[Thing], answer: str) -> Rewards | None:
    """`accuracy` where exactly the picture's things are named, `detail` for the share with a place, and `coherence` for
    reading order. None for a caption that says anything wrong, leaves out a thing, or is none.
    """
    if len(answer) > MAX_CHARACTERS:
        return None
    text = answer.strip().rstrip(".").lower()
    found = [_ITEM.fullmatch(item.strip()) for item in text.split(",")]
    items = [(match[1], match[2], match[3]) for match in found if match is not None]
    if len(items) != len(found) or Counter(item[:2] for item in items) != Counter(thing[:2] for thing in things):
        return None
    places = {thing[:2]: PLACES[thing.place] for thing in things}
    if any(place is not None and place != places[colour, shape] for colour, shape, place in items):
        return None
    order = [PLACES.index(places[colour, shape]) for colour, shape, _ in items]
    placed = sum(place is not None for _, _, place in items)
    return {"accuracy": 1.0, "detail": placed / len(items), "coherence": float(order == sorted(order))}
