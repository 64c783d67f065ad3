"""The parameters that every algorithm with a replay has."""

from typing import Literal

from pydantic import Field, model_validator

from loomrl.system.schema import Section


class ReplayingConfig(Section):
    """Parameters of every algorithm that replays; each algorithm has defaults of its own for those without one here.

    `rollout_length` are the steps in each environment between two updates, `batch_size` and `replay_capacity` count
    transitions, `n_step` the steps that a return sums up. `replay_storage: disk` keeps the replay in files beside the
    checkpoints, for more than memory holds. `engine: auto` is the compiled one where it can express the policy.
    """

    num_envs: int
    rollout_length: int
    batch_size: int
    replay_capacity: int
    # disk: files beside the checkpoints, for more than memory holds
    replay_storage: Literal["memory", "disk"] = "memory"
    n_step: int
    gamma: float = Field(default=0.99, ge=0, le=1)
    hidden_sizes: tuple[int, ...]
    engine: Literal["auto", "compiled", "torch"] = "auto"  # auto: compiled where it can express the policy

    @model_validator(mode="after")
    def _fitting(self) -> "ReplayingConfig":
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError(f"hidden_sizes {list(self.hidden_sizes)}: give one or more positive layer widths")
        if self.batch_size > self.replay_capacity:
            raise ValueError(f"batch_size {self.batch_size} is above replay_capacity {self.replay_capacity}; lower it")
        if self.replay_capacity % self.num_envs:
            raise ValueError(
                f"replay_capacity {self.replay_capacity} is no multiple of num_envs {self.num_envs}; "
                f"use {self.replay_capacity // self.num_envs * self.num_envs or self.num_envs}"
            )
        return self
