"""Monitors on the live stream: is a version that decides now what it was promoted as? Asked after every decision.

Each monitor bets against "given what came before, the mean of its values is at most its limit" (`monitor.MeanTest`), so
it may be looked at after every value. The chance of a false alarm is divided among them: a version that keeps its
promises is *ever* taken back with a probability of at most 1 - `confidence`, all monitors together.

What counts as one value:

- Steps of an episode depend on each other. Of each stretch of `spacing` decisions of a named episode one counts, which
  its ids draw: each is equally likely, in short episodes too. Its value stands from the stretch's beginning on, as 0
  until the decision comes, and is withdrawn where the episode is over before. So values come in an order that
  does not depend on what they will be, also where all agents begin at once in states that are rare later on.
- A decision without `episode_id` stands for itself. A person's and an exploratory decision says nothing about the
  version.
- A limit per episode counts an episode once: as kept when it begins, as broken from its first violation on. Waiting
  for its end would let those count first that fail early.
- A reward is that of an episode, its return, or of a decision without one. Each is paired with one of the control's,
  the version that acted last when it came, before or beside it. Two equal versions can be exchanged within a pair, so
  the difference is 0 in the mean. Returns count in the order in which their episodes began.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from loomrl.monitoring.evidence import Evidence, LiveEpisode, Rewards, VersionMonitors, keep
from loomrl.monitoring.monitor import Trigger
from loomrl.monitoring.watch import Watch
from loomrl.serving.columns import Columns, runs, version_of
from loomrl.serving.records import DECISION, DECISIONS
from loomrl.shadow.config import SIMULATED
from loomrl.types import Json

_MOST_VERSIONS = 8
_MOST_REMEMBERED = 10_000


@dataclass
class StreamState:
    """Everything a stream has gathered, as plain values."""

    versions: list[Evidence] = field(default_factory=list)  # the one that acted last comes last
    by_others: list[str] = field(default_factory=list)  # decisions without an episode that say nothing of their version


STATE: TypeAdapter[StreamState] = TypeAdapter(StreamState)


class Stream:
    """The monitors of all versions that act, fed with the audit log's records in their order."""

    def __init__(self, watch: Callable[[str], Watch | None], state: StreamState | None = None) -> None:
        """`watch` says what is known of a version; None for one that is not loaded: its records are passed over."""
        state = state or StreamState()
        self._watch = watch
        self._evidence = {one.version: one for one in state.versions}  # the version that acted last comes last
        self._monitors: dict[str, VersionMonitors] = {}  # at work
        self._by_others = dict.fromkeys(state.by_others)

    def state(self) -> StreamState:
        """What was gathered, to be kept across a restart."""
        for monitors in self._monitors.values():
            monitors.list_episodes()
        return StreamState(list(self._evidence.values()), list(self._by_others))

    def take(self, records: Sequence[Json]) -> list[Trigger]:
        """Take records in their order; a trigger for each version that the evidence came to suffice against."""
        found = (self._take(run) for run in runs(records))
        return [trigger for trigger in found if trigger is not None]

    @property
    def refuted(self) -> list[str]:
        """The versions that triggered."""
        return [version for version, evidence in self._evidence.items() if evidence.trigger is not None]

    def forget(self, version: str) -> None:
        """Begin anew with a version, should it act again."""
        self._evidence.pop(version, None)
        self._monitors.pop(version, None)

    def describe(self) -> dict[str, Any]:
        """All monitors by version, as JSON values."""
        return {version: evidence.describe() for version, evidence in self._evidence.items()}

    def _take(self, run: list[Json]) -> Trigger | None:
        """Take what `runs` has put together."""
        kind = run[0]["kind"]
        if kind in (DECISION, DECISIONS):
            return self._take_decisions(version_of(run[0]), Columns(run))
        (record,) = run
        if kind not in ("unanswered", "feedback") or record["agent_id"].startswith(SIMULATED):
            return None
        monitors = self._of(record["version"])
        if monitors is None or monitors.evidence.trigger is not None:
            return None
        if kind == "feedback":
            self._rewarded(record, monitors)
        else:
            monitors.unanswered(self._episode(record["agent_id"], record["episode_id"], monitors))
        return monitors.evidence.trigger

    def _take_decisions(self, version: str, decisions: Columns) -> Trigger | None:
        agent_ids = decisions.of("agent_id")
        if SIMULATED in "".join(agent_ids):
            decisions = decisions.only([not agent_id.startswith(SIMULATED) for agent_id in agent_ids])
        monitors = self._of(version) if len(decisions) else None
        if monitors is None:
            return None
        self._evidence[version] = self._evidence.pop(version)  # it acted last
        if monitors.evidence.trigger is not None:
            return None
        self._decided(decisions, monitors)
        return monitors.evidence.trigger

    def _of(self, version: str) -> VersionMonitors | None:
        if version not in self._monitors:
            for one in (*self._evidence, version):  # after a restart those that decided before, too
                self._put_to_work(one)
        return self._monitors.get(version)

    def _put_to_work(self, version: str) -> None:
        watch = None if version in self._monitors else self._watch(version)
        if watch is None:
            return
        evidence = self._evidence.setdefault(version, self._begun(version))
        self._monitors[version] = VersionMonitors(evidence, watch)
        if len(self._evidence) > _MOST_VERSIONS:
            self.forget(next(iter(self._evidence)))

    def _begun(self, version: str) -> Evidence:
        """A version that comes is held against the one that acted last, and was not refuted."""
        others = [one for one in self._evidence.values() if one.trigger is None and one.version != version]
        if not others:
            return Evidence(version, control=None)
        return Evidence(version, others[-1].version, rewards=Rewards(controls=list(others[-1].rewards.own)))

    def _decided(self, decisions: Columns, monitors: VersionMonitors) -> None:
        """Take decisions of one version, and leave those behind a trigger."""
        own, signs = decisions.own(), monitors.signs(decisions)
        episode_ids = decisions.of("episode_id")
        if all(own) and episode_ids.count(None) == len(episode_ids):
            monitors.decided_alone(len(own), signs)
            return
        names = zip(decisions.of("agent_id"), episode_ids, decisions.ids(), own, strict=True)
        for row, (agent_id, episode_id, decision_id, is_own) in enumerate(names):
            episode = self._episode(agent_id, episode_id, monitors)
            if episode is not None:
                episode.num_decisions += 1
                episode.cut |= not is_own
            elif not is_own:
                self._note_others(decision_id)
            if is_own:
                monitors.decided(row, signs, episode)
            if monitors.evidence.trigger is not None:
                return

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
        return monitors.opened(key, elsewhere=any(left))

    def _rewarded(self, record: Json, monitors: VersionMonitors) -> None:
        for reward in self._rewards(record, monitors):
            monitors.compare(reward)
            for other in self._evidence.values():
                if other.control == monitors.evidence.version:
                    keep(other.rewards.controls, reward)

    def _rewards(self, record: Json, monitors: VersionMonitors) -> list[float]:
        """What feedback completes: returns of episodes, or the reward of a decision that stands for itself."""
        if record["episode_id"] is not None:
            return list(monitors.rewarded(record, (record["agent_id"], record["episode_id"])))
        if record["decision_id"] in self._by_others:
            del self._by_others[record["decision_id"]]
            return []
        return [record["reward"]]
