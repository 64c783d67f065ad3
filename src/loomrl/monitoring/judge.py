"""Judging the episodes of one look: limits, finiteness, return. Claims as the gate makes them, on live data.

The agent is the unit where there are several (`loomrl.serving.guardian.units`): agents differ, one may be broken, and
the episodes of one agent depend on each other. Of an agent each episode counts once, and what is not seen of it counts
in the version's favour: its first part, which violates a limit no more often than the whole; nothing for a limit per
step, and nothing missing of the return, until it was seen whole. So episodes that take long leave no others to be
judged in their place. Limits are those a decision shows, on what it observed and what it chose.

What is bet against: "but for a few agents, the mean over agents of what they show is at most the limit"; of returns,
"... of what is missing up to the best return is at most what may be missing". Every look adds to the evidence of those
before it about the same version, and the level is divided among the limits and the return: the chance that a version
that keeps its promises is ever called degraded stays below 1 - confidence, however often it is looked at.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from pydantic import Field, model_validator

from loomrl.environment.quantities import kind_of
from loomrl.promotion.comparison.window import WindowEpisode
from loomrl.runs.config import PolicyConfig
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import limits, violations
from loomrl.serving.guardian.monitor import Agents, Monitor, ValuePlace
from loomrl.serving.guardian.units import FEW, num_left_out
from loomrl.system.schema import Document
from loomrl.types import Bound, Claim, Interval, Json, Verdict

STAGE = "monitoring"
_RETURN = "return"
_LEAST = 1e-3  # that what may be missing of a return is away from none and all of it
_claim = partial(Claim, stage=STAGE, mandatory=True)
_BEFORE = "limits"  # where looks kept what decisions counted one by one; it is begun anew


@dataclass
class LimitTally:
    """What agents showed in all looks, episode by episode, against one limit.

    `monitor` holds the evidence, `episodes` the number of each agent's episodes.
    """

    monitor: Monitor
    episodes: dict[str, int] = field(default_factory=dict)  # agent -> number of its episodes
    num_looks: int = 0

    @classmethod
    def at(cls, limit: float) -> "LimitTally":
        """A tally against this limit that has counted no episode yet."""
        return cls(Monitor(limit, threshold=0.0, block=1))

    def updated(self, values: Iterable[tuple[str, float]]) -> "LimitTally":
        """A new tally that has also counted one look's episodes; this one is left as it is.

        `values` are the agent and the value in [0, 1] of each episode, in their order.
        """
        found, seen = deepcopy(self), Counter[str]()
        found.monitor.window = {}
        for agent, value in values:
            seen[agent] += 1
            number = found.episodes[agent] = found.episodes.get(agent, 0) + 1
            if value > 0.0:
                place = ValuePlace(number, seen[agent], 1, has_blocks=len(found.episodes) < FEW)
                found.monitor.add(agent, value, place)
        agents = Agents(
            counts=(self.episodes, seen),
            unnamed=dict.fromkeys(found.episodes, False),
            window_number=found.num_looks,
            of_episodes=True,
            left_out=num_left_out(len(found.episodes), is_alone=True),
        )
        found.num_looks += 1
        found.monitor.e_value = agents.evidence(found.monitor)
        return found

    @property
    def count(self) -> int:
        """How many episodes were counted, of all agents."""
        return sum(self.episodes.values())

    @property
    def mean(self) -> float:
        """The mean of all episodes' values, between 0 and 1; 0 where there was no episode."""
        return self.monitor.total / max(self.count, 1)


class LookEvidence(Document):
    """What the looks at one version have gathered: a tally for each limit, by what it is about, and one for the
    return."""

    num_looks: int = 0
    tallies: dict[str, LimitTally] = Field(default_factory=dict)  # by what they are about: a limit, or "return"

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, kept: Json) -> Json:
        return {name: value for name, value in kept.items() if name != _BEFORE}


def judge(
    config: PolicyConfig,
    episodes: Sequence[WindowEpisode],
    evaluated: Interval,
    span: tuple[float, float],
    gathered: LookEvidence,
) -> tuple[list[Claim], LookEvidence]:
    """All claims these episodes and what was gathered before decide on, and what is gathered then.

    Without any episode there is no claim, and what was gathered is returned as it is. Fewer than
    `monitoring.min_episodes` decide only whether everything is finite: one number that is not, is enough.

    Args:
        evaluated: the mean return of the champion's own evaluation.
        span: the least and the greatest return there can be.

    Raises:
        ConfigError: when an episode has no such component as a limit is on.
    """
    if not episodes:
        return [], gathered
    claims = [_finiteness(episodes)]
    if len(episodes) < config.monitoring.min_episodes and claims[0].verdict is not Verdict.REFUTED:
        return claims, gathered
    counted = [episode for episode in episodes if not episode.cut]
    shown = [limit for limit in config.safety.constraints if kind_of(limit.quantity) in ("observation", "action")]
    alpha = (1.0 - config.monitoring.confidence) / (len(shown) + 1)
    tallies = {}
    for limit in shown:
        before = gathered.tallies.get(_about(limit), LimitTally.at(limit.max_probability))
        tallies[_about(limit)] = before.updated((one.agent_id, _broken(limit, one)) for one in counted)
        claims.append(_limit(limit, tallies[_about(limit)], alpha))
    tallies[_RETURN], claim = _return(config, counted, evaluated, span, gathered, alpha)
    return [*claims, claim], LookEvidence(num_looks=gathered.num_looks + 1, tallies=tallies)


def _about(limit: ConstraintConfig) -> str:
    """What evidence is about: a limit that is changed begins anew, whatever it is called."""
    return f"{limit.quantity} {limits(limit)} per {limit.per} at {limit.max_probability!r}"


def _broken(limit: ConstraintConfig, episode: WindowEpisode) -> float:
    """Whether an episode broke a limit, or the share of its steps that did."""
    share = float(np.mean(violations(limit, episode.as_episode())))
    if limit.per == "episode":
        return float(share > 0.0)
    return share if episode.ended or not episode.can_end else 0.0


def _finiteness(episodes: Sequence[WindowEpisode]) -> Claim:
    broken = sum(episode.num_not_finite for episode in episodes)
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
        finding=f"{tally.mean:.2%} of {what}, in {tally.count} episodes of {_agents(tally)}; "
        f"{limit.max_probability:.2%} may",
    )


def _return(
    config: PolicyConfig,
    episodes: Sequence[WindowEpisode],
    evaluated: Interval,
    span: tuple[float, float],
    gathered: LookEvidence,
    alpha: float,
) -> tuple[LimitTally, Claim]:
    """As much less is allowed as promotion allows a challenger to be worse."""
    promotion, (low, high) = config.promotion, span
    margin = max(promotion.max_regression, promotion.max_regression_fraction * abs(evaluated.estimate))
    allowed = evaluated.low - margin
    limit = min(max((high - allowed) / (high - low), _LEAST), 1.0 - _LEAST)
    before = gathered.tallies.get(_RETURN)
    if before is None or before.monitor.limit != limit:
        before = LimitTally.at(limit)
    values = [(one.agent_id, one.episode_return) for one in episodes]
    missing = [(agent, 0.0 if value is None else _part(high - value, high - low)) for agent, value in values]
    tally = before.updated(missing)
    returns = [value for _, value in values if value is not None]
    seen = f"a mean of {np.mean(returns):.4g} over {len(returns)} whole episodes" if returns else "no whole episode"
    claim = _claim(
        id=_RETURN,
        statement=f"the mean return is no more than {margin:.4g} below that of the evaluation",
        method=f"bets against what is missing up to {high:.4g}, agent by agent, over all looks, at a level of "
        f"{alpha:.3g}",
        verdict=Verdict.REFUTED if tally.monitor.e_value >= 1.0 / alpha else Verdict.UNDECIDED,
        bound=Bound(kind="e-value", measured=tally.monitor.e_value, limit=1.0 / alpha, unit="e-value"),
        num_samples=len(returns),
        finding=f"{seen} of {_agents(tally)}; evaluated {evaluated.estimate:.4g} "
        f"[{evaluated.low:.4g}, {evaluated.high:.4g}], {allowed:.4g} may be",
    )
    return tally, claim


def _part(value: float, whole: float) -> float:
    return min(max(value / whole, 0.0), 1.0)


def _agents(tally: LimitTally) -> str:
    count = len(tally.episodes)
    return "1 agent" if count == 1 else f"{count} agents"
