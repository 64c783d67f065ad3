"""Losses and advantages of token trajectories, as pure functions. Shapes: N samples, T tokens."""

import torch
from torch import Tensor

from loomrl.algorithms.ppo.returns import generalized_advantages


def group_advantages(scores: Tensor) -> Tensor:
    """How much better each of G scores (G,) is than their mean, in standard deviations, (G,); 0 where all are equal.

    GRPO: Shao et al., arXiv 2402.03300, section 4.1.2.
    """
    return standardized(scores, 0.0)


def standardized(values: Tensor, epsilon: float) -> Tensor:
    """Values (K,) scaled to mean 0 and deviation 1, (K,); 0 where all are equal but for rounding, which must not be
    taken for a lesson.

    `epsilon` is added to the deviation they are divided by.
    """
    equal = 4.0 * torch.finfo(values.dtype).eps * values.abs().amax()
    differ = values.amax() - values.amin() > equal
    deviation = torch.where(differ, values.std(correction=0), 1.0)
    return torch.where(differ, (values - values.mean()) / (deviation + epsilon), 0.0)


def token_advantages(score: Tensor, value: Tensor, loss_mask: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Generalised advantages (GAE) of the learnt tokens, (N, T), 0 elsewhere. The reward is a sample's `score` (N,),
    and comes with its last learnt token.

    A step goes from one learnt token to the next, whatever was read in between. `value`, the estimate before each
    token, and `loss_mask` are (N, T).
    """
    order = (~loss_mask).to(torch.uint8).argsort(dim=1, stable=True)  # learnt tokens first, in their order
    steps = torch.arange(loss_mask.shape[1])
    last = steps == loss_mask.sum(1, keepdim=True) - 1  # (N, T) in that order
    reward = torch.where(last, score[:, None], 0.0)
    value = value.gather(1, order)
    next_value = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], 1)
    found = generalized_advantages(
        reward.double().T, value.double().T, next_value.double().T, last.T, torch.zeros_like(last.T), gamma, gae_lambda
    )
    return torch.zeros_like(value).scatter(1, order, found.T.to(value.dtype)) * loss_mask


def clipped_surrogate(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_epsilon: float) -> Tensor:
    """The negated clipped surrogate of each token, (N, T) as all arguments are, to be minimised (Schulman et al., arXiv
    1707.06347, equation 7)."""
    ratio = torch.exp(log_prob - old_log_prob)
    return -torch.minimum(advantage * ratio, advantage * ratio.clamp(1.0 - clip_epsilon, 1.0 + clip_epsilon))


def reference_divergence(log_prob: Tensor, reference_log_prob: Tensor) -> Tensor:
    """How far each token's log-probability is from a reference policy's, (N, T), at least 0: estimator k3 of the
    divergence in nats (arXiv 2402.03300, equation 4)."""
    log_ratio = reference_log_prob - log_prob
    return torch.expm1(log_ratio) - log_ratio


def importance_weights(log_prob: Tensor, behaviour_log_prob: Tensor, limit: float) -> Tensor:
    """Truncated importance weights of tokens that another policy drew, (N, T): its probability by this policy over that
    by the one that drew it (behaviour), at most `limit` (Ionides 2008)."""
    return torch.exp(log_prob - behaviour_log_prob).clamp(max=limit)


def mean_of_samples(per_token: Tensor, loss_mask: Tensor) -> Tensor:
    """The mean over samples of the mean over each one's learnt tokens, (N, T) -> (): samples count alike, long or
    short. One without a learnt token counts as 0."""
    return ((per_token * loss_mask).sum(1) / loss_mask.sum(1).clamp(min=1)).mean()


def mean_of_tokens(per_token: Tensor, loss_mask: Tensor) -> Tensor:
    """The mean over all learnt tokens, (N, T) -> (); 0 where there is none."""
    return (per_token * loss_mask).sum() / loss_mask.sum().clamp(min=1)
