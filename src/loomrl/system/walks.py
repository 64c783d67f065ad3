"""Walks through what refers to more of its kind."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def reachable(first: Iterable[T], following: Callable[[T], Iterable[T]]) -> list[T]:
    """Everything that `first` leads to through `following`, once each: `first` itself in front, the rest as it was
    found.

    `following(one)` gives what one leads to; it is called once about each, and cycles end.
    """
    found = dict.fromkeys(first)
    waiting = list(found)
    while waiting:
        new = [one for one in dict.fromkeys(following(waiting.pop())) if one not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return list(found)
