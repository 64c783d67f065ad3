"""A policy that remembers: encoder, gated recurrent unit, heads.

Its memory (B, M) is an argument and a result, never hidden state: who plays episodes carries it, and a row of zeros is
an episode's start. So a policy has no mode, rows of a batch are independent, and the exported graph has `state_in` and
`state_out`. Actor and critic have an encoder and a memory each, one beside the other in the columns: on shared ones the
critic's large errors drown the actor's gradient.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loomrl.algorithms.networks.encoders import build_encoder
from loomrl.algorithms.networks.modules import ValueHead, linear
from loomrl.algorithms.networks.preprocessing import Preprocessor
from loomrl.algorithms.policies.actor_critic import SQUASH, action_head, head_parameters
from loomrl.algorithms.policies.distributions import Distribution, GaussianActions, Parameters, action_distribution
from loomrl.algorithms.policies.policy import ROWS, PolicyArchitecture, TrainedPolicy
from loomrl.types import Act, FloatArray, Json

MEMORY = "memory_size"  # the key of `PolicyArchitecture.network`


class GatedMemory(nn.Module):
    """Gated recurrent unit (Cho et al., arXiv 1406.1078), with the reset gate behind the product as in torch's.

    Written out, because the ONNX exporter knows no GRUCell. Its memory stays within (-1, 1).
    """

    def __init__(self, input_dim: int, size: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.size = size
        self.input = linear(input_dim, 3 * size, 1.0, generator)
        self.memory = linear(size, 3 * size, 1.0, generator)

    def forward(self, features: Tensor, memory: Tensor) -> Tensor:
        """Features (B, input_dim) and the memory before (B, size) -> the memory after (B, size)."""
        reset_in, update_in, new_in = self.input(features).chunk(3, -1)
        reset_memory, update_memory, new_memory = self.memory(memory).chunk(3, -1)
        update = torch.sigmoid(update_in + update_memory)
        new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_memory) * new_memory)
        return new + update * (memory - new)


class RecurrentBranch(nn.Module):
    """An encoder followed by a recurrent memory of `size` numbers, for the actor or the critic."""

    def __init__(
        self,
        preprocessor: Preprocessor,
        hidden_sizes: Sequence[int],
        activation: str,
        size: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = build_encoder(preprocessor, hidden_sizes, activation, generator)
        self.recurrent = GatedMemory(self.encoder.output_dim, size, generator)

    def forward(self, features: Tensor, memory: Tensor) -> Tensor:
        """Features (B, dim) and the memory before (B, size) -> the memory after (B, size)."""
        after: Tensor = self.recurrent(self.encoder(features), memory)
        return after

    def unroll(self, features: Tensor, memory: Tensor, keep: Tensor) -> Tensor:
        """Features (N, L, dim), the memory before the first step (N, size), and `keep` (N, L, 1), 0 where a step begins
        an episode -> the memories after each step (N, L, size)."""
        encoded = self.encoder(features.flatten(0, 1)).reshape(*features.shape[:2], -1)
        memories = []
        for step in range(features.shape[1]):
            memory = self.recurrent(encoded[:, step], memory * keep[:, step])
            memories.append(memory)
        return torch.stack(memories, dim=1)


class RecurrentPolicy(TrainedPolicy):
    """A policy with a memory, which acts greedily on observation and memory. The memory (B, M) holds the actor's
    numbers, then the critic's, `memory_size` in all; zeros are the start of an episode."""

    network_keys = frozenset({MEMORY, SQUASH})
    distribution: Distribution

    def __init__(self, architecture: PolicyArchitecture, generator: torch.Generator | None = None) -> None:
        super().__init__(architecture)
        generator = generator or torch.Generator()
        size = int(architecture.network[MEMORY])
        self.memory_size = 2 * size  # the actor's, then the critic's
        sizes, activation = architecture.hidden_sizes, architecture.activation
        self.actor = RecurrentBranch(self.preprocessor, sizes, activation, size, generator)
        self.head = action_head(self.distribution, size, generator)
        self.critic = RecurrentBranch(self.preprocessor, sizes, activation, size, generator)
        self.value_head = ValueHead(size, generator)
        self.output_names = ("action", "value", *self.distribution.names, "state_out")

    @classmethod
    def distribution_over(cls, space: gymnasium.Space[Any], network: Json) -> Distribution:
        """The distribution over actions of a space: `action_distribution`, squashed where `network` has
        `squash_actions`.

        Raises:
            ConfigError: for a space without a distribution; for squashing what has no finite bounds.
        """
        return action_distribution(space, bool(network.get(SQUASH)))

    # --- one step ---

    def forward(self, obs: Tensor, memory: Tensor | None = None) -> dict[str, Tensor]:
        """Raw observations (B, *obs) and memory (B, M), by default an episode's start -> `action` (B, *action), `value`
        (B,), the distribution's parameters, and the memory after, `state_out` (B, M)."""
        features = self.features(obs)
        if memory is None:
            memory = features.new_zeros(features.shape[0], self.memory_size)
        after = self.remember(features, memory)
        parameters = self.parameters_of(after)
        outputs = dict(zip(self.distribution.names, parameters, strict=True))
        if isinstance(self.distribution, GaussianActions):
            outputs["log_std"] = outputs["log_std"].expand_as(outputs["mean"])
        action = self.distribution.greedy(parameters)
        return {"action": action, "value": self.value_of(after), **outputs, "state_out": after}

    def remember(self, features: Tensor, memory: Tensor) -> Tensor:
        """Features (B, dim) and the memory before (B, M) -> the memory after (B, M)."""
        actors, critics = self._halves(memory)
        return torch.cat([self.actor(features, actors), self.critic(features, critics)], -1)

    def parameters_of(self, memory: Tensor) -> Parameters:
        """The memory after seeing an observation (..., M) -> the action distribution's parameters: logits (..., n), or
        mean (..., A) and log standard deviation (A,)."""
        return head_parameters(self.head, self._halves(memory)[0])

    def value_of(self, memory: Tensor) -> Tensor:
        """The memory after seeing an observation (..., M) -> its value (...)."""
        value: Tensor = self.value_head(self._halves(memory)[1])
        return value

    def _halves(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The actor's part and the critic's, by slices: the exported graph then knows their sizes."""
        size = self.memory_size // 2
        return memory[..., :size], memory[..., size:]

    # --- sequences ---

    def unroll(self, features: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        """The memories after each of L steps.

        Args:
            features: (N, L, dim).
            memory: (N, M) before the first step. Gradients end here.
            starts: (N, L), 1 where a step begins an episode: nothing before it is remembered.

        Returns:
            (N, L, M).
        """
        actors, critics = self._halves(memory)
        keep = (1.0 - starts).unsqueeze(-1)
        return torch.cat([self.actor.unroll(features, actors, keep), self.critic.unroll(features, critics, keep)], -1)

    # --- acting ---

    def act(
        self,
        obs: NDArray[Any],
        rng: np.random.Generator,  # noqa: ARG002 - greedy: draws nothing
        memory: FloatArray | None = None,
    ) -> Act:
        """Observations (B, *obs) and the memory before them (B, M) -> greedy actions (B, *action), values (B,), and the
        memory for the next call (B, M). Without a memory an episode begins.

        Raises:
            ConfigError: when the observations do not have the space's shape.
        """
        padded = np.zeros((-(-len(obs) // ROWS) * ROWS, self.memory_size), np.float32)
        if memory is not None:
            padded[: len(obs)] = memory
        answer = self._answer(np.asarray(obs), torch.from_numpy(padded))
        return Act(action=answer["action"], value=answer["value"], memory=answer["state_out"])
