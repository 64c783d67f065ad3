"""Judging the episodes of one look: limits, finiteness, return. Claims as the gate makes them, on live data.

The agent is the unit where there are several (`loomrl.serving.guardian.units`): agents differ, one may be broken, and
the episodes of one agent depend on each other. Of an agent each episode counts once, however many looks it lies across,
and what was not seen of it counts in the version's favour: until it has ended it breaks no limit per step, and nothing
is missing of its return (`loomrl.monitoring.gathered`). Limits are those a decision shows, on what it observed and what
it chose.

What is bet against: "but for a few agents, the mean over agents of what they show is at most the limit"; of returns,
"... of what is missing up to the best return is at most what may be missing". Every look adds to the evidence of those
before it about the same version, and the level is divided among the limits and the return: the chance that a version
that keeps its promises is ever called degraded stays below 1 - confidence, however often it is looked at, while its
limits stay what they are.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from loomrl.environment.quantities import kind_of
from loomrl.monitoring.gathered import RETURN, JudgedEpisode, LimitTally, LookEvidence, about
from loomrl.promotion.comparison.window import Key, WindowEpisode
from loomrl.runs.config import PolicyConfig
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import limits
from loomrl.types import Bound, Claim, Interval, Verdict

STAGE = "monitoring"
_LEAST = 1e-3  # that what may be missing of a return is away from none and all of it
_claim = partial(Claim, stage=STAGE, mandatory=True)


def judge(
    config: PolicyConfig,
    episodes: Sequence[WindowEpisode],
    evaluated: Interval,
    span: tuple[float, float],
    gathered: LookEvidence,
    taken: Collection[Key] = (),
) -> tuple[list[Claim], LookEvidence]:
    """All claims these episodes and what was gathered before decide on, and what is gathered then.

    Without any episode there is no claim, and what was gathered is returned as it is. Fewer than
    `monitoring.min_episodes` decide only whether everything is finite: one number that is not, is enough.

    Args:
        evaluated: the mean return of the champion's own evaluation.
        span: the least and the greatest return there can be.
        taken: agents and ids of which others went on with what had not ended.

    Raises:
        ConfigError: when an episode has no such component as a limit is on.
    """
    if not episodes:
        return [], gathered
    claims = [_finiteness(episodes)] if any(episode.actions for episode in episodes) else []
    is_finite = all(claim.verdict is not Verdict.REFUTED for claim in claims)
    if len(episodes) < config.monitoring.min_episodes and is_finite:
        return claims, gathered
    shown = [limit for limit in config.safety.constraints if kind_of(limit.quantity) in ("observation", "action")]
    alpha = (1.0 - config.monitoring.confidence) / (len(shown) + 1)
    returns = _Returns.of(config, evaluated, span)
    gathered = gathered.against({about(one): one.max_probability for one in shown} | {RETURN: returns.limit})
    heard, tallies = gathered.heard(episodes, shown, taken), dict[str, LimitTally]()
    for limit in shown:
        of = about(limit)
        if of not in tallies:  # one limit may have two names
            tallies[of] = _counted(gathered.tallies[of], of, heard, partial(JudgedEpisode.broken, limit=limit))
        claims.append(_limit(limit, tallies[of], alpha))
    whole = [one.whole_return for one in heard if RETURN in one.places and one.whole_return is not None]
    tallies[RETURN] = _counted(gathered.tallies[RETURN], RETURN, heard, returns.missing)
    claims.append(_return(returns, tallies[RETURN], whole, alpha))
    return claims, gathered.after(tallies, heard)


def _counted(
    before: LimitTally,
    of: str,
    heard: Sequence[JudgedEpisode],
    value_of: Callable[[JudgedEpisode], float | None],
) -> LimitTally:
    """A tally that has also counted what one look tells of these episodes; they know their places then.

    `value_of` is None while the value is not known: it counts as 0, and its place is kept for it.
    """
    waiting = [one for one in heard if of in one.places]
    values = [value_of(one) for one in waiting]
    tally, places = before.updated(
        (one.agent_id, one.places[of], value or 0.0) for one, value in zip(waiting, values, strict=True)
    )
    for one, value, place in zip(waiting, values, places, strict=True):
        is_new, one.places[of] = one.places[of] == 0, place
        tally.num_unknown += is_new - (value is not None)
        if value is not None:
            del one.places[of]
    return tally


def _finiteness(episodes: Sequence[WindowEpisode]) -> Claim:
    broken = sum(episode.num_not_finite for episode in episodes if episode.actions)
    count = sum(len(episode.actions) for episode in episodes)
    return _claim(
        id="finiteness",
        statement="observation, action and value of every decision are finite",
        method="count",
        verdict=Verdict.REFUTED if broken else Verdict.SUPPORTED,
        bound=Bound(kind="count", measured=broken, limit=0, unit="decisions"),
        num_samples=count,
        finding=f"{broken} of {count} decisions hold a number that is not finite",
    )


def _limit(limit: ConstraintConfig, tally: LimitTally, alpha: float) -> Claim:
    e_value = tally.monitor.e_value
    what = "episodes violate" if limit.per == "episode" else "steps violate, averaged over episodes"
    return _claim(
        id=f"limits.{limit.name}",
        statement=f"{limit.quantity} is {limits(limit)}, as decisions show it",
        method=f"bets against the limit, agent by agent, over all looks at this version, at a level of {alpha:.3g}",
        verdict=Verdict.REFUTED if e_value >= 1.0 / alpha else Verdict.UNDECIDED,
        bound=Bound(kind="e-value", measured=e_value, limit=1.0 / alpha, unit="e-value"),
        num_samples=tally.count,
        finding=f"{tally.mean:.2%} of {what}, in {tally.count} episodes of {_agents(tally)}{_unknown(tally)}; "
        f"{limit.max_probability:.2%} may",
    )


@dataclass(frozen=True)
class _Returns:
    """What is known of returns before anything was seen, and what may be missing of them up to the best one."""

    evaluated: Interval
    margin: float  # that promotion allows a challenger to be worse, and so is allowed here
    low: float
    high: float

    @classmethod
    def of(cls, config: PolicyConfig, evaluated: Interval, span: tuple[float, float]) -> "_Returns":
        promotion = config.promotion
        margin = max(promotion.max_regression, promotion.max_regression_fraction * abs(evaluated.estimate))
        return cls(evaluated, margin, *span)

    @property
    def allowed(self) -> float:
        return self.evaluated.low - self.margin

    @property
    def limit(self) -> float:
        return min(max((self.high - self.allowed) / (self.high - self.low), _LEAST), 1.0 - _LEAST)

    def missing(self, episode: JudgedEpisode) -> float | None:
        """Between 0 and 1; None while the whole return is not known."""
        value = episode.whole_return
        return None if value is None else min(max((self.high - value) / (self.high - self.low), 0.0), 1.0)


def _return(returns: _Returns, tally: LimitTally, whole: Sequence[float], alpha: float) -> Claim:
    """`whole` are the returns that this look came to know."""
    e_value, evaluated = tally.monitor.e_value, returns.evaluated
    seen = f"a mean of {np.mean(whole):.4g} over {len(whole)} whole episodes" if whole else "no whole episode"
    return _claim(
        id=RETURN,
        statement=f"the mean return is no more than {returns.margin:.4g} below that of the evaluation",
        method=f"bets against what is missing up to {returns.high:.4g}, agent by agent, over all looks, at a level of "
        f"{alpha:.3g}",
        verdict=Verdict.REFUTED if e_value >= 1.0 / alpha else Verdict.UNDECIDED,
        bound=Bound(kind="e-value", measured=e_value, limit=1.0 / alpha, unit="e-value"),
        num_samples=len(whole),
        finding=f"{seen} of {_agents(tally)}; evaluated {evaluated.estimate:.4g} "
        f"[{evaluated.low:.4g}, {evaluated.high:.4g}], {returns.allowed:.4g} may be",
    )


def _agents(tally: LimitTally) -> str:
    count = len(tally.episodes)
    return "1 agent" if count == 1 else f"{count} agents"


def _unknown(tally: LimitTally) -> str:
    count = tally.num_unknown
    return f", {count} of which are not known to have ended and count as 0" if count else ""
