"""What a replay buffer holds, and what it hands out."""

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from loomrl.errors import ArtifactError, ConfigError

State = dict[str, NDArray[Any] | int | float | str]  # arrays go into safetensors, the rest into JSON

PRIORITY_LIMIT = 1e38  # `tree.update` refuses what is not below: sums of more could overflow


@dataclass(frozen=True)
class ReplaySpec:
    """Shapes, types and returns of a replay buffer.

    `capacity` counts transitions over all environments. `obs_dtype` is what observations are kept in: floats of
    another width are converted. With `frame_stack` = k > 1 the leading axis of an observation holds k frames, the
    newest last, as `gymnasium.wrappers.FrameStackObservation` (k, *frame) and channel-stacking environments
    (k * channels, H, W) give them: each frame is then kept once. Where frames stand otherwise, `frame_places` (k, n)
    says at which places of the flat observation the n values of each stand, the oldest first. Rewards are kept in
    float32, summed in float64.

    Raises:
        ConfigError: when a field is out of range, or `capacity` is no multiple of `num_envs`.
    """

    capacity: int
    num_envs: int
    obs_shape: tuple[int, ...]
    obs_dtype: DTypeLike
    action_shape: tuple[int, ...]
    action_dtype: DTypeLike
    n_step: int = 1
    gamma: float = 0.99
    frame_stack: int = 1
    frame_places: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("capacity", "num_envs", "n_step", "frame_stack"):
            if getattr(self, name) < 1:
                raise ConfigError(f"replay {name} is {getattr(self, name)}; it must be at least 1")
        if self.capacity % self.num_envs:
            below = self.capacity - self.capacity % self.num_envs
            raise ConfigError(
                f"replay capacity {self.capacity} is no multiple of num_envs {self.num_envs}; "
                f"use {below or self.num_envs} or {below + self.num_envs}"
            )
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"replay gamma is {self.gamma}; it must lie in [0, 1]")
        for name in ("obs", "action"):
            self._check_array(name)
        if self.frame_places is not None:
            self._check_places(self.frame_places)
        elif self.frame_stack > 1 and (not self.obs_shape or self.obs_shape[0] % self.frame_stack):
            raise ConfigError(
                f"replay frame_stack {self.frame_stack} does not divide the leading axis of obs_shape {self.obs_shape}"
                "; stack frames along the first axis, or give frame_places"
            )

    def _check_places(self, places: NDArray[np.int64]) -> None:
        size = prod(self.obs_shape)
        is_order = np.array_equal(np.sort(places, None), np.arange(size))
        if places.shape != (self.frame_stack, size // self.frame_stack) or not is_order:
            raise ConfigError(
                f"replay frame_places of shape {places.shape} do not name each of the {size} values of an observation "
                f"once, in frame_stack {self.frame_stack} rows"
            )

    def _check_array(self, name: str) -> None:
        shape, dtype = getattr(self, f"{name}_shape"), np.dtype(getattr(self, f"{name}_dtype"))
        if min(shape, default=1) < 1:
            raise ConfigError(f"replay {name}_shape is {shape}; every axis must be at least 1")
        if dtype.kind not in "biuf" or not dtype.isnative:
            raise ConfigError(f"replay {name}_dtype is {dtype}; supported: native booleans, integers and floats")

    @property
    def num_rows(self) -> int:
        """How many rows the capacity holds; a row is a step of all environments."""
        return self.capacity // self.num_envs

    @property
    def byte_order(self) -> NDArray[np.uint32] | None:
        """For each byte of an observation whose frames stand one after the other, its place in the observation as it
        comes: (s,). None where frames stand so anyway."""
        if self.frame_places is None or (self.frame_places.ravel() == np.arange(prod(self.obs_shape))).all():
            return None
        width = np.dtype(self.obs_dtype).itemsize
        order: NDArray[np.uint32] = (
            (self.frame_places.reshape(-1, 1) * width + np.arange(width)).ravel().astype(np.uint32)
        )
        return order

    @property
    def obs_bytes(self) -> int:
        """Size of one observation with all its frames, in bytes."""
        return prod(self.obs_shape) * np.dtype(self.obs_dtype).itemsize

    @property
    def action_bytes(self) -> int:
        """Size of one action in bytes."""
        return prod(self.action_shape) * np.dtype(self.action_dtype).itemsize

    @property
    def raw_bytes(self) -> int:
        """Bytes of `capacity` transitions with everything once: a frame, action, reward (float32) and two flags."""
        return self.capacity * (self.obs_bytes // self.frame_stack + self.action_bytes + 4 + 2)


@dataclass(frozen=True)
class Transitions:
    """A batch of N sampled transitions, each over k <= n_step steps.

    The k steps end at an episode's end or at the newest step; `next_obs` is the true successor of the last of them. The
    target of a value is `reward + discount * ~terminated * value(next_obs)`.

    `obs` and `next_obs` (N, *obs), `action` (N, *action). `reward` (N,) is the sum of gamma^i * reward_i over the k
    steps, `discount` (N,) is gamma^k, and `terminated` (N,) says that the last of them ended the episode in a terminal
    state. `index` (N,) names the transitions for `update_priorities`, and is never used again for another. `weight`
    (N,) are importance weights, 1 where sampling is uniform.
    """

    obs: NDArray[Any]  # (N, *obs)
    action: NDArray[Any]  # (N, *action)
    reward: NDArray[np.float32]  # (N,): sum of gamma^i * reward_i over the k steps
    next_obs: NDArray[Any]  # (N, *obs)
    terminated: NDArray[np.bool_]  # (N,): the last of the k steps ended the episode in a terminal state
    discount: NDArray[np.float32]  # (N,): gamma^k
    index: NDArray[np.int64]  # (N,): names the transition, for update_priorities; never used again for another
    weight: NDArray[np.float32]  # (N,): importance weight, 1 where sampling is uniform

    @classmethod
    def empty(cls, spec: ReplaySpec, batch_size: int) -> "Transitions":
        """Uninitialised arrays for one batch, to be filled by `sample(..., out=...)`."""
        return cls(
            obs=np.empty((batch_size, *spec.obs_shape), spec.obs_dtype),
            action=np.empty((batch_size, *spec.action_shape), spec.action_dtype),
            reward=np.empty(batch_size, np.float32),
            next_obs=np.empty((batch_size, *spec.obs_shape), spec.obs_dtype),
            terminated=np.empty(batch_size, np.bool_),
            discount=np.empty(batch_size, np.float32),
            index=np.empty(batch_size, np.int64),
            weight=np.empty(batch_size, np.float32),
        )

    def check(self, spec: ReplaySpec, batch_size: int) -> None:
        """Check that the arrays fit a spec and a batch size, since compiled code writes into them without looking.

        Raises:
            ConfigError: for an array of another shape or type, or one that is not contiguous and writable.
        """
        kept = (
            (spec.obs_shape, spec.obs_dtype),
            (spec.action_shape, spec.action_dtype),
            (spec.obs_shape, spec.obs_dtype),
        )
        for array, (shape, dtype) in zip((self.obs, self.action, self.next_obs), kept, strict=True):
            if array.shape != (batch_size, *shape) or array.dtype != dtype or not array.flags.carray:
                raise ConfigError(
                    f"`out` holds an array {array.dtype} {array.shape} where {dtype} {(batch_size, *shape)} is needed; "
                    "make it with Transitions.empty(spec, batch_size)"
                )


def same_array(name: str, found: Any, mine: NDArray[Any]) -> NDArray[Any]:
    """`found` as an array, once its shape and type are those of `mine`, which it is to replace; `name` is for the
    message.

    Raises:
        ArtifactError: when shape or type differ.
    """
    array: NDArray[Any] = np.asarray(found)
    if array.shape != mine.shape or array.dtype != mine.dtype:
        raise ArtifactError(
            f"the replay state's {name!r} is {array.dtype} {array.shape}, this buffer's {mine.dtype} {mine.shape}; "
            "restore it into a buffer with the same spec"
        )
    return array
