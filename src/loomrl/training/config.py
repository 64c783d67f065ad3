"""How a policy is trained."""

from typing import Any

from pydantic import Field

from loomrl.environment.config import BoundaryConfig, EpisodeBounds
from loomrl.environment.seeds import VALIDATION_SEEDS
from loomrl.system.schema import Section
from loomrl.training.distributed.config import DistributedConfig


class ValidationConfig(Section):
    """Greedy episodes during training; training stops when their mean return stagnates."""

    interval_env_steps: int = Field(default=20_000, ge=1)
    num_episodes: int = Field(default=16, ge=1)
    first_seed: int = Field(default=VALIDATION_SEEDS.start, ge=0)
    patience: int | None = Field(default=None, ge=1)  # validations without improvement; None never stops
    min_improvement: float = Field(default=0.0, ge=0)
    stop_at_return: float | None = None  # good enough: stop when the mean reaches it ...
    stop_after_validations: int = Field(default=1, ge=1)  # ... in this many validations in a row
    objective: str | None = None  # a number in the info of each step, summed over an episode, to be recorded beside it
    success_return: float | None = None  # of an episode that succeeds; default: the environment's reward_threshold

    @property
    def seeds(self) -> range:
        """Reset seeds of the validation episodes: every validation plays the same ones."""
        return range(self.first_seed, self.first_seed + self.num_episodes)


def _interval(given: dict[str, Any]) -> int:
    """Of a long training about a hundred states are saved: each costs a little."""
    return max(20_000, int(given["total_env_steps"]) // 100)


class TrainingConfig(Section):
    """`parameters` are the algorithm's own config, checked by the algorithm.

    `boundaries` and `max_episode_cost` are of the episodes that are learnt from; validations play without them.
    """

    algorithm: str = "ppo"
    seed: int = Field(default=0, ge=0)
    total_env_steps: int = Field(ge=1)
    checkpoint_interval_env_steps: int = Field(default_factory=_interval, ge=1)
    checkpoint_interval_seconds: float = Field(default=5.0, ge=0)  # pass over those that come sooner; 0: save each
    keep_checkpoints: int = Field(default=2, ge=1)
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    boundaries: list[BoundaryConfig] = Field(default_factory=list)
    max_episode_cost: float | None = Field(default=None, ge=0)  # an episode ends once it has cost more
    parameters: dict[str, Any] = Field(default_factory=dict)
    distributed: DistributedConfig | None = None  # several learners on Ray; None: one, in the stage's own process

    @property
    def bounds(self) -> EpisodeBounds | None:
        """The bounds of training episodes: their boundaries and limits on cost; None where there are none."""
        if not self.boundaries and self.max_episode_cost is None:
            return None
        return EpisodeBounds(tuple(self.boundaries), self.max_episode_cost)
