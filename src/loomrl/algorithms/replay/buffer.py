"""Replay with uniform sampling (Lin, 1992; as in Mnih et al., 2015)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.replay.rows import StepRing
from loomrl.algorithms.replay.spec import ReplaySpec, State, Transitions
from loomrl.algorithms.replay.storage import MemoryStorage, Storage
from loomrl.errors import ConfigError
from loomrl.types import Trajectory


class ReplayBuffer:
    """The newest `spec.capacity` transitions, sampled uniformly with replacement. They are in memory where `storage` is
    None. One in files raises ArtifactError from `add`, `sample` and `state_dict` when its disk fails or is full."""

    def __init__(self, spec: ReplaySpec, storage: Storage | None = None) -> None:
        self.spec = spec
        self._rows = StepRing(spec, storage or MemoryStorage())

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self._rows.num_rows * self.spec.num_envs

    @property
    def nbytes(self) -> int:
        """Size of all that the buffer keeps, in bytes."""
        return self._rows.nbytes

    def add(self, trajectory: Trajectory) -> None:
        """Keep T steps of B environments; the oldest make room.

        A trajectory goes on where the last ended, or elsewhere: what follows a step is always its `next_obs`.

        Raises:
            ConfigError: for arrays of another shape or type than the spec's, or stacked frames that do not move on by
                one; nothing is kept then.
            EnvironmentFault: for a reward that is not finite in float32; nothing is kept then.
        """
        self._rows.append(trajectory)

    def add_step(
        self,
        obs: NDArray[Any],  # (B, *obs)
        action: NDArray[Any],  # (B, *action)
        reward: NDArray[Any],  # (B,)
        terminated: NDArray[np.bool_],  # (B,)
        truncated: NDArray[np.bool_],  # (B,)
        next_obs: NDArray[Any],  # (B, *obs), the true successor
    ) -> None:
        """Keep one step of B environments: `add` for T = 1, with the same errors. `next_obs` is the true successor,
        also where the episode ended."""
        self.add(Trajectory(obs[None], action[None], reward[None], terminated[None], truncated[None], next_obs[None]))

    def sample(self, batch_size: int, rng: np.random.Generator, out: Transitions | None = None) -> Transitions:
        """Draw `batch_size` transitions: new arrays, or `out` (made by `Transitions.empty`), filled anew, which spares
        making them.

        Raises:
            ConfigError: when the buffer is empty, `batch_size` is below 1 or above the capacity, or `out` does not fit.
        """
        batch = self._room_for(batch_size, out)
        newest = self._rows.num_written * self.spec.num_envs
        batch.index[...] = rng.integers(newest - len(self), newest, batch_size)
        batch.weight.fill(1.0)
        self._rows.gather(batch)
        return batch

    def _room_for(self, batch_size: int, out: Transitions | None) -> Transitions:
        """Room for a batch, once it is clear that it can be drawn."""
        if self._rows.num_rows == 0:
            raise ConfigError("the replay buffer is empty; add a trajectory before sampling")
        if not 1 <= batch_size <= self.spec.capacity:
            raise ConfigError(
                f"batch_size is {batch_size}; it must lie in [1, {self.spec.capacity}], the replay capacity"
            )
        if out is None:
            return Transitions.empty(self.spec, batch_size)
        out.check(self.spec, batch_size)
        return out

    def state_dict(self) -> State:
        """All state that a bit-identical continuation needs: arrays and numbers by name. In memory that is what is
        filled; a storage in files keeps the transitions, and the state only says where they stand."""
        return self._rows.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of a buffer with the same spec and kind of storage.

        Raises:
            ArtifactError: for a state of another spec or kind of storage; when files do not, or no longer, hold what
                the state refers to.
        """
        self._rows.load_state_dict(state)
