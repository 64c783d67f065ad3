"""SAC's samples, targets and losses."""

import math

import torch
from torch import Tensor
from torch.nn import functional


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(mean + std * noise), (N, A), and its log-density (N,); all inputs (N, A).

    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which stays finite where tanh saturates (arXiv 1801.01290,
    appendix C, equation 21).
    """
    before = mean + torch.exp(log_std) * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    log_slope = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
    return torch.tanh(before), (log_normal - log_slope).sum(-1)


def soft_value(values: Tensor, log_prob: Tensor, temperature: float) -> Tensor:
    """min_k Q_k - alpha log pi, (N,), of the twins' values (2, N) of one sampled action (arXiv 1812.05905, eq. 3)."""
    return values.amin(0) - temperature * log_prob


def soft_value_discrete(values: Tensor, log_probs: Tensor, temperature: float) -> Tensor:
    """sum_a pi(a) (min_k Q_k(a) - alpha log pi(a)), (N,), of values (2, N, n) (arXiv 1910.07207, equation 10)."""
    return (log_probs.exp() * (values.amin(0) - temperature * log_probs)).sum(-1)


def soft_targets(reward: Tensor, discount: Tensor, terminated: Tensor, next_value: Tensor) -> Tensor:
    """reward + discount * next_value, without the latter where the episode terminated; all (N,)."""
    return reward + discount * ~terminated * next_value


def critic_loss(values: Tensor, target: Tensor) -> Tensor:
    """Half the squared error of the twins' values (2, N) from the target (N,), mean over rows and summed over the
    twins: a scalar () (arXiv 1812.05905, eq. 5)."""
    return 0.5 * (values - target).square().mean(-1).sum()


def td_error(values: Tensor, target: Tensor) -> Tensor:
    """How far the twins' values (2, N) are from their targets (N,): the mean of |Q_k - y|, a scalar ()."""
    return (values - target).abs().mean()


def actor_loss(values: Tensor, log_prob: Tensor, temperature: float) -> Tensor:
    """The mean of alpha log pi - min_k Q_k, a scalar (), of the twins' values (2, N) and log-densities (N,) of sampled
    actions (arXiv 1812.05905, equation 9)."""
    return -soft_value(values, log_prob, temperature).mean()


def actor_loss_discrete(values: Tensor, log_probs: Tensor, temperature: float) -> Tensor:
    """The mean over rows of the expectation over actions, sum_a pi(a) (alpha log pi(a) - min_k Q_k(a)): a scalar (), of
    values (2, N, n) and log-probabilities (N, n) (arXiv 1910.07207, equation 12)."""
    return -soft_value_discrete(values, log_probs, temperature).mean()


def temperature_loss(log_temperature: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """log alpha (H - H_target), a scalar (): its gradient lowers the temperature where the entropy is above its target
    (arXiv 1812.05905, equation 18)."""
    return log_temperature * (entropy - target_entropy)
