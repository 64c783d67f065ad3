"""What looks at a version have gathered: evidence against each limit, and the episodes that have not ended.

An episode takes its place among its agent's when it begins, and counts as 0 there, nothing against the version, until
its value is known; that of one that lies across looks is put in its place then. So no episode is judged in place of
another that takes longer, and the bets of `loomrl.serving.guardian.units` stay below those on complete values.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import Field, model_validator

from loomrl.promotion.comparison.window import Key, WindowEpisode
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import limits, violations
from loomrl.serving.guardian.monitor import Agents, Monitor, ValuePlace
from loomrl.serving.guardian.units import FEW, num_left_out
from loomrl.system.schema import Document
from loomrl.types import Json

RETURN = "return"
_MOST_OPEN = 10_000  # the oldest are waited for no longer: what is not known of them counts as 0 for good
_MOST_UNREWARDED = 1_000  # decisions of an episode; with more it is not waited for
_BEFORE = "limits"  # where looks kept what decisions counted one by one; it is begun anew


def about(limit: ConstraintConfig) -> str:
    """What evidence is about: a limit that is changed begins anew, whatever it is called."""
    return f"{limit.quantity} {limits(limit)} per {limit.per} at {limit.max_probability!r}"


@dataclass
class JudgedEpisode:
    """What all looks saw of one of the version's episodes.

    `places` are its numbers among the agent's in the tallies that do not know its value yet, by what those are about;
    0 where it begins.
    """

    agent_id: str
    episode_id: str | None
    places: dict[str, int]
    num_steps: int = 0
    num_broken: dict[str, int] = field(default_factory=dict)  # steps that broke a limit, by what that is about
    total: float = 0.0  # of its rewards so far
    unrewarded: list[str] = field(default_factory=list)  # decisions whose rewards have not come
    ended: bool = False
    is_told: bool = False  # feedback came, which says when it ends
    is_left: bool = False  # to others: it will not be whole

    @property
    def key(self) -> Key:
        """What tells it apart from others: the ids of its agent and of itself; the latter is None where it has none."""
        return self.agent_id, self.episode_id

    def add(self, part: WindowEpisode, shown: Iterable[ConstraintConfig]) -> "JudgedEpisode | None":
        """Add what one look tells of it; `shown` are the limits that decisions show. Where it ended before the last of
        the decisions that were taken for its own, those after it come back, as the next episode of the agent."""
        for limit in shown if part.actions else ():
            broken = int(np.count_nonzero(violations(limit, part.as_episode())))
            self.num_broken[about(limit)] = self.num_broken.get(about(limit), 0) + broken
        self.num_steps += len(part.actions)
        waiting = set(self.unrewarded)
        self.total += sum(reward for decision, reward in part.rewards_before.items() if decision in waiting)
        self.total += sum(reward for reward in part.rewards.values() if reward is not None)
        rest = None
        if part.ended_by in waiting:
            rest = self._split_off(self.unrewarded[self.unrewarded.index(part.ended_by) + 1 :], part.rewards_before)
        self.unrewarded = [one for one in self.unrewarded if one not in part.rewards_before]
        self.unrewarded += [decision for decision, reward in part.rewards.items() if reward is None]
        self.is_told |= part.can_end
        self.is_left |= part.is_left or len(self.unrewarded) > _MOST_UNREWARDED
        self.ended |= part.ended and not self.is_left
        return rest

    def _split_off(self, later: list[str], told: Mapping[str, float]) -> "JudgedEpisode | None":
        """Take decisions that came after its end out of it. What they broke stays with it: by which of the two it was
        is not known."""
        if not later:
            return None
        rest = JudgedEpisode(self.agent_id, self.episode_id, {}, num_steps=len(later), is_told=True)
        rest.total = sum(told[one] for one in later if one in told)
        rest.unrewarded = [one for one in later if one not in told]
        self.num_steps -= len(later)
        self.total -= rest.total
        self.unrewarded = [one for one in self.unrewarded if one not in set(later)]
        return rest

    @property
    def whole_return(self) -> float | None:
        """The undiscounted return; None where the whole episode with all its rewards was not seen."""
        return self.total if self.ended and not self.unrewarded else None

    def broken(self, limit: ConstraintConfig) -> float | None:
        """Whether it broke a limit, 0 or 1, or the share of its steps that did; None while that is not known."""
        count = self.num_broken.get(about(limit), 0)
        is_unnamed = self.episode_id is None and not self.is_told  # where episodes begin and end is not known
        if limit.per == "episode":
            return None if is_unnamed else 1.0 if count else 0.0 if self.ended else None
        return min(count / self.num_steps, 1.0) if self.ended or is_unnamed else None

    @property
    def may_change(self) -> bool:
        """Whether what is to come may say more of it."""
        can_be_told_apart = self.episode_id is not None or (self.is_told and not self.ended)
        is_over = self.is_left or (self.ended and not self.unrewarded)
        return bool(self.places) and can_be_told_apart and not is_over


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

    def updated(self, values: Iterable[tuple[str, int, float]]) -> "tuple[LimitTally, list[int]]":
        """A new tally that has also counted one look's episodes, and their places; this one is left as it is.

        `values` are the agent of each episode, its place among that agent's, 0 where it begins, and its value in
        [0, 1]: 0 while it is not known. They come in the order in which the episodes began.
        """
        found, seen, places = deepcopy(self), Counter[str](), list[int]()
        found.monitor.window = {}
        for agent, number, value in values:
            if number == 0:
                seen[agent] += 1
                found.episodes[agent] = found.episodes.get(agent, 0) + 1
            places.append(number or found.episodes[agent])
            if value > 0.0:
                in_window = 0 if number else seen[agent]
                place = ValuePlace(places[-1], in_window, 1, has_blocks=len(found.episodes) < FEW)
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
        return found, places

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
    return; and the episodes of which more may come, in the order in which they began."""

    num_looks: int = 0
    tallies: dict[str, LimitTally] = Field(default_factory=dict)  # by what they are about: a limit, or "return"
    open_episodes: list[JudgedEpisode] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, kept: Json) -> Json:
        return {name: value for name, value in kept.items() if name != _BEFORE}

    def against(self, limits: Mapping[str, float]) -> "LookEvidence":
        """The same, with a tally for each of these limits, by what it is about: one that is new, or another than it
        was, begins with the episodes that begin from now on."""
        kept = {of: tally for of, tally in self.tallies.items() if tally.monitor.limit == limits.get(of)}
        tallies = {of: kept.get(of, LimitTally.at(limit)) for of, limit in limits.items()}
        episodes = [
            replace(one, places={of: place for of, place in one.places.items() if of in kept})
            for one in self.open_episodes
        ]
        return self.model_copy(update={"tallies": tallies, "open_episodes": episodes})

    def without(self, keys: Iterable[Key]) -> "LookEvidence":
        """The same, of which these episodes are not waited for: others went on with them."""
        left = set(keys)
        return self.model_copy(update={"open_episodes": [one for one in self.open_episodes if one.key not in left]})

    def heard(self, parts: Iterable[WindowEpisode], shown: Iterable[ConstraintConfig]) -> list[JudgedEpisode]:
        """Of which episodes one look's parts tell, with what was seen of them before, in the order they began."""
        known, begun, told = {one.key: deepcopy(one) for one in self.open_episodes}, list[JudgedEpisode](), set[Key]()
        following: dict[Key, JudgedEpisode] = {}  # begun in earlier looks, as it turned out
        for part in sorted(parts, key=lambda part: not part.cut):
            if part.cut and part.key in known:
                rest = known[part.key].add(part, shown)
                told.add(part.key)
                if rest is not None:
                    following[part.key] = rest
                    begun.append(rest)
            elif not part.cut and part.key in following:
                following.pop(part.key).add(part, shown)
            elif not part.cut:
                begun.append(JudgedEpisode(*part.key, {}))
                begun[-1].add(part, shown)
                begun[-1].is_left |= bool(part.rewards_before)  # it began in an earlier look, and is not known
        for one in begun:
            one.places = dict.fromkeys(self.tallies, 0)
        return [*(known[key] for key in known if key in told), *begun]

    def after(self, tallies: dict[str, LimitTally], heard: Iterable[JudgedEpisode]) -> "LookEvidence":
        """What is gathered when a look has counted these episodes in these tallies."""
        known = {one.key: one for one in self.open_episodes} | {one.key: one for one in heard}
        still_open = [one for one in known.values() if one.may_change][-_MOST_OPEN:]
        return LookEvidence(num_looks=self.num_looks + 1, tallies=tallies, open_episodes=still_open)
