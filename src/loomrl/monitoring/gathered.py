"""What looks at a version have gathered: evidence against each limit, and the episodes that have not ended.

An episode takes its place among its agent's when it begins, and counts as 0 there, nothing against the version, until
its value is known; that of one that lies across looks is put in its place then. So no episode is judged in place of
another that takes longer, and the bets of `loomrl.serving.guardian.units` stay below those on complete values.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import Field, model_validator

from loomrl.promotion.comparison.window import Key, Window, WindowEpisode
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import limits, violations
from loomrl.serving.guardian.monitor import Agents, Monitor, ValuePlace
from loomrl.serving.guardian.units import FEW, num_left_out
from loomrl.system.schema import Document
from loomrl.types import Json

RETURN = "return"
_MOST_OPEN = 10_000  # the oldest are waited for no longer: what is not known of them counts as 0 for good
_MOST_WAITING = 1_000  # decisions of an episode; with more it is not waited for
_BEFORE = "limits"  # where looks kept what decisions counted one by one; it is begun anew
_UNREWARDED = "unrewarded"  # where they kept the decisions of an episode whose rewards had not come


def about(limit: ConstraintConfig) -> str:
    """What evidence is about: a limit that is changed begins anew, whatever it is called."""
    return f"{limit.quantity} {limits(limit)} per {limit.per} at {limit.max_probability!r}"


@dataclass
class WaitingStep:
    """A decision that may turn out to be of the next episode: its reward, or that of one before it, has not come."""

    decision: str
    reward: float | None = None  # None until it has come
    broken: list[str] = field(default_factory=list)  # the limits that it broke, by what they are about


@dataclass
class JudgedEpisode:
    """What all looks saw of one of the version's episodes.

    `places` are its numbers among the agent's in the tallies that do not know its value yet, by what those are about;
    0 where it begins. Rewards say where it ends, and come in any order: its steps from the first one on whose reward
    has not come are `waiting`, the others are counted.
    """

    agent_id: str
    episode_id: str | None
    places: dict[str, int]
    num_steps: int = 0  # that wait no longer, as the next two are of
    num_broken: dict[str, int] = field(default_factory=dict)  # steps that broke a limit, by what that is about
    total: float = 0.0  # of rewards
    waiting: list[WaitingStep] = field(default_factory=list)
    ended: bool = False
    is_told: bool = False  # feedback came, which says when it ends
    is_cut: bool = False  # its beginning, or a reward of it, is not known: it will not be whole
    is_left: bool = False  # to others: what is known of it are its first decisions alone

    @property
    def key(self) -> Key:
        """What tells it apart from others: the ids of its agent and of itself; the latter is None where it has none."""
        return self.agent_id, self.episode_id

    def add(self, part: WindowEpisode, shown: Iterable[ConstraintConfig]) -> None:
        """Add the decisions that one look tells of, and whether it ended with them; `shown` are the limits that
        decisions show."""
        steps, episode = [WaitingStep(decision, reward) for decision, reward in part.rewards.items()], part.as_episode()
        for limit in shown:
            for place in np.flatnonzero(violations(limit, episode)).tolist():
                steps[place].broken.append(about(limit))
        self.waiting += steps
        self.is_told |= part.can_end
        self.is_left |= part.is_left
        self.ended |= part.ended
        self._count()

    def told(self, rewards: Mapping[str, float], ends: Iterable[str]) -> "list[JudgedEpisode]":
        """Add what feedback tells of decisions of earlier looks: their rewards, and which of them ended an episode.

        What was decided after such an end comes back, as the next episodes of the agent.
        """
        for step in self.waiting:
            step.reward = rewards.get(step.decision, step.reward)
        self.is_told |= bool(rewards)
        found, last_ones = [self], set(ends)
        while (later := found[-1]._after_first(last_ones)) is not None:
            found.append(later)
        for one in found:
            one._count()
        return found[1:]

    def _after_first(self, last_ones: set[str]) -> "JudgedEpisode | None":
        """End it at the first of these decisions that it has; the episode after it, or None where nothing comes after.

        By what a step broke it stays judged, where it was judged by that already.
        """
        place = next((place for place, step in enumerate(self.waiting) if step.decision in last_ones), None)
        if place is None:
            return None
        later, self.waiting = self.waiting[place + 1 :], self.waiting[: place + 1]
        for step in later:
            step.broken = [of for of in step.broken if of in self.places]
        rest = JudgedEpisode(*self.key, {}, waiting=later, ended=self.ended, is_told=True, is_left=self.is_left)
        self.ended, self.is_left = True, False
        return rest if later else None

    def leave(self) -> None:
        """Nothing more is of it, where it has not ended: what comes is others', or of the next one."""
        self.is_left |= not self.ended
        self.ended = True

    def _count(self) -> None:
        """Count the steps that wait no longer: those before the first one whose reward has not come, and what is too
        much to wait for."""
        unrewarded = (place for place, step in enumerate(self.waiting) if step.reward is None)
        place = max(next(unrewarded, len(self.waiting)), len(self.waiting) - _MOST_WAITING)
        counted, self.waiting = self.waiting[:place], self.waiting[place:]
        self.is_cut |= any(step.reward is None for step in counted)
        self.num_steps += len(counted)
        self.total += sum(step.reward or 0.0 for step in counted)
        for of in (of for step in counted for of in step.broken):
            self.num_broken[of] = self.num_broken.get(of, 0) + 1

    @property
    def whole_return(self) -> float | None:
        """The undiscounted return; None where the whole episode with all its rewards was not seen."""
        is_whole = self.ended and not self.waiting and not self.is_cut and not self.is_left
        return self.total if is_whole else None

    def broken(self, limit: ConstraintConfig) -> float | None:
        """Whether it broke a limit, 0 or 1, or the share of its steps that did; None while that is not known."""
        of = about(limit)
        count = self.num_broken.get(of, 0) + sum(of in step.broken for step in self.waiting)
        is_unnamed = self.episode_id is None and not self.is_told  # where episodes begin and end is not known
        if limit.per == "episode":
            return None if is_unnamed else 1.0 if count else 0.0 if self.ended else None
        num_steps = self.num_steps + len(self.waiting)
        return min(count / num_steps, 1.0) if (self.ended and not self.is_left) or is_unnamed else None

    @property
    def may_change(self) -> bool:
        """Whether what is to come may say more of it, or be of it."""
        can_be_told_apart = self.episode_id is not None or self.is_told
        is_over = self.ended and (self.is_cut or self.is_left or not self.waiting)
        return can_be_told_apart and not is_over


@dataclass
class LimitTally:
    """What agents showed in all looks, episode by episode, against one limit.

    `monitor` holds the evidence, `episodes` the number of each agent's episodes.
    """

    monitor: Monitor
    episodes: dict[str, int] = field(default_factory=dict)  # agent -> number of its episodes
    num_unknown: int = 0  # episodes whose value is not known; they count as 0
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
    def _of_former(cls, kept: Json) -> Json:
        kept = {name: value for name, value in kept.items() if name != _BEFORE}
        if not any(isinstance(one, dict) and _UNREWARDED in one for one in kept.get("open_episodes", ())):
            return kept
        kept = deepcopy(kept)
        for one in kept["open_episodes"]:
            one["waiting"] = [{"decision": decision} for decision in one.pop(_UNREWARDED)]
            one["num_steps"] -= len(one["waiting"])
            for of in one["places"]:
                kept["tallies"][of]["num_unknown"] = kept["tallies"][of].get("num_unknown", 0) + 1
        return kept

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

    def heard(
        self, parts: Sequence[WindowEpisode], shown: Sequence[ConstraintConfig], taken: Collection[Key] = ()
    ) -> list[JudgedEpisode]:
        """All episodes of the agents and ids that one look's parts tell of, with what was seen of them before, in the
        order in which they began; with those of `taken`, as far as they have not ended, others went on."""
        known: dict[Key, list[JudgedEpisode]] = {key: [] for key in (*(part.key for part in parts), *taken)}
        for one in self.open_episodes:
            if one.key in known:
                known[one.key].append(deepcopy(one))
        told = {part.key for part in parts if part.rewards_before}
        unknown = {key for key in told if not known[key]}  # what it is told of was never seen
        begun, seen = _told(known, parts), set[Key]()
        for one in (known[key][-1] for key in taken if known[key]):
            one.leave()
        for part in sorted((part for part in parts if part.actions), key=lambda part: part.began):
            of_key, is_first = known[part.key], part.key not in seen
            seen.add(part.key)
            if of_key and of_key[-1].is_left and not part.cut:
                of_key[-1].leave()
            began_before = is_first and (part.cut or part.key in told)
            if not (began_before and of_key and not of_key[-1].ended):
                is_cut = is_first and (part.cut or part.key in unknown)
                of_key.append(JudgedEpisode(*part.key, {}, is_cut=is_cut or bool(part.ends_before)))
                begun += [] if is_cut else of_key[-1:]
            of_key[-1].add(part, shown)
        for one in begun:
            one.places = dict.fromkeys(self.tallies, 0)
        new = set(map(id, begun))
        return [*(one for of_key in known.values() for one in of_key if id(one) not in new), *begun]

    def after(self, tallies: dict[str, LimitTally], heard: Sequence[JudgedEpisode]) -> "LookEvidence":
        """What is gathered when a look has counted these episodes in these tallies."""
        keys = {one.key for one in heard}
        known = [*(one for one in self.open_episodes if one.key not in keys), *heard]
        still_open = [one for one in known if one.may_change][-_MOST_OPEN:]
        return LookEvidence(num_looks=self.num_looks + 1, tallies=tallies, open_episodes=still_open)

    def still_open(self, window: Window, before: "LookEvidence") -> list[list[str | None]]:
        """Agents and ids of what may go on after a window; `before` is what was gathered before it.

        Where feedback alone was seen, and nothing is known of what it is on, more may have been decided before it.
        """
        known = {one.key for one in before.open_episodes}
        going_on = [one.key for one in self.open_episodes if not one.ended and not one.is_left]
        perhaps = [one.key for one in window.only_told if one.ended and one.key not in known]
        return [list(key) for key in dict.fromkeys([*map(_key, window.open_episodes), *going_on, *perhaps])]


def _told(known: dict[Key, list[JudgedEpisode]], parts: Iterable[WindowEpisode]) -> list[JudgedEpisode]:
    """Tell what is `known`, by agent and id, what feedback says of decisions of earlier looks; the episodes that began
    there, as it turns out, are known then, and come back."""
    begun = list[JudgedEpisode]()
    for part in (part for part in parts if part.rewards_before):
        of_key = list[JudgedEpisode]()
        for one in known[part.key]:
            later = one.told(part.rewards_before, part.ends_before)
            of_key += [one, *later]
            begun += later
        known[part.key] = of_key
    return begun


def _key(names: list[str | None]) -> Key:
    agent_id, episode_id = names
    return str(agent_id), episode_id
