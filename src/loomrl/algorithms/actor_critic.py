"""Actor and critic with an encoder each: the policy of PPO, and of whatever brings none of its own."""

import math
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from torch import Tensor

from loomrl.algorithms.networks import CategoricalPolicyHead, GaussianPolicyHead, StateEncoder, ValueHead
from loomrl.algorithms.policy import PolicyArchitecture, TrainedPolicy, describe
from loomrl.errors import ConfigError


class ActorCriticPolicy(TrainedPolicy):
    """Acts greedily: the likeliest discrete action, or the mean of the Gaussian clipped to the action bounds."""

    action_low: Tensor
    action_high: Tensor

    def __init__(
        self, architecture: PolicyArchitecture, generator: torch.Generator | None = None, initial_log_std: float = 0.0
    ) -> None:
        super().__init__(architecture)
        generator = generator or torch.Generator()
        dim, sizes, activation = self.preprocessor.dim, architecture.hidden_sizes, architecture.activation
        self.actor = StateEncoder(dim, sizes, activation, generator)
        self.head = self._head(self.actor.output_dim, generator, initial_log_std)
        self.critic = StateEncoder(dim, sizes, activation, generator)
        self.value_head = ValueHead(self.critic.output_dim, generator)
        self.output_names = ("action", "value", "logits") if self.is_discrete else ("action", "value", "mean", "log_std")

    @classmethod
    def for_spaces(
        cls,
        algorithm: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        hidden_sizes: tuple[int, ...],
        activation: str,
        normalize_observations: bool,
        generator: torch.Generator | None = None,
        initial_log_std: float = 0.0,
    ) -> Self:
        """A fresh policy; raises `ConfigError` for spaces it cannot handle."""
        _demand_action_space(action_space)
        architecture = describe(
            algorithm,
            observation_space,
            action_space,
            hidden_sizes=list(hidden_sizes),
            activation=activation,
            normalize_observations=normalize_observations,
        )
        return cls(architecture, generator, initial_log_std)

    def _head(
        self, width: int, generator: torch.Generator | None, initial_log_std: float
    ) -> CategoricalPolicyHead | GaussianPolicyHead:
        space = self.action_space
        _demand_action_space(space)
        if isinstance(space, gymnasium.spaces.Discrete):
            return CategoricalPolicyHead(width, int(space.n), generator)
        assert isinstance(space, gymnasium.spaces.Box)
        # As float32 and flat; derived from the space, so not saved.
        for name, bound in (("action_low", space.low), ("action_high", space.high)):
            self.register_buffer(name, torch.from_numpy(bound.astype(np.float32).ravel()), persistent=False)
        dim = math.prod(space.shape)
        return GaussianPolicyHead(width, dim, generator=generator, initial_log_std=initial_log_std)

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """Raw observations (B, *obs) -> `action` (B, *action), `value` (B,) and `logits` (B, n), or `mean` and
        `log_std` (B, dim)."""
        features = self.features(obs)
        value = self.value_head(self.critic(features))
        if isinstance(self.head, CategoricalPolicyHead):
            logits = self.head.logits(self.actor(features))
            return {"action": self.discrete_action(logits.argmax(-1)), "value": value, "logits": logits}
        mean, log_std = self.head.moments(self.actor(features))
        return {"action": self.bounded(mean), "value": value, "mean": mean, "log_std": log_std.expand_as(mean)}

    def bounded(self, sample: Tensor) -> Tensor:
        """A Gaussian sample (B, dim) -> an action within bounds (B, *action)."""
        action = torch.maximum(torch.minimum(sample, self.action_high), self.action_low)
        shape = self.action_space.shape
        return action if shape is None or len(shape) == 1 else action.reshape(-1, *shape)


def _demand_action_space(space: gymnasium.Space[Any]) -> None:
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    continuous = isinstance(space, gymnasium.spaces.Box) and space.dtype is not None and space.dtype.kind == "f"
    if not discrete and not continuous:
        raise ConfigError(
            f"action space {space} is not supported; supported: Discrete and Box of floats; wrap the environment"
        )
