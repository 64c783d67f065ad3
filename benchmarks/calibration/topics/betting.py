"""Bounds and tests by betting on values that are independent, or have one mean given those before them: the bricks
that the other topics build with. They are looked at after every few values, and one look that is wrong makes the
stream wrong.

`loomrl.statistics.betting` bounds means and ratios of means from below, of values of which only the least is known;
`loomrl.statistics.sequential` bounds and tests rates.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.topic import Setting, at_most, covers, each, finds
from loomrl.statistics import betting, sequential

SOURCES = ("src/loomrl/statistics/betting.py", "src/loomrl/statistics/sequential.py")
Floats = NDArray[np.float64]
_LENGTH, _LOOKS = 300, range(15, 301, 15)
_CONFIDENCE = 0.95


def _mean(
    draw: Callable[[np.random.Generator], Floats], mean: float
) -> Callable[[np.random.Generator], dict[str, bool]]:
    def stream(rng: np.random.Generator) -> dict[str, bool]:
        values = draw(rng)
        bounds = (betting.lower_bound(values[:look], _CONFIDENCE) for look in _LOOKS)
        return {"lower bound of a mean": max(bounds) <= mean}

    return stream


def _ratio(rng: np.random.Generator) -> dict[str, bool]:
    weights = rng.choice([0.0, 1.0, 4.0], _LENGTH, p=[0.4, 0.4, 0.2])  # mean 1.2
    values = weights * rng.exponential(2.0, _LENGTH)
    bounds = (betting.ratio_lower_bound(values[:look], weights[:look], 4.0, _CONFIDENCE) for look in _LOOKS)
    return {"lower bound of a ratio": max(bounds) <= 2.0}


def _rate(rate: float) -> Callable[[np.random.Generator], dict[str, bool]]:
    def stream(rng: np.random.Generator) -> dict[str, bool]:
        values = (rng.random(_LENGTH) < rate).astype(np.float64)
        return {
            "upper bound of a rate": sequential.upper_bound(values, _CONFIDENCE) >= rate,
            "lower bound of a rate": sequential.lower_bound(values, _CONFIDENCE) <= rate,
        }

    return stream


def _limit(before: float, after: float, limit: float) -> Callable[[np.random.Generator], dict[str, bool]]:
    """Values whose mean changes in the middle; looked at after every one."""

    def stream(rng: np.random.Generator) -> dict[str, bool]:
        rates = np.repeat([before, after], _LENGTH)
        test, found = sequential.LimitTest(limit=limit), False
        for value in (rng.random(len(rates)) < rates).astype(np.float64):
            test = test.updated([value])
            found |= test.e_value >= 1.0 / (1.0 - _CONFIDENCE)
        return {"limit said to be passed": found}

    return stream


_BOUND, _PASSED = covers("lower bound of a mean", _CONFIDENCE), "limit said to be passed"
_BOTH = (covers("upper bound of a rate", _CONFIDENCE), covers("lower bound of a rate", _CONFIDENCE))
SETTINGS = (
    Setting("lognormal values", each(_mean(lambda rng: rng.lognormal(0.0, 1.0, _LENGTH), np.exp(0.5))), (_BOUND,)),
    Setting("one in 20 counts", each(_mean(lambda rng: 20.0 * (rng.random(_LENGTH) < 0.05), 1.0)), (_BOUND,)),
    Setting("weights that are often 0", each(_ratio), (covers("lower bound of a ratio", _CONFIDENCE),)),
    Setting("rate 1 %", each(_rate(0.01)), _BOTH),
    Setting("rate 40 %", each(_rate(0.4)), _BOTH),
    Setting("rate at its limit of 10 %", each(_limit(0.1, 0.1, 0.1)), (at_most(_PASSED, 1.0 - _CONFIDENCE),)),
    Setting("rate rises to its limit", each(_limit(0.01, 0.1, 0.1)), (at_most(_PASSED, 1.0 - _CONFIDENCE),)),
    Setting("rate rises to four times its limit", each(_limit(0.01, 0.4, 0.1)), (finds(_PASSED, 0.8),)),
)
