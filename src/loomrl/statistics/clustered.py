"""Intervals for steps that come in units: steps of one episode, and episodes of one agent, resemble each other, so
episodes are the clusters, and agents where several were watched."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loomrl.statistics.betting import lower_bound
from loomrl.types import Interval

Floats = NDArray[np.float64]
_MOST_UNITS = 10_000  # that are looked for
_DRAWS = 200_000  # of weights, to find a quantile


def clustered_mean(values: ArrayLike, clusters: ArrayLike, confidence: float) -> Interval | None:
    """Mean of values (N,) with a t interval whose variance is taken between clusters (N,).

    The ratio estimator's linearised variance, G/(G-1) * sum_g (sum_i (x_gi - mean))^2 / N^2 with G-1 degrees of
    freedom (Cochran, Sampling Techniques, 1977, section 9A.2). None with fewer than two clusters: nothing between
    them can be seen.
    """
    from scipy.special import stdtrit

    sample = np.asarray(values, dtype=np.float64)
    mean, error, num_clusters = _mean_and_error(sample, clusters)
    if num_clusters < 2:
        return None
    reach = float(stdtrit(num_clusters - 1, 0.5 + confidence / 2)) * error
    return Interval(
        estimate=mean, low=mean - reach, high=mean + reach, confidence=confidence, method="t interval over units"
    )


def clustered_proportion(events: ArrayLike, clusters: ArrayLike, confidence: float) -> Interval | None:
    """Proportion of events (N,), each 0 or 1, with Korn and Graubard's interval (Survey Methodology 24, 1998, 193-201).

    Clopper-Pearson on the effective sample size p(1-p)/variance, scaled for the few degrees of freedom, and never above
    N. Where all events are alike no variance can be seen: the number of clusters is used, since the steps of one may
    all be alike. `clusters` (N,) say which cluster each event is of. None with fewer than two clusters.
    """
    from scipy.special import betaincinv, stdtrit

    sample = np.asarray(events, dtype=np.float64)
    proportion, error, num_clusters = _mean_and_error(sample, clusters)
    if num_clusters < 2:
        return None
    effective = float(num_clusters)
    if 0.0 < proportion < 1.0 and error > 0.0:
        tail = 0.5 + confidence / 2
        scale = (float(stdtrit(len(sample) - 1, tail)) / float(stdtrit(num_clusters - 1, tail))) ** 2
        effective = min(float(len(sample)), proportion * (1 - proportion) / error**2 * scale)
    hits, misses, alpha = proportion * effective, (1 - proportion) * effective, 1 - confidence
    low = 0.0 if proportion == 0.0 else float(betaincinv(hits, misses + 1, alpha / 2))
    high = 1.0 if proportion == 1.0 else float(betaincinv(hits + 1, misses, 1 - alpha / 2))
    return Interval(
        estimate=proportion, low=low, high=high, confidence=confidence, method="korn-graubard clopper-pearson"
    )


def _mean_and_error(sample: Floats, clusters: ArrayLike) -> tuple[float, float, int]:
    """Mean, its standard error between clusters, and the number of clusters."""
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    num_clusters = int(index.max()) + 1 if len(sample) else 0
    if num_clusters < 2:
        return (float(sample.mean()) if len(sample) else 0.0), math.inf, num_clusters
    mean = float(sample.mean())
    sums = np.bincount(index, weights=sample - mean, minlength=num_clusters)
    variance = num_clusters / (num_clusters - 1) * float(np.sum(sums**2)) / len(sample) ** 2
    return mean, math.sqrt(variance), num_clusters


def mean_over_units(values: ArrayLike, confidence: float) -> Interval | None:
    """Mean of one value per unit (N,) with a two-sided t interval; None with fewer than two units."""
    sample = np.asarray(values, np.float64)
    return clustered_mean(sample, np.arange(len(sample)), confidence)


def rate_over_units(values: ArrayLike, confidence: float, refuting: float | None = None) -> Interval:
    """Mean of one value in [0, 1] per unit (N,) with one-sided bounds that hold for any number of units.

    The upper one holds at `confidence`, the lower one at `refuting`, which is the same if it is not given.

    Clopper-Pearson's where every value is 0 or 1, else Hoeffding's in relative entropy: nothing is assumed of how the
    steps within a unit depend on each other.

    Raises:
        ValueError: without any value, or for one outside [0, 1].
    """
    from loomrl.statistics import intervals as statistics

    sample = np.asarray(values, np.float64)
    count, total, refuting = len(sample), float(sample.sum()), refuting or confidence
    if np.isin(sample, (0.0, 1.0)).all():
        low = statistics.clopper_pearson_lower(int(total), count, refuting)
        high = statistics.clopper_pearson_upper(int(total), count, confidence)
        method = "clopper-pearson over units"
    else:
        low = statistics.bounded_mean_lower(sample, refuting)
        high = statistics.bounded_mean_upper(sample, confidence)
        method = "hoeffding relative-entropy over units"
    return Interval(estimate=total / count, low=low, high=high, confidence=confidence, method=method)


def bounded_mean_over_units(
    values: ArrayLike, span: tuple[float, float], confidence: float, refuting: float
) -> Interval:
    """Mean of one value within `span` per unit (N,) with one-sided bounds by betting: of their distribution nothing
    else is assumed. The upper one holds at `confidence`, the lower one at `refuting`.

    Raises:
        ValueError: without any value, or for one outside the span.
    """
    least, greatest = span
    sample = np.asarray(values, np.float64)
    if not sample.size or sample.min() < least or sample.max() > greatest:
        raise ValueError(f"expected values within [{least:g}, {greatest:g}], found {_found(sample)}")
    low = least + lower_bound(sample - least, refuting)
    high = greatest - lower_bound(greatest - sample, confidence)
    mean = float(sample.mean())
    return Interval(estimate=mean, low=low, high=high, confidence=confidence, method="betting over units")


def net_rate_over_units(num_more: int, num_less: int, num_units: int, confidence: float, refuting: float) -> Interval:
    """The rate of units with an event less the rate of those with its opposite, with one-sided bounds: the upper one
    holds at `confidence`, the lower one at `refuting`.

    Of N values 1, -1 and 0 one is added that speaks against the bound and was not seen; the bound is the quantile of
    their mean with weights drawn from the flat Dirichlet distribution (Gaffke 2005; Learned-Miller and Thomas 2020,
    arXiv 1905.06208: proved for two values, where it is Clopper and Pearson's, and borne out by simulation).

    Raises:
        ValueError: without a unit, or where there are more events than units.
    """
    rest = num_units - num_more - num_less
    if num_units < 1 or min(num_more, num_less, rest) < 0:
        raise ValueError(f"expected at most {num_units} events of one unit or more, found {num_more} and {num_less}")

    def upper(more: int, less: int, level: float) -> float:
        drawn = np.random.default_rng(0).standard_gamma((more + 1, less, rest), size=(_DRAWS, 3))
        return float(np.quantile((drawn[:, 0] - drawn[:, 1]) / drawn.sum(axis=1), level))

    return Interval(
        estimate=(num_more - num_less) / num_units,
        low=-upper(num_less, num_more, refuting),
        high=upper(num_more, num_less, confidence),
        confidence=confidence,
        method="Gaffke over units",
    )


def units_needed(values: ArrayLike, span: tuple[float, float], confidence: float) -> int | None:
    """About how many units as these (N,), whose mean is below 0, would bring that upper bound below 0: as many as it
    takes where each is like their mean. None where more than ten thousand would."""
    from loomrl.statistics.intervals import fewest

    sample = np.asarray(values, np.float64)
    away = span[1] - float(sample.mean())

    def is_enough(count: int) -> bool:
        return lower_bound(np.full(count, away), confidence) >= span[1]

    return fewest(is_enough, 1, len(sample) + 1) if is_enough(_MOST_UNITS) else None


def _found(sample: Floats) -> str:
    return f"[{sample.min():g}, {sample.max():g}]" if sample.size else "none"
