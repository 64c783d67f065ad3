"""Structured observations as one array: what every room after the environment handles.

A `FlatBox` is a Box of one dimension that knows the space its vector stands for. `construct` puts
`FlattenedObservation` around environments that observe anything but a Box or Discrete space, so that collecting,
Parquet tables, safety probes, the exported graph and the server handle one array, while the policy takes the vector
apart by the layout. A snapshot keeps the original space in the FlatBox's JSON, and the layout beside it for those who
have no Gymnasium.

Nothing is encoded here: a Discrete part stays one whole number, an image its bytes. One-hot coding and scaling are the
policy's, so that they are in the exported graph.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.errors import ConfigError

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


@dataclass(frozen=True)
class SpaceLeaf:
    """One leaf of a structured space. `name` is its path, such as `arm.0`; empty for a space without parts."""

    name: str
    space: spaces.Space[Any]  # Box, Discrete, MultiDiscrete or MultiBinary
    offset: int  # of its first component in the vector
    size: int  # components

    @property
    def shape(self) -> tuple[int, ...]:
        """The leaf's own shape; () for Discrete."""
        return tuple(self.space.shape or ())

    @property
    def kind(self) -> str:
        """The kind of space: `image`, `box`, `discrete`, `multi_discrete` or `multi_binary`."""
        if isinstance(self.space, spaces.Box):
            return "image" if is_image(self.space) else "box"
        kinds = {spaces.Discrete: "discrete", spaces.MultiDiscrete: "multi_discrete"}
        return next((name for kind, name in kinds.items() if isinstance(self.space, kind)), "multi_binary")


class FlatBox(spaces.Box):
    """The vectors (D,) that stand for the elements of a structured space, in the smallest dtype that holds all parts.

    `whole` (D,) marks the components that are whole numbers in a floating-point vector.

    Raises:
        ConfigError: naming the part no fixed number of components can hold.
    """

    def __init__(self, original: spaces.Space[Any]) -> None:
        self.original = original
        self.parts = parts_of(original)
        limits = [_limits(part.space) for part in self.parts]
        dtype = np.result_type(*(low.dtype for low, _ in limits))
        low, high = (np.concatenate([pair[end].ravel() for pair in limits]).astype(dtype) for end in (0, 1))
        super().__init__(low, high, dtype=dtype.type)
        self.whole = np.concatenate([np.full(part.size, low.dtype.kind != "f") for part, (low, _) in
                                     zip(self.parts, limits, strict=True)])  # fmt: skip

    def flatten(self, value: Any) -> NDArray[Any]:
        """An element of the original space -> its vector (D,)."""
        flat = np.empty(self.shape, self.dtype)
        offset = 0
        for leaf in leaves(self.original, value):
            array = np.asarray(leaf)
            flat[offset : offset + array.size] = array.ravel()
            offset += array.size
        return flat

    def unflatten(self, flat: NDArray[Any]) -> Any:
        """A vector (D,) -> the element of the original space it stands for."""
        pieces = iter([flat[part.offset : part.offset + part.size] for part in self.parts])
        return _rebuild(self.original, pieces)

    def seed(self, seed: Any = None) -> Any:
        """Seed the original space, which draws the samples."""
        return self.original.seed(seed)

    def sample(self, mask: None = None, probability: None = None) -> NDArray[Any]:  # noqa: ARG002 - Gymnasium's signature
        """The vector of a random element of the original space."""
        return self.flatten(self.original.sample())

    def contains(self, x: Any) -> bool:
        """Whether a vector is within the bounds, and whole where a part of it must be."""
        return super().contains(x) and bool(np.all(np.asarray(x)[self.whole] % 1 == 0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatBox) and self.original == other.original

    __hash__ = None  # type: ignore[assignment]  # as Box's: spaces are mutable

    def __repr__(self) -> str:
        return f"FlatBox({self.original})"


class FlattenedObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observes the vectors of a `FlatBox` in place of what they stand for."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = self._space = FlatBox(env.observation_space)

    def observation(self, observation: Any) -> NDArray[Any]:
        """A nested observation as one vector (D,)."""
        return self._space.flatten(observation)


def as_one_array(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment, flattened where its observations are not one array already.

    Raises:
        ConfigError: for observations of no fixed size, naming the space and the fix.
    """
    return env if is_one_array(env.observation_space) else FlattenedObservation(env)


def is_one_array(space: spaces.Space[Any]) -> bool:
    """Whether an observation needs no flattening: Box and Discrete.

    Raises:
        ConfigError: for a Box of a dtype that is not numbers.
    """
    if isinstance(space, spaces.Box):
        parts_of(space)  # names a dtype that is not numbers
    return isinstance(space, spaces.Box | spaces.Discrete)


def parts_of(space: spaces.Space[Any]) -> tuple[SpaceLeaf, ...]:
    """The leaves of a space in the order of its vector; a `FlatBox` has those of what it stands for.

    Raises:
        ConfigError: for a space without a fixed number of components.
    """
    if isinstance(space, FlatBox):
        return space.parts
    parts: list[SpaceLeaf] = []
    offset = 0
    for name, leaf in _named_leaves(space, ""):
        size = int(np.prod(leaf.shape or (), dtype=np.int64))
        parts.append(SpaceLeaf(name, leaf, offset, size))
        offset += size
    return tuple(parts)


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether a space is of images: a Box of three dimensions of uint8. Anything else is numbers."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the first axis of an image holds the channels: where it is shorter than the last one."""
    return shape[0] < shape[-1]


def rounded(space: spaces.Space[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Vectors (N, D) with the components made whole that are whole in a FlatBox; of other spaces as they are."""
    return np.where(space.whole, np.rint(values), values) if isinstance(space, FlatBox) else values


def misfits(space: spaces.Space[Any], values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers of rows (N, *shape), of any dtype, no element of a space has: those that are not finite in its
    dtype and, where it has whole numbers, those with a fraction or out of bounds. Bounds of other numbers are not
    looked at, as in `EnvironmentGuard`.
    """
    low, high = _limits(space)
    whole = space.whole if isinstance(space, FlatBox) else low.dtype.kind != "f"
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(values.astype(space.dtype) if np.dtype(space.dtype).kind == "f" else values)
        strange: NDArray[np.bool_] = ~finite | (whole & ((values % 1 != 0) | (values < low) | (values > high)))
    return strange


def _named_leaves(space: spaces.Space[Any], name: str) -> Iterator[tuple[str, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in _items(space):
            yield from _named_leaves(part, f"{name}.{key}" if name else str(key))
        return
    known = isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "fiub"
    if not known and not isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        place = f" (its part {name!r})" if name else ""
        raise ConfigError(
            f"observation space {space}{place} is not supported; supported: {SUPPORTED}; wrap the environment with "
            "gymnasium.wrappers.TransformObservation, padding what has no fixed size to a Box"
        )
    yield name, space


def _items(space: spaces.Dict | spaces.Tuple[Any]) -> list[tuple[Any, spaces.Space[Any]]]:
    """The parts in the order of the vector: a Dict's by their names, because JSON does not keep its order."""
    if isinstance(space, spaces.Dict):
        return sorted(space.spaces.items(), key=lambda item: str(item[0]))
    return list(enumerate(space.spaces))


def _limits(space: spaces.Space[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Smallest and largest values of a leaf, in the smallest dtype that holds both."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.uint8), np.ones(space.shape, np.uint8)
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    low = np.asarray(space.start, np.int64)
    high = low + np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec, np.int64) - 1
    dtype = np.result_type(np.min_scalar_type(int(low.min())), np.min_scalar_type(int(high.max())))
    return low.astype(dtype), high.astype(dtype)


def leaves(space: spaces.Space[Any], value: Any) -> Iterator[Any]:
    """The leaves of an element of a space, in the order of its vector."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in _items(space):
            yield from leaves(part, value[key])
    else:
        yield value


def _rebuild(space: spaces.Space[Any], pieces: Iterator[NDArray[Any]]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _rebuild(part, pieces) for key, part in _items(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(_rebuild(part, pieces) for _, part in _items(space))
    shaped = next(pieces).astype(space.dtype).reshape(space.shape or ())
    return shaped[()] if isinstance(space, spaces.Discrete) else shaped
