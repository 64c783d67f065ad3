"""PPO that never leaves the device: environments, rollouts, advantages and gradient steps are tensors on the GPU.

What it computes is `learner.PPO`'s, to rounding; without a GPU the same code runs on the CPU. For each update come over
to the host: the metrics, the episodes that finished, whether all was finite, and the weights for a policy on the CPU,
which validation and the stages after training use.
"""

import copy
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from loomrl.algorithms.base import RolloutCollector, State
from loomrl.algorithms.networks.modules import GaussianPolicyHead
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.algorithms.ppo.config import PPOParameters
from loomrl.algorithms.ppo.learner import PPO, PPOBatch
from loomrl.algorithms.ppo.returns import DeviceRewardScaler, explained_variance, generalized_advantages
from loomrl.algorithms.ppo.rollout import DeviceCollector, DeviceTrajectory
from loomrl.algorithms.ppo.schedules import STEP_METRICS
from loomrl.environment.vector.device import DeviceVectorEnv, best_device, device_name
from loomrl.types import ActFunction, Trajectory


class DevicePPO(PPO):
    """Learns a policy on the device from trajectories of its own collector there; `policy` is its twin on the CPU.

    With environments that are not on a device it collects as `PPO` does; their rollouts are copied to the device.
    """

    engine = "device"
    _scaler_type = DeviceRewardScaler
    _scaler: DeviceRewardScaler | None

    def __init__(
        self, config: PPOParameters, policy: ActorCriticPolicy, total_env_steps: int, device: torch.device | None = None
    ) -> None:
        self._torch_device = device or best_device()
        self.device = device_name(self._torch_device)
        self._twin = policy
        super().__init__(config, copy.deepcopy(policy).to(self._torch_device), total_env_steps)
        self._generator = torch.Generator(self._torch_device)  # of the orders of rows, seeded for each update

    @property
    def policy(self) -> ActorCriticPolicy:
        """The policy as it is now, on the CPU: the same object all along, changed by `update`."""
        return self._twin

    def collector(self, envs: VectorEnv[Any, Any, Any], seed: int, act: ActFunction | None = None) -> RolloutCollector:
        """A collector that stays on the device with environments that are there; for others the usual one, which asks
        `act`."""
        if isinstance(envs, DeviceVectorEnv):
            return DeviceCollector(self._policy, envs, seed)
        return super().collector(envs, seed, act)

    # --- learning ---

    def update(self, trajectory: Trajectory | DeviceTrajectory, rng: np.random.Generator) -> dict[str, float]:
        """Learn from one rollout (T, B), which is copied to the device where it is not there. Returns the means of
        STEP_METRICS over its gradient steps, `explained_variance`, `learning_rate`, `num_gradient_steps` and, for
        continuous actions, `std`."""
        if isinstance(trajectory, Trajectory):
            trajectory = DeviceTrajectory.from_trajectory(trajectory, self._twin.distribution, self._torch_device)
        self._generator.manual_seed(int(rng.integers(2**63)))
        metrics = self._learn(self._batch(trajectory), rng)
        self._learn_statistics(trajectory.obs)
        self._hand_over()
        return metrics

    @torch.no_grad()
    def _batch(self, trajectory: DeviceTrajectory) -> PPOBatch:
        """Values, probabilities and advantages of a whole rollout, T x B flattened to N."""
        policy, shape = self._policy, trajectory.reward.shape
        apart = trajectory.ended  # a new tensor: where the successor is not the next row
        apart[-1] = True
        places = apart.flatten().nonzero().squeeze(1)
        features = policy.features(trajectory.obs.flatten(0, 1))
        successors = policy.features(trajectory.next_obs.flatten(0, 1)[places])
        value = policy.value_head(policy.critic(features))
        next_value = value.double().roll(-shape[1])
        next_value[places] = policy.value_head(policy.critic(successors)).double()
        advantage, returns = self._advantages_and_returns(
            trajectory, value.double().reshape(shape), next_value.reshape(shape)
        )
        raw_action = trajectory.raw_action.flatten(0, 1)
        log_prob, _ = policy.distribution.log_prob_and_entropy(policy.parameters_of(features), raw_action)
        return PPOBatch(features, raw_action, log_prob, value, advantage, returns)

    def _advantages_and_returns(
        self, trajectory: DeviceTrajectory, value: Tensor, next_value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns, (N,) float32 each, from values (T, B) float64."""
        reward = trajectory.reward.double()
        if self._scaler is not None:
            reward = self._scaler.scaled(reward, trajectory.ended)
        advantage = generalized_advantages(
            reward, value, next_value, trajectory.terminated, trajectory.truncated,
            self.config.gamma, self.config.gae_lambda,
        )  # fmt: skip
        returns = advantage + value
        if self.config.normalize_advantages:
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        return advantage.flatten().float(), returns.flatten().float()

    def _order(self, num_rows: int, rng: np.random.Generator) -> Tensor:  # noqa: ARG002
        return torch.randperm(num_rows, generator=self._generator, device=self._torch_device)

    def _metrics(self, batch: PPOBatch, means: Tensor) -> dict[str, float]:
        names, head = [*STEP_METRICS, "explained_variance"], self._policy.head
        values = [*means.unbind(), explained_variance(batch.value, batch.returns)]
        if isinstance(head, GaussianPolicyHead):
            names.append("std")
            values.append(head.log_std.detach().exp().mean())
        return dict(zip(names, torch.stack(values).tolist(), strict=True))

    def _learn_statistics(self, obs: Tensor) -> None:
        normalizer = self._policy.normalizer
        if normalizer is not None:
            rows = self._policy.preprocessor(obs.flatten(0, 1))[:, : len(normalizer.mean)].double()
            normalizer.merge(rows.mean(0), rows.var(0, correction=0), len(rows))

    def _hand_over(self) -> None:
        """Give the policy on the CPU what was learnt."""
        self._twin.load_state_dict(self._policy.state_dict())

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal algorithm, in place; the policy on the CPU then has what was learnt,
        too."""
        super().load_state_dict(state)
        self._hand_over()
