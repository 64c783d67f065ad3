"""PPO that keeps the mean cost of an episode at or below a limit (Ray, Achiam and Amodei, Benchmarking safe exploration
in deep reinforcement learning, 2019, section 4.1).

What differs from `ppo`: environments tell a cost beside the reward, `info["cost"]`. A second critic learns what states
will cost. The policy learns from (A_r - lambda A_c) / (1 + lambda), where both advantages have mean 0 and deviation 1
over the rollout; those of costs less, where there are next to none, so that the second critic's errors are not taken
for costs. The multiplier lambda rises while an episode costs more than `cost_limit` and falls while it costs less, by
Adam, and never below 0.

Where this deviates from the paper and its authors' code: what an episode costs is told by the last steps, at every
update, not by the last episodes that ended, which lag behind the policy; lambda itself is moved and kept at 0 or above,
not a parameter behind a softplus; cost advantages have deviation 1, not only mean 0; both share one clipped surrogate,
where theirs leaves costs unclipped.

The limit is on the policy that explores, in the mean over episodes: it says nothing about a single one.
"""

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from loomrl.algorithms import ppo
from loomrl.algorithms.advantages import RewardScaler, generalized_advantages, successor_values
from loomrl.algorithms.base import State, below
from loomrl.algorithms.flat import FlatAdam, FlatParameters
from loomrl.algorithms.networks.encoders import build_encoder
from loomrl.algorithms.networks.modules import ValueHead
from loomrl.algorithms.peers import ALONE, LearnerGroup, Moments
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.algorithms.ppo.learner import PPO, PPOBatch, first_policy
from loomrl.errors import ConfigError
from loomrl.types import FloatArray, Trajectory

NAME = "ppo_lagrangian"
LEAST_DEVIATION = 0.1  # of cost advantages, in units of the costs' deviation: less is the critic's error
_LENGTHS = 20  # of episodes, over which the length of one is averaged
_COST_CRITIC = 1  # the second of the vectors that learners have in common
_OTHER = 0x5C057  # tells the second critic's first weights from the policy's


class PPOLagrangianConfig(ppo.Config):
    """PPO's parameters, and those of the cost limit and its multiplier.

    `cost_limit` is the greatest mean cost of an episode that is allowed. `cost_gamma` and `cost_gae_lambda` are to
    costs what `gamma` and `gae_lambda` are to rewards. `initial_multiplier` is the first weight of costs against
    rewards, `multiplier_learning_rate` the step of its Adam.
    """

    cost_limit: float = Field(default=25.0, ge=0)  # of an episode's summed costs, in the mean
    cost_gamma: float = Field(default=0.99, ge=0, le=1)
    cost_gae_lambda: float = Field(default=0.95, ge=0, le=1)
    initial_multiplier: float = Field(default=0.001, ge=0)
    multiplier_learning_rate: float = Field(default=0.035, gt=0)  # Adam's: the farthest the multiplier moves at once

    @model_validator(mode="after")
    def _possible(self) -> "PPOLagrangianConfig":
        if not self.normalize_advantages:
            raise ValueError(
                "rewards are weighed against costs by normalised advantages; leave normalize_advantages out"
            )
        self.require_torch("learns no costs")
        return self


Config = PPOLagrangianConfig  # as all plug-ins of this kind name it


@dataclass(frozen=True)
class CostBatch(PPOBatch):
    """N transitions whose `advantage` (N,) combines reward and cost. `cost_returns` (N,) are the discounted, scaled
    costs that the second critic is fitted to."""

    cost_returns: Tensor  # (N,) discounted costs the second critic learns, scaled


class CostCritic(nn.Module):
    """The critic of costs: features (N, dim) -> scaled discounted costs to come (N,)."""

    def __init__(self, policy: ActorCriticPolicy, config: PPOLagrangianConfig, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed ^ _OTHER)  # else it began as a copy of the actor
        self.encoder = build_encoder(policy.preprocessor, config.hidden_sizes, config.activation, generator)
        self.head = ValueHead(self.encoder.output_dim, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, dim) -> the scaled discounted costs that are expected to follow (N,)."""
        value: Tensor = self.head(self.encoder(features))
        return value


class EpisodeCosts:
    """Estimates what an episode of the present policy costs: the mean cost of a step times the mean length of an
    episode.

    The mean cost is taken over all environments and over the last steps: as many as an episode has, but a rollout at
    least. So there is an estimate after every rollout, however rarely episodes end, and it does not depend on policies
    older than an episode. Episodes that a checkpoint cut short do not count for the length.
    """

    def __init__(self, num_envs: int) -> None:
        self._recent = np.zeros(0)  # of each of the last steps, in the mean over environments
        self._lengths: deque[int] = deque(maxlen=_LENGTHS)  # of the last episodes
        self._elapsed = np.zeros(num_envs, np.int64)  # steps of those under way
        self._num_ended, self._num_at_cut = 0, 0  # since training began, and when it last cut episodes short

    def add(self, trajectory: Trajectory, cost: FloatArray) -> None:
        """Add a rollout's costs (T, B), whose trajectory says where episodes ended.

        Raises:
            ConfigError: when the rollout was cut short at a checkpoint, and no episode has ended by itself since the
                checkpoint before it.
        """
        ended = trajectory.terminated | trajectory.truncated
        for step in range(len(cost)):
            self._elapsed += 1
            whole = ended[step]
            if step == len(cost) - 1 and trajectory.cut_short is not None:
                whole = whole & ~trajectory.cut_short
            self._lengths.extend(self._elapsed[whole].tolist())
            self._num_ended += int(np.count_nonzero(whole))
            self._elapsed[ended[step]] = 0
        recent = np.concatenate([self._recent, cost.mean(axis=1)])
        wanted = max(math.ceil(self._length), len(cost)) if self._lengths else len(recent)
        self._recent = recent[-wanted:]
        if trajectory.cut_short is not None:
            if self._num_ended == self._num_at_cut:
                raise ConfigError(
                    "training.checkpoint_interval_env_steps: every episode was cut short by a checkpoint, so none says "
                    "what one costs; let it be more than num_envs times the length of an episode"
                )
            self._num_at_cut = self._num_ended

    def restart(self) -> None:
        """Set the elapsed steps of the episodes under way to 0, for environments that begin anew."""
        self._elapsed = np.zeros_like(self._elapsed)

    @property
    def mean(self) -> float | None:
        """The mean cost of an episode, estimated from the last steps; None before the first episode has ended."""
        return float(self._recent.mean() * self._length) if self._lengths else None

    @property
    def _length(self) -> float:
        return float(np.mean(self._lengths))

    def state_dict(self) -> State:
        """The costs of the last steps, the lengths of the last episodes, the steps of those under way (B,), and two
        counts."""
        counts = {"num_ended": self._num_ended, "num_at_cut": self._num_at_cut}
        lengths = np.array(self._lengths, np.int64)
        return {"recent": self._recent.copy(), "lengths": lengths, "elapsed": self._elapsed.copy(), **counts}

    def load_state_dict(self, state: State) -> None:
        """Take over recent costs, lengths of episodes and those under way from `state_dict()`."""
        self._recent, self._elapsed = np.array(state["recent"]), np.array(state["elapsed"])
        self._lengths.clear()
        self._lengths.extend(np.asarray(state["lengths"]).tolist())
        self._num_ended, self._num_at_cut = int(state["num_ended"]), int(state["num_at_cut"])


class Multiplier:
    """The Lagrange multiplier, moved by Adam: it rises where the mean cost is above its limit, falls where it is below,
    and never goes under 0."""

    def __init__(self, initial: float, learning_rate: float) -> None:
        self._value = torch.nn.Parameter(torch.tensor([initial], dtype=torch.float64))
        self._adam = FlatAdam(self._value, learning_rate)

    @property
    def value(self) -> float:
        """The Lagrange multiplier as it is now, at least 0."""
        return float(self._value.detach())

    @torch.no_grad()
    def move(self, mean_cost: float, limit: float) -> None:
        """Take one Adam step upwards where `mean_cost` is above `limit`, downwards where it is below; the multiplier
        stays at or above 0."""
        self._value.grad = torch.tensor([limit - mean_cost], dtype=torch.float64)
        self._adam.step()
        self._value.clamp_(min=0.0)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The multiplier and Adam's state by name; writing to a tensor changes it."""
        return {"value": self._value.detach(), **self._adam.state}


class PPOLagrangian(PPO):
    """PPO with a limit on the mean cost of an episode: learns an `ActorCriticPolicy` from trajectories with costs."""

    config: PPOLagrangianConfig

    def __init__(
        self,
        config: PPOLagrangianConfig,
        policy: ActorCriticPolicy,
        total_env_steps: int,
        seed: int,
        peers: LearnerGroup = ALONE,
    ) -> None:
        super().__init__(config, policy, total_env_steps, peers)
        self._cost_critic = CostCritic(policy, config, seed)
        self._cost_flat = FlatParameters(self._cost_critic)
        peers.register_parameters(self._cost_flat.vector.data, self._cost_flat.matrices)
        self._cost_optimizer = FlatAdam(self._cost_flat.vector, config.learning_rate, eps=1e-5)
        self._cost_scaler = RewardScaler(config.num_envs, config.cost_gamma, peers)
        self._costs = EpisodeCosts(config.num_envs)
        self._multiplier = Multiplier(config.initial_multiplier, config.multiplier_learning_rate)
        self._costs_told = False  # by now
        self._cost_losses: list[Tensor] = []  # of an update's gradient steps

    @property
    def cost_limit(self) -> float:
        """The greatest mean cost of an episode that is allowed."""
        return self.config.cost_limit

    def restart(self, total_env_steps: int | None) -> None:
        """Go on with new episodes. Linear schedules begin again and end after `total_env_steps` (None: they stay
        constant); the discounted costs and the lengths of the episodes under way are forgotten."""
        super().restart(total_env_steps)
        self._cost_scaler.restart()
        self._costs.restart()

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        """Move the multiplier, then learn from one rollout (T, B). Returns PPO's metrics, with `multiplier`,
        `cost_value_loss` and, once an episode has ended, `episode_cost`.

        Raises:
            ConfigError: when the environments told no cost, or checkpoints cut every episode short.
        """
        cost = trajectory.cost
        if cost is None and self._costs_told:
            cost = np.zeros(trajectory.reward.shape)
        if cost is None:
            raise ConfigError(
                'algorithm ppo_lagrangian needs a cost beside the reward: the environment gave no info["cost"] in '
                f"{trajectory.num_transitions} steps; return one, 0.0 where a step costs nothing, or train with ppo"
            )
        self._costs_told = True
        trajectory = replace(trajectory, cost=cost)
        self._costs.add(trajectory, cost)
        mean_cost = self._mean_cost()
        if mean_cost is not None:
            self._multiplier.move(mean_cost, self.config.cost_limit)
        self._cost_losses = []
        metrics = super().update(trajectory, rng) | {"multiplier": self._multiplier.value}
        metrics["cost_value_loss"] = float(torch.stack(self._cost_losses).mean())
        return metrics if mean_cost is None else metrics | {"episode_cost": mean_cost}

    def _mean_cost(self) -> float | None:
        """Of an episode, in the mean over the learners that have seen one end."""
        own = self._costs.mean
        joined = self._peers.all_reduce_moments(Moments(np.array(own or 0.0), np.array(0.0), float(own is not None)))
        return float(joined.mean) if joined.count else None

    def _with_values(self, trajectory: Trajectory, features: Tensor, next_features: Tensor) -> CostBatch:
        assert trajectory.cost is not None
        batch = super()._with_values(trajectory, features, next_features)
        ended = trajectory.terminated | trajectory.truncated
        value = self._cost_critic(features).reshape(ended.shape).numpy().astype(np.float64)
        last_value = self._cost_critic(next_features).numpy().astype(np.float64)
        advantage = generalized_advantages(
            self._cost_scaler(trajectory.cost, ended), value, successor_values(value, ended, last_value),
            trajectory.terminated, trajectory.truncated, self.config.cost_gamma, self.config.cost_gae_lambda,
        )  # fmt: skip
        cost_returns = torch.from_numpy((advantage + value).astype(np.float32)).ravel()
        joined = self._peers.all_reduce_moments(Moments.of(advantage.reshape(-1)))
        centred = (advantage - joined.mean) / max(math.sqrt(joined.var), LEAST_DEVIATION)
        cost_advantage = torch.from_numpy(centred.astype(np.float32)).ravel()
        multiplier = self._multiplier.value
        combined = (batch.advantage - multiplier * cost_advantage) / (1.0 + multiplier)
        return CostBatch(**{**vars(batch), "advantage": combined}, cost_returns=cost_returns)

    def _step(self, batch: PPOBatch, clip_epsilon: float) -> Tensor:
        assert isinstance(batch, CostBatch)
        self._cost_flat.gradient.zero_()
        loss = functional.mse_loss(self._cost_critic(batch.features), batch.cost_returns)
        torch.autograd.backward(loss)
        if self._peers.all_reduces_gradients:
            self._peers.all_reduce_gradient(self._cost_flat.gradient, _COST_CRITIC)
        self._cost_flat.clip_gradient(self.config.max_grad_norm)
        self._cost_optimizer.learning_rate = self._optimizer.learning_rate
        self._cost_optimizer.step()
        self._cost_losses.append(loss.detach())
        return super()._step(batch, clip_epsilon)

    # --- state ---

    def _cost_tensors(self) -> dict[str, Tensor]:
        return {
            **{f"critic.{name}": value for name, value in self._cost_critic.state_dict().items()},
            **{f"optimizer.{name}": value for name, value in self._cost_optimizer.state.items()},
            **{f"multiplier.{name}": value for name, value in self._multiplier.tensors.items()},
        }

    def state_dict(self) -> State:
        """PPO's state, the second critic, the multiplier and what episodes cost."""
        state = super().state_dict()
        state |= {f"cost.{name}": value.numpy().copy() for name, value in self._cost_tensors().items()}
        state |= {f"cost_scaler.{name}": value for name, value in self._cost_scaler.state_dict().items()}
        state |= {f"episode_costs.{name}": value for name, value in self._costs.state_dict().items()}
        return state | {"costs_told": int(self._costs_told)}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal algorithm, in place."""
        super().load_state_dict(state)
        for name, tensor in self._cost_tensors().items():
            tensor.copy_(torch.from_numpy(np.asarray(state[f"cost.{name}"])))
        self._cost_scaler.load_state_dict(below("cost_scaler.", state))
        self._costs.load_state_dict(below("episode_costs.", state))
        self._costs_told = bool(state["costs_told"])


def build(
    config: PPOLagrangianConfig,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    seed: int,
    total_env_steps: int,
    peers: LearnerGroup = ALONE,
) -> PPOLagrangian:
    """PPO-Lagrangian with weights that follow from `seed`.

    Raises:
        ConfigError: for spaces no policy can handle.
    """
    policy = first_policy(config, observation_space, action_space, seed, NAME)
    return PPOLagrangian(config, policy, total_env_steps, seed, peers)
