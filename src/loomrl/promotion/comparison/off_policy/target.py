"""How probable a policy makes logged actions, and which it would take instead, by its own graph."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from loomrl.promotion.comparison.off_policy.log import CannotEstimate
from loomrl.serving.policy.model import NoAnswer, PolicyOutput, ServedPolicy

Floats = NDArray[np.float64]
Array = NDArray[np.generic]
MOST_CHOICES = 1_024  # of several components together
_BATCH = 4_096


def choice_probabilities(policy: ServedPolicy, observations: Array, greedy: bool) -> Floats:
    """The probability of each of A choices, (S, A), behind the policy's shield if it has one; several components are
    one choice of all combinations. Where `greedy`, it is 1 for the policy's own choice.

    Raises:
        CannotEstimate: when there are too many combinations, or the policy is recurrent, observes something else or has
            no answer.
    """
    sizes = choice_sizes(policy)
    num_choices = math.prod(sizes)
    if num_choices > MOST_CHOICES:
        raise CannotEstimate(f"{num_choices} combinations of choices are more than {MOST_CHOICES:,}")
    found = np.zeros((len(observations), num_choices))
    for rows, answer in _answers(policy, observations):
        block = found[rows]
        if greedy:
            block[np.arange(len(block)), choice_index(policy, answer.action)] = 1.0
        elif answer.instead is not None:
            np.add.at(block, (np.arange(len(block))[:, None], answer.instead), _of_logits(answer, sizes, False))
        else:
            block[:] = _of_logits(answer, sizes, policy.kind == "multi_binary")
    return found


def choice_sizes(policy: ServedPolicy) -> list[int]:
    """How many choices each component of an action has."""
    space = policy.manifest.environment.action
    if policy.kind == "multi_binary":
        return [2] * math.prod(np.ravel(space["shape"]).tolist())
    return [int(size) for size in np.ravel(space["nvec"] if policy.kind == "multi_discrete" else space["n"])]


def choice_index(policy: ServedPolicy, actions: Array) -> NDArray[np.int64]:
    """The number of each action's combination of choices, (S,), for actions (S, *action); ValueError for one that is
    none of the policy's."""
    start = np.ravel(policy.manifest.environment.action.get("start", 0))
    components = actions.reshape(len(actions), -1).astype(np.int64) - start
    return np.asarray(np.ravel_multi_index(tuple(components.T), tuple(choice_sizes(policy))), dtype=np.int64)


def log_densities(policy: ServedPolicy, observations: Array, actions: Array) -> Floats:
    """Logarithms of the density of continuous actions (S, *action) sampled from the policy's Gaussian, (S,).

    Where an action was clipped to a bound it is the probability of all that is clipped there. A squashed action's is
    that of the sample before tanh: in ratios of densities of one action the slope cancels.

    Raises:
        CannotEstimate: when the policy is recurrent, observes something else, or has no answer.
    """
    from scipy.special import log_ndtr

    found = np.empty(len(observations))
    for rows, answer in _answers(policy, observations):
        mean, spread, sample = *_gaussian(answer), _unsquashed(policy, actions[rows])
        distance = (sample - mean) / spread
        density = -0.5 * distance**2 - np.log(spread) - 0.5 * math.log(2 * math.pi)
        if policy.kind != "squashed":
            low, high = at_bounds(policy, actions[rows])
            density = np.where(low, log_ndtr(distance), np.where(high, log_ndtr(-distance), density))
        found[rows] = density.sum(axis=1)
    return found


def at_bounds(policy: ServedPolicy, actions: Array) -> NDArray[np.bool_]:
    """Which components of actions (S, *action) lie on their lower bound, and which on their upper, (2, S, D)."""
    flat = actions.reshape(len(actions), -1).astype(np.float32)
    if policy.bounds is None:
        return np.zeros((2, *flat.shape), np.bool_)
    low, high = (bound.ravel().astype(np.float32) for bound in policy.bounds)
    return np.stack([flat <= low, flat >= high])


def continuous_actions(
    policy: ServedPolicy, observations: Array, greedy: bool, num_samples: int, rng: np.random.Generator
) -> Floats:
    """Actions the policy would take, (S, M, D): its choice alone where `greedy`, M = 1, else `num_samples` of its
    distribution.

    Raises:
        CannotEstimate: when the policy is recurrent, observes something else, or has no answer.
    """
    blocks = []
    for _, answer in _answers(policy, observations):
        if greedy:
            blocks.append(answer.action.reshape(len(answer.action), 1, -1).astype(np.float64))
            continue
        mean, spread = _gaussian(answer)
        noise = rng.standard_normal((len(mean), num_samples, mean.shape[1]))
        blocks.append(_within(policy, mean[:, None] + spread[:, None] * noise))
    return np.concatenate(blocks)


def _answers(policy: ServedPolicy, observations: Array) -> Iterator[tuple[slice, PolicyOutput]]:
    if policy.memory_size:
        raise CannotEstimate(f"version {policy.version} is recurrent: what it remembers is not in the log")
    if observations.shape[1:] != policy.shape:
        shapes = f"{list(policy.shape)}, the log has {list(observations.shape[1:])}"
        raise CannotEstimate(f"version {policy.version} observes {shapes}")
    for start in range(0, len(observations), _BATCH):
        rows = slice(start, start + _BATCH)
        try:
            yield rows, policy.answer(observations[rows].astype(policy.dtype))
        except NoAnswer as error:
            raise CannotEstimate(f"version {policy.version} has no answer to what the log observed: {error}") from error


def _of_logits(answer: PolicyOutput, sizes: list[int], bits: bool) -> Floats:
    """Probabilities (B, A) of all combinations: of independent softmaxes, or of bits that are 1 with a sigmoid."""
    logits = answer.outputs["logits"].astype(np.float64).reshape(len(answer.action), -1)
    joint = np.ones((len(logits), 1))
    for number, (end, size) in enumerate(zip(np.cumsum(sizes), sizes, strict=True)):
        own = np.stack([np.zeros(len(logits)), logits[:, number]], axis=1) if bits else logits[:, end - size : end]
        weights = np.exp(own - own.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        joint = (joint[:, :, None] * weights[:, None, :]).reshape(len(logits), -1)
    return joint


def _gaussian(answer: PolicyOutput) -> tuple[Floats, Floats]:
    """Means and spreads of the components, both (B, D)."""
    mean, log_std = (answer.outputs[name].astype(np.float64) for name in ("mean", "log_std"))
    return mean.reshape(len(mean), -1), np.exp(log_std.reshape(len(log_std), -1))


def _unsquashed(policy: ServedPolicy, actions: Array) -> Floats:
    """The samples (S, D) that became these actions; where tanh left nothing of them, the largest it can show."""
    flat = actions.reshape(len(actions), -1).astype(np.float64)
    if policy.kind != "squashed":
        return flat
    assert policy.bounds is not None, "squashed actions have finite bounds"
    low, high = (bound.ravel().astype(np.float64) for bound in policy.bounds)
    most = 1.0 - float(np.finfo(np.float32).eps)
    return np.asarray(np.arctanh(np.clip(2.0 * (flat - low) / (high - low) - 1.0, -most, most)))


def _within(policy: ServedPolicy, samples: Floats) -> Floats:
    """Samples (S, M, D) as they are done: squashed or clipped to the bounds."""
    if policy.bounds is None:
        return samples
    low, high = (bound.ravel().astype(np.float64) for bound in policy.bounds)
    if policy.kind == "squashed":
        return np.asarray(low + (high - low) / 2 * (np.tanh(samples) + 1.0))
    return np.clip(samples, low, high)
