"""Gradient steps of soft actor-critic with autograd: the reference, and what learns whatever is not compiled."""

import copy
import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from loomrl.algorithms.flat import FlatAdam, FlatParameters, TensorState
from loomrl.algorithms.peers import ALONE, LearnerGroup
from loomrl.algorithms.replay.spec import Transitions
from loomrl.algorithms.sac import losses
from loomrl.algorithms.sac.config import ACTOR, CRITICS, TEMPERATURE, SACConfig
from loomrl.algorithms.sac.policy import SACPolicy


class TorchSACEngine(TensorState):
    """SAC's gradient steps with autograd. One Adam each moves the actor, both critics and the temperature; the targets
    follow by one `lerp_`. With `peers` of several learners a step waits for the others, and raises RuntimeError where
    one is lost."""

    def __init__(
        self, config: SACConfig, policy: SACPolicy, target_entropy: float, peers: LearnerGroup = ALONE
    ) -> None:
        self.config, self.policy, self.target_entropy, self._peers = config, policy, target_entropy, peers
        self._actor, self._critics = FlatParameters(policy.actor), FlatParameters(policy.critics)
        for flat in (self._critics, self._actor):
            peers.register_parameters(flat.vector.data, flat.matrices)
        self._targets = copy.deepcopy(policy.critics)
        self._target_vector = FlatParameters(self._targets).vector.requires_grad_(False)
        first = math.log(config.temperature or config.initial_temperature)
        self._log_temperature = torch.tensor(first, requires_grad=True)
        self._temperature_slope = torch.zeros(())
        self._log_temperature.grad = self._temperature_slope
        peers.register_parameters(self._log_temperature.data.view(1), [])
        self._optimizers = {
            "actor": FlatAdam(self._actor.vector, config.actor_learning_rate),
            "critics": FlatAdam(self._critics.vector, config.critic_learning_rate),
            "temperature": FlatAdam(self._log_temperature, config.temperature_learning_rate),
        }

    @property
    def temperature(self) -> float:
        """The entropy temperature alpha as it is now."""
        return math.exp(self._log_temperature.item())

    @torch.no_grad()
    def sample(self, features: Tensor, noise: NDArray[np.float32]) -> NDArray[np.generic]:
        """Features (B, dim) and noise (B, A) -> actions in [-1, 1] (B, A), or for discrete actions indices (B,) from
        0."""
        if self.policy.is_discrete:
            index: NDArray[np.int64] = (self.policy.actor(features).numpy() + noise).argmax(-1)
            return index
        action, _ = losses.squashed_sample(*self.policy.moments(features), torch.from_numpy(noise))
        return action.numpy()

    def learn(self, batches: Transitions, num_steps: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Take `num_steps` gradient steps, each on the next of as many equal parts of `batches`; `rng` draws the
        actors' noise. Returns the sums (5,) of STEP_METRICS over the steps."""
        size = len(batches.index) // num_steps
        width = 0 if self.policy.is_discrete else self.policy.distribution.width
        noise = torch.from_numpy(rng.standard_normal((num_steps, 2, size, width), np.float32))
        rows = [slice(first, first + size) for first in range(0, num_steps * size, size)]
        steps = [self.step(batches, part, noise[number]) for number, part in enumerate(rows)]
        return torch.stack(steps).sum(0, dtype=torch.float64).numpy()

    def step(self, batches: Transitions, rows: slice, noise: Tensor) -> Tensor:
        """Take one gradient step of critics, actor and temperature on the rows `rows` of `batches`; `noise` (2, N, A)
        is for the actions in `obs` and in `next_obs`. Returns the step's metrics (5,) in the order of STEP_METRICS."""
        features, next_features = (
            self.policy.features(torch.from_numpy(obs[rows])) for obs in (batches.obs, batches.next_obs)
        )
        temperature = self.temperature
        imagined = self._imagine(features, noise[0])  # before the critics move: the actor they are judged by
        target = self._target(batches, rows, next_features, noise[1], temperature)
        critic_loss, q_value, td_error = self._improve_critics(features, torch.from_numpy(batches.action[rows]), target)
        actor_loss, entropy = self._improve_actor(features, imagined, temperature)
        if self.config.temperature is None:
            self._improve_temperature(entropy)
        self._target_vector.lerp_(self._critics.vector.detach(), self.config.tau)
        self._peers.count_steps(1)
        return torch.stack([critic_loss, q_value, actor_loss, entropy, td_error])

    def _imagine(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Of continuous actions a sample (N, A) and its log-density (N,); of discrete ones log-probabilities, twice."""
        if self.policy.is_discrete:
            log_probs = functional.log_softmax(self.policy.actor(features), -1)
            return log_probs, log_probs
        return losses.squashed_sample(*self.policy.moments(features), noise)

    @torch.no_grad()
    def _target(self, batches: Transitions, rows: slice, features: Tensor, noise: Tensor, temperature: float) -> Tensor:
        action, log_prob = self._imagine(features, noise)
        if self.policy.is_discrete:
            value = losses.soft_value_discrete(self._targets(features), log_prob, temperature)
        else:
            values = self._targets(torch.cat([features, action], -1)).squeeze(-1)
            value = losses.soft_value(values, log_prob, temperature)
        reward, discount, terminated = (
            torch.from_numpy(part[rows]) for part in (batches.reward, batches.discount, batches.terminated)
        )
        return losses.soft_targets(reward, discount, terminated, value)

    def _improve_critics(self, features: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step of both on features (N, D), actions (N, *action) and targets (N,); their loss, mean value and mean
        absolute error before it."""
        if self.policy.is_discrete:
            index = (action - int(getattr(self.policy.action_space, "start", 0))).expand(2, -1).unsqueeze(-1)
            values = self.policy.critics(features).gather(-1, index).squeeze(-1)  # (2, N)
        else:
            values = self.policy.critics(torch.cat([features, action], -1)).squeeze(-1)
        loss = losses.critic_loss(values, target)
        self._critics.gradient.zero_()
        torch.autograd.backward(loss)
        self._move("critics", self._critics.gradient, CRITICS)
        return loss.detach(), values.detach().mean(), losses.td_error(values.detach(), target)

    def _improve_actor(
        self, features: Tensor, imagined: tuple[Tensor, Tensor], temperature: float
    ) -> tuple[Tensor, Tensor]:
        action, log_prob = imagined
        self.policy.critics.requires_grad_(False)  # their gradients by this loss are needed nowhere
        if self.policy.is_discrete:
            loss = losses.actor_loss_discrete(self.policy.critics(features), log_prob, temperature)
            entropy = -(log_prob.exp() * log_prob).sum(-1).mean()
        else:
            values = self.policy.critics(torch.cat([features, action], -1)).squeeze(-1)
            loss = losses.actor_loss(values, log_prob, temperature)
            entropy = -log_prob.mean()
        self.policy.critics.requires_grad_(True)
        self._actor.gradient.zero_()
        torch.autograd.backward(loss)
        self._move("actor", self._actor.gradient, ACTOR)
        return loss.detach(), entropy.detach()

    def _improve_temperature(self, entropy: Tensor) -> None:
        self._temperature_slope.zero_()
        torch.autograd.backward(losses.temperature_loss(self._log_temperature, entropy, self.target_entropy))
        self._move("temperature", self._temperature_slope.view(1), TEMPERATURE)

    def _move(self, name: str, gradient: Tensor, number: int) -> None:
        """A step of one optimiser, along the gradient of all learners."""
        if self._peers.all_reduces_gradients:
            self._peers.all_reduce_gradient(gradient, number)
        self._optimizers[name].step()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of target critics, temperature and the optimisers' state; writing to a tensor changes it."""
        yield "targets", self._target_vector
        yield "log_temperature", self._log_temperature.detach()
        for name, optimizer in self._optimizers.items():
            for part, value in optimizer.state.items():
                yield f"{name}.{part}", value
