"""The last k observations as one: `environment.frame_stack`.

It belongs to the environment, so that training, evaluation, the gate and whoever serves see the same, and is recorded
in the snapshot. Each part of a structured observation is stacked by its kind: images along their channels, so that they
stay images; other boxes and bits along a new first axis; a Discrete part becomes as many choices. The oldest comes
first. At a reset the first observation stands for those that were not, and nothing of the last episode is left.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.layers import layers_of
from loomrl.environment.wrappers.flat import channels_first, is_image, leaves, parts_of


class FrameStack(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observes the last `num_frames` observations.

    Raises:
        ConfigError: for observations of no fixed size.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], num_frames: int) -> None:
        super().__init__(env)
        parts_of(env.observation_space)  # names a part that cannot be stacked
        self.observation_space = stacked_space(env.observation_space, num_frames)
        self._frames: deque[Any] = deque(maxlen=num_frames)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the first observation fills the stack, which is returned with the environment's info."""
        observation, info = self.env.reset(seed=seed, options=options)
        frame = _kept(observation)
        self._frames.extend([frame] * (self._frames.maxlen or 1))
        return stack(self.env.observation_space, tuple(self._frames)), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """What the environment's step returns, with the stack: the newest observation pushes the oldest out."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(_kept(observation))
        stacked = stack(self.env.observation_space, tuple(self._frames))
        return stacked, reward, bool(terminated), bool(truncated), info


def stacked_space(space: spaces.Space[Any], num_frames: int) -> spaces.Space[Any]:
    """The space of `num_frames` observations of a space, its parts stacked one by one.

    An image gets as many times the channels; other boxes, bits and choices a first axis of `num_frames`, a Discrete
    becoming a MultiDiscrete.
    """
    match space:
        case spaces.Dict():
            return spaces.Dict({key: stacked_space(part, num_frames) for key, part in space.spaces.items()})
        case spaces.Tuple():
            return spaces.Tuple([stacked_space(part, num_frames) for part in space.spaces])
        case spaces.Box():
            low, high = stack(space, [space.low] * num_frames), stack(space, [space.high] * num_frames)
            return spaces.Box(low, high, dtype=np.dtype(space.dtype).type)
        case spaces.MultiBinary():
            return spaces.MultiBinary((num_frames, *space.shape))
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
    starts = np.stack([np.asarray(space.start)] * num_frames)
    return spaces.MultiDiscrete(np.stack([np.asarray(sizes)] * num_frames), start=starts)


def stack(space: spaces.Space[Any], frames: Sequence[Any]) -> Any:
    """Observations of a space, the oldest first -> one element of its `stacked_space`."""
    if isinstance(space, spaces.Dict):
        return {key: stack(part, [frame[key] for frame in frames]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stack(part, [frame[index] for frame in frames]) for index, part in enumerate(space.spaces))
    if is_image(space):
        return np.concatenate(frames, axis=0 if channels_first(space.shape or ()) else -1)
    return np.stack([np.asarray(frame) for frame in frames])


def frame_space(env: gymnasium.Env[Any, Any]) -> spaces.Space[Any] | None:
    """The space of one frame, where an environment observes a stack of them; None where it does not."""
    return next((one.env.observation_space for one in layers_of(env) if isinstance(one, FrameStack)), None)


def frame_places(space: spaces.Space[Any], num_frames: int) -> NDArray[np.int64]:
    """Where the n values of each frame of a space stand in a stack's array, flat: (k, n), the oldest frame first."""
    size = sum(part.size for part in parts_of(space))
    frames = [_numbered(space, itertools.count(frame * size)) for frame in range(num_frames)]
    stacked = leaves(stacked_space(space, num_frames), stack(space, frames))
    numbers = np.concatenate([np.ravel(leaf) for leaf in stacked])  # (k * n,): which value stands where
    return np.argsort(numbers).reshape(num_frames, size)


def _numbered(space: spaces.Space[Any], numbers: Iterator[int]) -> Any:
    """Of a space's structure, the next numbers as its values."""
    if isinstance(space, spaces.Dict):
        return {key: _numbered(part, numbers) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_numbered(part, numbers) for part in space.spaces)
    shape = space.shape or ()
    return np.fromiter(itertools.islice(numbers, int(np.prod(shape))), np.int64).reshape(shape)


def _kept(observation: Any) -> Any:
    """A copy: an environment may write its next observation into the same array."""
    if isinstance(observation, dict):
        return {key: _kept(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_kept(part) for part in observation)
    return np.array(observation)
