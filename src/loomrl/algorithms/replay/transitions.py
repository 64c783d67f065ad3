"""Prioritised replay of single transitions, with the calls that most code for it has.

    buffer = PrioritizedReplayBuffer(capacity=100_000, alpha=0.6)
    buffer.add(state, action, reward, next_state, done)
    batch, indices, weights = buffer.sample(batch_size=256, beta=0.4)
    buffer.update_priorities(indices, abs(td_error))

`loomrl.algorithms.replay.prioritized` has what stands behind it: trajectories of many environments, n-step returns,
files.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loomrl.algorithms.replay.prioritized import PrioritizedReplay
from loomrl.algorithms.replay.spec import ReplaySpec
from loomrl.errors import ConfigError

_ROWS = ("state", "action", "next_state")
_NARROWER = {np.dtype(np.float64): np.dtype(np.float32)}  # networks compute in float32


class PrioritizedReplayBuffer:
    """The newest `capacity` transitions, drawn with probability proportional to (priority + 1e-6)^alpha.

    A new transition gets the largest priority any has had. The first `add` fixes the shapes; float64 is kept as
    float32. Schaul et al., Prioritized Experience Replay (2016), arXiv 1511.05952, section 3.3.

    Args:
        capacity: transitions; the oldest make room.
        alpha: 0 draws uniformly, 1 in proportion to the priorities.
        seed: of what is drawn.

    Raises:
        ConfigError: for a capacity below 1, or an `alpha` outside [0, 1].
    """

    def __init__(self, capacity: int, alpha: float = 0.6, seed: int = 0) -> None:
        if not isinstance(capacity, int | np.integer):
            raise ConfigError(f"replay capacity is {capacity!r}; it must be a whole number")
        self.capacity, self.alpha = int(capacity), alpha
        PrioritizedReplay(ReplaySpec(capacity, 1, (), np.float32, (), np.float32), alpha)  # raises at once
        self._replay: PrioritizedReplay | None = None
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return 0 if self._replay is None else len(self._replay)

    def add(
        self,
        state: ArrayLike,  # (*obs)
        action: ArrayLike,  # (*action)
        reward: float,
        next_state: ArrayLike,  # (*obs), the true successor
        done: bool,
        truncated: bool = False,
    ) -> None:
        """Keep one transition; the oldest makes room. `done`: nothing is expected after it; with `truncated` a time
        limit merely cut it off.

        Raises:
            ConfigError: for a state or an action of another shape or type than the first, or that does not fit into its
                type; for ends that are not true or false.
            EnvironmentFault: for a reward that is not finite.
        """
        for name, end in (("done", done), ("truncated", truncated)):
            if not isinstance(end, bool | np.bool_):
                raise ConfigError(f"{name} is {end!r}; it must be true or false")
        rows = [np.asarray(one)[None] for one in (state, action, next_state)]  # (1, ...)
        if self._replay is None:
            self._replay = self._made_for(*rows[:2])
        obs, actions, successor = (self._fitting(name, row) for name, row in zip(_ROWS, rows, strict=True))
        ends = np.array([done and not truncated]), np.array([truncated])
        self._replay.add_step(obs, actions, np.array([reward], np.float64), *ends, successor)

    def sample(
        self, batch_size: int, beta: float = 0.4
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64], NDArray[np.float32]]:
        """Draw N transitions.

        Returns:
            `states` (N, *obs), `actions` (N, *action), `rewards` (N,), `next_states` (N, *obs) and `dones` (N,), false
            where a time limit cut off; their indices (N,) for `update_priorities`; and importance weights (N,) over
            the greatest of them, which correct the bias in full at `beta` = 1.

        Raises:
            ConfigError: when nothing was added, `batch_size` is below 1 or above the capacity, or `beta` is outside
                [0, 1].
        """
        if self._replay is None:
            raise ConfigError("the replay buffer is empty; add a transition before sampling")
        drawn = self._replay.sample(batch_size, self._rng, beta)
        batch = {
            "states": drawn.obs,
            "actions": drawn.action,
            "rewards": drawn.reward,
            "next_states": drawn.next_obs,
            "dones": drawn.terminated,
        }
        return batch, drawn.index, drawn.weight / drawn.weight.max()

    def update_priorities(self, indices: NDArray[np.int64], priorities: ArrayLike) -> None:
        """Give sampled transitions new priorities (N,), as a rule |TD error|; overwritten ones are passed over.

        Raises:
            ConfigError: for a priority that is negative, or an index that was never handed out.
        """
        if self._replay is None:
            raise ConfigError("the replay buffer is empty; add a transition before its priorities are updated")
        if np.asarray(indices).dtype.kind not in "iu":
            raise ConfigError(f"indices are {np.asarray(indices).dtype}; give those that `sample` handed out")
        self._replay.update_priorities(indices, np.asarray(priorities))

    def _made_for(self, obs: NDArray[Any], action: NDArray[Any]) -> PrioritizedReplay:
        kept = [(array.shape[1:], _NARROWER.get(array.dtype, array.dtype)) for array in (obs, action)]
        return PrioritizedReplay(ReplaySpec(self.capacity, 1, *kept[0], *kept[1]), self.alpha)

    def _fitting(self, name: str, row: NDArray[Any]) -> NDArray[Any]:
        """In the type that is kept; raises ConfigError for another shape, or for values that would change."""
        assert self._replay is not None
        spec = self._replay.spec
        shape, dtype = (spec.action_shape, spec.action_dtype) if name == "action" else (spec.obs_shape, spec.obs_dtype)
        if row.shape[1:] != shape or not np.can_cast(row.dtype, dtype, "same_kind"):
            raise ConfigError(
                f"{name} is {row.dtype} {row.shape[1:]}, the first one was {np.dtype(dtype)} {shape}; "
                "a buffer holds one kind of transitions"
            )
        with np.errstate(over="ignore"):
            kept = row.astype(dtype)
        is_same = kept == row if row.dtype.kind in "iu" else np.isfinite(kept) == np.isfinite(row)
        if not is_same.all():
            raise ConfigError(f"{name} {row[0].tolist()!r} does not fit into {np.dtype(dtype)}, as the first one was")
        return kept
