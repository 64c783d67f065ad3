"""Tests that may be looked at after every value: always-valid evidence that a mean has passed its limit.

Ramdas, Grünwald, Vovk and Shafer, Game-theoretic statistics and safe anytime-valid inference (2023); bets on bounded
values as in Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting (2024), section 4.

`LimitTest` watches what never ends: starts at every time are mixed as in Shin, Ramdas and Rinaldo, E-detectors (2024),
with weights that sum to 1, so that what changes late is still seen, and the chance of a false alarm ever stays below
the level. `p_below`, `p_above`, `upper_bound` and `lower_bound` judge values that all have one mean, and stop when
enough is known.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from loomrl.errors import ConfigError
from loomrl.statistics.intervals import fewest
from loomrl.system.schema import Document

Floats = NDArray[np.float64]
_NUM_BETS = 10  # how much of a fortune is staked: 0.5, 0.33, 0.22, ...
_STAKES: Floats = 0.5 / np.power(1.5, np.arange(_NUM_BETS, dtype=np.float64))
_ENOUGH = 1e100  # evidence beyond any level; infinity could not be written


class LimitTest(Document):
    """Evidence against "every value's mean, given the past, is at most `limit`", for values in [0, 1].

    `count` values were seen, whose sum is `total`. `wealth` are the fortunes of bets of several sizes, begun at each
    value with 1 / (n (n + 1)) of what there is to stake. The e-value's expectation never passes 1 while the claim is
    true, so it ever reaches 1 / alpha with a probability of at most alpha (Ville's inequality), however often it is
    looked at.
    """

    limit: float = Field(gt=0, lt=1)
    count: int = Field(default=0, ge=0)
    total: float = Field(default=0.0, ge=0)
    wealth: list[float] = Field(default_factory=lambda: [0.0] * _NUM_BETS)

    def updated(self, values: ArrayLike) -> "LimitTest":
        """A new test that has also seen these values, (N,), in their order; this one is left as it is.

        Raises:
            ConfigError: for a value outside [0, 1].
        """
        sample = _unit_interval(values)
        wealth, count = np.array(self.wealth), self.count
        for value in sample:
            count += 1
            wealth = (wealth + 1.0 / (count * (count + 1.0))) * _gains(value, self.limit, _STAKES)
            wealth = np.minimum(wealth, _ENOUGH)
        total = self.total + float(sample.sum())
        return LimitTest(limit=self.limit, count=count, total=total, wealth=wealth.tolist())

    @property
    def e_value(self) -> float:
        """The evidence: at least 1 / alpha refutes at level alpha. 1 before the first value."""
        return math.fsum(self.wealth) / len(self.wealth) + 1.0 / (self.count + 1.0)

    @property
    def mean(self) -> float:
        """The mean of all values so far; 0 where there are none."""
        return self.total / max(self.count, 1)


# --- confidence sequences ---------------------------------------------------------------------------------------


class Bets(NamedTuple):
    """Shares of a fortune that are staked on every value, `stakes` (J,), each in (0, 1], and how much of it each share
    begins with, `weights` (J,), which sum to 1."""

    stakes: Floats  # (J,), each in (0, 1]
    weights: Floats  # (J,), they sum to 1


# That a mean is above its limit: rare values decide it, so that little is staked on each.
_ABOVE = Bets(_STAKES, np.full(_NUM_BETS, 1.0 / _NUM_BETS))
# That it is below: half of all is staked whole, and lost with the first 1, so that values that are all 0 decide it
# nearly as soon as a fixed number of them does; the other half is for values that are not.
_PARTIAL = np.array([0.9375, 0.875, 0.75, 0.5, 0.25, 0.125])
_BELOW = Bets(np.array([1.0, *_PARTIAL]), np.array([0.5, *(0.5 * _PARTIAL / _PARTIAL.sum())]))


def p_below(values: ArrayLike, limit: float) -> float:
    """P-value of "the mean is at least `limit`", for values (N,) in [0, 1] in their order, each with that mean given
    those before it; 1 without any value.

    It may be computed after every value, and one may stop whenever one likes: that it ever falls to alpha or below has
    a probability of at most alpha while the mean is at least `limit`.

    Raises:
        ConfigError: for a value outside [0, 1].
    """
    return math.exp(-_log_peak(1.0 - _unit_interval(values), 1.0 - limit, _BELOW))


def p_above(values: ArrayLike, limit: float) -> float:
    """P-value of "the mean is at most `limit`", of values (N,); else as `p_below`, errors included."""
    return math.exp(-_log_peak(_unit_interval(values), limit, _ABOVE))


def zeros_needed(values: ArrayLike, limit: float, confidence: float) -> int:
    """How many more values, all 0, bring `p_below` of all down to 1 - `confidence`: at least 1.

    Raises:
        ConfigError: for a value outside [0, 1].
    """
    clean = 1.0 - _unit_interval(values)
    won = np.log(_gains(1.0, 1.0 - limit, _BELOW.stakes))  # with each of them, (J,)
    fortunes = _log_fortunes(clean, 1.0 - limit, _BELOW)[-1] if clean.size else np.log(_BELOW.weights)
    missing = -math.log(1.0 - confidence)
    return fewest(lambda count: float(np.logaddexp.reduce(fortunes + count * won)) >= missing, 0, 1)


def upper_bound(values: ArrayLike, confidence: float) -> float:
    """The least limit that `p_below` has excluded at this confidence, now or before; 1 without any value.

    The mean of the values (N,) is always below all of these bounds, whenever they are computed, with a probability of
    at least `confidence`.

    Raises:
        ConfigError: for a value outside [0, 1].
    """
    return 1.0 - _greatest_excluded(1.0 - _unit_interval(values), confidence, _BELOW)


def lower_bound(values: ArrayLike, confidence: float) -> float:
    """The greatest limit that `p_above` has excluded at this confidence, now or before; 0 without any value.

    The mean of the values (N,) is always above all of these bounds with a probability of at least `confidence`.

    Raises:
        ConfigError: for a value outside [0, 1].
    """
    return _greatest_excluded(_unit_interval(values), confidence, _ABOVE)


def _greatest_excluded(values: Floats, confidence: float, bets: Bets) -> float:
    """By bisection to the last bits of a double: less is won against a higher limit."""
    enough = -math.log(1.0 - confidence)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _log_peak(values, middle, bets) >= enough else (low, middle)
    return low


def _log_peak(values: Floats, limit: float, bets: Bets) -> float:
    """Logarithm of the most that 1 ever became, at the start or later, when it was bet against "the mean is at most
    `limit`"."""
    return float(np.logaddexp.reduce(_log_fortunes(values, limit, bets), axis=1).max(initial=0.0))


def _log_fortunes(values: Floats, limit: float, bets: Bets) -> Floats:
    """Of each stake after each value, (N, J)."""
    with np.errstate(divide="ignore"):  # a stake that was lost whole stays lost
        won = np.log(_gains(values[:, None], limit, bets.stakes))
    return np.asarray(np.cumsum(won, axis=0) + np.log(bets.weights))


def _gains(values: Floats | np.float64 | float, limit: float, stakes: Floats) -> Floats:
    """What 1 becomes with one value: its expectation is at most 1 while the mean is at most `limit`."""
    return np.asarray(1.0 + stakes * (values / limit - 1.0))


def _unit_interval(values: ArrayLike) -> Floats:
    sample = np.asarray(values, dtype=np.float64)
    if not np.all((sample >= 0.0) & (sample <= 1.0)):
        raise ConfigError(f"values of a limit lie in [0, 1], found {sample[~((sample >= 0) & (sample <= 1))][0]}")
    return sample
