"""DQN's gradient steps with autograd: for every policy torch can express, and the reference of `dqn.compiled`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loomrl.algorithms.dqn.config import DQNConfig
from loomrl.algorithms.dqn.losses import (
    huber_losses,
    quantile_huber_losses,
    successor_quantiles,
    take_action,
    td_targets,
)
from loomrl.algorithms.dqn.policy import ActionValuePolicy
from loomrl.algorithms.flat import FlatAdam, FlatParameters, TensorState
from loomrl.algorithms.peers import ALONE, LearnerGroup
from loomrl.algorithms.replay.spec import Transitions
from loomrl.types import FloatArray


class TorchDQNEngine(TensorState):
    """DQN's gradient steps with PyTorch's autograd: for any `ActionValuePolicy`, also networks without compiled
    kernels. With `peers` of several learners a step waits for the others, and raises RuntimeError where one is lost."""

    def __init__(self, config: DQNConfig, policy: ActionValuePolicy, peers: LearnerGroup = ALONE) -> None:
        self.config, self.policy, self._peers = config, policy, peers
        self.target = ActionValuePolicy(policy.architecture)
        self._flat, self._flat_target = FlatParameters(policy), FlatParameters(self.target)
        self._optimizer = FlatAdam(self._flat.vector, config.learning_rate)
        peers.register_parameters(self._flat.vector.data, self._flat.matrices)
        self.copy_target()

    @torch.no_grad()
    def greedy(self, obs: NDArray[Any]) -> NDArray[np.int64]:
        """Observations (B, *obs) -> indices (B,) of the actions of highest value."""
        best: NDArray[np.int64] = self.policy.quantiles(torch.from_numpy(obs)).mean(-1).argmax(-1).numpy()
        return best

    def step(self, batch: Transitions, learning_rate: float) -> tuple[FloatArray, FloatArray]:
        """Take one gradient step on a batch of B transitions. Returns its metrics (4,), in the order of STEP_METRICS,
        and the absolute TD errors (B,)."""
        config = self.config
        self._flat.gradient.zero_()
        quantiles, targets = self.values_and_targets(batch)
        losses = (quantile_huber_losses if config.num_quantiles else huber_losses)(quantiles, targets)
        loss = (torch.from_numpy(batch.weight) * losses).mean()
        torch.autograd.backward(loss)
        if self._peers.all_reduces_gradients:
            self._peers.all_reduce_gradient(self._flat.gradient)
        grad_norm = self._flat.clip_gradient(config.max_grad_norm)
        self._optimizer.learning_rate = learning_rate
        self._optimizer.step()
        if config.averaging:
            self._flat_target.vector.data.lerp_(self._flat.vector.data, config.averaging)
        self._peers.count_steps(1)
        with torch.no_grad():
            td_error = (targets.mean(-1) - quantiles.mean(-1)).abs()
            metrics = torch.stack([loss, td_error.mean(), quantiles.mean(), grad_norm])
        return metrics.double().numpy(), td_error.double().numpy()

    def values_and_targets(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """The online network's values (B, N) of the actions that were taken, with a gradient, and the targets (B, N)
        they should have, without one."""
        obs, next_obs = torch.from_numpy(batch.obs), torch.from_numpy(batch.next_obs)
        with torch.no_grad():
            target = self.target.quantiles(next_obs)
            choosing = self.policy.quantiles(next_obs) if self.config.double else target
            successor = successor_quantiles(target, choosing)
            reward, discount = torch.from_numpy(batch.reward), torch.from_numpy(batch.discount)
            targets = td_targets(reward, discount, torch.from_numpy(batch.terminated), successor)
        action = torch.from_numpy(batch.action) - self.policy.first_action
        return take_action(self.policy.quantiles(obs), action), targets

    def copy_target(self) -> None:
        """Copy the online network's parameters to the target network."""
        self._flat_target.vector.data.copy_(self._flat.vector.data)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of both networks' parameters and Adam's state; writing to a tensor changes it."""
        yield "parameters", self._flat.vector.data
        yield "target", self._flat_target.vector.data
        for name, value in self._optimizer.state.items():
            yield f"optimizer.{name}", value
