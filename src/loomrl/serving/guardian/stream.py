"""Monitors on the live stream: is a version that decides now what it was promoted as? Asked after every decision.

The unit is the agent: agents differ, one may be broken, and a split assigns agents, not decisions. What each monitor
bets against:

- Limits (violations, shield, out of distribution, unanswered, latency, and rewards where a `reference` is stated) are
  absolute: "but for a few agents (`units.num_left_out`), the mean over agents of what they show is at most the limit".
  Agents are taken to be independent of each other, nothing is assumed within an agent. While there are fewer than
  `units.FEW` agents, half of the stake bets against "but for those few, no agent shows more than the limit in the mean
  of a block of its decisions, given what came before"; of a policy's only agent this is all that can be said. One agent
  alone takes no version out; those that stand out are told (`odd_agents`).
- The reward is compared (`trial.Trial`): "agents of the version bring in no less than agents that the same experiment
  dealt to its champion at the same time". Without a split and without a `reference` it stays undecided: what was earned
  before, under another version, may have been easier.

The chance of a false alarm is divided among the monitors: a version that keeps its promises is *ever* taken back with a
probability of at most 1 - `confidence`, all together.

What a person decided, or an agent asked to explore, says nothing about the version; what the server's own `share` of
exploration drew does, for it is part of how the version is served. A limit per episode counts an episode once, as kept
when it begins, as broken from its first violation on; to an agent that names no episodes each decision is one. Of
agents that name episodes, whose beginnings may be unlike the rest, only blocks of `spacing` decisions are judged. A
limit on the state that was broken when a version took over an episode is not laid to it before it was kept once.

Agents that come under one token which may speak for any are one's word, however many
(`loomrl.serving.guardian.tokens`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from loomrl.serving.guardian.evidence import MOST_WAITING, DealtBefore, LiveEpisode, VersionEvidence
from loomrl.serving.guardian.monitor import Trigger
from loomrl.serving.guardian.sharing import Shared, merged_evidence
from loomrl.serving.guardian.tokens import Suspicion, token_of, unit_of, units_of
from loomrl.serving.guardian.trial import Arm, Place
from loomrl.serving.guardian.version_monitors import VersionMonitors
from loomrl.serving.guardian.watch import Watch
from loomrl.serving.guardian.weigher import Beside
from loomrl.statistics.assignment import is_by_chance
from loomrl.storage.audit.columns import Columns, runs, tokens_of, version_of
from loomrl.storage.audit.records import CHAMPION, DECISION, DECISIONS, ON_TRIAL, SIMULATED, RequestTimes, column, holds
from loomrl.types import Json

ALONE_AFTER = 300  # requests of one agent in a row, none of another between: the policy has but this one
_MOST_VERSIONS = 8
_MOST_EXPERIMENTS = 8
_MOST_REMEMBERED = 10_000


@dataclass
class LoneAgent:
    """Whether a policy has but one agent: who asked last (None: nobody yet), and how many times without another in
    between.
    """

    agent_id: str | None = None
    count: int = 0

    def note_requests(self, agent_ids: Sequence[str]) -> None:
        """Count the requests of these agents, one or more, given in their order."""
        last = agent_ids[-1]
        others = next((place for place, one in enumerate(reversed(agent_ids)) if one != last), len(agent_ids))
        goes_on = last == self.agent_id and others == len(agent_ids)
        self.agent_id, self.count = last, others + (self.count if goes_on else 0)

    @property
    def is_certain(self) -> bool:
        """Whether the same agent has asked often enough without others between to conclude that it is the only one."""
        return self.count >= ALONE_AFTER


@dataclass
class StreamState:
    """All evidence of a stream, as plain values that can be saved."""

    versions: list[VersionEvidence] = field(default_factory=list)  # the one that acted last comes last
    by_others: list[str] = field(default_factory=list)  # decisions without an episode that say nothing of their version
    alone: LoneAgent = field(default_factory=LoneAgent)
    before: DealtBefore = field(default_factory=dict)  # the newest experiment last
    places: dict[str, Place] = field(default_factory=dict)  # of decisions without an episode whose reward is to come
    full: list[str] = field(default_factory=list)  # experiments that enrol no more agents here


STATE: TypeAdapter[StreamState] = TypeAdapter(StreamState)


class Stream:
    """The monitors of all versions that act, fed with the audit log's records in their order."""

    def __init__(
        self, watch: Callable[[str], Watch | None], state: StreamState | None = None, is_shared: bool = False
    ) -> None:
        """`watch` says what is known of a version; None for one that is not loaded: its records are passed over.
        `is_shared`: what other servers gather is to come (`merge`)."""
        state = state or StreamState()
        self._is_shared = is_shared
        self._watch = watch
        self._evidence = {one.version: one for one in state.versions}  # the version that acted last comes last
        self._monitors: dict[str, VersionMonitors] = {}  # at work
        self._known: dict[str, VersionEvidence] = {}  # version -> that of all servers, as it was heard last
        self._number: int | None = None  # of this server among them
        self._by_others = dict.fromkeys(state.by_others)
        self._alone, self._before, self._places = state.alone, state.before, OrderedDict(state.places)
        self._full = state.full
        self._times = RequestTimes()

    def state(self) -> StreamState:
        """All evidence so far, to be saved across a restart."""
        for monitors in self._monitors.values():
            monitors.list_episodes()
        versions, by_others = list(self._evidence.values()), list(self._by_others)
        return StreamState(versions, by_others, self._alone, self._before, self._places, self._full)

    def process(self, records: Sequence[Json]) -> list[Trigger]:
        """Add records in the log's order; returns a trigger for each version that the evidence now refutes."""
        for run in runs(records):
            self._process_run(run)
        return self._look()

    def evidence_to_share(self) -> list[VersionEvidence]:
        """The evidence about each version whose monitors are at work and that has had a record, for the other
        servers.
        """
        return [
            replace(one, before=self._dealt_before(one.arm), reward_places={})
            for version, one in self._evidence.items()
            if version in self._monitors and one.window
        ]

    def _dealt_before(self, arm: Arm | None) -> DealtBefore:
        """Of the experiment of this arm alone."""
        return {name: times for name, times in self._before.items() if arm is not None and name == arm.experiment}

    def merge(self, shared: Shared) -> list[Trigger]:
        """Adopt the evidence of all servers; returns a trigger for each version that it now refutes, or that another
        server refuted.
        """
        known = self._known = {version: merged_evidence(rows) for version, rows in shared.rows.items()}
        self._number = shared.number
        for version, (life, window) in shared.homes.items():
            if (own := self._evidence.get(version)) is not None:
                own.homes = {**life, **own.homes}
                own.window_homes = {
                    agent: revision for agent, revision in window.items() if agent in own.requests.window
                }
        for version in known:
            if version in self._monitors:
                self._share_known_evidence(version)
        return [*self._adopt_triggers(shared), *self._look()]

    def judge_alone(self) -> None:
        """Use this server's own evidence alone from now on, until that of others is merged again."""
        self._known = {}
        for monitors in self._monitors.values():
            monitors.forget_shared_evidence()

    def _share_known_evidence(self, version: str) -> None:
        """Give a version's monitors the merged evidence of all servers, where there is any."""
        if (one := self._known.get(version)) is not None:
            beside = self._beside(one, self._known.values(), self._evidence.values())
            self._monitors[version].set_shared_evidence(one, beside, self._number)

    def _adopt_triggers(self, shared: Shared) -> list[Trigger]:
        """Triggers of other servers for versions that have none here; they count here from now on."""
        found = []
        for version, rows in shared.rows.items():
            own = self._evidence.get(version)
            triggers = [one.trigger for one in rows if one.trigger is not None and one.trigger.version == version]
            if own is not None and own.trigger is None and triggers:
                own.trigger = triggers[0]
                found.append(triggers[0])
        return found

    def _look(self) -> list[Trigger]:
        watched = [one for one in self._monitors.values() if one.evidence.trigger is None]
        found = [monitors.look(self._comparison_of(monitors.evidence)) for monitors in watched]
        return [trigger for trigger in found if trigger is not None]

    @property
    def refuted(self) -> list[str]:
        """The versions whose monitors have triggered; the one that acted last comes last."""
        return [version for version, evidence in self._evidence.items() if evidence.trigger is not None]

    @property
    def suspicions(self) -> list[Suspicion]:
        """The newest suspicion of each monitor, of versions that have not triggered: they go on because of it."""
        watched = (one for one in self._evidence.values() if one.trigger is None)
        return [suspicion for one in watched for suspicion in one.suspicions.values()]

    def forget(self, version: str) -> None:
        """Drop all evidence about a version: should it act again, its monitors begin anew. Which agents it was dealt is
        kept."""
        former = self._evidence.pop(version, None)
        self._monitors.pop(version, None)
        self._leave(None if former is None else former.arm)

    def _leave(self, arm: Arm | None) -> None:
        """Keep in mind whom an experiment dealt to an arm that is no more."""
        if arm is None or not arm.agents:
            return
        known = self._before.pop(arm.experiment, {})
        for agent_id, enrolled in arm.agents.items():
            known[agent_id] = min(known.get(agent_id, enrolled.time), enrolled.time)
        self._before[arm.experiment] = known
        if len(self._before) > _MOST_EXPERIMENTS:
            del self._before[next(iter(self._before))]

    def describe(self) -> dict[str, Any]:
        """All monitors by version, as JSON values. Of a version whose monitors are not at work, `monitors` is empty."""
        return {
            version: self._monitors[version].describe(self._comparison_of(evidence))
            if version in self._monitors
            else evidence.describe()
            for version, evidence in self._evidence.items()
        }

    def _process_run(self, run: list[Json]) -> None:
        """Add one group of records that `runs` has put together."""
        kind = run[0]["kind"]
        if kind in (DECISION, DECISIONS):
            self._process_decisions(run)
            return
        (record,) = run
        if kind not in ("unanswered", "feedback") or record["agent_id"].startswith(SIMULATED):
            return
        monitors = self._of(record["version"])
        if monitors is None or monitors.evidence.trigger is not None:
            return
        monitors.evidence.num_seen += 1
        monitors.evidence.enter_window(record["timestamp"])
        if kind == "feedback":
            self._add_feedback(record, monitors)
        else:
            unit = unit_of(record["agent_id"], record.get("by_token"))
            monitors.evidence.count_requests({token_of(unit): 1}, record["timestamp"])
            self._alone.note_requests([unit])
            monitors.unanswered(unit, self._episode(unit, record["episode_id"], monitors))

    def _process_decisions(self, run: list[Json]) -> None:
        version, decisions, times = version_of(run[0]), Columns(run), list(map(self._times.of, run))
        agent_ids = decisions.of("agent_id")
        if SIMULATED in "".join(agent_ids):
            decisions = decisions.only([not agent_id.startswith(SIMULATED) for agent_id in agent_ids])
            agent_ids = decisions.of("agent_id")
        monitors = self._of(version) if agent_ids else None
        if monitors is None:
            return
        tokens = decisions.tokens()
        units = units_of(agent_ids, tokens)
        self._alone.note_requests(units)
        self._evidence[version] = self._evidence.pop(version)  # it acted last
        if monitors.evidence.trigger is None:
            monitors.evidence.num_seen += len(run)
            monitors.evidence.enter_window(run[-1]["timestamp"])
            monitors.evidence.count_requests(Counter(tokens), run[-1]["timestamp"])
            self._enrol(run, times, monitors.evidence)
            self._decided(decisions, units, monitors)
        else:
            self._note_episodes(zip(units, decisions.of("episode_id"), strict=True), monitors)

    def _of(self, version: str) -> VersionMonitors | None:
        if version not in self._monitors:
            for one in (*self._evidence, version):  # after a restart those that decided before, too
                self._start_monitors(one)
        return self._monitors.get(version)

    def _start_monitors(self, version: str) -> None:
        watch = None if version in self._monitors else self._watch(version)
        if watch is None:
            return
        evidence = self._evidence.setdefault(version, VersionEvidence(version))
        self._monitors[version] = VersionMonitors(evidence, watch, self._is_shared)
        self._share_known_evidence(version)
        if len(self._evidence) > _MOST_VERSIONS:
            self.forget(next(iter(self._evidence)))

    def _enrol(self, run: Sequence[Json], times: Sequence[str], evidence: VersionEvidence) -> None:
        """Agents that an experiment dealt to a version, by when they asked."""
        for record, time in zip(run, times, strict=True):
            told = record.get("shared", record)
            role = told.get("role", CHAMPION)  # logs from before there was a plan name none
            if role in ON_TRIAL:
                left = evidence.enter_experiment(told.get("experiment"), role == CHAMPION)
                if left is not None:
                    self._end_experiment(left, evidence)
            if told.get("experiment") is None or "shares" not in told:
                continue
            units, shares = units_of(column(record, "agent_id"), tokens_of(record)), told["shares"]
            dealt = {version: share for version, share in shares.items() if share > 0.0}
            self._end_dealt(told["experiment"], units, dealt.keys(), evidence if role in ON_TRIAL else None, time)
            arm = evidence.arm
            if role not in ON_TRIAL or arm is None or arm.experiment in self._full or not is_by_chance(shares):
                continue
            if not (new := [row for row, unit in enumerate(units) if unit not in arm.agents]):
                continue
            asked = column(record, "asked_to_explore" if holds(record, "asked_to_explore") else "exploration_flag")
            for row in new:
                if not units[row].startswith(SIMULATED):
                    arm.enrol(units[row], time, dealt, bool(asked[row]))
            if arm.is_full:  # the others neither: who comes must not depend on what it is dealt
                self._full = [*self._full, arm.experiment][-_MOST_EXPERIMENTS:]

    def _end_dealt(
        self, experiment: str, units: Sequence[str], versions: Set[str], by: VersionEvidence | None, time: str
    ) -> None:
        """End what counts of agents for whom one of the `versions` can decide that could not at first, or that were
        dealt another one than decides now on trial (`by`): the share has moved them."""
        for one in self._evidence.values():
            if one.arm is None or one.arm.experiment != experiment:
                continue
            if by is None or one is by:
                one.arm.end_others(units, versions, time)
            else:
                one.arm.end(units, time)

    def _end_experiment(self, left: Arm, by: VersionEvidence) -> None:
        """End all arms of an experiment when a version has left one: if it goes on, it is another one. Agents of before
        would stand beside new ones of one arm alone."""
        self._leave(left)
        for one in self._evidence.values():
            if one is not by and one.arm is not None and one.arm.experiment == left.experiment:
                self._leave(one.arm)
                one.arm = None

    def _comparison_of(self, evidence: VersionEvidence) -> Beside:
        return self._beside(evidence, list(reversed(self._evidence.values())), self._known.values())

    def _beside(
        self, evidence: VersionEvidence, known: Iterable[VersionEvidence], elsewhere: Iterable[VersionEvidence]
    ) -> Beside:
        """Of `known` evidence; an agent that others saw `elsewhere` before counts there."""
        champion = _champion_of(evidence, known)
        two = evidence.version, None if champion is None else champion.version
        others = [one for one in known if one.version not in two]
        arms = [one.arm for one in (*others, *elsewhere) if one.arm is not None]
        before = [self._before, *(one.before for one in self._known.values())]
        return Beside(self._alone.is_certain, champion, arms, before)

    def _decided(self, decisions: Columns, agent_ids: Sequence[str], monitors: VersionMonitors) -> None:
        """Add decisions of one version, for these agents."""
        own, signs, episode_ids = decisions.as_served(), monitors.signs(decisions), decisions.of("episode_id")
        self._note_places(monitors.evidence.arm, agent_ids, episode_ids, decisions)
        if all(own) and episode_ids.count(None) == len(episode_ids):
            monitors.add_single_decisions(agent_ids, signs, decisions.ids() if monitors.has_reference else ())
            return
        on_trial = decisions.on_trial()
        names = zip(agent_ids, episode_ids, decisions.ids(), own, strict=True)
        for row, (agent_id, episode_id, decision_id, is_own) in enumerate(names):
            episode = self._episode(agent_id, episode_id, monitors)
            if episode is not None:
                episode.num_decisions += 1
                episode.cut |= not is_own
                if not on_trial[row]:  # of another version's agents nothing counts then either
                    episode.return_place = (0, 0)
                if not is_own:
                    monitors.taken_over(row, signs, episode)
            elif not is_own:
                self._note_others(decision_id)
            if is_own:
                monitors.add_decision(row, signs, agent_id, episode, decision_id)

    def _note_places(
        self, arm: Arm | None, agent_ids: Sequence[str], episode_ids: Sequence[str | None], decisions: Columns
    ) -> None:
        """Number the decisions without an episode among their agents' returns: the reward of an earlier one may come
        later, and speaks against nobody until then."""
        if arm is None:
            return
        going_on = [row for row, agent_id in enumerate(agent_ids) if episode_ids[row] is None and arm.goes_on(agent_id)]
        if not going_on:
            return
        ids, on_trial = decisions.ids(), decisions.on_trial()
        for row in going_on:
            if on_trial[row]:
                self._places[ids[row]] = arm.begin_return(agent_ids[row])
        while len(self._places) > MOST_WAITING:
            self._places.popitem(last=False)

    def _note_episodes(self, keys: Iterable[tuple[str, str | None]], monitors: VersionMonitors) -> None:
        """In which episodes a refuted version goes on deciding: whoever takes them over finds what it led to."""
        for agent_id, episode_id in keys:
            if episode_id is not None and not monitors.has_open(key := (agent_id, episode_id)):
                for one in self._monitors.values():
                    one.leave(key)
                monitors.note_episode(key)

    def _note_others(self, decision_id: str) -> None:
        """A decision without an episode that says nothing of its version: nor will its reward."""
        self._by_others[decision_id] = None
        if len(self._by_others) > _MOST_REMEMBERED:
            del self._by_others[next(iter(self._by_others))]

    def _episode(self, agent_id: str, episode_id: str | None, monitors: VersionMonitors) -> LiveEpisode | None:
        """The named episode a request belongs to; where another version was deciding in it, that one has left it."""
        if episode_id is None:
            return None
        key = agent_id, episode_id
        if monitors.has_open(key):
            return monitors.opened(key, elsewhere=False)
        left = [one.leave(key) for one in self._monitors.values() if one is not monitors]
        episode = monitors.opened(key, elsewhere=any(left))
        if (arm := monitors.evidence.arm) is not None:
            episode.return_place = arm.begin_return(agent_id)
        return episode

    def _add_feedback(self, record: Json, monitors: VersionMonitors) -> None:
        """Add feedback: it completes a named episode, or is the reward of a decision that stands for itself."""
        token, sender = record.get("by_token"), record.get("told_by_token")
        if sender not in (None, token) and any(one.requests_by_token.under(sender) for one in self._evidence.values()):
            return  # from whoever asks for other agents; who only reports may report for all
        agent_id, value, arm = unit_of(record["agent_id"], token), record["reward"], monitors.evidence.arm
        if record["episode_id"] is not None:
            episode = monitors.rewarded(record, (agent_id, record["episode_id"]))
            if episode is None:
                return
            value, place, is_own = episode.total, episode.return_place, not episode.cut
        else:
            episode, place = None, self._places.pop(record["decision_id"], (0, 0))
            is_own = record["decision_id"] not in self._by_others
            self._by_others.pop(record["decision_id"], None)
        if is_own:
            monitors.returned(agent_id, value, episode or record["decision_id"])
        if arm is not None:
            arm.returned(agent_id, value, place)
            self._have_returns(monitors.evidence)

    def _have_returns(self, evidence: VersionEvidence) -> None:
        """Whoever is compared with this version has to look again."""
        for version, one in self._evidence.items():
            is_compared = one is evidence or (one.arm is not None and _is_champion_of(evidence, one.arm))
            if is_compared and version in self._monitors:
                self._monitors[version].has_returns()


def _champion_of(evidence: VersionEvidence, others: Iterable[VersionEvidence]) -> VersionEvidence | None:
    """Of the experiment in which a version is on trial: of several the one that acted last."""
    if evidence.arm is None or (arm := evidence.arm).is_champion:
        return None
    return max((one for one in others if _is_champion_of(one, arm)), key=lambda one: one.window, default=None)


def _is_champion_of(evidence: VersionEvidence, arm: Arm) -> bool:
    return evidence.arm is not None and evidence.arm.is_champion and evidence.arm.experiment == arm.experiment
