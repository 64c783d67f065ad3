"""Proximal policy optimisation with a clipped surrogate (Schulman et al., arXiv 1707.06347).

Advantages by GAE (arXiv 1506.02438). Where this deviates from the paper, as most implementations do: actor and critic
share no layers; advantages are normalised over the whole rollout; observations are normalised by running statistics
inside the policy, taken over after each update, so that within one update old and new policy see the same input;
gradients are clipped by their global norm; Adam's epsilon is 1e-5; an update ends early when the policy has moved
`target_kl` away. Continuous actions are sampled from a Gaussian with state-independent standard deviation and clipped
for the environment only: probabilities are those of the sample before clipping (`squash_actions` replaces clipping by
tanh, with probabilities of the squashed action).

`docs/algorithms/ppo.md` lists the details, the metrics and what was measured.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from loomrl.algorithms.actor_critic import ActorCriticPolicy
from loomrl.algorithms.advantages import (
    RewardScaler,
    explained_variance,
    generalized_advantages,
    needs_successor_value,
    successor_values,
)
from loomrl.algorithms.base import State
from loomrl.algorithms.flat import FlatParameters
from loomrl.algorithms.networks import GaussianPolicyHead
from loomrl.schema import Section
from loomrl.types import Act, Trajectory

NAME = "ppo"
ALIASES = {"clip_range": "clip_epsilon", "value_coef": "value_loss_coef"}
MIN_ROLLOUT = 2048  # steps of all environments together, where `rollout_length` is left open
ADAPTIVE_LEARNING_RATE_BOUNDS = (1e-5, 1e-2)


class Config(Section):
    """PPO's parameters; the defaults solve CartPole-v1."""

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
    def _consistent(self) -> "Config":
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

    @property
    def rollout_size(self) -> int:
        """Transitions per update."""
        return self.num_envs * self.steps_per_rollout


# --- losses -----------------------------------------------------------------------------------------------------


def clipped_policy_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_epsilon: float) -> Tensor:
    """Negated clipped surrogate (arXiv 1707.06347, equation 7); all (N,)."""
    ratio = torch.exp(log_prob - old_log_prob)
    clipped = ratio.clamp(1.0 - clip_epsilon, 1.0 + clip_epsilon)
    return -torch.minimum(advantage * ratio, advantage * clipped).mean()


def squared_value_loss(value: Tensor, target: Tensor, old_value: Tensor | None, clip_epsilon: float | None) -> Tensor:
    """Mean squared error; with `clip_epsilon` the worse of it and that of a value kept near the old one; all (N,)."""
    if clip_epsilon is None or old_value is None:
        return functional.mse_loss(value, target)
    near = old_value + (value - old_value).clamp(-clip_epsilon, clip_epsilon)
    return torch.maximum((value - target) ** 2, (near - target) ** 2).mean()


@dataclass(frozen=True)
class Batch:
    """N transitions as the losses need them."""

    features: Tensor  # (N, dim), normalised
    action: Tensor  # (N,) indices or (N, A) samples before clipping
    log_prob: Tensor  # (N,) of the policy that acted
    value: Tensor  # (N,)
    advantage: Tensor  # (N,)
    target: Tensor  # (N,) returns the critic learns

    def __getitem__(self, rows: Any) -> "Batch":
        return Batch(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.log_prob)


# --- the algorithm ----------------------------------------------------------------------------------------------


class PPO:
    """Learns a `ActorCriticPolicy` from trajectories of its own `act`."""

    def __init__(self, config: Config, policy: ActorCriticPolicy, total_env_steps: int) -> None:
        self.config = config
        self.num_envs = config.num_envs
        self.rollout_length = config.steps_per_rollout
        self._policy = policy
        self._flat = FlatParameters(policy)
        self._optimizer = torch.optim.Adam([self._flat.vector], lr=config.learning_rate, eps=1e-5, fused=True)
        self._optimizer_state()
        self._scaler = RewardScaler(config.num_envs, config.gamma) if config.normalize_rewards else None
        self._total_env_steps: float = total_env_steps
        self._env_steps = 0
        self._adaptive_learning_rate = config.learning_rate

    @property
    def policy(self) -> ActorCriticPolicy:
        """The policy as it is now."""
        return self._policy

    def restart(self, total_env_steps: int | None) -> None:
        """Go on with new episodes: linear schedules begin again and end after so many steps; without an end they
        stay constant."""
        self._total_env_steps, self._env_steps = total_env_steps or math.inf, 0
        if self._scaler is not None:
            self._scaler.restart()

    # --- acting ---

    @torch.no_grad()
    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Sample actions. Only the actor runs: probabilities and values are computed for the whole rollout later."""
        policy = self._policy
        parameters = policy.parameters_of(policy.features(torch.from_numpy(obs)))
        return policy.distribution.sample(tuple(part.numpy() for part in parameters), rng)

    # --- learning ---

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        """Learn from one rollout (T, B); returns the means over its gradient steps."""
        config = self.config
        batch = self._prepare(trajectory)
        learning_rate, clip_epsilon = self._scheduled()
        steps: list[Tensor] = []  # metrics of each gradient step
        for _ in range(config.n_epochs):
            first = len(steps)
            shuffled = batch[torch.from_numpy(rng.permutation(len(batch)))]
            starts = range(0, len(batch), config.batch_size)
            steps += [self._step(shuffled[slice(start, start + config.batch_size)], clip_epsilon) for start in starts]
            kl = float(torch.stack(steps[first:])[:, KL].mean())
            learning_rate = self._adapt(learning_rate, kl)
            if config.target_kl is not None and kl > config.target_kl:
                break
        self._env_steps += trajectory.reward.size
        self._learn_statistics(trajectory)
        means = torch.stack(steps).mean(0).tolist()
        metrics = dict(zip(STEP_METRICS, means, strict=True))
        metrics["explained_variance"] = explained_variance(batch.value.numpy(), batch.target.numpy())
        metrics["learning_rate"] = learning_rate
        metrics["num_gradient_steps"] = float(len(steps))
        if isinstance(self._policy.head, GaussianPolicyHead):
            metrics["std"] = float(self._policy.head.log_std.detach().exp().mean())
        return metrics

    @torch.no_grad()
    def _prepare(self, trajectory: Trajectory) -> Batch:
        """Values, probabilities and advantages of a whole rollout, T x B flattened to N."""
        features, next_features = self._features(trajectory)
        policy, shape = self._policy, trajectory.reward.shape
        ended = trajectory.terminated | trajectory.truncated
        value = policy.value_head(policy.critic(features)).numpy()
        last_value = policy.value_head(policy.critic(next_features)).numpy()
        value64 = value.reshape(shape).astype(np.float64)
        next_value = successor_values(value64, ended, last_value.astype(np.float64))
        reward = trajectory.reward if self._scaler is None else self._scaler(trajectory.reward, ended)
        advantage = generalized_advantages(
            reward, value64, next_value, trajectory.terminated, trajectory.truncated,
            self.config.gamma, self.config.gae_lambda,
        )  # fmt: skip
        target = advantage + value64
        if self.config.normalize_advantages:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        action = policy.distribution.learnt(trajectory)
        log_prob, _ = self._log_prob_and_entropy(features, action)
        return Batch(
            features, action, log_prob, torch.from_numpy(value), _float32(advantage.ravel()), _float32(target.ravel())
        )

    def _features(self, trajectory: Trajectory) -> tuple[Tensor, Tensor]:
        """Features of all N observations and of the successors that are not the next row of the trajectory."""
        ended = trajectory.terminated | trajectory.truncated
        obs = trajectory.obs.reshape(-1, *trajectory.obs.shape[2:])
        successors = trajectory.next_obs[needs_successor_value(ended)]
        return self._policy.features(torch.from_numpy(obs)), self._policy.features(torch.from_numpy(successors))

    def _log_prob_and_entropy(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return self._policy.distribution.log_prob_and_entropy(self._policy.parameters_of(features), action)

    def losses(self, batch: Batch, clip_epsilon: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Policy loss, value loss and mean entropy, none of them weighted, and the log-probabilities (N,)."""
        log_prob, entropy = self._log_prob_and_entropy(batch.features, batch.action)
        value = self._policy.value_head(self._policy.critic(batch.features))
        policy_loss = clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, clip_epsilon)
        value_loss = squared_value_loss(value, batch.target, batch.value, self.config.value_clip_epsilon)
        return policy_loss, value_loss, entropy.mean(), log_prob

    def _step(self, batch: Batch, clip_epsilon: float) -> Tensor:
        """One gradient step; returns its metrics in the order of STEP_METRICS."""
        config = self.config
        self._flat.gradient.zero_()
        policy_loss, value_loss, entropy, log_prob = self.losses(batch, clip_epsilon)
        torch.autograd.backward(policy_loss + config.value_loss_coef * value_loss - config.entropy_coef * entropy)
        grad_norm = self._flat.clip_gradient(config.max_grad_norm)
        self._optimizer.step()
        with torch.no_grad():
            log_ratio = log_prob - batch.log_prob
            ratio = log_ratio.exp()
            kl = (ratio - 1.0 - log_ratio).mean()  # http://joschu.net/blog/kl-approx.html, estimator k3
            clipped = ((ratio - 1.0).abs() > clip_epsilon).float().mean()
            return torch.stack([policy_loss, value_loss, entropy, kl, clipped, grad_norm])

    def _learn_statistics(self, trajectory: Trajectory) -> None:
        policy = self._policy
        if policy.normalizer is not None:
            obs = trajectory.obs.reshape(-1, *trajectory.obs.shape[2:])
            policy.normalizer.update(policy.preprocessor(torch.from_numpy(obs)).numpy())

    # --- schedules ---

    def _scheduled(self) -> tuple[float, float]:
        """Learning rate (also set in the optimiser) and clip range of this update."""
        config = self.config
        left = max(0.0, 1.0 - self._env_steps / self._total_env_steps)
        rates = {
            "constant": config.learning_rate,
            "linear": config.learning_rate * left,
            "adaptive": self._adaptive_learning_rate,
        }
        rate = rates[config.learning_rate_schedule]
        self._optimizer.param_groups[0]["lr"] = rate
        return rate, config.clip_epsilon * (left if config.clip_schedule == "linear" else 1.0)

    def _adapt(self, rate: float, kl: float) -> float:
        """Steer the divergence of an epoch towards `desired_kl` (Heess et al., arXiv 1707.02286, appendix)."""
        desired = self.config.desired_kl
        if desired is None:
            return rate
        factor = 1.0 / 1.5 if kl > 2.0 * desired else 1.5 if kl < 0.5 * desired else 1.0
        low, high = ADAPTIVE_LEARNING_RATE_BOUNDS
        self._adaptive_learning_rate = min(max(rate * factor, low), high)
        self._optimizer.param_groups[0]["lr"] = self._adaptive_learning_rate
        return self._adaptive_learning_rate

    # --- state ---

    def _optimizer_state(self) -> dict[str, Tensor]:
        """Adam's own tensors, made as its first step would make them."""
        state: dict[str, Tensor] = self._optimizer.state[self._flat.vector]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(self._flat.gradient)
            state["exp_avg_sq"] = torch.zeros_like(self._flat.gradient)
        return state

    def state_dict(self) -> State:
        """Policy with normaliser, optimiser, schedules and reward scale."""
        state: State = {f"policy.{name}": value.numpy().copy() for name, value in self._policy.state_dict().items()}
        state |= {f"optimizer.{name}": value.numpy().copy() for name, value in self._optimizer_state().items()}
        state |= {"env_steps": self._env_steps, "learning_rate": self._adaptive_learning_rate}
        if self._scaler is not None:
            state |= {f"reward_scaler.{name}": value for name, value in self._scaler.state_dict().items()}
        return state

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`, in place."""
        policy = _below("policy.", state)
        self._policy.load_state_dict({name: torch.from_numpy(value) for name, value in policy.items()})
        for name, value in _below("optimizer.", state).items():
            self._optimizer_state()[name].copy_(torch.from_numpy(value))
        self._env_steps = int(state["env_steps"])
        self._adaptive_learning_rate = float(state["learning_rate"])
        if self._scaler is not None:
            self._scaler.load_state_dict(_below("reward_scaler.", state))


STEP_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
KL = STEP_METRICS.index("approx_kl")


def _below(prefix: str, state: State) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _float32(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def build(
    config: Config,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    seed: int,
    total_env_steps: int,
) -> PPO:
    """PPO with weights that follow from `seed`; raises `ConfigError` for spaces no policy can handle."""
    policy = ActorCriticPolicy.for_spaces(
        NAME,
        observation_space,
        action_space,
        config.hidden_sizes,
        config.activation,
        config.normalize_observations,
        torch.Generator().manual_seed(seed),
        config.initial_log_std,
        config.squash_actions,
    )
    return PPO(config, policy, total_env_steps)
