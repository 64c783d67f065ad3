"""Where a training loop's trajectories come from, segment by segment."""

import logging
from contextlib import ExitStack, closing
from typing import Any, Protocol

import numpy as np

from loomrl.algorithms.base import Algorithm
from loomrl.environment.vector.states import State
from loomrl.system import events
from loomrl.training.validation import MakeEnvs
from loomrl.types import ActFunction, Json, Trajectory

log = logging.getLogger(__name__)


class SegmentCollector(Protocol):
    """Collects the rollouts of one segment, as `loomrl.environment.collecting.collector.Collector` does. `finished`
    holds (return, length in steps) of every episode that ended since it was last cleared."""

    finished: list[tuple[float, int]]

    def collect(self, num_steps: int, rng: np.random.Generator) -> Trajectory:
        """A trajectory of `num_steps` steps in every environment: arrays (T, B, ...).

        Raises:
            EnvironmentFault: when an environment breaks its API.
            LoomRLError: when an action is not finite, or rollout workers are lost again and again.
        """


class Collecting(Protocol):
    """Collects the trajectories of one learner, segment by segment. Each trajectory is learnt from before `collect` is
    called again."""

    @property
    def is_resumable(self) -> bool:
        """Whether the environments can be saved and continue in the next segment; read after the first rollout. Where
        not, the environments of every segment begin anew."""

    def begin(self, seed: int, num_rollouts: int | None) -> SegmentCollector:
        """The collector of the next segment of `num_rollouts` rollouts (None: any number). Where environments begin
        anew, number i is seeded with `seed + i`. Raises what making the environments raises."""

    def counts(self) -> dict[str, float]:
        """Counts of events since the last call, by name; the names are the same on all learners."""

    def processes(self) -> list[Json]:
        """Descriptions of the processes that have collected beside this one, JSON values (see
        `loomrl.training.processes`); empty where none has."""

    def state_dict(self) -> State:
        """The state of the environments between two segments, arrays (B, ...) by name; empty where they cannot be
        saved."""

    def load_state_dict(self, state: State) -> None:
        """Let the first segment continue from a `state_dict()`; an empty one lets the environments begin anew."""

    def close(self) -> None:
        """Close the environments, or end the processes that step them."""


class OwnEnvironments:
    """Collects in `num_envs` environments of this process, with `act` where it is given, else with the algorithm's own
    way of acting. `make_envs` makes the environments when a segment begins, and what it raises comes from `begin`."""

    def __init__(
        self, algorithm: Algorithm, make_envs: MakeEnvs, num_envs: int, act: ActFunction | None = None
    ) -> None:
        self._algorithm, self._make_envs, self._num_envs, self._act = algorithm, make_envs, num_envs, act
        self._collector: Any = None
        self._saved: State = {}
        self._resources = ExitStack()

    @property
    def is_resumable(self) -> bool:
        """Whether the environments can be saved and continue in the next segment; False before the first rollout."""
        return self._collector is not None and bool(self._collector.is_resumable)

    def begin(self, seed: int, num_rollouts: int | None = None) -> SegmentCollector:  # noqa: ARG002
        """The collector of the next segment of `num_rollouts` rollouts (None: any number). Where environments begin
        anew, number i is seeded with `seed + i`. Raises what `make_envs` raises."""
        if not self.is_resumable:
            self.close()
            envs = self._resources.enter_context(closing(self._make_envs(self._num_envs, "resumable")))
            self._collector = self._algorithm.collector(envs, seed, self._act)
            if self._saved:
                self._restore()
        collector: SegmentCollector = self._collector
        return collector

    def _restore(self) -> None:
        num_lost = self._collector.load_state_dict(self._saved)
        self._saved = {}
        if num_lost:
            message = (
                f"{num_lost} of {self._num_envs} environments were not where they had been, after the same seed and "
                "actions, and begin another episode: the result is another one than without the interruption; let an "
                "episode depend on nothing but its seed and actions (loomrl env check)"
            )
            log.warning(message)
            events.emit("warning", message=message)

    def counts(self) -> dict[str, float]:
        """An empty dictionary: no worker can be lost that would have to be counted."""
        return {}

    def processes(self) -> list[Json]:
        """An empty list: no process but the learner's own collects."""
        return []

    def state_dict(self) -> State:
        """The state of the environments between two segments, arrays (B, ...) by name; empty where they cannot be
        saved."""
        if not self.is_resumable:
            return self._saved
        state: State = self._collector.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        """Let the first segment continue from `state_dict()`; environments that cannot be restored begin a new episode,
        with a warning."""
        self._saved = state

    def close(self) -> None:
        """Close the environments; `begin` makes new ones."""
        self._collector = None
        self._resources.close()
