"""Whether logged weights can have a mean of 1, as they have where propensities are right."""

import numpy as np
from numpy.typing import NDArray

from loomrl.statistics.betting import lower_bound

Floats = NDArray[np.float64]
LEVEL = 0.01  # of all tests of one report together that a right log is refused


def contradicts_one(weights: Floats, greatest: float | None) -> bool:
    """Whether the mean of weights (N,) of episodes is shown to be another one than 1.

    Both sides are bet on (`loomrl.statistics.betting`), so a right log is refused with a probability of at most
    `LEVEL`. That the mean is below 1 can only be shown where the greatest weight is known: else what is missing may be
    one weight that is rare and great.
    """
    confidence = 1.0 - LEVEL / 4  # two policies, two sides
    if lower_bound(weights, confidence) > 1.0:
        return True
    return greatest is not None and lower_bound(greatest - weights, confidence) > greatest - 1.0
