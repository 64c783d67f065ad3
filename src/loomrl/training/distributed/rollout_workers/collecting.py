"""A training loop's trajectories, collected by rollout workers."""

import numpy as np

from loomrl.algorithms.base import Algorithm
from loomrl.environment.vector.states import State
from loomrl.training.distributed.rollout_workers.pool import RolloutTask, RolloutWorkerPool
from loomrl.training.distributed.rollout_workers.rollouts import PolicyState, beside, finished_in_order, require_fresh
from loomrl.training.processes import union
from loomrl.types import Json, Trajectory


class CollectedByWorkers:
    """`loomrl.training.collecting.Collecting`, and the collector of every segment: rollout workers collect. `finished`
    holds (return, length in steps) of the episodes that ended, until the caller clears it.

    With `max_staleness` 0 workers wait for the learner, and the noise is what it would draw itself, from its own
    generator: the trajectories are those of one that collects itself. With 1 they collect the next rollout while it
    learns from the last, but for a segment's first; its generator then seeds the noise.
    """

    def __init__(self, algorithm: Algorithm, pool: RolloutWorkerPool, max_staleness: int) -> None:
        self._algorithm, self._pool, self._max_staleness = algorithm, pool, max_staleness
        self.finished: list[tuple[float, int]] = []
        self._version = 0  # of the policy: updates since this learner's process began
        self._num_left: float = 0  # rollouts of the segment
        self._prefetched: RolloutTask | None = None
        self._num_reported = 0
        self._saved: State = {}
        self._processes: list[Json] = []

    @property
    def is_resumable(self) -> bool:
        """Whether the workers' environments can be saved; False before the first rollout."""
        return bool(self._pool.state)

    def begin(self, seed: int, num_rollouts: int | None) -> "CollectedByWorkers":
        """The collector of the next segment of `num_rollouts` rollouts (None: any number). Where environments begin
        anew, number i is seeded with `seed + i`."""
        self._num_left = float("inf") if num_rollouts is None else num_rollouts
        self.finished.clear()
        self._pool.begin(seed, self._saved or self._pool.state)
        self._saved = {}
        return self

    def collect(self, num_steps: int, rng: np.random.Generator) -> Trajectory:  # noqa: ARG002
        """A trajectory of `num_steps` steps in all of the learner's environments, (T, B, ...), collected by its
        workers.

        Raises:
            LoomRLError: that a worker raised, such as an `EnvironmentFault`; or when workers are lost again and again.
            ConfigError: when a rollout was made by a policy that is too old.
        """
        rollouts = self._pool.wait_for_rollouts(self._prefetched or self._request_rollouts(rng))
        require_fresh(rollouts, self._version, self._max_staleness)
        self._processes = union(self._processes, [rollout.process for rollout in rollouts])
        self._num_left -= 1
        self._prefetched = None
        if self._max_staleness == 0:
            rng.bit_generator.state = rollouts[0].rng_state
        elif self._num_left > 0:
            self._prefetched = self._request_rollouts(rng)
        self._version += 1
        self.finished += finished_in_order(rollouts)
        return beside(rollouts)

    def _request_rollouts(self, rng: np.random.Generator) -> RolloutTask:
        import ray

        state = ray.put(PolicyState(self._version, self._algorithm.policy.arrays()))  # sent once, whoever reads it
        if self._max_staleness == 0:
            return self._pool.request_rollouts(state, rng)
        return self._pool.request_rollouts(state, np.random.default_rng(rng.integers(2**63)), with_log_prob=True)

    def counts(self) -> dict[str, float]:
        """`workers_replaced`: how many workers were replaced since the last call."""
        reported, self._num_reported = self._num_reported, self._pool.num_replaced
        return {"workers_replaced": float(self._num_reported - reported)}

    def processes(self) -> list[Json]:
        """Descriptions of the workers' processes that have collected so far, JSON values without repetitions."""
        return self._processes

    def state_dict(self) -> State:
        """The state of all workers' environments between two segments, arrays (B, ...) by name; empty where they cannot
        be saved."""
        return self._saved or self._pool.state

    def load_state_dict(self, state: State) -> None:
        """Let the first segment continue from a `state_dict()`; an empty one lets the environments begin anew."""
        self._saved = state

    def close(self) -> None:
        """End the processes of all rollout workers; nothing can be collected afterwards."""
        self._pool.close()
