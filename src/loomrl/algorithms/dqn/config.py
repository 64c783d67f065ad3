"""DQN's parameters."""

from typing import Literal

from pydantic import Field, model_validator

from loomrl.algorithms.replay.config import ReplayingConfig


class DQNConfig(ReplayingConfig):
    """DQN's parameters; the defaults solve CartPole-v1.

    Attributes:
        rollout_length: steps in each environment between two updates.
        gradient_steps: per update; None: as many as transitions were collected.
        batch_size: transitions per gradient step.
        learning_rate_schedule: "linear" falls to 0 at the last step.
        learning_starts: environment steps with random actions before the first gradient step.
        tau: of Polyak averaging after each gradient step; None: 0.01.
        target_update_interval: environment steps between copies to the target network, in place of averaging.
        exploration_fraction: of all steps, until `epsilon_final` is reached.
        num_quantiles: of an action's return; None: its expectation is learnt, not its distribution.
        replay_capacity: transitions.
        priority_exponent: alpha; 0 samples uniformly.
        importance_exponent: beta at the start; it rises to 1 at the last step.
    """

    num_envs: int = Field(default=8, ge=1)
    rollout_length: int = Field(default=8, ge=1)  # steps in each environment between two updates
    gradient_steps: int | None = Field(default=32, ge=1)  # per update; None: as many as transitions were collected
    batch_size: int = Field(default=64, ge=1)  # transitions per gradient step
    learning_rate: float = Field(default=1e-3, gt=0)
    learning_rate_schedule: Literal["constant", "linear"] = "constant"  # linear: to 0 at the last step
    learning_starts: int = Field(default=64, ge=0)  # environment steps at random before the first gradient step
    n_step: int = Field(default=5, ge=1)
    tau: float | None = Field(default=None, gt=0, le=1)  # Polyak averaging after each gradient step; None: 0.01
    target_update_interval: int | None = Field(default=None, ge=1)  # environment steps between copies, in its place
    epsilon_initial: float = Field(default=1.0, ge=0, le=1)
    epsilon_final: float = Field(default=0.05, ge=0, le=1)
    exploration_fraction: float = Field(default=0.16, ge=0, le=1)  # of all steps, until epsilon_final is reached
    max_grad_norm: float = Field(default=10.0, gt=0)
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    double: bool = True
    dueling: bool = False
    num_quantiles: int | None = Field(default=None, ge=2)  # None: expected returns in place of their distribution
    replay_capacity: int = Field(default=100_000, ge=1)  # transitions
    prioritized: bool = False
    priority_exponent: float = Field(default=0.6, ge=0, le=1)  # alpha; 0 is uniform
    importance_exponent: float = Field(default=0.4, ge=0, le=1)  # beta at the start; 1 at the last step

    @model_validator(mode="after")
    def _consistent(self) -> "DQNConfig":
        if self.dueling and len(self.hidden_sizes) < 2:
            raise ValueError("`dueling` gives each stream the last of hidden_sizes and shares the others; give two")
        if self.tau is not None and self.target_update_interval is not None:
            raise ValueError(
                "`tau` averages after each gradient step, `target_update_interval` copies; give one of them"
            )
        if self.epsilon_final > self.epsilon_initial:
            raise ValueError(
                f"epsilon_final {self.epsilon_final} is above epsilon_initial {self.epsilon_initial}; swap them"
            )
        return self

    @property
    def averaging(self) -> float:
        """The share of Polyak averaging: `tau`, or 0.01 where none is given; 0 where the target network is copied
        instead."""
        return 0.0 if self.target_update_interval is not None else self.tau or 0.01


Config = DQNConfig  # as all plug-ins of this kind name it
