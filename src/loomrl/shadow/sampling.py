"""Which of an episode's disagreements is followed: seldom seen states and high stakes first, each with a known chance.

Drawing with known probabilities and dividing by them keeps estimates unbiased however the probabilities were chosen
(Horvitz and Thompson, A generalization of sampling without replacement from a finite universe, JASA 47, 1952).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loomrl.serving.policy.distance import action_distance
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.decisions import ShadowDecisions

Floats = NDArray[np.float64]
_EVENLY = 0.5  # of the probability; the rest goes half by stakes, half by rarity
_SHARPNESS = 8  # the power of a rank: the top tenth of many gets about 60 %


def probabilities(stakes: ArrayLike, rarity: ArrayLike) -> Floats:
    """The chance of each of N disagreements of an episode to be the one that is followed, (N,), summing to 1.

    `stakes` and `rarity`, (N,) each, count by their ranks; higher ones are likelier. No chance is below half of 1 / N:
    no single draw weighs more than twice as much as with equal chances.
    """
    count = len(np.asarray(stakes))
    even = np.full(count, 1.0 / count)
    return _EVENLY * even + (1 - _EVENLY) / 2 * (_by_rank(stakes) + _by_rank(rarity))


def _by_rank(scores: ArrayLike) -> Floats:
    values, place = np.unique(np.asarray(scores, np.float64), return_inverse=True)
    weights = np.power((place + 1.0) / len(values), _SHARPNESS)
    return np.asarray(weights / weights.sum())


def stakes_of(policy: ServedPolicy, first: ShadowDecisions, second: ShadowDecisions) -> Floats:
    """How much is at stake where two versions decide differently, (N,).

    Of one choice among several: by how much each prefers its own to the other's, in logarithms of probabilities. Of
    continuous actions: their distance. Of other choices it is not known: 1 for each.
    """
    if not policy.chooses:
        return action_distance(first.action, second.action, policy)
    if policy.kind != "discrete" or first.logits is None or second.logits is None:
        return np.ones(len(first.action))
    start = int(policy.manifest.environment.action.get("start", 0))
    own, other = first.action - start, second.action - start
    rows = np.arange(len(own))
    return np.asarray(
        first.logits[rows, own] - first.logits[rows, other] + second.logits[rows, other] - second.logits[rows, own],
        np.float64,
    )


class Rarity:
    """How unlike the observations of the champion's episodes, `visited` (N, *obs), an observation is.

    A call with observations (N, *obs) gives the mean square of their components in standard deviations, (N,).
    """

    def __init__(self, visited: NDArray[np.generic]) -> None:
        """From observations (N, *obs)."""
        flat = visited.reshape(len(visited), -1)
        self._mean = flat.mean(axis=0, dtype=np.float64)
        spread = flat.std(axis=0, dtype=np.float64)
        self._spread = np.where(spread > 0, spread, 1.0)

    def __call__(self, observations: NDArray[np.generic]) -> Floats:
        """The mean square of components in standard deviations, (N,), of observations (N, *obs)."""
        flat = observations.reshape(len(observations), -1)
        return np.asarray(np.mean(((flat - self._mean) / self._spread) ** 2, axis=1))
