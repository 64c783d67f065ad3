"""Actions sampled from a policy's distribution, with the probability (or density) they had."""

import math
from typing import Any

import numpy as np

from loomrl.serving.model import Answer, ServedPolicy


def explore(policy: ServedPolicy, answer: Answer, index: int, rng: np.random.Generator) -> tuple[Any, float]:
    """Sample one action for row `index` of an answer; returns it with its propensity.

    Discrete: softmax over the logits. Continuous: a diagonal Gaussian, clipped to the bounds; the propensity is the
    density of the sample before clipping, which importance weights need.
    """
    if policy.discrete:
        return _categorical(policy, answer, index, rng)
    return _gaussian(policy, answer, index, rng)


def _categorical(policy: ServedPolicy, answer: Answer, index: int, rng: np.random.Generator) -> tuple[Any, float]:
    logits = answer.outputs["logits"][index].astype(np.float64)  # (A,)
    weights = np.exp(logits - logits.max())
    probabilities = weights / weights.sum()
    choice = int(rng.choice(len(probabilities), p=probabilities))
    return answer.action.dtype.type(choice + policy.first_action), float(probabilities[choice])


def _gaussian(policy: ServedPolicy, answer: Answer, index: int, rng: np.random.Generator) -> tuple[Any, float]:
    mean, log_std = (answer.outputs[name][index].astype(np.float64) for name in ("mean", "log_std"))  # (A,)
    noise = rng.standard_normal(mean.shape)
    sample = mean + np.exp(log_std) * noise
    log_density = float(np.sum(-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)))
    if policy.bounds is not None:
        sample = np.clip(sample, *policy.bounds)
    return sample.astype(answer.action.dtype), math.exp(log_density)
