"""A training loop's trajectories, collected by rollout workers."""

import numpy as np

from loomrl.algorithms.base import Algorithm
from loomrl.environment.vector.states import State
from loomrl.training.distributed.rollout_workers.pool import RolloutTask, RolloutWorkerPool
from loomrl.training.distributed.rollout_workers.rollouts import PolicyState, beside, demand_fresh, finished_in_order
from loomrl.training.processes import union
from loomrl.types import Json, Trajectory


class CollectedByWorkers:
    """`loomrl.training.collecting.Collecting`, and the collector of every segment.

    With `max_staleness` 0 workers wait for the learner, and the noise is what it would draw itself, from its own
    generator: the trajectories are those of one that collects itself. With 1 they collect the next rollout while it
    learns from the last, but for a segment's first; its generator then seeds the noise.
    """

    def __init__(self, algorithm: Algorithm, crew: RolloutWorkerPool, max_staleness: int) -> None:
        self._algorithm, self._crew, self._max_staleness = algorithm, crew, max_staleness
        self.finished: list[tuple[float, int]] = []
        self._version = 0  # of the policy: updates since this learner's process began
        self._num_left: float = 0  # rollouts of the segment
        self._ahead: RolloutTask | None = None
        self._num_told = 0
        self._saved: State = {}
        self._processes: list[Json] = []

    @property
    def is_resumable(self) -> bool:
        """See `Collecting`."""
        return bool(self._crew.state)

    def begin(self, seed: int, num_rollouts: int | None) -> "CollectedByWorkers":
        """See `Collecting`."""
        self._num_left = float("inf") if num_rollouts is None else num_rollouts
        self.finished.clear()
        self._crew.begin(seed, self._saved or self._crew.state)
        self._saved = {}
        return self

    def collect(self, num_steps: int, rng: np.random.Generator) -> Trajectory:  # noqa: ARG002
        """What all workers have collected, with the learner's policy and number of steps.

        Raises:
            LoomRLError: of a worker, such as an `EnvironmentFault`; or when workers are lost again and again.
        """
        rollouts = self._crew.answers(self._ahead or self._ask(rng))
        demand_fresh(rollouts, self._version, self._max_staleness)
        self._processes = union(self._processes, [rollout.process for rollout in rollouts])
        self._num_left -= 1
        self._ahead = None
        if self._max_staleness == 0:
            rng.bit_generator.state = rollouts[0].rng_state
        elif self._num_left > 0:
            self._ahead = self._ask(rng)
        self._version += 1
        self.finished += finished_in_order(rollouts)
        return beside(rollouts)

    def _ask(self, rng: np.random.Generator) -> RolloutTask:
        import ray

        state = ray.put(PolicyState(self._version, self._algorithm.policy.arrays()))  # sent once, whoever reads it
        if self._max_staleness == 0:
            return self._crew.ask(state, rng)
        return self._crew.ask(state, np.random.default_rng(rng.integers(2**63)), with_log_prob=True)

    def counts(self) -> dict[str, float]:
        """See `Collecting`."""
        told, self._num_told = self._num_told, self._crew.num_replaced
        return {"workers_replaced": float(self._num_told - told)}

    def processes(self) -> list[Json]:
        """See `Collecting`."""
        return self._processes

    def state_dict(self) -> State:
        """See `Collecting`."""
        return self._saved or self._crew.state

    def load_state_dict(self, state: State) -> None:
        """See `Collecting`."""
        self._saved = state

    def close(self) -> None:
        """See `Collecting`."""
        self._crew.close()
