"""Estimates with intervals, and tests over several limits at once. Pure functions of arrays.

Sources:
    Interquartile mean and bootstrap intervals: Agarwal et al. 2021, arXiv 2108.13264.
    Clopper and Pearson 1934, doi:10.1093/biomet/26.4.404.
    Hoeffding 1963, doi:10.1080/01621459.1963.10500830, theorem 1 (the relative-entropy form).
    Holm 1979, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loomrl.types import Interval

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], NDArray[Any]]

_CHUNK = 4_000_000  # resampled values held at once, about 32 MB
_ENOUGH_ABOVE, _MOST_REPLICATES = 10, 200_000  # of weighted means that decide a p-value


def mean(values: Floats) -> Floats:
    """Arithmetic mean over the last axis, (..., N) -> (...)."""
    return np.asarray(np.mean(values, axis=-1))


def interquartile_mean(values: ArrayLike) -> Floats:
    """Mean of the middle half over the last axis, (..., N) -> (...): the lowest and the highest quarter are cut off.

    A quarter that is not a whole number of values is rounded down, as `scipy.stats.trim_mean` does.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=-1)
    count = ordered.shape[-1]
    cut = count // 4
    return np.asarray(np.mean(ordered[..., cut : count - cut], axis=-1))


def bootstrap_interval(
    values: ArrayLike,
    statistic: Statistic,
    confidence: float,
    replicates: int,
    rng: np.random.Generator,
    method: str = "percentile bootstrap",
) -> Interval:
    """Two-sided percentile bootstrap interval of a statistic of values (N,), estimated on the values themselves.

    Episodes are resampled with replacement, each with equal probability. One policy's episodes are one stratum, so the
    stratified bootstrap of the paper reduces to this.

    Args:
        statistic: reduces the last axis of (R, N) resampled values.
        replicates: how many resamples are drawn.
        method: the name the interval gets; it changes nothing else.

    Raises:
        ValueError: when the values are no vector, or there are none.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or sample.size == 0:
        raise ValueError(f"expected a non-empty vector of values, found shape {sample.shape}")
    drawn = _replicates(sample, statistic, replicates, rng)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(drawn, [tail, 1.0 - tail])
    return Interval(
        estimate=float(statistic(sample)), low=float(low), high=float(high), confidence=confidence, method=method
    )


def _replicates(sample: Floats, statistic: Statistic, replicates: int, rng: np.random.Generator) -> Floats:
    rows = max(1, _CHUNK // sample.size)
    parts = []
    for start in range(0, replicates, rows):
        shape = (min(rows, replicates - start), sample.size)
        parts.append(statistic(sample[rng.integers(sample.size, size=shape)]))
    return np.concatenate(parts)


def paired_difference(
    values: ArrayLike, reference: ArrayLike, confidence: float, replicates: int, rng: np.random.Generator
) -> Interval:
    """Mean of `values - reference`, (N,) each, over pairs (the same seeds in the same order), with a two-sided
    bootstrap interval.

    Raises:
        ValueError: when both are not of one shape, are no vectors, or hold nothing.
    """
    first, second = np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"pairs need equal shapes, found {first.shape} and {second.shape}")
    return bootstrap_interval(
        first - second, mean, confidence, replicates, rng, "percentile bootstrap of paired differences"
    )


def paired_p_below(
    values: ArrayLike, reference: ArrayLike, limit: float, replicates: int, rng: np.random.Generator
) -> float:
    """P-value, above 0, of "the mean of `values - reference` is above `limit`"; both are (N,), paired.

    Bootstrap means of the differences know nothing of a loss that is too rare to have been seen. So one is added that
    was not seen: as large as what is earned or lost on average, or as the largest that was seen. The p-value is the
    probability that a mean with weights drawn from the flat Dirichlet distribution is above the limit (Gaffke 2005,
    "Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative variable"; that it is
    valid for all differences up to that size is proved for two values, where it is Clopper and Pearson's, and borne out
    by simulation: Learned-Miller and Thomas 2020, arXiv 1905.06208). Larger losses make it too small.

    Drawing goes on, `replicates` at a time, until ten are above or `_MOST_REPLICATES` were drawn (Besag and Clifford
    1991, "Sequential Monte Carlo p-values").

    Raises:
        ValueError: when there is no pair, or shapes do not fit.
    """
    first, second = np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    differences = first - second
    excess = np.append(differences, max(largest_unseen(first, second), float(differences.max()))) - limit
    above = drawn = 0
    while drawn == 0 or (above < _ENOUGH_ABOVE and drawn < _MOST_REPLICATES):
        weights = rng.standard_exponential((replicates, excess.size))
        above += int(np.count_nonzero(weights @ excess > 0.0))
        drawn += replicates
    return (1 + above) / (drawn + 1)


def largest_unseen(values: Floats, reference: Floats) -> float:
    """How large a difference of `values` and `reference`, (N,) each, is reckoned with that was not seen: what is earned
    or lost on average."""
    return float(max(np.abs(values).mean(), np.abs(reference).mean()))


def clopper_pearson(successes: int, trials: int, confidence: float) -> Interval:
    """Exact two-sided interval of a probability, around `successes / trials`.

    Raises:
        ValueError: unless 0 <= `successes` <= `trials`, with at least one trial.
    """
    _check_counts(successes, trials)
    one_sided = 1.0 - (1.0 - confidence) / 2.0
    return Interval(
        estimate=successes / trials,
        low=clopper_pearson_lower(successes, trials, one_sided),
        high=clopper_pearson_upper(successes, trials, one_sided),
        confidence=confidence,
        method="clopper-pearson",
    )


def clopper_pearson_upper(successes: int, trials: int, confidence: float) -> float:
    """Exact one-sided upper bound of a probability; 1 where every trial is a success.

    Raises:
        ValueError: unless 0 <= `successes` <= `trials`, with at least one trial.
    """
    from scipy.special import betaincinv

    _check_counts(successes, trials)
    return 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, confidence))


def clopper_pearson_lower(successes: int, trials: int, confidence: float) -> float:
    """Exact one-sided lower bound of a probability; 0 where no trial is a success.

    Raises:
        ValueError: unless 0 <= `successes` <= `trials`, with at least one trial.
    """
    return 1.0 - clopper_pearson_upper(trials - successes, trials, confidence)


def binomial_p_below(successes: int, trials: int, limit: float) -> float:
    """P-value of "the probability is above `limit`": small when few successes were seen.

    It is at most 1 - c exactly when the Clopper-Pearson upper bound at confidence c is at most `limit`.

    Raises:
        ValueError: unless 0 <= `successes` <= `trials`, with at least one trial.
    """
    from scipy.special import bdtr

    _check_counts(successes, trials)
    return float(bdtr(successes, trials, limit))


def binomial_p_above(successes: int, trials: int, limit: float) -> float:
    """P-value of "the probability is at most `limit`": small when many successes were seen.

    Raises:
        ValueError: unless 0 <= `successes` <= `trials`, with at least one trial.
    """
    return binomial_p_below(trials - successes, trials, 1.0 - limit)


def bounded_mean_p_below(values: ArrayLike, limit: float) -> float:
    """P-value of "the mean is above `limit`", for independent values (N,) in [0, 1] of any distribution.

    Hoeffding's bound exp(-n KL(mean || limit)): valid for every sample size, and as sharp as the binomial one when all
    values are zero. 1 where the mean of the values is `limit` or more.

    Raises:
        ValueError: without any value, or for one outside [0, 1].
    """
    sample = _unit_interval(values)
    average = float(np.mean(sample))
    return 1.0 if average >= limit else math.exp(-sample.size * bernoulli_divergence(average, limit))


def bounded_mean_p_above(values: ArrayLike, limit: float) -> float:
    """P-value of "the mean is at most `limit`", for independent values (N,) in [0, 1]: small when they are large.

    Raises:
        ValueError: without any value, or for one outside [0, 1].
    """
    return bounded_mean_p_below(1.0 - _unit_interval(values), 1.0 - limit)


def bounded_mean_upper(values: ArrayLike, confidence: float) -> float:
    """One-sided upper bound of the mean of independent values (N,) in [0, 1] (Hoeffding, relative-entropy form).

    Raises:
        ValueError: without any value, or for one outside [0, 1].
    """
    sample = _unit_interval(values)
    average = float(np.mean(sample))
    budget = -math.log(1.0 - confidence) / sample.size
    low, high = average, 1.0
    for _ in range(60):  # bisection to the last bits of a double
        middle = (low + high) / 2
        low, high = (middle, high) if bernoulli_divergence(average, middle) < budget else (low, middle)
    return high


def bounded_mean_lower(values: ArrayLike, confidence: float) -> float:
    """One-sided lower bound of the mean of independent values (N,) in [0, 1]; as the upper one.

    Raises:
        ValueError: without any value, or for one outside [0, 1].
    """
    return 1.0 - bounded_mean_upper(1.0 - _unit_interval(values), confidence)


def bernoulli_divergence(first: float, second: float) -> float:
    """Kullback-Leibler divergence in nats of the Bernoulli distribution with mean `first` from that with mean `second`.

    Infinite where the second gives no probability to what the first does.
    """
    return _part(first, second) + _part(1.0 - first, 1.0 - second)


def _part(first: float, second: float) -> float:
    if first == 0.0:
        return 0.0
    return math.inf if second <= 0.0 else first * math.log(first / second)


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which hypotheses Holm's step-down procedure rejects, in the order of their p-values in the list.

    The chance of any false rejection is at most `alpha`.
    """
    return [p <= alpha for p in holm_adjusted(p_values)]


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, at most 1 each, in the order in which the p-values are listed.

    A hypothesis is rejected at `alpha` exactly when its adjusted value is at most that.
    """
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for p, level, index in _step_down(p_values):
        running = max(running, min(1.0, p * level))
        adjusted[index] = running
    return adjusted


def holm_confidence(p_values: Sequence[float], confidence: float) -> list[float]:
    """The one-sided confidence each hypothesis must reach at its own step, so that all hold together at `confidence`.

    The smallest of m p-values meets 1 - (1 - confidence)/m, the largest `confidence` itself. They are in the order in
    which the p-values are listed.
    """
    levels = [0.0] * len(p_values)
    for _, level, index in _step_down(p_values):
        levels[index] = 1.0 - (1.0 - confidence) / level
    return levels


def _step_down(p_values: Sequence[float]) -> list[tuple[float, int, int]]:
    """(p, how many hypotheses remain, index), smallest p first; ties keep their order."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    return [(p_values[index], len(p_values) - rank, index) for rank, index in enumerate(order)]


def trials_needed(successes: int, limit: float, confidence: float) -> int:
    """The fewest trials with this many successes whose Clopper-Pearson upper bound is at most `limit`, above 0."""
    start = max(successes + 1, math.ceil(1.0 / limit))
    return fewest(lambda count: clopper_pearson_upper(successes, count, confidence) <= limit, successes, start)


def values_needed(values: ArrayLike, limit: float, confidence: float) -> int:
    """How many values there must be in all, zeros added to these, for Hoeffding's upper bound of the mean to be at most
    `limit`; at least as many as there are.

    Raises:
        ValueError: without any value, or for one outside [0, 1].
    """
    sample = _unit_interval(values)
    total = float(np.sum(sample))

    def enough(count: int) -> bool:
        average = total / count
        return average < limit and math.exp(-count * bernoulli_divergence(average, limit)) <= 1.0 - confidence

    return sample.size if enough(sample.size) else fewest(enough, sample.size, 2 * sample.size)


def fewest(enough: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest count above `low` that is enough, where any larger one is too; the search begins at `high`.

    It does not end where no count is enough.
    """
    while not enough(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _check_counts(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"expected 0 <= successes <= trials and at least one trial, found {successes} of {trials}")


def _unit_interval(values: ArrayLike) -> Floats:
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0 or not np.all((sample >= 0.0) & (sample <= 1.0)):
        raise ValueError("expected at least one value, all within [0, 1]")
    return sample
