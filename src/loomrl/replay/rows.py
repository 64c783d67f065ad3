"""The transitions of a buffer, each observation kept once; sampling policies stand on top."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from loomrl.errors import ArtifactError, ConfigError, EnvironmentFault
from loomrl.replay import kernels
from loomrl.replay.spec import ReplaySpec, State, Transitions
from loomrl.replay.storage import Storage
from loomrl.types import Trajectory

Array = NDArray[Any]
_SIDE_STORES = ("final", "start")


class Rows:
    """A ring of steps, B environments each, in arrays of a storage.

    Physical rows outnumber those that can be sampled by the frames that a stack reaches back.
    """

    def __init__(self, spec: ReplaySpec, storage: Storage) -> None:
        self.spec = spec
        self.storage = storage
        self.num_slots = spec.num_rows + spec.frame_stack - 1  # P
        batch = (spec.num_envs, self.num_slots)
        self._frame_bytes = spec.obs_bytes // spec.frame_stack
        self._obs = storage.array("obs", (*batch, self._frame_bytes), np.uint8)  # (B, P, f)
        self._action = storage.array("action", (*batch, spec.action_bytes), np.uint8)  # (B, P, a)
        self._reward = storage.array("reward", batch, np.float32)  # (B, P)
        self._flags = storage.array("flags", batch, np.uint8)  # (B, P)
        self._head = np.zeros((spec.num_envs, spec.obs_bytes), np.uint8)  # (B, s)
        self._counters = storage.array("counters", (kernels.NUM_COUNTERS,), np.int64)
        room = max(2 * spec.num_envs, spec.capacity // 1024)
        self._final_keys, self._finals = self._side_store("final", room)  # (F,), (F, s)
        self._start_keys, self._starts = self._side_store("start", room if spec.frame_stack > 1 else 1)

    def _side_store(self, name: str, room: int) -> tuple[Array, Array]:
        keys = self.storage.array(f"{name}_keys_{room}", (room,), np.int64)
        return keys, self.storage.array(f"{name}s_{room}", (room, self.spec.obs_bytes), np.uint8)

    # --- what is there ------------------------------------------------------------------------------------------

    @property
    def num_written(self) -> int:
        """Rows ever written."""
        return int(self._counters[kernels.ROWS])

    @property
    def num_rows(self) -> int:
        """Rows that can be sampled."""
        return min(self.num_written, self.spec.num_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._ring())

    def _ring(self) -> kernels.Ring:
        return kernels.Ring(
            self._counters,
            self._obs,
            self._action,
            self._reward,
            self._flags,
            self._head,
            self._final_keys,
            self._finals,
            self._start_keys,
            self._starts,
        )

    # --- writing ------------------------------------------------------------------------------------------------

    def append(self, trajectory: Trajectory) -> None:
        """Write T steps of B environments; see `ReplayBuffer.add`."""
        spec, reward = self.spec, np.asarray(trajectory.reward)
        if reward.ndim != 2 or reward.shape[1] != spec.num_envs:
            raise ConfigError(f"replay expects rewards (T, {spec.num_envs}), found shape {reward.shape}")
        batch = reward.shape
        obs = self._bytes("obs", trajectory.obs, batch, spec.obs_shape, spec.obs_dtype)
        next_obs = self._bytes("next_obs", trajectory.next_obs, batch, spec.obs_shape, spec.obs_dtype)
        action = self._bytes("action", trajectory.action, batch, spec.action_shape, spec.action_dtype)
        reward = _writable(reward, np.float64)
        terminated = _flags("terminated", trajectory.terminated, batch)
        truncated = _flags("truncated", trajectory.truncated, batch)
        finding, t, b = kernels.inspect(obs, next_obs, reward, terminated, truncated, self._frame_bytes)
        if finding:
            self._refuse(finding, t, b, reward[t, b])
        done = 0
        while done < batch[0]:
            done = kernels.append(self._ring(), obs, action, reward, terminated, truncated, next_obs, done)
            if done < batch[0]:
                self._make_room()

    def _bytes(
        self, name: str, values: Array, batch: tuple[int, ...], shape: tuple[int, ...], dtype: DTypeLike
    ) -> NDArray[np.uint8]:
        """(T, B, *shape) of any type that fits -> (T, B, bytes)."""
        values, kept = np.asarray(values), np.dtype(dtype)
        if values.shape != (*batch, *shape):
            raise ConfigError(f"replay expects {name} of shape {(*batch, *shape)}, found {values.shape}")
        if values.dtype != kept and not _converts(values.dtype, kept):
            raise ConfigError(f"replay keeps {name} as {kept}, found {values.dtype}; convert it, or change the spec")
        return _writable(values, kept).reshape(*batch, prod(shape)).view(np.uint8)

    def _refuse(self, finding: int, t: int, b: int, reward: float) -> None:
        if finding == kernels.BAD_REWARD:
            raise EnvironmentFault(
                f"environment {b} gave reward {reward} at step {t} of the trajectory, which float32 cannot hold; "
                "nothing of the trajectory was kept; clip or scale rewards"
            )
        raise ConfigError(
            f"with frame_stack {self.spec.frame_stack} the next observation must hold the frames of the "
            f"observation moved on by one; it does not at step {t} of environment {b}; "
            "stack frames oldest first along the first axis"
        )

    def _make_room(self) -> None:
        """Double the side store that is full."""
        for name in _SIDE_STORES:
            keys, values, begin, end = self._side(name)
            room = len(keys)
            if end - begin + self.spec.num_envs <= room:
                continue
            position = np.arange(begin, end)
            new_keys, new_values = self._side_store(name, 2 * room)
            new_keys[position % (2 * room)] = keys[position % room]
            new_values[position % (2 * room)] = values[position % room]
            if name == "final":
                self._final_keys, self._finals = new_keys, new_values
            else:
                self._start_keys, self._starts = new_keys, new_values

    def _side(self, name: str) -> tuple[Array, Array, int, int]:
        counters = self._counters.tolist()
        if name == "final":
            return self._final_keys, self._finals, counters[kernels.FINALS_BEGIN], counters[kernels.FINALS_END]
        return self._start_keys, self._starts, counters[kernels.STARTS_BEGIN], counters[kernels.STARTS_END]

    # --- reading ------------------------------------------------------------------------------------------------

    def gather(self, out: Transitions) -> None:
        """Fill all of `out` but `weight` with the transitions that `out.index` names."""
        spec, size = self.spec, len(out.index)
        kernels.gather(
            self._ring(),
            out.index,
            spec.n_step,
            spec.gamma,
            out.obs.reshape(size, -1).view(np.uint8),
            out.action.reshape(size, -1).view(np.uint8),
            out.reward,
            out.next_obs.reshape(size, -1).view(np.uint8),
            out.terminated,
            out.discount,
        )

    # --- saving -------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Copies of what is filled."""
        filled = min(self.num_written, self.num_slots)
        state: State = {"num_written": self.num_written, "head": self._head.copy()}
        for name in ("obs", "action", "reward", "flags"):
            state[name] = getattr(self, f"_{name}")[:, :filled].copy()
        for name in _SIDE_STORES:
            keys, values, begin, end = self._side(name)
            position = np.arange(begin, end) % len(keys)
            state[f"{name}_keys"], state[f"{name}s"] = keys[position], values[position]
        return state

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of rows with the same spec."""
        written = int(state["num_written"])
        filled = min(written, self.num_slots)
        self._counters[:] = 0
        for name in ("obs", "action", "reward", "flags"):
            mine = getattr(self, f"_{name}")[:, :filled]
            mine[...] = same_array(name, state[name], mine)
        self._head[...] = same_array("head", state["head"], self._head)
        self._load_side_stores(state)
        self._counters[kernels.ROWS] = written

    def _load_side_stores(self, state: State) -> None:
        for name, counter in zip(_SIDE_STORES, (kernels.FINALS_END, kernels.STARTS_END), strict=True):
            keys = np.asarray(state[f"{name}_keys"])
            while len(self._side(name)[0]) < len(keys):
                room = 2 * len(self._side(name)[0])
                if name == "final":
                    self._final_keys, self._finals = self._side_store(name, room)
                else:
                    self._start_keys, self._starts = self._side_store(name, room)
            mine_keys, mine_values, _, _ = self._side(name)
            mine_keys[: len(keys)] = keys
            mine_values[: len(keys)] = same_array(f"{name}s", state[f"{name}s"], mine_values[: len(keys)])
            self._counters[counter] = len(keys)


def _writable(found: Array, dtype: DTypeLike) -> Array:
    """Contiguous and of one type; writable too, because compiled code is made anew for arrays that are not."""
    values: Array = np.ascontiguousarray(found, dtype)
    return values if values.flags.writeable else values.copy()


def _converts(found: np.dtype[Any], kept: np.dtype[Any]) -> bool:
    return np.can_cast(found, kept, "safe") or (found.kind == "f" and kept.kind == "f")


def _flags(name: str, values: Array, batch: tuple[int, ...]) -> Array:
    values = np.asarray(values)
    if values.shape != batch or values.dtype != np.bool_:
        raise ConfigError(f"replay expects {name} as booleans {batch}, found {values.dtype} {values.shape}")
    return _writable(values, np.bool_)


def same_array(name: str, found: Any, mine: Array) -> Array:
    """`found`, when it can take the place of `mine`; raises `ArtifactError` when not."""
    array: Array = np.asarray(found)
    if array.shape != mine.shape or array.dtype != mine.dtype:
        raise ArtifactError(
            f"the replay state's {name!r} is {array.dtype} {array.shape}, this buffer's {mine.dtype} {mine.shape}; "
            "restore it into a buffer with the same spec"
        )
    return array
