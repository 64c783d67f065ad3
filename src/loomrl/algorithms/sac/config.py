"""SAC's parameters, and what its engines have in common."""

from typing import Literal

from pydantic import Field, model_validator

from loomrl.algorithms.replay.config import ReplayingConfig

STEP_METRICS = ("critic_loss", "q_value", "actor_loss", "entropy", "td_error")  # means over an update's gradient steps
# The vectors that learners have in common, in the order of `LearnerGroup.follow`.
CRITICS, ACTOR, TEMPERATURE = range(3)


class SACConfig(ReplayingConfig):
    """SAC's parameters; the defaults solve Pendulum-v1.

    Attributes:
        rollout_length: steps in each environment between two updates.
        gradient_steps: per update; None: as many as transitions were collected.
        batch_size: transitions per gradient step.
        learning_starts: environment steps with uniform actions before learning.
        replay_capacity: transitions.
        tau: of Polyak averaging of the target critics, after each gradient step.
        temperature: weight of the entropy; None: it is learnt, from `initial_temperature` on.
        target_entropy: in nats; None: -dim for actions in [-1, 1], 0.5 log n for n discrete ones.
        num_threads: of the compiled engine, the bits are the same on one or two; None: 2.
    """

    num_envs: int = Field(default=1, ge=1)
    rollout_length: int = Field(default=32, ge=1)  # steps in each environment between two updates
    gradient_steps: int | None = Field(default=None, ge=1)  # per update; None: as many as transitions were collected
    batch_size: int = Field(default=256, ge=2)  # transitions per gradient step
    learning_starts: int = Field(default=1000, ge=0)  # environment steps with uniform actions before learning
    replay_capacity: int = Field(default=1_000_000, ge=1)  # transitions
    n_step: int = Field(default=1, ge=1)
    tau: float = Field(default=0.005, gt=0, le=1)  # Polyak averaging of the target critics, after each gradient step
    actor_learning_rate: float = Field(default=3e-4, gt=0)
    critic_learning_rate: float = Field(default=3e-4, gt=0)
    temperature: float | None = Field(default=None, gt=0)  # None: learnt
    initial_temperature: float = Field(default=1.0, gt=0)
    temperature_learning_rate: float = Field(default=3e-4, gt=0)
    target_entropy: float | None = None  # [nats]; None: -dim for actions in [-1, 1]; discrete: 0.5 log n
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Literal["tanh", "relu", "elu", "silu"] = "relu"
    normalize_observations: bool = False
    num_threads: Literal[1, 2] | None = None  # of the compiled engine, the same bits on either; None: 2

    @model_validator(mode="after")
    def _consistent(self) -> "SACConfig":
        if self.temperature is not None and self.target_entropy is not None:
            raise ValueError("a fixed `temperature` aims at no `target_entropy`; give one of them")
        return self


Config = SACConfig  # as all plug-ins of this kind name it
