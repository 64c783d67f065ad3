"""Proximal policy optimisation (Schulman et al., arXiv 1707.06347) of a policy that remembers.

What differs from `ppo`: a gated recurrent unit behind each encoder; a rollout (T, B) is cut into sequences of
`sequence_length` steps, and a minibatch is whole sequences. Each begins with the memory the policy had there when it
acted (stored state, Kapturowski et al., R2D2, 2019), and gradients go no further back: truncated backpropagation
through time. Where an episode begins inside a sequence the memory is cleared, so neither memory nor gradient crosses
it, and no step is padding: every one counts in the losses.

Advantages bootstrap from the true successor's value, with the memory after the step that led to it.
"""

from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from loomrl.algorithms import ppo
from loomrl.algorithms.advantages import needs_successor_value
from loomrl.algorithms.peers import ALONE, LearnerGroup
from loomrl.algorithms.policies.recurrent import RecurrentPolicy
from loomrl.algorithms.ppo.learner import PPO, PPOBatch, begin_log_std, clipped_policy_loss, squared_value_loss
from loomrl.types import Act, FloatArray, Trajectory

NAME = "recurrent_ppo"
Policy = RecurrentPolicy


class RecurrentPPOConfig(ppo.Config):
    """PPO's parameters, and the memory's: `memory_size` numbers that actor and critic remember each, and
    `sequence_length`, the steps that gradients go back. `batch_size` counts steps, of whole sequences."""

    memory_size: int = Field(default=64, ge=1)  # numbers actor and critic remember, each
    sequence_length: int = Field(default=16, ge=1)  # steps gradients go back

    @model_validator(mode="after")
    def _whole_sequences(self) -> "RecurrentPPOConfig":
        if self.steps_per_rollout % self.sequence_length:
            raise ValueError(
                f"rollout_length {self.steps_per_rollout} is no multiple of sequence_length {self.sequence_length}; "
                "change one of them"
            )
        if self.batch_size < self.sequence_length:
            raise ValueError(
                f"batch_size {self.batch_size} holds no whole sequence of {self.sequence_length} steps; raise it"
            )
        self.require_torch("has no memory")
        return self


Config = RecurrentPPOConfig  # as all plug-ins of this kind name it


@dataclass(frozen=True)
class Sequences(PPOBatch):
    """N sequences of L steps as the losses need them: what `PPOBatch` has, with an axis L behind N; `memory` (N, M)
    before the first step, and `starts` (N, L), 1 where a step begins an episode."""

    memory: Tensor  # (N, M) before the first step
    starts: Tensor  # (N, L), 1 where a step begins an episode


class RecurrentPPO(PPO):
    """Learns a `RecurrentPolicy` from trajectories of its own `act`; its batches are sequences."""

    config: RecurrentPPOConfig
    _policy: RecurrentPolicy  # type: ignore[assignment]

    def __init__(
        self, config: RecurrentPPOConfig, policy: RecurrentPolicy, total_env_steps: int, peers: LearnerGroup = ALONE
    ) -> None:
        super().__init__(config, policy, total_env_steps, peers)  # type: ignore[arg-type]
        self._rows_per_step = config.batch_size // config.sequence_length

    @torch.no_grad()
    def act(self, obs: NDArray[Any], rng: np.random.Generator, memory: FloatArray | None = None) -> Act:
        """Sample actions (B, *action) for observations (B, *obs) and `memory` (B, M); None: zeros, the start of an
        episode. The `Act` holds the memory after the step; its extras keep the memory before it."""
        policy = self._policy
        before = np.zeros((len(obs), policy.memory_size), np.float32) if memory is None else memory
        after = policy.remember(policy.features(torch.from_numpy(obs)), torch.from_numpy(before))
        drawn = policy.distribution.sample(tuple(part.numpy() for part in policy.parameters_of(after)), rng)
        return replace(drawn, memory=after.numpy(), extras={**drawn.extras, "memory": before})

    @torch.no_grad()
    def _prepare(self, trajectory: Trajectory) -> Sequences:
        """Values, probabilities and advantages of a whole rollout (T, B), in sequences."""
        policy, (num_steps, num_envs) = self._policy, trajectory.reward.shape
        ended = trajectory.terminated | trajectory.truncated
        features, next_features = self._features(trajectory)
        by_time = features.reshape(num_steps, num_envs, -1)
        starts = np.zeros((num_steps, num_envs), np.float32)
        starts[1:] = ended[:-1]  # what begins with the rollout has a cleared memory already
        memory = torch.from_numpy(trajectory.extras["memory"])  # (T, B, M)
        after = policy.unroll(by_time.swapaxes(0, 1), memory[0], torch.from_numpy(starts.T)).swapaxes(0, 1)
        needed = torch.from_numpy(needs_successor_value(ended))
        last_value = policy.value_of(policy.remember(next_features, after[needed]))
        value = policy.value_of(after)  # (T, B)
        advantage, returns = self._advantages(trajectory, value.numpy(), last_value.numpy())
        raw_action = policy.distribution.raw_actions(trajectory)
        log_prob, _ = policy.distribution.log_prob_and_entropy(policy.parameters_of(after.flatten(0, 1)), raw_action)
        steps = (by_time, raw_action.reshape(num_steps, num_envs, *raw_action.shape[1:]),
                 log_prob.reshape(num_steps, num_envs), value, advantage, returns)  # fmt: skip
        first = self._cut(memory)[:, 0]
        cut = [*map(self._cut, steps), first, self._cut(torch.from_numpy(starts))]
        return Sequences(*cut)

    def _cut(self, steps: Tensor) -> Tensor:
        """(T, B, ...) -> (N, L, ...): each environment's steps in pieces of L."""
        length = self.config.sequence_length
        pieces = steps.reshape(-1, length, *steps.shape[1:])  # (T / L, L, B, ...)
        return pieces.swapaxes(1, 2).reshape(-1, length, *steps.shape[2:])

    def _losses(self, batch: PPOBatch, clip_epsilon: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Policy loss, value loss and mean entropy, none of them weighted, and the log-probabilities (N, L)."""
        assert isinstance(batch, Sequences)
        policy = self._policy
        after = policy.unroll(batch.features, batch.memory, batch.starts).flatten(0, 1)
        raw_action = batch.action.flatten(0, 1)
        log_prob, entropy = policy.distribution.log_prob_and_entropy(policy.parameters_of(after), raw_action)
        log_prob, value = (part.reshape(batch.log_prob.shape) for part in (log_prob, policy.value_of(after)))
        policy_loss = clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, clip_epsilon)
        value_loss = squared_value_loss(value, batch.returns, batch.value, self.config.value_clip_epsilon)
        return policy_loss, value_loss, entropy.mean(), log_prob


def build(
    config: RecurrentPPOConfig,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    seed: int,
    total_env_steps: int,
    peers: LearnerGroup = ALONE,
) -> RecurrentPPO:
    """Recurrent PPO with weights that follow from `seed`.

    Raises:
        ConfigError: for spaces no policy can handle.
    """
    policy = RecurrentPolicy.for_spaces(
        NAME,
        observation_space,
        action_space,
        config.hidden_sizes,
        config.activation,
        config.normalize_observations,
        torch.Generator().manual_seed(seed),
        memory_size=config.memory_size,
        **config.network,
    )
    begin_log_std(policy.head, config)
    return RecurrentPPO(config, policy, total_env_steps, peers)
