"""Action values: the policy of DQN, with a plain or a duelling head, for expected returns or for their quantiles."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from loomrl.algorithms.base import PlayedEpisodes
from loomrl.algorithms.networks.encoders import build_encoder
from loomrl.algorithms.networks.modules import StateEncoder, linear
from loomrl.algorithms.policies.distributions import CategoricalActions
from loomrl.algorithms.policies.policy import PolicyArchitecture, TrainedPolicy
from loomrl.errors import ConfigError
from loomrl.types import Json

if TYPE_CHECKING:
    from loomrl.algorithms.dqn.compiled import GreedyNetwork


class ActionValueHead(nn.Module):
    """Features (B, width) -> values (B, n, N) of n actions, N quantiles each."""

    def __init__(self, width: int, num_actions: int, num_quantiles: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.shape = (num_actions, num_quantiles)
        self.values = linear(width, num_actions * num_quantiles, 1.0, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, width) -> values (B, n, N) of n actions, N quantiles each."""
        values: Tensor = self.values(features)
        return values.reshape(-1, *self.shape)


class DuelingHead(nn.Module):
    """Features (B, input_dim) -> values (B, n, N): a state's value plus centred advantages.

    Wang et al., arXiv 1511.06581, equation 9. Each stream has a hidden layer of its own.
    """

    def __init__(
        self,
        input_dim: int,
        width: int,
        activation: str,
        num_actions: int,
        num_quantiles: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.shape = (num_actions, num_quantiles)
        self.value_stream = StateEncoder(input_dim, (width,), activation, generator)
        self.advantage_stream = StateEncoder(input_dim, (width,), activation, generator)
        self.value = linear(width, num_quantiles, 1.0, generator)
        self.advantage = linear(width, num_actions * num_quantiles, 1.0, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, input_dim) -> values (B, n, N) of n actions, N quantiles each."""
        value: Tensor = self.value(self.value_stream(features))  # (B, N)
        advantage = self.advantage(self.advantage_stream(features)).reshape(-1, *self.shape)  # (B, n, N)
        combined: Tensor = value.unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)
        return combined


class ActionValuePolicy(TrainedPolicy):
    """Takes the action of highest value: `logits` are the action values, `value` is the highest. `compiled` is the same
    policy as kernels take it, while a compiled engine learns it; else None."""

    output_names = ("action", "value", "logits")
    network_keys = frozenset({"dueling", "num_quantiles"})
    distribution: CategoricalActions
    compiled: "GreedyNetwork | None" = None  # the same as kernels take it, while a compiled engine learns it

    def __init__(self, architecture: PolicyArchitecture, generator: torch.Generator | None = None) -> None:
        super().__init__(architecture)
        generator = generator or torch.Generator()
        self.num_actions, self.first_action = self.distribution.width, self.distribution.start
        self.num_quantiles = int(architecture.network["num_quantiles"])
        self.dueling = bool(architecture.network["dueling"])
        sizes, activation = architecture.hidden_sizes, architecture.activation
        shared = sizes[:-1] if self.dueling else sizes
        self.encoder = build_encoder(self.preprocessor, shared, activation, generator)
        width = self.encoder.output_dim
        self.head: ActionValueHead | DuelingHead = (
            DuelingHead(width, sizes[-1], activation, self.num_actions, self.num_quantiles, generator)
            if self.dueling
            else ActionValueHead(width, self.num_actions, self.num_quantiles, generator)
        )

    @classmethod
    def distribution_over(cls, space: gymnasium.Space[Any], network: Json) -> CategoricalActions:  # noqa: ARG003
        """The categorical distribution over the actions of a Discrete space.

        Raises:
            ConfigError: for a space that is not Discrete.
        """
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise ConfigError(
                f"action space {space} is not supported by DQN; supported: Discrete; wrap the environment, or train "
                "with an algorithm for continuous actions"
            )
        return CategoricalActions(space)

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """Raw observations (B, *obs) -> greedy `action` (B,), its `value` (B,) and all the values `logits` (B, n)."""
        values = self.quantiles(obs).mean(-1)
        return {"action": self.discrete_action(values.argmax(-1)), "value": values.amax(-1), "logits": values}

    def play(self, envs: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> PlayedEpisodes | None:
        """One greedy episode for each seed, played by a kernel: returns and lengths, in the order of the seeds. None
        where the policy is not compiled or no kernel can step `envs`: the caller then steps them.

        Raises:
            EnvironmentFault: for an observation or a reward that is not finite, or an episode that does not end.
            LoomRLError: when the policy's outputs are not finite.
        """
        network: Any = self.compiled  # has of a `CompiledPolicy` what playing asks it for
        if network is None:
            return None
        from loomrl.algorithms.compiled.rollout import play

        return play(network, envs, seeds)

    def quantiles(self, obs: Tensor) -> Tensor:
        """Raw observations (B, *obs) -> the values of all actions (B, n, N); N is 1 where returns are not learnt by
        quantiles."""
        values: Tensor = self.head(self.encoder(self.features(obs)))
        return values
