"""REINFORCE with a learnt baseline (Williams, 1992; Sutton and Barto, 2nd edition, section 13.4).

One step of Adam a rollout on the log-probabilities of its actions, weighted by return minus baseline, and on the
baseline's squared error. Actor, critic, distributions and files are LoomRL's own (`ActorCriticPolicy`).
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from loomrl.algorithms.advantages import generalized_advantages
from loomrl.algorithms.base import Algorithm, State, below
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.system.schema import Section
from loomrl.types import Act, Trajectory

NAME = "reinforce"


class Config(Section):
    """`baseline_steps` gradient steps are taken on the baseline for each one on the policy."""

    num_envs: int = Field(default=16, ge=1)
    rollout_length: int = Field(default=96, ge=1)
    learning_rate: float = Field(default=5e-3, gt=0)
    baseline_steps: int = Field(default=10, ge=1)
    gamma: float = Field(default=0.95, ge=0, le=1)
    entropy_coef: float = Field(default=0.01, ge=0)
    hidden_sizes: tuple[int, ...] = (32, 32)


class Reinforce(Algorithm):
    """Learns an `ActorCriticPolicy` from trajectories of its own `act`."""

    def __init__(self, config: Config, policy: ActorCriticPolicy) -> None:
        self.config = config
        self.num_envs, self.rollout_length = config.num_envs, config.rollout_length
        self._policy = policy
        self._actor = list(policy.actor.parameters()) + list(policy.head.parameters())
        self._critic = list(policy.critic.parameters()) + list(policy.value_head.parameters())
        self._optimizers = [torch.optim.Adam(part, config.learning_rate) for part in (self._actor, self._critic)]

    @property
    def policy(self) -> ActorCriticPolicy:
        return self._policy

    @torch.no_grad()
    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        policy = self._policy
        parameters = policy.parameters_of(policy.features(torch.from_numpy(obs)))
        return policy.distribution.sample(tuple(part.numpy() for part in parameters), rng)

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:  # noqa: ARG002 - draws nothing
        policy, config = self._policy, self.config
        obs, next_obs = (_rows(part) for part in (trajectory.obs, trajectory.next_obs))
        features = policy.features(obs)
        with torch.no_grad():
            value = policy.value_head(policy.critic(features))
            next_value = policy.value_head(policy.critic(policy.features(next_obs)))
        shape = trajectory.reward.shape
        # With lambda = 1 these are discounted returns minus the baseline, bootstrapped where an episode was cut.
        advantage = generalized_advantages(
            trajectory.reward,
            value.numpy().reshape(shape).astype(np.float64),
            next_value.numpy().reshape(shape).astype(np.float64),
            trajectory.terminated,
            trajectory.truncated,
            config.gamma,
            1.0,
        )
        weight = torch.from_numpy(advantage.astype(np.float32)).flatten()
        target = weight + value
        weight = (weight - weight.mean()) / (weight.std() + 1e-8)
        raw_action = policy.distribution.raw_actions(trajectory)
        log_prob, entropy = policy.distribution.log_prob_and_entropy(policy.parameters_of(features), raw_action)
        policy_loss = -(log_prob * weight).mean()
        self._step(0, policy_loss - config.entropy_coef * entropy.mean())
        for _ in range(config.baseline_steps):
            value_loss = (policy.value_head(policy.critic(features)) - target).square().mean()
            self._step(1, value_loss)
        policy.learn_statistics(trajectory.obs)
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy.mean()}
        return {name: metric.item() for name, metric in metrics.items()}

    def _step(self, part: int, loss: Tensor) -> None:
        self._optimizers[part].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizers[part].step()

    def state_dict(self) -> State:
        state: State = {f"policy.{name}": value for name, value in self._policy.arrays().items()}
        for part, optimizer in enumerate(self._optimizers):
            for index, moments in optimizer.state_dict()["state"].items():
                state |= {f"adam.{part}.{index}.{name}": value.numpy().copy() for name, value in moments.items()}
        return state

    def load_state_dict(self, state: State) -> None:
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        self._policy.load_arrays(below("policy.", arrays))
        for part, optimizer in enumerate(self._optimizers):
            whole = optimizer.state_dict()
            for name, value in below(f"adam.{part}.", arrays).items():
                index, _, moment = name.partition(".")
                whole["state"].setdefault(int(index), {})[moment] = torch.from_numpy(value.copy())
            optimizer.load_state_dict(whole)


def build(
    config: Config,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    seed: int,
    total_env_steps: int,  # noqa: ARG001 - nothing follows a schedule
) -> Reinforce:
    generator = torch.Generator().manual_seed(seed)
    policy = ActorCriticPolicy.for_spaces(
        NAME, observation_space, action_space, config.hidden_sizes, "tanh", True, generator
    )
    return Reinforce(config, policy)


def _rows(values: NDArray[Any]) -> Tensor:
    """(T, B, *shape) -> (T x B, *shape)."""
    return torch.from_numpy(values.reshape(-1, *values.shape[2:]))
