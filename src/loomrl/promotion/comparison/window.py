"""The part of a policy's audit logs that no look has judged yet, put together to episodes.

An episode is what one agent did under one `episode_id`, on whichever servers, until the feedback on one of its
decisions says that it ended; what the agent decided later, but before that feedback came, is of the next one. One that
lies across several looks is known as one: its later parts are `cut`, and have the rewards of decisions that came before
them. Where there are neither ids nor feedback, what an agent did in one look is one.

Whose episode it is, is known when it begins: its first decision says so. What happens later leaves none out, neither an
explored action that the server drew (`serving.exploration.share` is part of how a version is served) nor a person who
steps in: episodes chosen by what happened in them, or by how long they lasted, are other ones than the rest. Where
anybody else decides, or an agent begins to ask to explore, the version's part is like an episode that has not ended.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ArtifactError
from loomrl.statistics.assignment import is_by_chance, possible
from loomrl.storage.audit.hosts import chains_of_all_hosts
from loomrl.storage.audit.records import DECISION, SIMULATED, RequestTimes, asked_to_explore, expand, is_taken_over
from loomrl.storage.audit.sealing import require_opened
from loomrl.storage.audit.segments import checked_records, segments_after
from loomrl.types import Episode, Json

Key = tuple[str, str | None]  # agent_id, episode_id
_MOST_OPEN = 100_000  # episodes that have not ended; those that were silent for longest are forgotten
_OF_DECISIONS = (
    "observations", "actions", "values", "deciders", "asked", "explored", "fallbacks", "propensities", "decided_at",
    "dealt",
)  # fmt: skip
_BY_DECISION = ("rewards", "costs", "told_at")


Arms = frozenset[str]  # the versions that agents can be dealt to; none where the record does not tell


@dataclass(frozen=True)
class Assignment:
    """What a split dealt an agent, by the first decision of an episode in an experiment with these versions.

    `shares` are the chances of being dealt to each version, `time` is ISO 8601.
    """

    experiment: str
    version: str
    shares: Mapping[str, float]  # version -> chance of being dealt to it
    time: str  # ISO 8601
    is_partial: bool = False  # the record tells the share of the version alone that decided
    is_cut: bool = False  # the log's beginning was removed, and the experiment may have begun there

    @property
    def arms(self) -> Arms:
        """The versions that an agent could be dealt to; none where the record does not tell."""
        return frozenset() if self.is_partial else possible(self.shares)

    @property
    def is_random(self) -> bool:
        """Whether it could have been dealt to another version."""
        return is_by_chance(self.shares)

    @property
    def key(self) -> tuple[str, Arms]:
        """The experiment and the versions in it."""
        return self.experiment, self.arms

    @classmethod
    def of(cls, record: Json) -> "Assignment | None":
        """What a decision's record says of a split; None where none was in force, or it was decided in place of what
        was dealt.

        Records from before they named all shares tell only that of the version that decided.
        """
        experiment, told = record.get("experiment"), record["timestamp"]
        if experiment is None:
            return None
        if "dealt" in record:
            return cls(experiment, record["dealt"], record["shares"], told)
        chance = record.get("assignment_probability")
        if chance is None or is_taken_over(record):
            return None
        return cls(experiment, record["version"], {record["version"]: chance}, told, is_partial=True)


class Unanswered(NamedTuple):
    """A request that got no answer."""

    time: str  # ISO 8601
    asked: bool  # to explore
    dealt: Assignment | None


@dataclass
class WindowEpisode:
    """What the log tells of one episode since the last look. `cut`: it began before that.

    `observations` to `propensities`, `decided_at` and `dealt` have one entry for each decision, in their order.
    `deciders` are versions, None where a person or a fallback decided; `asked` says whether the agent asked to explore,
    `explored` whether it was drawn, `fallbacks` whether a shield had something else act. `dealt` is what a split dealt,
    without its own time; None without one. `rewards`, `costs` and `told_at`, the times of feedback, are by decision id;
    a reward is None until it has come. `assignments` are by experiment and the versions in it, the first of each.
    `unanswered` are requests that got no answer; `follows_unanswered`: the agent's episode before had one behind its
    last decision, which may have been the first of this one. Times are ISO 8601.
    `rewards_before` are those of decisions before the window, by decision id. `is_left`: these are its first decisions
    alone, for then somebody else decided, or a time came.
    """

    cut: bool  # it began before
    agent_id: str = ""
    episode_id: str | None = None
    ended: bool = False
    terminated: bool = False  # ended by itself, not by a limit on its time
    is_left: bool = False  # these are its first decisions alone
    rewards_before: dict[str, float] = field(default_factory=dict)  # decision id -> reward, of those before the window
    is_told: bool = False  # feedback came on decisions of this agent under this id, in this window or before
    ends_before: list[str] = field(default_factory=list)  # of `rewards_before`, those whose feedback says: it ended
    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    deciders: list[str | None] = field(default_factory=list)  # versions; None where a person or a fallback decided
    asked: list[bool] = field(default_factory=list)  # whether the agent asked to explore
    explored: list[bool] = field(default_factory=list)  # whether it was drawn: asked for, or by the server's `share`
    fallbacks: list[bool] = field(default_factory=list)  # whether a shield had something else act
    propensities: list[float] = field(default_factory=list)  # of each decision alone; 1 where none was explored
    rewards: dict[str, float | None] = field(default_factory=dict)  # decision id -> reward, None until it has come
    costs: dict[str, float] = field(default_factory=dict)  # of the decisions whose feedback told one
    began: str = ""  # ISO 8601 time of the first decision
    decided_at: list[str] = field(default_factory=list)  # times of all of them
    told_at: dict[str, str] = field(default_factory=dict)  # decision id -> time of its feedback
    dealt: list[Assignment | None] = field(default_factory=list)  # by a split, but for the time
    assignments: dict[tuple[str, Arms], Assignment] = field(default_factory=dict)  # the first in each
    unanswered: list[Unanswered] = field(default_factory=list)
    follows_unanswered: bool = False  # the last request of the one before got no answer, and may have been of this one

    def add_decision(self, record: Json) -> None:
        """Add the record of one decision of this episode; its reward is unknown until feedback comes."""
        self.dealt.append(self._add_request(record))
        self.decided_at.append(record["timestamp"])
        self.deciders.append(None if is_taken_over(record) else record["version"])
        self.asked.append(asked_to_explore(record))
        self.explored.append(record["exploration_flag"])
        self.fallbacks.append(bool((record.get("shield") or {}).get("fallback")))
        self.propensities.append(record["propensity"])
        self.observations.append(record["observation"])
        self.actions.append(record["action"])
        self.values.append(record["value"])
        self.rewards[record["decision_id"]] = None

    def add_unanswered(self, record: Json) -> None:
        """Add a request that got no answer: the agent counts as dealt to its version all the same."""
        dealt = self._add_request(record)
        self.unanswered.append(Unanswered(record["timestamp"], record["asked_to_explore"], dealt))

    def _add_request(self, record: Json) -> Assignment | None:
        """Note who acts, since when, and in which experiment; returns what was dealt, without its own time."""
        told = record["timestamp"]
        if not self.began or told < self.began:
            self.agent_id, self.began = record["agent_id"], told
        if (found := Assignment.of(record)) is None:
            return None
        first = self._note_dealt(found, told)
        return first if (first.version, first.shares) == (found.version, found.shares) else found  # one for many

    def _note_dealt(self, dealt: Assignment, time: str) -> Assignment:
        """Keep the first of each experiment with these versions, and return it; records of several servers come in any
        order."""
        known = self.assignments.get(key := dealt.key)
        if known is None or time < known.time:
            known = self.assignments[key] = replace(dealt, time=time)
        return known

    def _note_all_dealt(self) -> None:
        """Find `assignments` anew, from what each request was dealt."""
        self.assignments = {}
        requests = (
            *zip(self.decided_at, self.dealt, strict=False),
            *((one.time, one.dealt) for one in self.unanswered),
        )
        for time, dealt in requests:
            if dealt is not None:
                self._note_dealt(dealt, time)

    def add_feedback(self, record: Json) -> None:
        """Add a feedback's record. One on a decision before the window shows that the episode began there."""
        decision, ends = record["decision_id"], record["terminated"] or record["truncated"]
        self.terminated |= record["terminated"]
        self.ended |= ends
        if decision not in self.rewards:
            self.rewards_before[decision] = record["reward"]
            self.ends_before += [decision] if ends else []
            return
        self.rewards[decision] = record["reward"]
        self.told_at[decision] = record["timestamp"]
        if record.get("cost") is not None:
            self.costs[decision] = record["cost"]

    def later_than(self, decision: str) -> list[str]:
        """The ids of its decisions after this one; all of them where it is none of them."""
        known = list(self.rewards)
        return known[known.index(decision) + 1 :] if decision in self.rewards else known

    def split_off(self, later: list[str]) -> "WindowEpisode":
        """Take its last decisions, of these ids, out of it; returns them as an episode that begins with them."""
        place, ids = len(self.rewards) - len(later), set(later)
        kept: dict[str, Any] = {name: getattr(self, name)[place:] for name in _OF_DECISIONS}
        for name in _BY_DECISION:
            kept[name] = {one: value for one, value in getattr(self, name).items() if one in ids}
            setattr(self, name, {one: value for one, value in getattr(self, name).items() if one not in ids})
        began = kept["decided_at"][0]
        kept["unanswered"] = [one for one in self.unanswered if one.time >= began]
        rest = replace(self, cut=False, began=began, rewards_before={}, ends_before=[], **kept)
        for name in _OF_DECISIONS:
            setattr(self, name, getattr(self, name)[:place])
        self.unanswered = [one for one in self.unanswered if one.time < began]
        self.ended, self.terminated = False, False  # what was known was known of the later ones
        rest.follows_unanswered = self.ends_unanswered
        for one in (self, rest):
            one._note_all_dealt()
        return rest

    @property
    def key(self) -> Key:
        """What tells it apart from others: the ids of its agent and of itself; the latter is None where it has none."""
        return self.agent_id, self.episode_id

    def asked_at(self, time: str) -> bool:
        """Whether the agent asked to explore in its first request at this time, ISO 8601, or later."""
        requests = (
            *zip(self.decided_at, self.asked, strict=False), *((one.time, one.asked) for one in self.unanswered),
        )  # fmt: skip
        return min((one for one in requests if one[0] >= time), default=(time, False))[1]

    @property
    def begins_unanswered(self) -> bool:
        """Whether a request before its first decision got no answer, or may have got none."""
        return self.follows_unanswered or any(one.time <= self.decided_at[0] for one in self.unanswered)

    @property
    def ends_unanswered(self) -> bool:
        """Whether a request behind its last decision got no answer; also where none was answered."""
        return any(one.time > max(self.decided_at, default="") for one in self.unanswered)  # at it: a fallback decided

    @property
    def versions(self) -> set[str]:
        """The versions that decided in this episode."""
        return {decider for decider in self.deciders if decider is not None}

    def part_of(self, version: str, asked: bool = False) -> "WindowEpisode | None":
        """What this version did in it until anybody else decided; None where it did not begin it.

        That is the episode itself where nobody else did, else one that has not ended. `asked`: of an agent that asks to
        explore, instead of one that does not; when it does otherwise, that is an end too.
        """
        return self._until(
            [decider != version or ask != asked for decider, ask in zip(self.deciders, self.asked, strict=True)]
        )

    def decided_by(self, version: str) -> "WindowEpisode | None":
        """The decisions of this version before anybody else decided, as an episode; None where another one began."""
        return self._until([decider != version for decider in self.deciders])

    def _until(self, others: list[bool]) -> "WindowEpisode | None":
        """The decisions before the first of others."""
        num_own = others.index(True) if True in others else len(others)
        if num_own in (0, len(others)):
            return self if num_own else None
        return self._first(num_own)

    def _first(self, num_decisions: int) -> "WindowEpisode":
        """Its first decisions, as an episode that has not ended."""
        kept: dict[str, Any] = {name: getattr(self, name)[:num_decisions] for name in _OF_DECISIONS}
        rewards = dict(list(self.rewards.items())[:num_decisions])
        costs = {name: cost for name, cost in self.costs.items() if name in rewards}
        return replace(self, ended=False, terminated=False, is_left=True, rewards=rewards, costs=costs, **kept)

    def before_unanswered(self) -> "WindowEpisode":
        """Its decisions before the first request that got no answer, one at least, as an episode that has not ended;
        itself where each request got one."""
        if not self.unanswered:
            return self
        time = min(one.time for one in self.unanswered)
        return self._first(max(sum(moment < time for moment in self.decided_at), 1))

    def decided_before(self, time: str) -> "WindowEpisode":
        """Its decisions before this time, ISO 8601, one at least, as an episode that has not ended; itself where that
        is all of them."""
        num_before = sum(moment < time for moment in self.decided_at)
        return self if num_before == len(self.decided_at) else self._first(max(num_before, 1))

    def known_until(self, time: str) -> "WindowEpisode":
        """The episode as far as the log told of it at this time, ISO 8601; what has no time was known. The first
        decision is always kept."""
        is_late = [moment > time for moment in self.decided_at]
        part = self._first(max(is_late.index(True), 1)) if True in is_late else self
        late = {decision for decision, moment in self.told_at.items() if moment > time}
        if not late:
            return part
        return replace(
            part,
            ended=False,
            terminated=False,
            rewards={name: None if name in late else reward for name, reward in part.rewards.items()},
            costs={name: cost for name, cost in part.costs.items() if name not in late},
        )

    @property
    def can_end(self) -> bool:
        """Whether feedback comes, which says when it ends."""
        return self.is_told or bool(self.rewards_before) or any(reward is not None for reward in self.rewards.values())

    @property
    def episode_return(self) -> float | None:
        """The undiscounted return; None where the log does not show the whole episode with all its rewards."""
        rewards = [reward for reward in self.rewards.values() if reward is not None]
        is_whole = self.ended and not self.cut and not self.rewards_before and len(rewards) == len(self.rewards)
        return sum(rewards) if is_whole else None

    @property
    def episode_cost(self) -> float | None:
        """The undiscounted sum of costs; None where there is no return, or not every feedback told a cost."""
        known = self.episode_return is not None and len(self.costs) == len(self.rewards)
        return sum(self.costs.values()) if known else None

    @property
    def num_not_finite(self) -> int:
        """How many decisions hold a number that is not finite (`null` in JSON)."""
        rows = [_rows(self.observations), _rows(self.actions), _rows(self.values)]
        return int(np.count_nonzero(~np.isfinite(np.hstack(rows)).all(axis=1)))

    def as_episode(self) -> Episode:
        """The episode for `loomrl.safety.constraints`: every decision is a step, with the observation it was taken on.

        Rewards are 0 and the seed is -1: only observations and actions are those of the log.
        """
        obs, action = np.array(self.observations, dtype=np.float64), np.array(self.actions, dtype=np.float64)
        return Episode(-1, obs, action, np.zeros(len(obs)), obs, self.ended, False)


@dataclass(frozen=True)
class Window:
    """Episodes, and where the window ends: what the next one goes on from.

    `until` is the sequence of the last record of each server, `open_episodes` are agent and episode id of those that
    have not ended. `without_answer` are episodes with requests only, none of which was answered; `only_told` are those
    of which the window has feedback alone.
    """

    episodes: list[WindowEpisode]
    until: dict[str, int]  # server -> sequence of its last record in the window
    without_answer: list[WindowEpisode]  # those with requests only, none of which was answered
    only_told: list[WindowEpisode]  # those that began before, and of which it has feedback alone
    open_episodes: list[list[str | None]]  # agent and episode id of those with an id or feedback that have not ended


def read_window(policy: str, since: Mapping[str, int], open_before: Iterable[Iterable[str | None]]) -> Window:
    """All records after `since` (server -> sequence), as far as they are written whole. Simulated agents are left out.

    The logs of all hosts are read together, in the order of their times: an episode may lie on several. `open_before`
    is the `open_episodes` of the window before. Of more than 100,000 open ones those that were silent for longest are
    forgotten: one that goes on then counts as a new one.

    Raises:
        ArtifactError: when a record was changed, or a log ends before `since`.
        ConfigError: when what a decision observed is sealed, and its key is not here; when two logs have one name, or a
            folder of logs is not there.
    """
    began_before, current = (
        dict.fromkeys((agent, episode) for agent, episode in open_before),
        dict[Key, WindowEpisode](),
    )
    episodes, until = list[WindowEpisode](), dict(since)
    holding: dict[str, tuple[WindowEpisode, Path]] = {}  # decision id -> its episode, and whose clock it stands by

    def begin(key: Key, is_cut: bool) -> WindowEpisode:
        current[key] = WindowEpisode(cut=is_cut, agent_id=key[0], episode_id=key[1])
        episodes.append(current[key])
        return current[key]

    def open_one(key: Key) -> WindowEpisode:
        """The episode that has not ended under this key; a new one where there is none."""
        before = current.get(key)
        if before is None or before.ended:
            found = begin(key, is_cut=before is None and key in began_before)
            found.follows_unanswered = before is not None and before.ends_unanswered
        return current[key]

    def add_feedback(record: Json, key: Key, clock: Path) -> None:
        decision = record["decision_id"]
        episode, clock = holding.get(decision, (current.get(key), clock))
        if episode is None:  # the decision stands before the window
            episode = begin(key, is_cut=True)
        later = episode.later_than(decision) if record["terminated"] or record["truncated"] else []
        # Only what one host wrote stands in its order: the clocks of others may differ.
        if later and all(holding[one][1] == clock for one in later):
            rest = episode.split_off(later)
            episodes.append(rest)
            holding.update((one, (rest, clock)) for one in later)
            episode.cut |= decision not in episode.rewards
            if current.get(key) is episode:
                current[key] = rest
        episode.add_feedback(record)

    removed = ""  # until this time, ISO 8601, the beginning of some log was removed
    cut, amid = set[str](), set[str]()  # servers of such logs, and experiments that were in force there
    for server, clock, record in _in_time(policy, since):
        if server not in until and record["sequence"] > 0:
            removed = record["timestamp"]
            cut.add(server)
        if server in cut and "experiment" in record:
            cut.remove(server)
            amid.add(record["experiment"])
        until[server] = record["sequence"]
        if record["kind"] == "unanswered":
            for key, request in _without_answer(record):
                open_one(key).add_unanswered(request)
        if record["kind"] not in ("decision", "feedback") or record["agent_id"].startswith(SIMULATED):
            continue
        key = record["agent_id"], record["episode_id"]
        if record["kind"] == "feedback":
            add_feedback(record, key, clock)
            continue
        require_opened(record)
        episode = open_one(key)
        holding[record["decision_id"]] = episode, clock
        episode.add_decision(record)
    told = {one.key for one in episodes if one.can_end} | {key for key in began_before if key[1] is None}
    for episode in episodes:
        episode.is_told = episode.key in told
        if not since:  # of a log whose beginning was removed
            episode.cut |= bool(episode.rewards_before)
    if removed:
        _cut_begun_before(removed, episodes, amid)
    silent = [key for key in began_before if key not in current]
    begun = {key: one for key, one in current.items() if one.observations or one.cut}
    heard = [key for key, one in begun.items() if not one.ended and (one.can_end or key[1] is not None)]
    empty = [episode for episode in episodes if not episode.observations]
    return Window(
        episodes=[episode for episode in episodes if episode.observations],
        until=until,
        without_answer=[episode for episode in empty if episode.assignments],
        only_told=[episode for episode in empty if episode.rewards_before],
        open_episodes=[list(key) for key in [*silent, *heard][-_MOST_OPEN:]],
    )


def _cut_begun_before(removed: str, episodes: Iterable[WindowEpisode], amid: Set[str]) -> None:
    """Mark the episodes whose beginning may be among what was removed of a log until this time (ISO 8601): those that
    begin to show soon after it, by the longest that any was silent between two decisions. And what was dealt in the
    experiments `amid` which it was cut."""
    silences = (
        datetime.fromisoformat(later) - datetime.fromisoformat(former)
        for episode in episodes
        for former, later in pairwise(episode.decided_at)
    )
    last = datetime.fromisoformat(removed) + max(silences, default=timedelta())
    for episode in episodes:
        episode.cut |= bool(episode.began) and datetime.fromisoformat(episode.began) <= last
        episode.assignments = {
            key: replace(one, is_cut=one.experiment in amid) for key, one in episode.assignments.items()
        }


def _in_time(policy: str, since: Mapping[str, int]) -> Iterator[tuple[str, Path, Json]]:
    """Records of all chains with their servers and whose clock they stand by, in the order of time; those of one chain
    in their own.

    All chains below one folder are of one host, and stand by one clock.
    """
    streams = [
        zip(repeat(server), repeat(folder.parent), _by_request(records_after(folder, since.get(server, -1))))
        for server, folder in chains_of_all_hosts(policy).items()
    ]
    return heapq.merge(*streams, key=lambda one: str(one[2]["timestamp"]))


def _by_request(records: Iterable[Json]) -> Iterator[Json]:
    """Those of one request at one time: who is dealt what must not tell who comes first."""
    times = RequestTimes()
    for record in records:
        time = times.of(record) if record["kind"] == DECISION else record["timestamp"]
        yield record if time == record["timestamp"] else record | {"timestamp": time}


def _without_answer(record: Json) -> Iterator[tuple[Key, Json]]:
    """Agents that a version on trial had no answer to, and what is known of each.

    Earlier versions named all of them only while a split was in force, else the first, and not who asked to explore.
    """
    first = [record["agent_id"], record["episode_id"], None]
    for agent_id, episode_id, dealt, *asked in record.get("without_answer", [first]):
        if not agent_id.startswith(SIMULATED):
            named = {"agent_id": agent_id, "dealt": dealt, "asked_to_explore": asked == [True]}
            yield (agent_id, episode_id), record | named


def records_after(folder: Path, sequence: int) -> Iterator[Json]:
    """The records of one chain above a sequence, oldest first, each checked against its hash and the record before it;
    decisions one by one.

    Raises:
        ArtifactError: naming the line that was changed, or the chain that ends too early.
    """
    last = -1
    for record in checked_records(*segments_after(folder, sequence)):  # without one that is being written, or was cut
        last = int(record["sequence"])
        if last > sequence:
            yield from expand(record)
    if last < sequence:
        raise ArtifactError(
            f"{folder} ends at record {last}, but record {sequence} was read there before: the log was truncated; "
            "see `loomrl audit verify`"
        )


def _rows(values: list[Any]) -> NDArray[np.float64]:
    """One row per decision, (L, n); `null` becomes NaN."""
    return np.array(values, dtype=np.float64).reshape(len(values), -1)
