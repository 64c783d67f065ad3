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
    """`loomrl.environment.collecting.collector.Collector`, or what does the same elsewhere."""

    finished: list[tuple[float, int]]

    def collect(self, num_steps: int, rng: np.random.Generator) -> Trajectory:
        """Take `num_steps` steps in every environment."""


class Collecting(Protocol):
    """Collects for one learner. Whatever is collected is learnt from before `collect` is called again."""

    @property
    def is_resumable(self) -> bool:
        """Whether episodes go on from one segment to the next, and from a saved state; asked after the first rollout.
        Where not, the environments of every segment begin anew."""

    def begin(self, seed: int, num_rollouts: int | None) -> SegmentCollector:
        """A segment of so many rollouts, or of any number: the first, or one whose environments begin anew, has
        environment i seeded with `seed + i`."""

    def counts(self) -> dict[str, float]:
        """How often what has happened since this was last asked; the same names on all learners."""

    def processes(self) -> list[Json]:
        """Of the others that have collected, as `loomrl.training.processes` describes them."""

    def state_dict(self) -> State:
        """Of the environments, between two segments: arrays (B, ...). Empty where they are not resumable."""

    def load_state_dict(self, state: State) -> None:
        """Go on from `state_dict()` with the first segment."""

    def close(self) -> None:
        """Let go of the environments."""


class OwnEnvironments:
    """So many environments of this process; `act` acts in them, where it is not the algorithm's own."""

    def __init__(
        self, algorithm: Algorithm, make_envs: MakeEnvs, num_envs: int, act: ActFunction | None = None
    ) -> None:
        self._algorithm, self._make_envs, self._num_envs, self._act = algorithm, make_envs, num_envs, act
        self._collector: Any = None
        self._saved: State = {}
        self._kept = ExitStack()

    @property
    def is_resumable(self) -> bool:
        """See `Collecting`."""
        return self._collector is not None and bool(self._collector.is_resumable)

    def begin(self, seed: int, num_rollouts: int | None = None) -> SegmentCollector:  # noqa: ARG002
        """See `Collecting`."""
        if not self.is_resumable:
            self.close()
            envs = self._kept.enter_context(closing(self._make_envs(self._num_envs, "resumable")))
            self._collector = self._algorithm.collector(envs, seed, self._act)
            if self._saved:
                self._go_on()
        collector: SegmentCollector = self._collector
        return collector

    def _go_on(self) -> None:
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
        """See `Collecting`."""
        return {}

    def processes(self) -> list[Json]:
        """See `Collecting`."""
        return []

    def state_dict(self) -> State:
        """See `Collecting`."""
        if not self.is_resumable:
            return self._saved
        state: State = self._collector.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        """See `Collecting`."""
        self._saved = state

    def close(self) -> None:
        """See `Collecting`."""
        self._collector = None
        self._kept.close()
