"""What measured values say of a limit: the verdict at the gate's confidence, its bound and its p-value."""

from collections.abc import Sequence

import numpy as np

from loomrl.safety.check import Context, Judgement
from loomrl.safety.config import ConstraintConfig
from loomrl.statistics import intervals as statistics
from loomrl.statistics.intervals import Floats
from loomrl.types import Bound, Episode, Verdict

METHOD = "one-sided percentile bootstrap over differences paired by seed"
FEWEST_PAIRS = 30  # episodes below which resampling claims too much
APPROXIMATE = "the bootstrap is approximate: exact only as the number of episodes grows"


def judge_drop(
    context: Context, name: str, before: Floats, after: Floats, limit: float, replicates: int, unit: str = "return"
) -> Judgement:
    """Whether the mean falls by at most `limit` from `before` to `after`, (N,) each, paired; by bootstrap bounds.

    `name` says whose random numbers are drawn, `unit` what the values are measured in. ValueError for other shapes, or
    without any pair.
    """
    two_sided = 2 * context.config.confidence - 1  # the interval's ends are one-sided bounds at `confidence`
    drop = statistics.paired_difference(before, after, two_sided, replicates, context.rng(name))
    p_value = statistics.paired_p_below(before, after, limit, replicates, context.rng(name))
    return _judged("bootstrap", drop.low, drop.high, limit, unit, p_value)


def judge_mean(context: Context, values: Floats, limit: float, unit: str) -> Judgement:
    """Whether the mean of independent values (N,) in [0, 1] is at most a limit, by Hoeffding's bounds.

    ValueError without any value, or for one outside [0, 1]. `unit` is what the values are measured in.
    """
    confidence, p_value = context.config.confidence, statistics.bounded_mean_p_below(values, limit)
    low, high = statistics.bounded_mean_lower(values, confidence), statistics.bounded_mean_upper(values, confidence)
    return _judged("hoeffding", low, high, limit, unit, p_value)


def judge_share(context: Context, successes: int, trials: int, limit: float, unit: str) -> Judgement:
    """Whether the probability of what happened in some of the trials is at most a limit, by Clopper-Pearson bounds.

    ValueError without any trial. `unit` is what the probability is of.
    """
    low = statistics.clopper_pearson_lower(successes, trials, context.config.confidence)
    high = statistics.clopper_pearson_upper(successes, trials, context.config.confidence)
    return _judged("clopper-pearson", low, high, limit, unit, statistics.binomial_p_below(successes, trials, limit))


def _judged(kind: str, low: float, high: float, limit: float, unit: str, p_value: float) -> Judgement:
    """By one-sided bounds, from below and above, of what is to be at most the limit."""
    verdict = Verdict.SUPPORTED if high <= limit else Verdict.REFUTED if low > limit else Verdict.UNDECIDED
    end, measured = ("lower", low) if verdict is Verdict.REFUTED else ("upper", high)
    return Judgement(verdict, Bound(kind=f"{kind} {end}", measured=measured, limit=limit, unit=unit), p_value)


def return_limit(before: Floats, share: float) -> float:
    """A share of the absolute mean of returns `before` (N,), in units of return; above 0."""
    return share * max(abs(float(before.mean())), 1e-9)


def least_return(episodes: Sequence[Episode], share: float) -> ConstraintConfig:
    """The limit that an episode breaks whose return is lower than the mean of these by more than a share of its size.

    How many may is not said.
    """
    before = np.array([episode.episode_return for episode in episodes])
    low = float(before.mean()) - return_limit(before, share)
    return ConstraintConfig(name="least_return", quantity="return", low=low, max_probability=0.5)
