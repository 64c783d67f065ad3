"""Judging the episodes of one look: limits, finiteness, return. Claims as the gate makes them, on live data.

The episode is the unit, not the decision: its steps depend on each other, different episodes are taken as independent.
An episode counts once: its first part, which violates a limit no more often than the whole, and for a limit per step
only when it was seen whole. Limits are those a decision shows, on what it observed and what it chose. Every look adds
to the evidence of those before it about the same version (`loomrl.sequential`), and the level is divided among the
limits and the return: the chance that a version that keeps its promises is ever called degraded stays below
1 - confidence, however often it is looked at.
"""

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from loomrl.config import PolicyConfig
from loomrl.environment.quantities import kind_of
from loomrl.monitoring.window import LiveEpisode
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import limits, violations
from loomrl.schema import Document
from loomrl.sequential import LimitTest, spent
from loomrl.types import Bound, Claim, Interval, Verdict

STAGE = "monitoring"


class Evidence(Document):
    """What the looks at one version have gathered."""

    num_looks: int = 0  # that judged a return
    limits: dict[str, LimitTest] = Field(default_factory=dict)  # by what they are about


def judge(
    config: PolicyConfig, episodes: Sequence[LiveEpisode], evaluated: Interval, gathered: Evidence
) -> tuple[list[Claim], Evidence]:
    """All claims these episodes and what was gathered before decide on, and what is gathered then.

    `evaluated` is the mean return of the champion's own evaluation. Fewer than `monitoring.min_episodes` decide only
    whether everything is finite: one number that is not, is enough.
    """
    if not episodes:
        return [], gathered
    claims = [_finiteness(episodes)]
    if len(episodes) < config.monitoring.min_episodes and claims[0].verdict is not Verdict.REFUTED:
        return claims, gathered
    shown = [limit for limit in config.safety.constraints if kind_of(limit.quantity) in ("observation", "action")]
    alpha = (1.0 - config.monitoring.confidence) / (len(shown) + 1)
    tests = {_about(limit): _updated(limit, episodes, gathered) for limit in shown}
    claims += [_limit(limit, tests[_about(limit)], alpha) for limit in shown]
    num_looks = gathered.num_looks
    returns = [value for episode in episodes if (value := episode.episode_return) is not None]
    if len(returns) >= config.monitoring.min_episodes:
        num_looks += 1
        claims.append(_return(config, returns, evaluated, spent(alpha, num_looks)))
    return claims, Evidence(num_looks=num_looks, limits=tests)


def _about(limit: ConstraintConfig) -> str:
    """What evidence is about: a limit that is changed begins anew, whatever it is called."""
    return f"{limit.quantity} {limits(limit)} per {limit.per} at {limit.max_probability!r}"


def _updated(limit: ConstraintConfig, episodes: Sequence[LiveEpisode], gathered: Evidence) -> LimitTest:
    """The limit's test with these episodes; one of another limit is begun anew."""
    test = gathered.limits.get(_about(limit), LimitTest(limit=limit.max_probability))
    per_episode = limit.per == "episode"
    counted = [one for one in episodes if not one.cut and (per_episode or one.ended or not one.can_end)]
    share = np.array([np.mean(violations(limit, one.as_episode())) for one in counted])  # (N,)
    return test.updated((share > 0).astype(np.float64) if per_episode else share)


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


def _limit(limit: ConstraintConfig, test: LimitTest, alpha: float) -> Claim:
    refuted = test.e_value >= 1.0 / alpha
    what = "episodes violate" if limit.per == "episode" else "steps violate, averaged over episodes"
    return _claim(
        f"limits.{limit.name}",
        f"{limit.quantity} is {limits(limit)}, as decisions show it",
        f"bets against the limit, over all episodes of this version, at a level of {alpha:.3g}",
        Verdict.REFUTED if refuted else Verdict.UNDECIDED,
        Bound(kind="e-value", measured=test.e_value, limit=1.0 / alpha, unit="e-value"),
        test.count,
        f"{test.mean:.2%} of {what}, in {test.count} episodes; {limit.max_probability:.2%} may",
    )


def _return(config: PolicyConfig, returns: Sequence[float], evaluated: Interval, alpha: float) -> Claim:
    """The mean of this look's returns; as much less is allowed as promotion allows a challenger to be worse."""
    from scipy.special import stdtrit

    promotion = config.promotion
    margin = max(promotion.max_regression, promotion.max_regression_fraction * abs(evaluated.estimate))
    sample = np.array(returns)
    mean, error = float(sample.mean()), float(sample.std(ddof=1)) / math.sqrt(len(sample))
    reach = float(stdtrit(len(sample) - 1, 1.0 - alpha)) * error
    low, high, allowed = mean - reach, mean + reach, evaluated.low - margin
    verdict = Verdict.REFUTED if high < allowed else Verdict.UNDECIDED
    return _claim(
        "return",
        f"the mean return is no more than {margin:.4g} below that of the evaluation",
        f"one-sided t bounds of this look's episodes at a level of {alpha:.3g}, against the evaluation's interval",
        Verdict.SUPPORTED if low >= allowed else verdict,
        Bound(kind="t upper", measured=high, limit=allowed, unit="return"),
        len(returns),
        f"{mean:.4g} [{low:.4g}, {high:.4g}], evaluated {evaluated.estimate:.4g} "
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
