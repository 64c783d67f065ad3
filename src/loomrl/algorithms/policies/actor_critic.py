"""Actor and critic with an encoder each: the policy of PPO, and of whatever brings none of its own."""

from typing import Any

import gymnasium
import torch
from torch import Tensor

from loomrl.algorithms.networks.encoders import build_encoder
from loomrl.algorithms.networks.modules import GaussianPolicyHead, LogitsHead, ValueHead
from loomrl.algorithms.policies.distributions import Distribution, GaussianActions, Parameters, action_distribution
from loomrl.algorithms.policies.policy import PolicyArchitecture, TrainedPolicy
from loomrl.types import Json

Head = GaussianPolicyHead | LogitsHead
SQUASH = "squash_actions"  # the key of `PolicyArchitecture.network`


class ActorCriticPolicy(TrainedPolicy):
    """Acts greedily: the likeliest discrete action, or the mean of the Gaussian clipped (or squashed) to the bounds."""

    network_keys = frozenset({SQUASH})
    distribution: Distribution

    def __init__(self, architecture: PolicyArchitecture, generator: torch.Generator | None = None) -> None:
        super().__init__(architecture)
        generator = generator or torch.Generator()
        sizes, activation = architecture.hidden_sizes, architecture.activation
        self.actor = build_encoder(self.preprocessor, sizes, activation, generator)
        self.head = action_head(self.distribution, self.actor.output_dim, generator)
        self.critic = build_encoder(self.preprocessor, sizes, activation, generator)
        self.value_head = ValueHead(self.critic.output_dim, generator)
        self.output_names = ("action", "value", *self.distribution.names)

    @classmethod
    def distribution_over(cls, space: gymnasium.Space[Any], network: Json) -> Distribution:
        """The distribution over actions of a space: `action_distribution`, squashed where `network` has
        `squash_actions`.

        Raises:
            ConfigError: for a space without a distribution; for squashing what has no finite bounds.
        """
        return action_distribution(space, bool(network.get(SQUASH)))

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """Raw observations (B, *obs) -> greedy `action` (B, *action), `value` (B,), and `logits` (B, n), or `mean` and
        `log_std` (B, dim)."""
        features = self.features(obs)
        value = self.value_head(self.critic(features))
        parameters = self.parameters_of(features)
        outputs = dict(zip(self.distribution.names, parameters, strict=True))
        if "log_std" in outputs:
            outputs["log_std"] = outputs["log_std"].expand_as(outputs["mean"])
        return {"action": self.distribution.greedy(parameters), "value": value, **outputs}

    def greedy(self, obs: Tensor) -> Tensor:
        """As `forward`, without the critic."""
        return self.distribution.greedy(self.parameters_of(self.features(obs)))

    def parameters_of(self, features: Tensor) -> Parameters:
        """Features (B, dim) -> the action distribution's parameters: logits, or mean (B, A) and log std (A,)."""
        return head_parameters(self.head, self.actor(features))


def head_parameters(head: Head, hidden: Tensor) -> Parameters:
    """What a head says of hidden features (B, width): logits (B, n), or mean (B, A) and log standard deviation (A,)."""
    return head.moments(hidden) if isinstance(head, GaussianPolicyHead) else (head.logits(hidden),)


def action_head(distribution: Distribution, width: int, generator: torch.Generator) -> Head:
    """The last layer, with fresh weights: from `width` features to the parameters of a distribution over actions."""
    if isinstance(distribution, GaussianActions):
        return GaussianPolicyHead(width, distribution.width, generator=generator)
    return LogitsHead(width, distribution.width, generator)
