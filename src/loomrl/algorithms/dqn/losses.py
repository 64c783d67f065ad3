"""DQN's targets and losses."""

import torch
from torch import Tensor
from torch.nn import functional


def successor_quantiles(target: Tensor, choosing: Tensor) -> Tensor:
    """Values of the next states (B, N): those that `target` (B, n, N) gives to the actions that `choosing` (B, n, N)
    values highest, in the mean over its quantiles.

    `choosing` is the online network's in double Q-learning (arXiv 1509.06461, equation 4), else `target` itself.
    """
    return take_action(target, choosing.mean(-1).argmax(-1))


def take_action(quantiles: Tensor, action: Tensor) -> Tensor:
    """Quantiles (B, n, N) and the indices (B,) of one action for each row -> that action's quantiles (B, N)."""
    return quantiles[torch.arange(len(action)), action]


def td_targets(reward: Tensor, discount: Tensor, terminated: Tensor, successor: Tensor) -> Tensor:
    """reward + discount * successor, without the successor where the episode terminated: three tensors (B,) and (B, N)
    -> (B, N)."""
    return reward.unsqueeze(-1) + (discount * ~terminated).unsqueeze(-1) * successor


def huber_losses(values: Tensor, targets: Tensor) -> Tensor:
    """Huber's loss with threshold 1 of each of B values: two tensors (B, 1) -> (B,)."""
    return functional.smooth_l1_loss(values, targets, reduction="none").squeeze(-1)


def quantile_huber_losses(quantiles: Tensor, targets: Tensor) -> Tensor:
    """Quantile Huber loss with threshold 1, summed over quantiles, mean over targets: two tensors (B, N) -> (B,).

    arXiv 1710.10044, equations 9 and 10, at the midpoints of N equal parts (lemma 2).
    """
    num_quantiles = quantiles.shape[-1]
    midpoint = (torch.arange(num_quantiles, dtype=torch.float32) + 0.5) / num_quantiles
    error = targets.unsqueeze(1) - quantiles.unsqueeze(2)  # (B, quantile, target)
    huber = torch.where(error.abs() <= 1.0, 0.5 * error.square(), error.abs() - 0.5)
    weight = (midpoint.view(1, -1, 1) - (error.detach() < 0.0).float()).abs()
    return (weight * huber).mean(2).sum(1)
