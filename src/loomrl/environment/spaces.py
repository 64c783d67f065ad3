"""Gymnasium spaces as JSON and back."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.text import TextBox
from loomrl.environment.wrappers.flat import FlatBox
from loomrl.errors import ArtifactError, ConfigError
from loomrl.types import Json

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Tuple, Dict"


def space_to_json(space: spaces.Space[Any]) -> Json:
    """Describe a space; equal spaces give equal JSON. Infinite bounds are the strings "inf" and "-inf".

    Raises:
        ConfigError: for a kind of space whose elements have no fixed size.
    """
    match space:
        case FlatBox():
            return _flat_to_json(space)
        case TextBox():
            return {"type": "Text", "shape": list(space.shape), "dtype": _dtype(space).name}
        case spaces.Box():
            shape, dtype = list(space.shape), _dtype(space).name
            return {"type": "Box", "shape": shape, "dtype": dtype, "low": _bound(space.low), "high": _bound(space.high)}
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": _dtype(space).name}
        case spaces.MultiDiscrete():
            described = {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {**described, "dtype": _dtype(space).name}
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "shape": list(space.shape)}
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
        case spaces.Dict():
            return {"type": "Dict", "spaces": {str(key): space_to_json(part) for key, part in space.spaces.items()}}
    raise ConfigError(f"space {space!r} is not supported; supported: {SUPPORTED}; wrap the environment to use those")


def float32_bounds(space: spaces.Box) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The least and the greatest actions (A,) in float32 that lie within a Box, flat: where its own bounds are not
    numbers of float32, the next ones inwards. Rounded to the nearest they could lead out of it."""
    low, high = space.low.ravel(), space.high.ravel()
    near_low, near_high = low.astype(np.float32), high.astype(np.float32)
    infinity = np.float32(np.inf)
    inner_low = np.where(near_low < low, np.nextafter(near_low, infinity), near_low)
    inner_high = np.where(near_high > high, np.nextafter(near_high, -infinity), near_high)
    return inner_low, inner_high


def _flat_to_json(space: FlatBox) -> Json:
    """What the vector stands for, and where its parts lie, for those who read the manifest without Gymnasium."""
    layout = [
        {"name": part.name, "kind": part.kind, "offset": part.offset, "shape": list(part.shape)} for part in space.parts
    ]
    described = {"type": "Flat", "space": space_to_json(space.original), "layout": layout}
    return {**described, "shape": list(space.shape), "dtype": _dtype(space).name}


def space_from_json(value: Json) -> spaces.Space[Any]:
    """Build the space `space_to_json` described.

    Raises:
        ArtifactError: when the description is not one that `space_to_json` writes.
    """
    try:
        return _BUILDERS[value["type"]](value)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise ArtifactError(f"not the description of a space ({error!r}): {value!r}") from error


def _dtype(space: spaces.Space[Any]) -> np.dtype[Any]:
    return np.dtype(space.dtype)


def _bound(bound: NDArray[Any]) -> Any:
    """One number where all are equal, else the nested list: an image's bounds stay short."""
    flat = bound.ravel()
    if flat.size and bool(np.all(flat == flat[0])):
        return _number(flat[0])
    return np.vectorize(_number, otypes=[object])(bound).tolist()


def _number(value: Any) -> int | float | str:
    number = value.item() if isinstance(value, np.generic) else value
    return number if np.isfinite(number) else str(number)


def _array(bound: Any, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    numbers = np.array(bound, dtype=object)
    kind = np.float64 if np.dtype(dtype).kind == "f" else np.int64 if np.dtype(dtype).kind == "i" else np.uint64
    if np.dtype(dtype).kind == "b":
        kind = np.int64
    return np.broadcast_to(numbers.astype(kind), shape).astype(dtype)


def _box(value: Json) -> spaces.Space[Any]:
    shape, dtype = tuple(value["shape"]), value["dtype"]
    low, high = _array(value["low"], shape, dtype), _array(value["high"], shape, dtype)
    return spaces.Box(low, high, shape, np.dtype(dtype).type)


def _bits(shape: list[int]) -> int | tuple[int, ...]:
    """MultiBinary(3) and MultiBinary((3,)) are unequal; people write the first."""
    return shape[0] if len(shape) == 1 else tuple(shape)


def _multi_discrete(value: Json) -> spaces.Space[Any]:
    dtype = np.dtype(value["dtype"]).type
    return spaces.MultiDiscrete(np.array(value["nvec"]), dtype=dtype, start=np.array(value["start"]))


_BUILDERS: dict[str, Callable[[Json], spaces.Space[Any]]] = {
    "Flat": lambda value: FlatBox(space_from_json(value["space"])),
    "Text": lambda value: TextBox(*value["shape"]),
    "Box": _box,
    "Discrete": lambda value: spaces.Discrete(value["n"], start=value["start"], dtype=np.dtype(value["dtype"]).type),
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda value: spaces.MultiBinary(_bits(value["shape"])),
    "Tuple": lambda value: spaces.Tuple([space_from_json(part) for part in value["spaces"]]),
    "Dict": lambda value: spaces.Dict({key: space_from_json(part) for key, part in value["spaces"].items()}),
}
