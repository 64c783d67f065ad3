"""Actions sampled from a policy's distribution, with the probability (or density) they had."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.model import Answer, ServedPolicy

_MOST = 700.0  # of a density's logarithm: beyond it a double ends


class Sample(NamedTuple):
    """What is done, the probability (or density) it had, and what was chosen where a shield does something else."""

    action: Any
    propensity: float
    chosen: Any = None


def explore(policy: ServedPolicy, answer: Answer, index: int, rng: np.random.Generator) -> Sample:
    """Sample one action for row `index` of an answer.

    Discrete: softmax over the logits, for each component of its own where there are several; bits: sigmoid. Continuous:
    a diagonal Gaussian, clipped to the bounds; the propensity is the density of the sample before clipping, which
    importance weights need. Squashed: the density of the action itself.
    """
    if policy.kind == "multi_binary":
        return _bits(answer, index, rng)
    if policy.chooses:
        return _categorical(policy, answer, index, rng)
    return _gaussian(policy, answer, index, rng)


def _categorical(policy: ServedPolicy, answer: Answer, index: int, rng: np.random.Generator) -> Sample:
    logits = answer.outputs["logits"][index].astype(np.float64)  # (A,), of all components
    space, action = policy.manifest.environment.action, answer.action[index]
    sizes = np.ravel(space["nvec"] if policy.kind == "multi_discrete" else [len(logits)])
    if answer.instead is not None:
        return _shielded(_softmax(logits), answer.instead[index], action.dtype, rng)
    choices, propensity = [], 1.0
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        probabilities = _softmax(logits[end - size : end])
        choices.append(int(rng.choice(size, p=probabilities)))
        propensity *= float(probabilities[choices[-1]])
    chosen = np.reshape(choices, action.shape) + np.asarray(space.get("start", 0))
    return Sample(chosen.astype(action.dtype)[()], propensity)


def _shielded(
    probabilities: NDArray[np.float64], instead: NDArray[np.int64], dtype: Any, rng: np.random.Generator
) -> Sample:
    """What is taken has the probability of all choices that it is taken for; actions count from 0."""
    shares = np.bincount(instead, weights=probabilities, minlength=len(probabilities))
    chosen = int(rng.choice(len(probabilities), p=probabilities))
    taken = int(instead[chosen])
    return Sample(dtype.type(taken), float(shares[taken] / shares.sum()), None if taken == chosen else chosen)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def _bits(answer: Answer, index: int, rng: np.random.Generator) -> Sample:
    logits, action = answer.outputs["logits"][index].astype(np.float64), answer.action[index]
    ones = np.exp(-np.logaddexp(0.0, -logits))  # sigmoid, without overflow
    bits = rng.random(ones.shape) < ones
    propensity = float(np.prod(np.where(bits, ones, 1.0 - ones)))
    return Sample(bits.reshape(action.shape).astype(action.dtype), propensity)


def _gaussian(policy: ServedPolicy, answer: Answer, index: int, rng: np.random.Generator) -> Sample:
    mean, log_std = (answer.outputs[name][index].astype(np.float64) for name in ("mean", "log_std"))  # (A,)
    noise = rng.standard_normal(mean.shape)
    sample = mean + np.exp(log_std) * noise
    log_density = float(np.sum(-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)))
    if policy.kind == "squashed":
        sample, log_slope = _squash(policy, sample)
        log_density -= log_slope
    elif policy.bounds is not None:
        sample = np.clip(sample, *(bound.ravel() for bound in policy.bounds))
    return Sample(
        sample.reshape(answer.action[index].shape).astype(answer.action.dtype), math.exp(min(log_density, _MOST))
    )


def _squash(policy: ServedPolicy, sample: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """tanh to the bounds, and the logarithm of its slope: log(1 - tanh(u)^2) = 2 (log 2 - u - log(1 + e^-2u))."""
    assert policy.bounds is not None, "squashed actions have finite bounds"
    low, high = (bound.ravel().astype(np.float64) for bound in policy.bounds)
    slopes = 2.0 * (math.log(2.0) - sample - np.logaddexp(0.0, -2.0 * sample)) + np.log((high - low) / 2)
    return low + (high - low) / 2 * (np.tanh(sample) + 1.0), float(np.sum(slopes))
