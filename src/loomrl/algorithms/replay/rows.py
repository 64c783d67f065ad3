"""The transitions of a buffer, each observation kept once; sampling policies stand on top."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from loomrl.algorithms.replay import kernels
from loomrl.algorithms.replay.journal import ReplayJournal
from loomrl.algorithms.replay.kernels import FINALS_BEGIN, FINALS_END, ROWS, STARTS_BEGIN, STARTS_END
from loomrl.algorithms.replay.side_store import SideStore
from loomrl.algorithms.replay.spec import ReplaySpec, State, Transitions, same_array
from loomrl.algorithms.replay.storage import Storage
from loomrl.errors import ArtifactError, ConfigError, EnvironmentFault
from loomrl.types import Trajectory

Array = NDArray[Any]
_COLUMNS = ("obs", "action", "reward", "flags")


class StepRing:
    """A ring of steps, B environments each, in arrays of a storage. Every method raises ArtifactError when a storage in
    files cannot read or write them.

    Physical rows outnumber those that can be sampled, by the frames that a stack reaches back and by those that the
    storage spares for saved states.
    """

    def __init__(self, spec: ReplaySpec, storage: Storage) -> None:
        self.spec = spec
        self._storage = storage
        self.num_slots = spec.num_rows + spec.frame_stack - 1 + storage.spare_rows(spec.num_rows)  # P
        batch = (spec.num_envs, self.num_slots)
        self._frame_bytes = spec.obs_bytes // spec.frame_stack
        self._order = spec.byte_order
        self._places = None if self._order is None else np.argsort(self._order).astype(np.uint32)  # the way back
        self._by_frames = np.empty((2, 0, spec.obs_bytes), np.uint8)  # (2, N, s), for a batch
        self._journal = ReplayJournal(spec, self.num_slots, storage)
        self._obs = storage.array("obs", (*batch, self._frame_bytes), np.uint8, paged=True)  # (B, P, f)
        self._action = storage.array("action", (*batch, spec.action_bytes), np.uint8)  # (B, P, a)
        self._reward = storage.array("reward", batch, np.float32)  # (B, P)
        self._flags = storage.array("flags", batch, np.uint8)  # (B, P)
        self._head = np.zeros((spec.num_envs, spec.obs_bytes), np.uint8)  # (B, s)
        self._counters = np.zeros(kernels.NUM_COUNTERS, np.int64)
        room = max(2 * spec.num_envs, spec.capacity // 1024)
        rooms = self._journal.rooms((room, room if spec.frame_stack > 1 else 1))
        self._finals = SideStore("final", rooms[0], spec.obs_bytes, storage)
        self._starts = SideStore("start", rooms[1], spec.obs_bytes, storage)
        self._ring = self._make_ring()

    def _make_ring(self) -> kernels.Ring:
        return kernels.Ring(
            self._counters,
            self._obs,
            self._action,
            self._reward,
            self._flags,
            self._head,
            self._finals.keys,
            self._finals.values,
            self._starts.keys,
            self._starts.values,
        )

    # --- what is there ------------------------------------------------------------------------------------------

    @property
    def num_written(self) -> int:
        """Rows written since the buffer was made, those overwritten since among them."""
        return int(self._counters[ROWS])

    @property
    def num_rows(self) -> int:
        """Number of rows that the ring holds now and that can be sampled."""
        return min(self.num_written, self.spec.num_rows)

    @property
    def nbytes(self) -> int:
        """Size of all arrays of the ring in bytes."""
        return sum(array.nbytes for array in self._ring)

    # --- writing ------------------------------------------------------------------------------------------------

    def append(self, trajectory: Trajectory) -> None:
        """Write T steps of B environments over the oldest.

        Raises:
            ConfigError: for arrays of another shape or type than the spec's, or stacked frames that do not move on by
                one; nothing is written then.
            EnvironmentFault: for a reward that is not finite in float32; nothing is written then.
            ArtifactError: when the storage has no room, after whole steps were written.
        """
        spec, reward = self.spec, np.asarray(trajectory.reward)
        if reward.ndim != 2 or reward.shape[1] != spec.num_envs:
            raise ConfigError(f"replay expects rewards (T, {spec.num_envs}), found shape {reward.shape}")
        batch = reward.shape
        obs = _bytes("obs", trajectory.obs, batch, spec.obs_shape, spec.obs_dtype)
        next_obs = _bytes("next_obs", trajectory.next_obs, batch, spec.obs_shape, spec.obs_dtype)
        obs, next_obs = self._frame_by_frame(obs), self._frame_by_frame(next_obs)
        action = _bytes("action", trajectory.action, batch, spec.action_shape, spec.action_dtype)
        reward = _writable(reward, np.float64)
        terminated = _flags("terminated", trajectory.terminated, batch)
        truncated = _flags("truncated", trajectory.truncated, batch)
        finding, t, b = kernels.inspect(obs, next_obs, reward, terminated, truncated, self._frame_bytes)
        if finding:
            self._refuse(finding, t, b, reward[t, b])
        self._journal.begin(self.num_written + batch[0])
        done = 0
        while done < batch[0]:
            self._storage.prepare_write("obs", self.num_written, self.num_written + batch[0] - done)
            done = kernels.append(*self._ring, obs, action, reward, terminated, truncated, next_obs, done)
            if done < batch[0]:
                self._make_room()

    def _frame_by_frame(self, obs: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Observations (T, B, s) with the bytes of each frame together, the oldest first."""
        if self._order is None:
            return obs
        arranged = np.empty_like(obs)
        kernels.rearrange(arranged.reshape(-1, obs.shape[-1]), obs.reshape(-1, obs.shape[-1]), self._order)
        return arranged

    def _refuse(self, finding: int, t: int, b: int, reward: float) -> None:
        if finding == kernels.BAD_REWARD:
            raise EnvironmentFault(
                f"environment {b} gave reward {reward} at step {t} of the trajectory, which float32 cannot hold; "
                "nothing of the trajectory was kept; clip or scale rewards"
            )
        raise ConfigError(
            f"with frame_stack {self.spec.frame_stack} the next observation must hold the frames of the "
            f"observation moved on by one; it does not at step {t} of environment {b}; "
            "stack frames oldest first, along the first axis or as frame_places says"
        )

    def _make_room(self) -> None:
        """Double the side store that is full."""
        counters = self._counters.tolist()
        if counters[FINALS_END] - counters[FINALS_BEGIN] + self.spec.num_envs > self._finals.room:
            self._finals.grow(counters[FINALS_BEGIN], counters[FINALS_END])
        else:
            self._starts.grow(counters[STARTS_BEGIN], counters[STARTS_END])
        self._storage.flush()  # what was moved is on the disk before the journal says where it lies
        self._journal.note_rooms((self._finals.room, self._starts.room))
        self._ring = self._make_ring()

    # --- reading ------------------------------------------------------------------------------------------------

    def gather(self, out: Transitions) -> None:
        """Fill all arrays of `out` but `weight` with the transitions that `out.index` (N,) names. Indices are not
        checked."""
        spec, size = self.spec, len(out.index)
        observations = out.obs.reshape(size, -1).view(np.uint8), out.next_obs.reshape(size, -1).view(np.uint8)
        obs, next_obs = observations if self._places is None else self._room_by_frames(size)
        self._storage.prepare_read("obs", out.index, spec.frame_stack - 1, spec.n_step)
        kernels.gather(
            *self._ring,
            out.index,
            spec.n_step,
            spec.gamma,
            obs,
            out.action.reshape(size, -1).view(np.uint8),
            out.reward,
            next_obs,
            out.terminated,
            out.discount,
        )
        if self._places is not None:
            kernels.rearrange(observations[0], obs, self._places)
            kernels.rearrange(observations[1], next_obs, self._places)

    def _room_by_frames(self, size: int) -> tuple[Array, Array]:
        """Two arrays (N, s), used again for the next batch of this size."""
        if self._by_frames.shape[1] != size:
            self._by_frames = np.empty((2, size, self.spec.obs_bytes), np.uint8)
        return self._by_frames[0], self._by_frames[1]

    # --- saving -------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """The ring's state, arrays and numbers by name: copies of what is filled. A storage in files is flushed instead
        and keeps the arrays; the state then only says how far they were written, and in which run."""
        state: State = {"num_written": self.num_written, "head": self._head.copy()}
        finals, starts = self._counters[FINALS_BEGIN:STARTS_BEGIN], self._counters[STARTS_BEGIN : STARTS_END + 1]
        if self._storage.keeps:
            self._storage.flush()
            generation = self._journal.save(self.num_written)
            return {**state, "generation": generation, "finals": finals.copy(), "starts": starts.copy()}
        filled = min(self.num_written, self.num_slots)
        for name in _COLUMNS:
            state[name] = getattr(self._ring, name)[:, :filled].copy()
        state["final_keys"], state["finals"] = self._finals.entries(*finals.tolist())
        state["start_keys"], state["starts"] = self._starts.entries(*starts.tolist())
        return state

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of rows with the same spec and kind of storage.

        Raises:
            ArtifactError: for a state of another spec or kind of storage; when files do not, or no longer, hold what
                the state refers to.
        """
        wanted = {"generation"} if self._storage.keeps else {*_COLUMNS, "final_keys", "start_keys"}
        if missing := sorted({"num_written", "head", "finals", "starts", *wanted} - state.keys()):
            raise ArtifactError(
                f"the replay state lacks {missing[0]!r}: it was saved by a buffer of another kind of storage; "
                "restore it into a buffer that is made like the one that saved it"
            )
        head = same_array("head", state["head"], self._head)
        if self._storage.keeps:
            self._restore_positions(state)
        else:
            self._load_arrays(state)
        self._head[...] = head
        self._counters[ROWS] = state["num_written"]

    def _restore_positions(self, state: State) -> None:
        """The arrays hold what they held, and perhaps rows after it: forget these, and what they released."""
        written, num_envs = int(state["num_written"]), self.spec.num_envs
        begun = self._journal.restore(written, state)
        if written:  # that the next row began elsewhere was not known when the state was saved
            self._flags[:, (written - 1) % self.num_slots] &= ~np.uint8(kernels.CUT)
        oldest_key = (begun - self.num_slots) * num_envs
        sides = (
            ("finals", self._finals, FINALS_BEGIN, (written - 1) * num_envs),
            ("starts", self._starts, STARTS_BEGIN, written * num_envs),
        )
        for name, store, counter, stop_key in sides:
            begin, end = np.asarray(state[name]).tolist()
            self._counters[counter : counter + 2] = store.first_alive(begin, end, oldest_key, stop_key), end

    def _load_arrays(self, state: State) -> None:
        filled = min(int(state["num_written"]), self.num_slots)
        columns = {name: getattr(self._ring, name)[:, :filled] for name in _COLUMNS}
        found = {name: same_array(name, state[name], column) for name, column in columns.items()}
        for name, column in columns.items():
            column[...] = found[name]
        self._counters[...] = 0
        for name, store, end in (("final", self._finals, FINALS_END), ("start", self._starts, STARTS_END)):
            keys = np.asarray(state[f"{name}_keys"])
            while store.room < len(keys):
                store.grow(0, 0)
            store.keys[: len(keys)] = same_array(f"{name}_keys", keys, store.keys[: len(keys)])
            store.values[: len(keys)] = same_array(f"{name}s", state[f"{name}s"], store.values[: len(keys)])
            self._counters[end] = len(keys)
        self._ring = self._make_ring()


def _bytes(
    name: str, values: Array, batch: tuple[int, ...], shape: tuple[int, ...], dtype: DTypeLike
) -> NDArray[np.uint8]:
    """(T, B, *shape) of any type that fits -> (T, B, bytes)."""
    values, kept = np.asarray(values), np.dtype(dtype)
    if values.shape != (*batch, *shape):
        raise ConfigError(f"replay expects {name} of shape {(*batch, *shape)}, found {values.shape}")
    if values.dtype != kept and not _converts(values.dtype, kept):
        raise ConfigError(f"replay keeps {name} as {kept}, found {values.dtype}; convert it, or change the spec")
    return _writable(values, kept).reshape(*batch, prod(shape)).view(np.uint8)


def _converts(found: np.dtype[Any], kept: np.dtype[Any]) -> bool:
    return np.can_cast(found, kept, "safe") or (found.kind == "f" and kept.kind == "f")


def _flags(name: str, values: Array, batch: tuple[int, ...]) -> Array:
    values = np.asarray(values)
    if values.shape != batch or values.dtype != np.bool_:
        raise ConfigError(f"replay expects {name} as booleans {batch}, found {values.dtype} {values.shape}")
    return _writable(values, np.bool_)


def _writable(found: Array, dtype: DTypeLike) -> Array:
    """Contiguous and of one type; writable too, because compiled code is made anew for arrays that are not."""
    values: Array = np.ascontiguousarray(found, dtype)
    return values if values.flags.writeable else values.copy()
