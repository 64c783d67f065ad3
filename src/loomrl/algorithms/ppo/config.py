"""PPO's parameters."""

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from loomrl.system.schema import Section
from loomrl.types import Json

ALIASES = {"clip_range": "clip_epsilon", "value_coef": "value_loss_coef"}
MIN_ROLLOUT = 2048  # steps of all environments together, where `rollout_length` is left open


class PPOParameters(Section):
    """PPO's parameters; the defaults solve CartPole-v1.

    Attributes:
        rollout_length: steps in each environment; None: as many as make max(2048, batch_size) over all of them.
        batch_size: transitions per gradient step.
        learning_rate_schedule: "linear" falls to 0 at the last step; "adaptive" steers towards `desired_kl`.
        value_clip_epsilon: None: values are not clipped.
        target_kl: an update ends early once an epoch's divergence is above; None: it runs all epochs.
        initial_log_std: of continuous actions only.
        squash_actions: bring continuous actions to their bounds by tanh in place of clipping.
        engine: "auto" is "compiled" where the policy allows it, "device" where the environments are on one, else
            "torch".
        num_threads: of the compiled engine; the bits are the same on one or two.
    """

    num_envs: int = Field(default=16, ge=1)
    rollout_length: int | None = Field(default=None, ge=1)  # None: max(2048, batch_size) steps over all environments
    batch_size: int = Field(default=256, ge=1)  # transitions per gradient step
    n_epochs: int = Field(default=10, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    learning_rate_schedule: Literal["constant", "linear", "adaptive"] = "linear"  # linear: to 0 at the last step
    desired_kl: float | None = Field(default=None, gt=0)  # what the adaptive schedule steers towards
    clip_epsilon: float = Field(default=0.2, gt=0)
    clip_schedule: Literal["constant", "linear"] = "constant"
    value_clip_epsilon: float | None = Field(default=None, gt=0)  # None: values are not clipped
    value_loss_coef: float = Field(default=0.5, ge=0)
    entropy_coef: float = Field(default=0.0, ge=0)
    gamma: float = Field(default=0.99, ge=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    max_grad_norm: float = Field(default=0.5, gt=0)
    target_kl: float | None = Field(default=None, gt=0)  # None: every update runs all its epochs
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    initial_log_std: float = 0.0  # continuous actions only
    squash_actions: bool = False  # tanh to the action bounds in place of clipping; continuous actions only
    normalize_observations: bool = True
    normalize_advantages: bool = True
    normalize_rewards: bool = False
    # auto: compiled where the policy allows it; device where the environments are on one
    engine: Literal["auto", "compiled", "torch", "device"] = "auto"
    num_threads: Literal[1, 2] = 1  # of the compiled engine: the same bits on either; 2 pays where two cores are idle

    @model_validator(mode="before")
    @classmethod
    def _translate_aliases(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        translated = dict(values)
        for alias, name in ALIASES.items():
            if alias not in translated:
                continue
            if name in translated:
                raise ValueError(f"{alias} and {name} are the same parameter; give one of them")
            translated[name] = translated.pop(alias)
        return translated

    @model_validator(mode="after")
    def _consistent(self) -> "PPOParameters":
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError(f"hidden_sizes {list(self.hidden_sizes)}: give one or more positive layer widths")
        if self.batch_size > self.rollout_size:
            raise ValueError(
                f"batch_size {self.batch_size} is above the rollout's num_envs {self.num_envs} x rollout_length "
                f"{self.rollout_length} = {self.rollout_size} transitions; lower it or raise rollout_length"
            )
        if (self.learning_rate_schedule == "adaptive") != (self.desired_kl is not None):
            raise ValueError(
                "`learning_rate_schedule: adaptive` and `desired_kl` need each other; give both or neither"
            )
        return self

    @property
    def steps_per_rollout(self) -> int:
        """`rollout_length`, or the smallest that gives max(2048, batch_size) transitions."""
        return self.rollout_length or math.ceil(max(MIN_ROLLOUT, self.batch_size) / self.num_envs)

    def require_torch(self, lack: str) -> None:
        """Check that the config asks for no engine but torch, for an algorithm that others do not have; `lack` says
        what they lack, for the message.

        Raises:
            ValueError: for another engine, or for more than one thread.
        """
        if self.num_threads > 1:
            raise ValueError(f"`num_threads: {self.num_threads}` is the compiled engine's, which {lack}")
        if self.engine in ("compiled", "device"):
            raise ValueError(f"`engine: {self.engine}` {lack}; leave `engine` at auto, or set it to torch")

    @property
    def network(self) -> Json:
        """What the policy is built by beside sizes and activation: `squash_actions` where it is set, else nothing. See
        `PolicyArchitecture.network`."""
        return {"squash_actions": True} if self.squash_actions else {}

    @property
    def rollout_size(self) -> int:
        """Transitions that one update learns from: `num_envs` times `steps_per_rollout`."""
        return self.num_envs * self.steps_per_rollout


Config = PPOParameters  # as all plug-ins of this kind name it
