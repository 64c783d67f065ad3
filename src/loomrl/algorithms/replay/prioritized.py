"""Replay with proportional prioritised sampling (Schaul et al., 2016, arXiv:1511.05952, sections 3.3 and 3.4)."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.replay import tree
from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.spec import PRIORITY_LIMIT, ReplaySpec, State, Transitions, same_array
from loomrl.algorithms.replay.storage import MemoryStorage, Storage
from loomrl.errors import ConfigError
from loomrl.types import Trajectory


class PrioritizedReplay(ReplayBuffer):
    """The newest `spec.capacity` transitions, drawn with probability proportional to (priority + epsilon)^alpha.

    A new transition gets the largest value any has had, at first 1, so that it is soon seen.

    Raises:
        ConfigError: when `alpha` is outside [0, 1] or `epsilon` is not positive.
    """

    def __init__(
        self, spec: ReplaySpec, alpha: float = 0.6, epsilon: float = 1e-6, storage: Storage | None = None
    ) -> None:
        if not 0.0 <= alpha <= 1.0:
            raise ConfigError(f"replay alpha is {alpha}; it must lie in [0, 1]")
        if not 0.0 < epsilon < np.inf:
            raise ConfigError(f"replay epsilon is {epsilon}; it must be positive, or some transitions are never drawn")
        storage = storage or MemoryStorage()
        super().__init__(spec, storage)
        self.alpha, self.epsilon = alpha, epsilon
        self._tree = tree.PriorityTree(spec.capacity, storage)  # leaf b * R + r % R: the same, whatever the rows spare
        self._largest = 1.0

    @property
    def nbytes(self) -> int:
        """Size of all that the buffer keeps, priorities included, in bytes."""
        return super().nbytes + self._tree.sums.nbytes + self._tree.smallest.nbytes

    def add(self, trajectory: Trajectory) -> None:
        """Keep T steps of B environments, with the largest priority any transition has had; errors are
        `ReplayBuffer.add`'s."""
        before = self._rows.num_written
        try:
            super().add(trajectory)
        finally:  # a disk that fills up half-way leaves whole rows behind
            self._prioritise(before)

    def _prioritise(self, before: int) -> None:
        """Rows from `before` on become likely, in the leaves of those that they pushed out of the window."""
        written, spec = self._rows.num_written, self.spec
        first = max(before, written - spec.num_rows)
        if first < written:
            tree.fill(*self._nodes(), spec.num_envs, spec.num_rows, first, written, self._largest)

    def _nodes(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        return self._tree.sums, self._tree.smallest, self._tree.offsets

    def sample(  # type: ignore[override]
        self, batch_size: int, rng: np.random.Generator, beta: float = 0.4, out: Transitions | None = None
    ) -> Transitions:
        """Draw transitions, one from each of `batch_size` equal parts of the sum of priorities: new arrays, or `out`
        (made by `Transitions.empty`), filled anew.

        Weights correct the bias in full at `beta` = 1; they are scaled so that the rarest transition of the buffer
        would have 1.

        Raises:
            ConfigError: when the buffer is empty, `batch_size` is below 1 or above the capacity, `beta` is outside [0,
                1], or `out` does not fit.
        """
        batch = self._room_for(batch_size, out)
        if not 0.0 <= beta <= 1.0:
            raise ConfigError(f"replay beta is {beta}; it must lie in [0, 1]")
        shape = self.spec.num_envs, self.spec.num_rows, self._rows.num_written
        tree.draw(*self._nodes(), *shape, rng.random(batch_size), beta, batch.index, batch.weight)
        self._rows.gather(batch)
        return batch

    def update_priorities(self, index: NDArray[np.int64], priority: NDArray[Any]) -> None:
        """Give transitions, by `Transitions.index`, new priorities (N,), as a rule |TD error|.

        The later of two equal indices counts. Transitions that have been overwritten since are passed over.

        Raises:
            ConfigError: for a priority that is negative, or not below 1e38, and for an index that was never handed out;
                nothing is changed then.
        """
        indices, priorities = np.ascontiguousarray(index, np.int64), np.array(priority, np.float64)
        if indices.ndim != 1 or priorities.shape != indices.shape:
            raise ConfigError(
                f"update_priorities expects index and priority (N,), found {indices.shape} and {priorities.shape}"
            )
        written = self._rows.num_written
        shape = self.spec.num_envs, self.spec.num_rows, written - self._rows.num_rows, written
        fault, largest = tree.update(*self._nodes(), *shape, indices, priorities, self.epsilon, self.alpha)
        if fault != tree.NO_FAULT:
            raise ConfigError(
                f"cannot give transition {indices[fault]} the priority {priorities[fault]}: priorities must lie in "
                f"[0, {PRIORITY_LIMIT}), indices those of sampled transitions (0 to {written * self.spec.num_envs - 1})"
            )
        self._largest = max(self._largest, largest)

    def state_dict(self) -> State:
        """All state that a bit-identical continuation needs, the priorities included: arrays and numbers by name. A
        storage in files keeps the transitions, and the state only says where they stand."""
        return {**super().state_dict(), "priority": self._filled().copy(), "largest_priority": self._largest}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of a buffer with the same spec and kind of storage.

        Raises:
            ArtifactError: for a state of another spec or kind of storage; when files do not, or no longer, hold what
                the state refers to.
        """
        super().load_state_dict(state)
        self._tree.leaves.fill(0.0)
        filled = self._filled()
        filled[...] = same_array("priority", state["priority"], filled)
        self._largest = float(state["largest_priority"])
        self._tree.rebuild()

    def _filled(self) -> NDArray[np.float64]:
        """Priorities (B, min(written, R)) of the rows that can be sampled, row r in place r % R."""
        leaves = self._tree.leaves.reshape(self.spec.num_envs, -1)
        return leaves[:, : self._rows.num_rows]


def __getattr__(name: str) -> Any:
    """The name this class had: `PrioritizedReplayBuffer(capacity, alpha)` is another one now, in `loomrl`."""
    if name != "PrioritizedReplayBuffer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"{__name__}.PrioritizedReplayBuffer is named PrioritizedReplay now", DeprecationWarning, stacklevel=2
    )
    return PrioritizedReplay
