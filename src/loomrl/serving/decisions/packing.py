"""Observations sent as the environment shows them, packed into the one vector the policy observes.

The manifest describes the space that a vector of the kind `Flat` stands for, see `loomrl.environment.wrappers.flat`;
one of the kind `Text` stands for a text, see `loomrl.environment.text`.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.decisions.requests import array_of, shown
from loomrl.serving.policy.model import ServedPolicy
from loomrl.system.http.problems import Problem
from loomrl.types import Json

_NUMBERS = {int, float}
_SHOWN_KEYS = 20


def packed(values: Any, policy: ServedPolicy) -> Any:
    """B observations as parsed from JSON, texts and those of several parts as vectors (D,); vectors stay as they are,
    and so does an array, which was read from a tensor.

    Raises:
        Problem: 400, naming the part, and of several observations which.
    """
    described = policy.manifest.environment.observation
    is_array = isinstance(values, np.ndarray)
    if described["type"] not in (("Text",) if is_array else ("Flat", "Text")):
        return values
    rows = values.tolist() if is_array else values
    found = [_packed(row, rows, described) for row in range(len(rows))]
    return values if is_array else found


def _packed(row: int, values: list[Any], described: Json) -> Any:
    value = values[row]
    is_vector = type(value) is list and set(map(type, value)) <= _NUMBERS
    try:
        if is_vector and described["type"] == "Text" and goes_on(value):
            raise Problem(400, "`observation` has bytes after its end, which the first zero is")
        if is_vector:
            return value
        if described["type"] == "Text":
            return _text(value, described["shape"][0])
        return np.concatenate([leaf.ravel() for leaf in _leaves(described["space"], value, "observation")]).tolist()
    except Problem as problem:
        if len(values) == 1:
            raise
        raise Problem(400, f"requests[{row}]: {problem.message}") from problem


def num_lists(policy: ServedPolicy) -> int | None:
    """How many JSON lists an observation is at most, those within others too; None where it is sent as parts."""
    if policy.manifest.environment.observation["type"] == "Flat":
        return None
    return sum(math.prod(policy.shape[:dims]) for dims in range(len(policy.shape)))


def goes_on(letters: list[Any]) -> bool:
    """Whether there is more than zeros after a text's first zero, which ends it."""
    return 0 in letters and any(letters[letters.index(0) :])


def _text(value: Any, size: int) -> list[int]:
    """The UTF-8 of a text, zeros after its end."""
    if not isinstance(value, str) or "\0" in value:
        raise Problem(400, "`observation` must be a text without U+0000, or its bytes as numbers, zeros after its end")
    data = value.encode()
    if len(data) > size:
        raise Problem(400, f"`observation` has {len(data)} bytes of UTF-8; the policy reads {size}")
    return [*data, *bytes(size - len(data))]


def _leaves(space: Json, value: Any, name: str) -> Iterator[NDArray[Any]]:
    """The parts in the order of the vector: those of an object by their names."""
    parts: Any = space.get("spaces")
    if space["type"] == "Dict":
        if not isinstance(value, dict) or value.keys() != parts.keys():
            found = _keys(value) if isinstance(value, dict) else type(value).__name__
            raise Problem(400, f"`{name}` must be an object with the keys {', '.join(sorted(parts))}, found {found}")
        for key in sorted(parts):
            yield from _leaves(parts[key], value[key], f"{name}.{key}")
    elif space["type"] == "Tuple":
        if not isinstance(value, list) or len(value) != len(parts):
            raise Problem(400, f"`{name}` must be a list of {len(parts)} parts")
        for index, part in enumerate(parts):
            yield from _leaves(part, value[index], f"{name}.{index}")
    else:
        yield _leaf(space, value, name)


def _keys(value: dict[str, Any]) -> str:
    return ", ".join(map(shown, sorted(value))) if len(value) <= _SHOWN_KEYS else f"{len(value)} keys"


def _leaf(space: Json, value: Any, name: str) -> NDArray[Any]:
    dtype, shape, low, high = _expected(space)
    leaf = array_of(value, shape, dtype, name, f", expected {list(shape)}")
    if space["type"] != "Box" and ((leaf < low) | (leaf > high)).any():
        raise Problem(400, f"`{name}` must be within {np.asarray(low).tolist()} to {np.asarray(high).tolist()}")
    return leaf


def _expected(space: Json) -> tuple[np.dtype[Any], tuple[int, ...], Any, Any]:
    """Dtype and shape of a part, and for whole numbers the smallest and the largest."""
    if space["type"] == "Box":
        return np.dtype(space["dtype"]), tuple(space["shape"]), None, None
    if space["type"] == "MultiBinary":
        return np.dtype(np.int8), tuple(space["shape"]), 0, 1
    start = np.asarray(space["start"])
    sizes = np.asarray(space["n"] if space["type"] == "Discrete" else space["nvec"])
    return np.dtype(np.int64), sizes.shape, start, start + sizes - 1
