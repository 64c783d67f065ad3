"""Tests that may be looked at after every value: always-valid evidence that a mean has passed its limit.

Ramdas, Grünwald, Vovk and Shafer, Game-theoretic statistics and safe anytime-valid inference (2023); bets on bounded
values as in Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting (2024), section 4. Starts
at every time are mixed as in Shin, Ramdas and Rinaldo, E-detectors (2024), with weights that sum to 1, so that what
changes late is still seen, and the chance of a false alarm ever stays below the level.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from loomrl.errors import ConfigError
from loomrl.schema import Document

Floats = NDArray[np.float64]
_NUM_BETS = 10  # how much of a fortune is staked: 0.5, 0.33, 0.22, ...
_STAKES = 0.5 / 1.5 ** np.arange(_NUM_BETS)
_ENOUGH = 1e100  # evidence beyond any level; infinity could not be written


class LimitTest(Document):
    """Evidence against "every value's mean, given the past, is at most `limit`", for values in [0, 1].

    `wealth` are the fortunes of bets of several sizes, begun at each value with 1 / (n (n + 1)) of what there is to
    stake. The e-value's expectation never passes 1 while the claim is true, so it ever reaches 1 / alpha with a
    probability of at most alpha (Ville's inequality), however often it is looked at.
    """

    limit: float = Field(gt=0, lt=1)
    count: int = Field(default=0, ge=0)
    total: float = Field(default=0.0, ge=0)
    wealth: list[float] = Field(default_factory=lambda: [0.0] * _NUM_BETS)

    def updated(self, values: ArrayLike) -> "LimitTest":
        """The test after more values, (N,), in their order.

        Raises:
            ConfigError: for a value outside [0, 1].
        """
        sample = np.asarray(values, dtype=np.float64)
        if not np.all((sample >= 0.0) & (sample <= 1.0)):
            raise ConfigError(f"values of a limit lie in [0, 1], found {sample[~((sample >= 0) & (sample <= 1))][0]}")
        wealth, count = np.array(self.wealth), self.count
        for value in sample:
            count += 1
            wealth = (wealth + 1.0 / (count * (count + 1.0))) * (1.0 + _STAKES * (value / self.limit - 1.0))
            wealth = np.minimum(wealth, _ENOUGH)
        total = self.total + float(sample.sum())
        return LimitTest(limit=self.limit, count=count, total=total, wealth=wealth.tolist())

    @property
    def e_value(self) -> float:
        """The evidence: at least 1 / alpha refutes at level alpha. 1 before the first value."""
        return math.fsum(self.wealth) / len(self.wealth) + 1.0 / (self.count + 1.0)

    @property
    def mean(self) -> float:
        """Of all values; 0 where there are none."""
        return self.total / max(self.count, 1)


def spent(alpha: float, look: int) -> float:
    """The part of a level for the look of this number, from 1 on: all looks together spend alpha."""
    return alpha / (look * (look + 1.0))
