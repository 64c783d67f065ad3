"""Actor and critic with an encoder each: the policy of PPO, and of whatever brings none of its own."""

from typing import Any, Self

import gymnasium
import torch
from torch import Tensor

from loomrl.algorithms.networks.encoders import build_encoder
from loomrl.algorithms.networks.modules import CategoricalPolicyHead, GaussianPolicyHead, LogitsHead, ValueHead
from loomrl.algorithms.policies.distributions import (
    CategoricalActions,
    Distribution,
    GaussianActions,
    Parameters,
    action_distribution,
)
from loomrl.algorithms.policies.policy import PolicyArchitecture, TrainedPolicy, describe

Head = CategoricalPolicyHead | GaussianPolicyHead | LogitsHead
SQUASH = "squash_actions"  # the key of `PolicyArchitecture.network`


class ActorCriticPolicy(TrainedPolicy):
    """Acts greedily: the likeliest discrete action, or the mean of the Gaussian clipped (or squashed) to the bounds."""

    def __init__(
        self, architecture: PolicyArchitecture, generator: torch.Generator | None = None, initial_log_std: float = 0.0
    ) -> None:
        super().__init__(architecture)
        generator = generator or torch.Generator()
        sizes, activation = architecture.hidden_sizes, architecture.activation
        self.distribution = action_distribution(self.action_space, bool(architecture.network.get(SQUASH)))
        self.actor = build_encoder(self.preprocessor, sizes, activation, generator)
        self.head = action_head(self.distribution, self.actor.output_dim, generator, initial_log_std)
        self.critic = build_encoder(self.preprocessor, sizes, activation, generator)
        self.value_head = ValueHead(self.critic.output_dim, generator)
        self.output_names = ("action", "value", *self.distribution.names)

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
        squash_actions: bool = False,
    ) -> Self:
        """A fresh policy; raises `ConfigError` for spaces it cannot handle."""
        action_distribution(action_space, squash_actions)  # names an unsupported space before it is written as JSON
        architecture = describe(
            algorithm,
            observation_space,
            action_space,
            hidden_sizes=list(hidden_sizes),
            activation=activation,
            normalize_observations=normalize_observations,
            network={SQUASH: True} if squash_actions else {},
        )
        return cls(architecture, generator, initial_log_std)

    @property
    def action_kind(self) -> str:
        """The kind of action space as the policy's manifest names it, such as `discrete`."""
        return self.distribution.kind

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """Raw observations (B, *obs) -> `action` (B, *action), `value` (B,) and `logits` (B, n), or `mean` and
        `log_std` (B, dim)."""
        features = self.features(obs)
        value = self.value_head(self.critic(features))
        parameters = self.parameters_of(features)
        outputs = dict(zip(self.distribution.names, parameters, strict=True))
        if "log_std" in outputs:
            outputs["log_std"] = outputs["log_std"].expand_as(outputs["mean"])
        return {"action": self.distribution.greedy(parameters), "value": value, **outputs}

    def parameters_of(self, features: Tensor) -> Parameters:
        """Features (B, dim) -> the action distribution's parameters: logits, or mean (B, A) and log std (A,)."""
        return head_parameters(self.head, self.actor(features))

    def bounded(self, sample: Tensor) -> Tensor:
        """A Gaussian sample (B, dim) -> an action within bounds (B, *action)."""
        assert isinstance(self.distribution, GaussianActions)
        return self.distribution.bounded(sample)


def head_parameters(head: Head, hidden: Tensor) -> Parameters:
    """What a head says of hidden features (B, width): logits (B, n), or mean (B, A) and log standard deviation (A,)."""
    return head.moments(hidden) if isinstance(head, GaussianPolicyHead) else (head.logits(hidden),)


def action_head(distribution: Distribution, width: int, generator: torch.Generator, initial_log_std: float) -> Head:
    """The layer that gives a distribution its parameters, from `width` features."""
    if isinstance(distribution, GaussianActions):
        return GaussianPolicyHead(width, distribution.width, generator=generator, initial_log_std=initial_log_std)
    if isinstance(distribution, CategoricalActions):
        return CategoricalPolicyHead(width, distribution.width, generator)
    return LogitsHead(width, distribution.width, generator)
