"""Whether logged weights can have a mean of 1, as they have where propensities are right."""

import numpy as np
from numpy.typing import NDArray

from loomrl.betting import lower_bound

Floats = NDArray[np.float64]
LEVEL = 0.01  # of all tests of one report together that a right log is refused


def contradicts_one(weights: Floats, greatest: float | None) -> bool:
    """Whether the mean of weights (N,) of episodes is shown to be another one than 1.

    Both sides are bet on (`loomrl.betting`). That it is above 1 needs no greatest weight, that it is below does: where
    the greatest there can be is unknown, or far beyond those that were seen, twice the greatest seen is taken for it.
    So that side is approximate; how often it is wrong is simulated in `benchmarks/calibration/topics/weights.py`.
    """
    confidence = 1.0 - LEVEL / 4  # two policies, two sides
    if lower_bound(weights, confidence) > 1.0:
        return True
    seen = 2.0 * float(weights.max())
    most = max(seen if greatest is None else min(greatest, seen), 2.0)
    return lower_bound(most - weights, confidence) > most - 1.0
