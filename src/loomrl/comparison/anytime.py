"""The difference of two means, with bounds that hold however often one looks.

The k-th episode of one version stands beside the k-th of the other, or beside the mean of several where one gets more
traffic; both bounds of the mean difference are by betting (`loomrl.betting`). They are a confidence sequence (Howard,
Ramdas, McAuliffe and Sekhon, Time-uniform, nonparametric, nonasymptotic confidence sequences, Annals of Statistics 49,
2021): no number of episodes has to be fixed beforehand.
"""

import numpy as np
from numpy.typing import NDArray

from loomrl.betting import lower_bound

Floats = NDArray[np.float64]


def pair(champion: Floats, challenger: Floats, champion_episodes: int) -> Floats:
    """Differences (P,) of the challenger's values from the mean of as many of the champion's, each in their order."""
    num_pairs = min(len(challenger), len(champion) // champion_episodes)
    beside = champion[: num_pairs * champion_episodes].reshape(num_pairs, champion_episodes).mean(axis=1)
    return np.asarray(challenger[:num_pairs] - beside)


def bounds(differences: Floats, spread: float, confidence: float) -> tuple[float, float]:
    """Between what the mean of differences (P,) of values that lie `spread` apart at most is, with this confidence at
    all times together."""
    each = 0.5 + confidence / 2
    low = lower_bound(spread + differences, each) - spread
    high = spread - lower_bound(spread - differences, each)
    return low, high
