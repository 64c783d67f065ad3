"""Bounds on means by betting, valid at every time at once, for values of which only the least is known.

A fortune staked on every value being above a mean is expected never to grow while that is the true mean, so it ever
reaches 1 / alpha with a probability of at most alpha (Ville's inequality): means against which it got that far are
excluded. Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, JRSS B 86 (2024), section 4,
with several stakes mixed. A bound from below needs no greatest value: Waudby-Smith, Wu, Ramdas, Karampatziakis and
Mineiro, Anytime-valid off-policy inference for contextual bandits (2022), section 2.

`loomrl.statistics.sequential` has such bounds for rates, of values in [0, 1]. Those here neither need a greatest value
nor depend on the order of the values, and take ratios of means.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_STAKES: Floats = 0.9 / np.exp2(np.arange(12, dtype=np.float64))  # shares of a fortune; small ones for wide values
_BLOCK = 65_536  # values that are bet on at once
_BISECTIONS = 40


def lower_bound(values: Floats, confidence: float) -> float:
    """What the mean of values (N,), none below 0, exceeds with a probability of at least `confidence`; at least 0.

    The values are independent, or at least each has that mean given those before. The bound may be computed after any
    number of them: that it is ever wrong has a probability of at most 1 - confidence. It is 0 without any value. Values
    are not checked: with one below 0 the bound means nothing.
    """
    return ratio_lower_bound(values, np.ones_like(values), 1.0, confidence)


def ratio_lower_bound(values: Floats, weights: Floats, greatest_weight: float, confidence: float) -> float:
    """What E[values] / E[weights], each (N,) and none below 0, exceeds with a probability of at least `confidence`.

    The bets are on values - ratio * weights: its mean is 0 at the true ratio, and it never falls below
    -ratio * greatest_weight. That weight must be known beforehand, not read off these ones. The bound is at least
    0, and 0 where all weights are 0 or there is no value. Nothing is checked.
    """
    enough = -math.log(1.0 - confidence)
    low, high = 0.0, float(values.sum() / weights.sum()) if weights.any() else 0.0  # nothing is won against the mean
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        excluded = middle > 0.0 and _log_wealth(values / middle, weights, greatest_weight) >= enough
        low, high = (middle, high) if excluded else (low, middle)
    return low


def _log_wealth(values: Floats, weights: Floats, greatest_weight: float) -> float:
    """Logarithm of what a fortune of 1 becomes, an equal part at each stake, betting that the ratio is above 1."""
    total = np.full(len(_STAKES), -math.log(len(_STAKES)))
    for start in range(0, len(values), _BLOCK):
        gained = (values - weights)[start : start + _BLOCK, None] * (_STAKES / greatest_weight)
        total += np.log1p(gained).sum(axis=0)
    return float(np.logaddexp.reduce(total))
