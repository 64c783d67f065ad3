"""What a trajectory was worth, as `loomrl.algorithms.advantages` has it, on a torch device: float64, shapes (T, B).

Each of these is one linear recurrence, and each of its steps one launch; nothing waits for the device.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loomrl.algorithms.advantages import RewardScaler


def recurrence(term: Tensor, factor: Tensor, start: Tensor) -> Tensor:
    """y (T, ...) with y[t] = term[t] + factor[t] * y[t - 1] and y[-1] = `start`; `term` and `factor` (T, ...), `start`
    (...)."""
    found, running = torch.empty_like(term), start
    for out, added, kept in zip(found.unbind(), term.unbind(), factor.unbind(), strict=True):
        running = torch.addcmul(added, kept, running, out=out)
    return found


def generalized_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimation on tensors (T, B) -> advantages (T, B): see
    `loomrl.algorithms.advantages.generalized_advantages`."""
    error = reward + gamma * next_value * ~terminated - value
    keep = gamma * gae_lambda * (~(terminated | truncated)).to(error.dtype)
    return recurrence(error.flip(0), keep.flip(0), torch.zeros_like(error[0])).flip(0)


def sums_so_far(added: Tensor, ended: Tensor, start: Tensor, gamma: float = 1.0) -> Tensor:
    """Discounted sums of `added` (T, B, ...) since each episode began, at every step, in the same shape.

    `start` (B, ...) are the sums before the first step, of the episodes then under way. `ended` (T, B) says in which
    steps an episode ended: the next step's sum begins anew.
    """
    factor = torch.full_like(added, gamma)
    factor[1:] *= ~ended[:-1].reshape(-1, added.shape[1], *[1] * (added.dim() - 2))
    return recurrence(added, factor, start)


def explained_variance(value: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(returns - value) / Var(returns), a scalar (): 1 is perfect; 0 for constant returns."""
    variance = returns.var(correction=0)
    return torch.where(variance == 0, 0.0, 1.0 - (returns - value).var(correction=0) / variance)


class DeviceRewardScaler(RewardScaler):
    """A `RewardScaler` of rewards on a device, with the same statistics; a few numbers come over once for each
    rollout."""

    def scaled(self, reward: Tensor, ended: Tensor) -> Tensor:
        """Learn from rewards (T, B), float64, then scale them: (T, B) within ±10, on their device."""
        start = torch.from_numpy(self._running).to(reward.device)
        returns = sums_so_far(reward, ended, start, self._gamma)
        mean, var = torch.stack([returns.mean(), returns.var(correction=0)]).tolist()
        self._merge(mean, var, returns.numel())
        self._running = _numpy(returns[-1] * ~ended[-1])
        return (reward / self._deviation).clamp(-self.CLIP, self.CLIP)


def _numpy(values: Tensor) -> NDArray[np.float64]:
    copied: NDArray[np.float64] = values.cpu().numpy()
    return copied
