"""Estimates of a policy's mean return from episodes of another: pure functions of weights, rewards and models.

N episodes, T steps at most. `ratios` (N, T) hold, for each decision, the probability (or density) the evaluated policy
gives it over its propensity, and 1 after the end of an episode; `rewards` (N, T) are 0 there. Returns are undiscounted.

Precup, Sutton and Singh, Eligibility traces for off-policy policy evaluation (2000): importance sampling, weighted,
and per decision. Jiang and Li, Doubly robust off-policy value evaluation for reinforcement learning (2016), eq. 10,
unrolled. For episodes of one step these are the inverse propensity score, its self-normalised form (Swaminathan and
Joachims, 2015) and the doubly robust estimator (Dudík, Langford and Li, 2011).
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def cumulative(ratios: Floats) -> Floats:
    """The weight of each episode up to and with each step, (N, T): products of its steps' ratios (N, T)."""
    return np.asarray(np.cumprod(ratios, axis=1))


def effective_sample_size(weights: Floats) -> float:
    """How many equally weighted values weights (N,) are worth (Kong, 1992); 0 where all are 0."""
    squares = float(np.sum(weights**2))
    return float(np.sum(weights)) ** 2 / squares if squares else 0.0


def importance_terms(weights: Floats, rewards: Floats) -> Floats:
    """Each episode's return by its whole weight, (N,): their mean is the inverse propensity score.

    `weights` (N, T) are those of `cumulative`, `rewards` are (N, T).
    """
    return np.asarray(weights[:, -1] * rewards.sum(axis=1))


def self_normalised(weights: Floats, rewards: Floats) -> float:
    """The weighted mean of the returns. A little biased, and never outside of what was earned.

    `weights` (N, T) are those of `cumulative`, `rewards` are (N, T). ZeroDivisionError where all weights of whole
    episodes are 0.
    """
    return float(np.average(rewards.sum(axis=1), weights=weights[:, -1]))


def per_decision_terms(weights: Floats, rewards: Floats) -> Floats:
    """Each reward by the weight of the decisions that led to it, summed over an episode, (N,).

    `weights` (N, T) are those of `cumulative`, `rewards` are (N, T).
    """
    return np.asarray((weights * rewards).sum(axis=1))


def per_decision_self_normalised(weights: Floats, rewards: Floats) -> float:
    """The weighted mean reward of each step, summed over the steps; a step whose weights are all 0 adds nothing.

    `weights` (N, T) are those of `cumulative`, `rewards` are (N, T).
    """
    earned, total = (weights * rewards).sum(axis=0), weights.sum(axis=0)
    return float(np.sum(earned / np.where(total > 0.0, total, 1.0)))


def doubly_robust_terms(weights: Floats, rewards: Floats, q: Floats, v: Floats) -> Floats:
    """What a model expects, corrected by the weighted surprises on the way, (N,).

    `weights` (N, T) are those of `cumulative`, `rewards` are (N, T). `q` (N, T) is what the model expects from each
    step on after the logged action, `v` (N, T) on average over those of the evaluated policy; both 0 after the end. A
    wrong model makes them wide, not biased.
    """
    following = np.hstack([v[:, 1:], np.zeros((len(v), 1))])
    return np.asarray(v[:, 0] + (weights * (rewards + following - q)).sum(axis=1))
