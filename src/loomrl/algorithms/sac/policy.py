"""The policy of soft actor-critic: an actor, and the twin critics that judge it.

Continuous actions: a squashed Gaussian whose mean and log standard deviation both follow from the state; the critics
take features and action. Discrete actions: logits; the critics take features and give every action's value. Inside the
algorithm continuous actions lie in [-1, 1]; `greedy` and `scaled` bring them to the bounds of the space.
"""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from loomrl.algorithms.networks.modules import ACTIVATIONS
from loomrl.algorithms.policies.distributions import CategoricalActions, SquashedGaussianActions, action_distribution
from loomrl.algorithms.policies.policy import PolicyArchitecture, TrainedPolicy
from loomrl.errors import ConfigError
from loomrl.types import Json

Actions = CategoricalActions | SquashedGaussianActions

LOG_STD_LOW, LOG_STD_HIGH = -20.0, 2.0  # the authors' own bounds


class DenseActor(nn.Module):
    """Dense layers of widths `sizes`, from I inputs to O outputs, with an activation of `ACTIVATIONS` between them:
    features (N, I) -> outputs (N, O). Weights and biases begin uniform in +-1/sqrt(fan-in)."""

    def __init__(self, sizes: Sequence[int], activation: str, generator: torch.Generator) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            with torch.random.fork_rng(devices=()):  # the constructor draws from the global generator
                layer = nn.Linear(inputs, outputs)
            _uniform(layer.weight, inputs, generator)
            _uniform(layer.bias, inputs, generator)
            layers += [layer, ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, I) -> outputs (N, O) of the last layer, which has no activation."""
        outputs: Tensor = self.layers(features)
        return outputs


class TwinCritics(nn.Module):
    """Two critics of one shape, of widths `sizes`; each layer of both is one batched product.

    `weights[l]` (2, I, O), `biases[l]` (2, 1, O). The first values are as `DenseActor`'s.
    """

    def __init__(self, sizes: Sequence[int], activation: str, generator: torch.Generator) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            self.weights.append(nn.Parameter(_uniform(torch.empty(2, inputs, outputs), inputs, generator)))
            self.biases.append(nn.Parameter(_uniform(torch.empty(2, 1, outputs), inputs, generator)))
        self.activation = ACTIVATIONS[activation]()

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs (N, I) -> both critics' values (2, N, O)."""
        hidden = inputs.expand(2, -1, -1)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden, weight)
            if layer < last:
                hidden = self.activation(hidden)
        return hidden


class SACPolicy(TrainedPolicy):
    """Acts greedily: the likeliest discrete action, or the squashed mean; `value` is the lower critic's answer.
    Observations with images raise ConfigError."""

    distribution: Actions

    def __init__(self, architecture: PolicyArchitecture, generator: torch.Generator | None = None) -> None:
        super().__init__(architecture)
        if self.preprocessor.images:
            raise ConfigError(f"{self.preprocessor.images[0].describe()} is not supported by SAC; use PPO or DQN")
        generator = generator or torch.Generator()
        self.output_names = ("action", "value", *self.distribution.names)
        dim, width = self.preprocessor.dim, self.distribution.width
        inputs, moments, values = (dim, width, width) if self.is_discrete else (dim + width, 2 * width, 1)
        hidden, activation = architecture.hidden_sizes, architecture.activation
        self.actor = DenseActor([dim, *hidden, moments], activation, generator)
        self.critics = TwinCritics([inputs, *hidden, values], activation, generator)

    @classmethod
    def distribution_over(cls, space: gymnasium.Space[Any], network: Json) -> Actions:  # noqa: ARG003
        """The distribution over actions: categorical over Discrete, a squashed Gaussian over a Box of floats.

        Raises:
            ConfigError: for a Box without finite bounds, and for other spaces.
        """
        continuous = isinstance(space, gymnasium.spaces.Box) and np.dtype(space.dtype).kind == "f"
        if isinstance(space, gymnasium.spaces.Box) and continuous and not space.is_bounded():
            raise ConfigError(
                f"SAC squashes actions to their bounds, but {space} has none; rescale the action with "
                "gymnasium.wrappers.RescaleAction, or train with PPO"
            )
        if continuous or isinstance(space, gymnasium.spaces.Discrete):
            found = action_distribution(space, squash=continuous)
            assert isinstance(found, CategoricalActions | SquashedGaussianActions)
            return found
        raise ConfigError(f"action space {space} is not supported by SAC; supported: Discrete and Box of floats")

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """Raw observations (B, *obs) -> `action` (B, *action), `value` (B,) and `logits` (B, n), or `mean` and
        `log_std` (B, A) before squashing."""
        features = self.features(obs)
        if self.is_discrete:
            logits = self.actor(features)
            best = logits.argmax(-1, keepdim=True)
            value = self.critics(features).amin(0).gather(-1, best).squeeze(-1)
            return {"action": self.discrete_action(best.squeeze(-1)), "value": value, "logits": logits}
        mean, log_std = self.moments(features)
        value = self.critics(torch.cat([features, torch.tanh(mean)], -1)).amin(0).squeeze(-1)
        return {"action": self.distribution.greedy((mean,)), "value": value, "mean": mean, "log_std": log_std}

    def greedy(self, obs: Tensor) -> Tensor:
        """As `forward`, without the critics."""
        features = self.features(obs)
        if self.is_discrete:
            return self.discrete_action(self.actor(features).argmax(-1))
        return self.distribution.greedy((self.moments(features)[0],))

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, dim) -> mean and bounded log standard deviation before squashing, both (N, A)."""
        mean, log_std = self.actor(features).chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_LOW, LOG_STD_HIGH)

    def scaled(self, squashed: Tensor) -> Tensor:
        """Actions in [-1, 1], (N, A) -> within the bounds of the space, (N, *action)."""
        assert isinstance(self.distribution, SquashedGaussianActions)
        low, high = self.distribution.low, self.distribution.high
        action = torch.minimum(low + (high - low) / 2 * (squashed + 1.0), high)  # rounding may lead one bit beyond
        return action.reshape(-1, *self.distribution.shape)


def _uniform(tensor: Tensor, fan_in: int, generator: torch.Generator) -> Tensor:
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        return tensor.uniform_(-bound, bound, generator=generator)
