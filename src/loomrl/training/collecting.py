"""Where a training loop's trajectories come from, segment by segment."""

from contextlib import ExitStack, closing
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from loomrl.algorithms.base import Algorithm
from loomrl.environment.collector import Collector
from loomrl.training.validation import MakeEnvs
from loomrl.types import ActFunction, Trajectory


class SegmentCollector(Protocol):
    """`loomrl.environment.collector.Collector`, or what does the same elsewhere."""

    finished: list[tuple[float, int]]

    def collect(self, act: ActFunction, num_steps: int, rng: np.random.Generator) -> Trajectory:
        """Take `num_steps` steps in every environment."""


class Collecting(Protocol):
    """Collects for one learner. Whatever is collected is learnt from before `collect` is called again."""

    def begin(self, seed: int, num_rollouts: int | None) -> SegmentCollector:
        """A segment of so many rollouts, or of any number: environment i begins anew, seeded with `seed + i`."""

    def counts(self) -> dict[str, float]:
        """How often what has happened since this was last asked; the same names on all learners."""

    def close(self) -> None:
        """Let go of the environments."""


class OwnEnvironments:
    """So many environments of this process; those that can `renew` themselves are kept from segment to segment."""

    def __init__(self, algorithm: Algorithm, make_envs: MakeEnvs, num_envs: int) -> None:
        self._algorithm, self._make_envs, self._num_envs = algorithm, make_envs, num_envs
        self._envs: VectorEnv[Any, Any, Any] | None = None
        self._kept = ExitStack()

    def begin(self, seed: int, num_rollouts: int | None = None) -> SegmentCollector:  # noqa: ARG002
        """See `Collecting`."""
        if self._envs is not None and hasattr(self._envs, "renew"):
            self._envs.renew()
        else:
            self.close()
            self._envs = self._kept.enter_context(closing(self._make_envs(self._num_envs, "same_step")))
        make = getattr(self._algorithm, "collector", Collector)
        collector: SegmentCollector = make(self._envs, seed)
        return collector

    def counts(self) -> dict[str, float]:
        """See `Collecting`."""
        return {}

    def close(self) -> None:
        """See `Collecting`."""
        self._envs = None
        self._kept.close()
