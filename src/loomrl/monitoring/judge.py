"""Judging the episodes of one look: limits, finiteness, return. Claims as the gate makes them, on live data.

The episode is the unit, not the decision: its steps depend on each other, different episodes are taken as independent.
Limits are those a decision shows, on what it observed and what it chose, judged as the gate judges them: exact
one-sided bounds over episodes (Clopper-Pearson; per step Hoeffding's), at a level divided by the number of limits, so
that all together raise a false alarm in at most 1 - confidence of the looks. Many looks raise more.
"""

from collections.abc import Sequence

import numpy as np

from loomrl.config import PolicyConfig
from loomrl.evaluation.statistics import bootstrap_interval, mean
from loomrl.monitoring.window import LiveEpisode
from loomrl.safety.checks.statistical_limits import Sample
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import limits, quantity_kind, violations
from loomrl.types import Bound, Claim, Interval, Verdict

STAGE = "monitoring"


def judge(config: PolicyConfig, episodes: Sequence[LiveEpisode], evaluated: Interval) -> list[Claim]:
    """All claims these episodes decide on; `evaluated` is the mean return of the champion's own evaluation.

    Fewer than `monitoring.min_episodes` decide only whether everything is finite: one number that is not, is enough.
    """
    if not episodes:
        return []
    claims = [_finiteness(episodes)]
    if len(episodes) >= config.monitoring.min_episodes:
        shown = [limit for limit in config.safety.constraints if quantity_kind(limit) in ("observation", "action")]
        level = 1.0 - (1.0 - config.monitoring.confidence) / max(1, len(shown))
        claims += [_limit(limit, episodes, level) for limit in shown]
    returns = [value for episode in episodes if (value := episode.episode_return) is not None]
    if len(returns) >= config.monitoring.min_episodes:
        claims.append(_return(config, returns, evaluated))
    return claims


def _finiteness(episodes: Sequence[LiveEpisode]) -> Claim:
    broken = sum(episode.num_not_finite for episode in episodes)
    count = sum(len(episode.actions) for episode in episodes)
    return _claim(
        "finiteness",
        "observation, action and value of every decision are finite",
        "count",
        Verdict.REFUTED if broken else Verdict.SUPPORTED,
        Bound(kind="count", measured=broken, limit=0, unit="decisions"),
        count,
        f"{broken} of {count} decisions hold a number that is not finite",
    )


def _limit(limit: ConstraintConfig, episodes: Sequence[LiveEpisode], level: float) -> Claim:
    share = np.array([np.mean(violations(limit, episode.as_episode())) for episode in episodes])  # (N,)
    sample = Sample(limit, (share > 0).astype(np.float64) if limit.per == "episode" else share)
    low, high, allowed = sample.lower(level), sample.upper(level), limit.max_probability
    verdict = Verdict.REFUTED if low > allowed else Verdict.SUPPORTED if high <= allowed else Verdict.UNDECIDED
    kind, unit = ("clopper-pearson", "episodes") if sample.binary else ("hoeffding", "share of steps")
    return _claim(
        f"limits.{limit.name}",
        f"{limit.quantity} is {limits(limit)}, as decisions show it",
        f"one-sided {kind} bounds over episodes at confidence {level:.6g}",
        verdict,
        Bound(kind=f"{kind} lower", measured=low, limit=allowed, unit=unit),
        len(episodes),
        f"{sample.violating} of {len(episodes)} episodes violate: between {low:.4g} and {high:.4g}",
    )


def _return(config: PolicyConfig, returns: Sequence[float], evaluated: Interval) -> Claim:
    """Interval against interval; as much is allowed as promotion allows a challenger to be worse than the champion."""
    evaluation, promotion = config.evaluation, config.promotion
    margin = max(promotion.max_regression, promotion.max_regression_fraction * abs(evaluated.estimate))
    live = bootstrap_interval(
        returns, mean, evaluation.confidence, evaluation.bootstrap_replicates, np.random.default_rng(0)
    )
    allowed = evaluated.low - margin
    verdict = Verdict.REFUTED if live.high < allowed else Verdict.UNDECIDED
    return _claim(
        "return",
        f"the mean return is no more than {margin:.4g} below that of the evaluation",
        f"{live.method} at confidence {live.confidence:g}, against that of the evaluation",
        Verdict.SUPPORTED if live.low >= allowed else verdict,
        Bound(kind="upper end of the interval", measured=live.high, limit=allowed, unit="return"),
        len(returns),
        f"{live.estimate:.4g} [{live.low:.4g}, {live.high:.4g}], evaluated {evaluated.estimate:.4g} "
        f"[{evaluated.low:.4g}, {evaluated.high:.4g}]",
    )


def _claim(
    name: str, statement: str, method: str, verdict: Verdict, bound: Bound, num_samples: int, finding: str
) -> Claim:
    return Claim(
        id=name,
        stage=STAGE,
        statement=statement,
        mandatory=True,
        method=method,
        verdict=verdict,
        bound=bound,
        num_samples=num_samples,
        finding=finding,
    )
