"""Two versions beside each other in production: return, cost, and how often limits are broken.

Agents are assigned, so agents are counted (`loomrl.promotion.comparison.agents`): those that one experiment dealt to
either version. The level is divided among the quantities, and each quantity's part among the stages. Two claims are
made, each at the level: that the versions differ (`loomrl.statistics.assignment.log_evidence`), and between what their
difference lies (`mean_bounds`). What has not ended enters with both ends of what it can become.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from loomrl.environment.quantities import kind_of
from loomrl.errors import ConfigError
from loomrl.promotion.comparison.agents import AgentComparison, Interval, Stage, seconds, trial_of
from loomrl.promotion.comparison.config import ComparisonConfig
from loomrl.promotion.comparison.window import WindowEpisode
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import violations
from loomrl.statistics.assignment import Booleans, Units, log_evidence, mean_bounds
from loomrl.system.schema import Document

REWARD, COST = "reward", "cost"
UNKNOWN: Interval = (-math.inf, math.inf)
FEWEST_AGENTS = 20  # two blocks, below which no evidence reaches the level; see `loomrl.statistics.assignment`
_GIVEN_UP = 2.0  # times the longest episode


class Difference(Document):
    """The challenger's mean minus the champion's, of one quantity: "reward", "cost" or "limits.NAME" of an agent.

    `low` and `high` bound it at every look, over the first `num_agents` agents with `num_episodes` episodes each;
    values are taken to lie from `least` to `greatest`, and `num_clipped` lay outside, `num_flattered` of them so that
    the challenger looks better than it was. Means are of values that are known, None where none is; `num_unfinished`
    agents have no settled value. `differs` says where challengers' agents are, beyond chance; None: not
    shown. Where `unit` is "episode", the document is from before agents were counted.
    """

    quantity: str  # "reward", "cost" or "limits.NAME"
    better: Literal["higher", "lower"]
    least: float  # of the range that values are taken to lie in
    greatest: float
    num_champion: int  # agents; of documents from before agents were counted, episodes
    num_challenger: int
    num_pairs: int = 0  # of documents from before agents were counted
    num_clipped: int  # values outside of the range
    num_flattered: int = Field(default=0, exclude_if=lambda count: count == 0)  # those whose end favours the challenger
    champion_mean: float | None  # of the values that are known
    challenger_mean: float | None
    low: float  # bounds of the difference, at every look
    high: float
    unit: Literal["episode", "agent"] = "episode"
    num_agents: int = 0  # the first so many, whose mean difference is bounded
    num_episodes: int = 0  # of each agent that the bounds are about
    num_unfinished: int = 0  # agents whose value is not settled yet
    differs: Literal["higher", "lower"] | None = None  # challengers' agents, where that is beyond chance

    @property
    def finding(self) -> str:
        """What the difference says of the challenger: `better`, `worse`, or `undecided`."""
        differs = self.differs
        if self.unit == "episode" and not self.low <= 0.0 <= self.high:
            differs = "higher" if self.low > 0.0 else "lower"
        if differs is None:
            return "undecided"
        return "better" if differs == self.better else "worse"


class LiveComparison(Document):
    """What production showed of two versions, all differences together at `confidence`.

    `not_compared` says why a quantity is not in `differences`; `experiments` are those that dealt both versions, `logs`
    those that were read. `refused` says why nothing is claimed, None where something is.
    """

    champion_version: str
    challenger_version: str
    confidence: float
    explored: bool
    differences: list[Difference]
    not_compared: dict[str, str] = Field(default_factory=dict)  # quantity -> why
    experiments: list[str] = Field(default_factory=list)  # in which both were dealt
    logs: list[str] = Field(default_factory=list)  # "POLICY/CHAIN" that were read
    refused: str | None = None  # why nothing is claimed

    def without_claims(self, why: str) -> "LiveComparison":
        """The same with the widest bounds and no finding, and `why` as `refused`: where something is missing that could
        change every finding."""
        nothing = [
            one.model_copy(update={"low": one.least - one.greatest, "high": one.greatest - one.least, "differs": None})
            for one in self.differences
        ]
        return self.model_copy(update={"differences": nothing, "refused": why})

    def of(self, quantity: str) -> Difference | None:
        """The difference in one quantity, or None if it was not compared."""
        return next((one for one in self.differences if one.quantity == quantity), None)


@dataclass(frozen=True)
class Known:
    """What the values of unfinished episodes depend on: the time `now`, POSIX seconds, and the most steps an episode
    can have, None without a limit."""

    now: float  # POSIX time
    max_episode_steps: int | None = None  # None: episodes have no longest one


@dataclass(frozen=True)
class _Quantity:
    name: str
    better: Literal["higher", "lower"]
    span: Interval
    of: Callable[[WindowEpisode], Interval]  # what is known of an episode's value; UNKNOWN where nothing is

    def once(self) -> "_Quantity":
        """The same, with each episode looked at once: several stages ask about it."""
        known: dict[int, Interval] = {}

        def of(episode: WindowEpisode) -> Interval:
            if id(episode) not in known:
                known[id(episode)] = self.of(episode)
            return known[id(episode)]

        return replace(self, of=of)

    def within_span(self, episode: WindowEpisode) -> Interval:
        """The same, between the ends of the span where nothing is known."""
        known = self.of(episode)
        return self.span if known == UNKNOWN else known


def compare_live(
    episodes: Sequence[WindowEpisode],
    versions: tuple[str, str],
    constraints: Sequence[ConstraintConfig],
    config: ComparisonConfig,
    return_range: tuple[float, float],
    on: str | None = None,
    known: Known | None = None,
) -> LiveComparison:
    """Compare champion and challenger, as named by `versions`, by all quantities or the one named by `on`.

    `return_range` is the least and the greatest return; values beyond count as its ends. Where no number of episodes of
    these agents could decide, `refused` says why. Without `known` no episode counts as given up.

    Raises:
        ConfigError: for a quantity there is not; names those there are.
    """
    known = known or Known(now=0.0)
    trial = trial_of(episodes, *versions, config.explored)
    for agent in trial.agents:
        agent.episodes = [_as_given_up(episode, config, known) for episode in agent.episodes]
    quantities, missing = _quantities(trial, constraints, config, return_range, known)
    if on is not None:
        quantities = [one for one in quantities if one.name == on]
        if not quantities:
            names = ", ".join([REWARD, COST, *(f"limits.{one.name}" for one in _shown(constraints))])
            raise ConfigError(f"{on!r} cannot be compared{': ' + missing[on] if on in missing else ''}; known: {names}")
    alpha = (1.0 - config.confidence) / len(quantities)
    found = LiveComparison(
        champion_version=versions[0],
        challenger_version=versions[1],
        confidence=config.confidence,
        explored=config.explored,
        differences=[_difference(one.once(), trial, alpha) for one in quantities],
        not_compared=missing if on is None else {},
        experiments=sorted({agent.assignment.experiment for agent in trial.agents}),
        refused=_why_nothing(trial),
    )
    contrary = [
        f"{one.quantity} by at least {one.low:g} and at most {one.high:g}"
        for one in found.differences
        if one.low > one.high
    ]
    if contrary and found.refused is None:
        return found.without_claims(
            f"bounds contradict each other: means differ in {'; in '.join(contrary)}. Agents were not dealt, or did "
            "not come, as records say: deal them anew with `loomrl plan split --experiment NAME`"
        )
    return found


def _why_nothing(trial: AgentComparison) -> str | None:
    """Why no number of episodes of these agents could decide."""
    champion, challenger = trial.counts()
    if champion and challenger:
        if len(trial.agents) >= FEWEST_AGENTS:
            return None
        return (
            f"{len(trial.agents)} agents were dealt to the two versions; below {FEWEST_AGENTS} chance cannot be told "
            "from a difference: deal more, or the same ones anew with `loomrl plan split --experiment NAME`"
        )
    found = f"no experiment dealt agents to both {trial.champion} and {trial.challenger}"
    begin = f"loomrl plan split --version {trial.challenger} --fraction 0.5"
    if not trial.cut:
        return f"{found}: begin one with `{begin}`"
    removed = f"who was dealt first in {', '.join(trial.cut)} stood in segments of the log that were removed"
    return f"{found} ({removed}): begin one with `{begin} --experiment NAME`"


# --- quantities ---------------------------------------------------------------------------------------------------


def _quantities(
    trial: AgentComparison,
    constraints: Sequence[ConstraintConfig],
    config: ComparisonConfig,
    return_range: tuple[float, float],
    known: Known,
) -> tuple[list[_Quantity], dict[str, str]]:
    """What is compared, and why something is not."""
    of_return = partial(_return, config=config, known=known)
    found = [_Quantity(REWARD, "higher", return_range, of_return)]
    missing = {}
    if not any(episode.costs for agent in trial.agents for episode in agent.episodes):
        missing[COST] = "no feedback tells a `cost`"
    elif config.cost_range is None:
        missing[COST] = "set `cost_range` to the least and the greatest cost of an episode"
    else:
        found.append(_Quantity(COST, "lower", config.cost_range, partial(_cost, config=config, known=known)))
    limits, left = _shown(constraints), _left(trial)

    def is_over(episode: WindowEpisode) -> bool:
        return episode.ended or id(episode) in left or _is_given_up(episode, config, known)

    found += [
        _Quantity(f"limits.{one.name}", "lower", (0.0, 1.0), partial(_broken, one, is_over=is_over)) for one in limits
    ]
    for one in constraints:
        if one not in limits:
            missing[f"limits.{one.name}"] = f"decisions do not show {one.quantity}"
    return found, missing


def _shown(constraints: Sequence[ConstraintConfig]) -> list[ConstraintConfig]:
    return [one for one in constraints if kind_of(one.quantity) in ("observation", "action")]


def _return(episode: WindowEpisode, config: ComparisonConfig, known: Known) -> Interval:
    if (whole := episode.episode_return) is not None:
        return whole, whole
    rewards = [reward for reward in episode.rewards.values() if reward is not None]
    earned = sum(rewards)
    if _is_given_up(episode, config, known):
        missing = len(episode.rewards) - len(rewards)  # of decisions: what they led to may be why it never came
        worst = missing * (0.0 if config.reward_range is None else config.reward_range[0])
        return earned + worst, earned + worst
    if config.reward_range is None or (known.max_episode_steps is None and not episode.ended):
        return UNKNOWN
    least, greatest = config.reward_range
    fewest = len(episode.rewards) - len(rewards)  # rewards to come, where it ends with the decisions there are
    most = fewest if episode.ended else max((known.max_episode_steps or 0) - len(rewards), fewest)
    return earned + min(least * most, least * fewest), earned + max(greatest * most, greatest * fewest)


def _cost(episode: WindowEpisode, config: ComparisonConfig, known: Known) -> Interval:
    if (whole := episode.episode_cost) is not None:
        return whole, whole
    if not (_is_given_up(episode, config, known) and episode.costs) or config.cost_range is None:
        return UNKNOWN
    told = sum(episode.costs.values())
    is_told = len(episode.costs) == len(episode.rewards)  # else what it led to may be why the rest never came
    return (told, told) if is_told else (max(told, config.cost_range[1]),) * 2


def _left(trial: AgentComparison) -> set[int]:
    """Episodes without any feedback whose agent has begun another: no decision is to come."""
    return {id(one) for agent in trial.agents for one in agent.episodes[:-1] if not one.can_end}


def _broken(limit: ConstraintConfig, episode: WindowEpisode, is_over: Callable[[WindowEpisode], bool]) -> Interval:
    """Whether the episode breaks the limit, or the share of its steps that do: a broken one stays broken."""
    if not episode.observations:
        return 0.0, 1.0
    share = float(np.mean(violations(limit, episode.as_episode())))
    if limit.per == "step":
        return (share, share) if is_over(episode) else (0.0, 1.0)
    return (1.0, 1.0) if share > 0.0 else (0.0, 0.0 if is_over(episode) else 1.0)


def _is_given_up(episode: WindowEpisode, config: ComparisonConfig, known: Known) -> bool:
    longest = config.longest_episode_seconds
    return longest is not None and known.now - seconds(episode.began) > _GIVEN_UP * longest


def _as_given_up(episode: WindowEpisode, config: ComparisonConfig, known: Known) -> WindowEpisode:
    """What was known of it then: a value that went on changing would be another chance of a wrong finding each time."""
    if config.longest_episode_seconds is None or not _is_given_up(episode, config, known):
        return episode
    then = datetime.fromisoformat(episode.began) + timedelta(seconds=_GIVEN_UP * config.longest_episode_seconds)
    return episode.known_until(then.isoformat(timespec="microseconds"))


# --- differences --------------------------------------------------------------------------------------------------


def _difference(quantity: _Quantity, trial: AgentComparison, alpha: float) -> Difference:
    least, greatest = quantity.span
    stages = [(stage, trial.units(stage, quantity.within_span, quantity.span)) for stage in trial.stages()]
    unbounded = [(stage, trial.units(stage, quantity.of, UNKNOWN)) for stage, _ in stages]
    clipped = [(stage, _clipped(units, quantity.span)) for stage, units in stages]
    bounds = [mean_bounds(units, quantity.span, 1.0 - alpha * stage.share) for stage, units in clipped]
    best = min(range(len(bounds)), key=lambda place: bounds[place].high - bounds[place].low)
    units = stages[best][1]
    is_known = units.low == units.high
    below, above = is_known & (units.low < least), is_known & (units.low > greatest)
    worse, better = (below, above) if quantity.better == "higher" else (above, below)
    champion, challenger = trial.counts()
    return Difference(
        quantity=quantity.name,
        better=quantity.better,
        least=least,
        greatest=greatest,
        num_champion=champion,
        num_challenger=challenger,
        num_clipped=int(np.sum(below | above)),
        num_flattered=int(np.sum((worse & units.is_challenger) | (better & ~units.is_challenger))),
        champion_mean=_mean(units, is_known & ~units.is_challenger),
        challenger_mean=_mean(units, is_known & units.is_challenger),
        low=bounds[best].low,
        high=bounds[best].high,
        unit="agent",
        num_agents=bounds[best].num_units,
        num_episodes=stages[best][0].num_episodes,
        num_unfinished=int(np.sum(~is_known)),
        differs=_differs(unbounded, alpha),
    )


def _differs(stages: Sequence[tuple[Stage, Units]], alpha: float) -> Literal["higher", "lower"] | None:
    """Whether challengers' agents are beyond chance, by the last stage that tells.

    Ranks tell it, so that the means of what is known must not say the contrary.
    """
    found: Literal["higher", "lower"] | None = None
    for stage, units in stages:
        enough = math.log(2.0 / (alpha * stage.share))
        greater, smaller = log_evidence(units)
        sign = _known_sign(units)
        if greater >= enough and sign >= 0.0:
            found = "higher"
        elif smaller >= enough and sign <= 0.0:
            found = "lower"
    return found


def _known_sign(units: Units) -> float:
    """Of the difference of the means of what is known; 0 where one of them is not."""
    is_known = units.low == units.high
    means = [_mean(units, is_known & chosen) for chosen in (units.is_challenger, ~units.is_challenger)]
    return 0.0 if means[0] is None or means[1] is None else float(np.sign(means[0] - means[1]))


def _clipped(units: Units, span: Interval) -> Units:
    return Units(units.is_challenger, units.probability, units.low.clip(*span), units.high.clip(*span))


def _mean(units: Units, chosen: Booleans) -> float | None:
    return float(units.low[chosen].mean()) if chosen.any() else None
