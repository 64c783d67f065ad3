"""What is gathered about one version: what its agents showed, its open episodes, its rewards beside its control's."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from loomrl.monitoring.monitor import Agents, Monitor, Place, Trigger
from loomrl.monitoring.tokens import (
    CORROBORATION,
    LEAST_REQUESTS,
    RequestCounts,
    Suspicion,
    token_of,
    windows_between,
    without,
)
from loomrl.monitoring.trial import Arm, Trial
from loomrl.monitoring.units import FEW, num_left_out
from loomrl.monitoring.watch import REWARD, UNANSWERED, Level, Signs, Watch
from loomrl.serving.columns import Columns
from loomrl.types import Json

_MOST_EPISODES = 10_000  # open ones; the oldest are forgotten
_UNNUMBERED = 5  # the number a server counts as until LoomDB has given it one
_NEXT_LOOK = 1.05  # as many returns as at the last one
_WINDOW_CHARACTERS = len("2026-01-01T00:0")  # of a timestamp: ten minutes

Key = tuple[str, str]  # agent_id, episode_id


@dataclass(slots=True)
class LiveEpisode:
    """A named episode as far as one version decided in it."""

    agent_id: str
    episode_id: str
    cut: bool  # another decided in it too: its return is not this version's
    number: int = 0  # among the agent's episodes since the version began, from 1 on
    number_in_window: int = 0
    window: str = ""  # in which it began
    place: int = 0  # among the agent's returns in its experiment
    num_decisions: int = 0
    num_rewards: int = 0
    total: float = 0.0
    ended: bool = False
    broken: list[str] = field(default_factory=list)  # monitors of limits per episode that it broke

    @property
    def key(self) -> Key:
        """What tells it from others that are open."""
        return self.agent_id, self.episode_id

    @property
    def is_whole(self) -> bool:
        """Whether it has ended and every reward of it has come."""
        return self.ended and self.num_rewards >= self.num_decisions


@dataclass
class Counts:
    """How many values of a kind each agent has had."""

    before: dict[str, int] = field(default_factory=dict)  # the window began
    window: dict[str, int] = field(default_factory=dict)

    def count(self, agent_id: str) -> tuple[int, int]:
        """One more; its number in all, and in the window."""
        number = self.window[agent_id] = self.window.get(agent_id, 0) + 1
        return self.before.get(agent_id, 0) + number, number

    def of(self, agent_id: str) -> tuple[int, int]:
        """Of one agent: before the window, and in it."""
        return self.before.get(agent_id, 0), self.window.get(agent_id, 0)

    def without(self, token: str) -> "Counts":
        """Those of agents of all other tokens."""
        return Counts(without(self.before, token), without(self.window, token))

    def begin_window(self) -> None:
        """From now on."""
        self.before = {agent: sum(self.of(agent)) for agent in self.before | self.window}
        self.window = {}


@dataclass
class Evidence:
    """All that was gathered about one version, as plain values."""

    version: str
    num_decisions: int = 0  # its own
    num_seen: int = 0  # records about it
    begun: str = ""  # the window it began in
    window: str = ""  # the newest
    unnamed: dict[str, bool] = field(default_factory=dict)  # agent -> whether its first request named no episode
    requests: Counts = field(default_factory=Counts)
    episodes: Counts = field(default_factory=Counts)  # of agents that name them
    monitors: dict[str, Monitor] = field(default_factory=dict)
    arm: Arm | None = None  # in the newest experiment
    num_experiments: int = 0
    homes: dict[str, int] = field(default_factory=dict)  # agent -> revision of LoomDB's by which it was known first
    window_homes: dict[str, int] = field(default_factory=dict)  # the same since the window began
    open_episodes: list[LiveEpisode] = field(default_factory=list)  # in the order they began
    requests_by_token: RequestCounts = field(default_factory=RequestCounts)
    trigger: Trigger | None = None
    suspicions: dict[str, Suspicion] = field(default_factory=dict)  # by monitor, the newest

    def without(self, token: str) -> "Evidence":
        """What agents of all other tokens have shown."""
        return replace(
            self,
            unnamed=without(self.unnamed, token),
            requests=self.requests.without(token),
            episodes=self.episodes.without(token),
            monitors={name: one.without(token) for name, one in self.monitors.items()},
            arm=None if self.arm is None else replace(self.arm, agents=without(self.arm.agents, token)),
        )

    def num_agents_by_token(self) -> Counter[str]:
        """How many agents each token named that may speak for any."""
        return Counter(token for token in map(token_of, self.unnamed) if token)

    def enter_experiment(self, experiment: str | None, is_champion: bool) -> None:
        """Agents are dealt by this one from now on; by another one anew."""
        if experiment is None:
            self.arm = None
        elif self.arm is None or (self.arm.experiment, self.arm.is_champion) != (experiment, is_champion):
            self.num_experiments += 1
            self.arm = Arm(experiment, is_champion, self.num_experiments)

    def enter_window(self, timestamp: str) -> None:
        """What comes now belongs to the window of this time; a clock that goes back changes nothing."""
        window = timestamp[:_WINDOW_CHARACTERS]
        if window <= self.window:
            return
        self.begun, self.window, self.window_homes = self.begun or window, window, {}
        self.requests_by_token.enter_window(window)
        for counts in (self.requests, self.episodes):
            counts.begin_window()
        for monitor in self.monitors.values():
            monitor.window = {}

    def describe(self) -> Json:
        """For whoever looks, while nothing more is known of the version."""
        trigger = None if self.trigger is None else self.trigger.to_json() | {"reason": self.trigger.reason}
        return {
            "control": None,
            "num_decisions": self.num_decisions,
            "num_agents": len(self.unnamed),
            "trigger": trigger,
            "suspicions": [one.to_json() | {"reason": one.reason} for one in self.suspicions.values()],
            "monitors": {},
        }

    @property
    def num_windows_before(self) -> int:
        """Between the first and the newest, those without a decision too."""
        return windows_between(self.begun, self.window)


@dataclass(frozen=True)
class Beside:
    """What is known beside a version's own evidence."""

    is_alone: bool  # the policy has but one agent
    champion: Evidence | None  # that of the same experiment

    def without(self, token: str) -> "Beside":
        """What is known without agents of a token."""
        return replace(self, champion=None if self.champion is None else self.champion.without(token))


class VersionMonitors:
    """The monitors of one version at work."""

    def __init__(self, evidence: Evidence, watch: Watch, is_shared: bool) -> None:
        """A monitor whose limit is another than before begins anew, as if what came before had kept it.

        `is_shared`: other servers may have seen more.
        """
        self.evidence, self._watch = evidence, watch
        former = evidence.monitors
        evidence.monitors = {name: _going_on(former.get(name), level) for name, level in watch.levels.items()}
        self._per_episode = {one.monitor for one in watch.limits if one.per_episode and one.monitor in watch.levels}
        self._per_request = [name for name in watch.shown if name not in self._per_episode]
        self._by_all: dict[str, float] = {}  # monitor -> what all servers' evidence amounts to
        self._others: tuple[Evidence, Beside] | None = None  # of all servers
        self._num_of_token = Counter(map(token_of, evidence.unnamed))  # agents
        self._own_part = 0.5**_UNNUMBERED if is_shared else None
        self._num_returns = [0, 0]  # that came, and that had come when they were last looked at
        self._open = {episode.key: episode for episode in evidence.open_episodes}

    def list_episodes(self) -> None:
        """Put the episodes that are not done with into the evidence."""
        self.evidence.open_episodes = list(self._open.values())

    # --- episodes -----------------------------------------------------------------------------------------------

    def has_open(self, key: Key) -> bool:
        """Whether this version decides in the episode."""
        return key in self._open and not self._open[key].ended

    def opened(self, key: Key, elsewhere: bool) -> LiveEpisode:
        """The open episode of this key; begun now if there is none. `elsewhere`: another version began it."""
        if self.has_open(key):
            return self._open[key]
        self._open.pop(key, None)
        episode = self._open[key] = LiveEpisode(*key, cut=elsewhere, window=self.evidence.window)
        if not self._meet(key[0], False):
            episode.number, episode.number_in_window = self.evidence.episodes.count(key[0])
        if len(self._open) > _MOST_EPISODES:
            self.leave(next(iter(self._open)))
        return episode

    def leave(self, key: Key) -> bool:
        """Forget an open episode: it goes on without this version. Whether there was one."""
        episode = self._open.pop(key, None)
        if episode is not None:
            episode.cut = True
        return episode is not None

    def rewarded(self, feedback: Json, key: Key) -> LiveEpisode | None:
        """Take the feedback on a decision in a named episode; the episode, where its return counts now."""
        episode = self._open.get(key)
        if episode is None:
            return None
        episode.num_rewards += 1
        episode.total += feedback["reward"]
        episode.ended |= feedback["terminated"] or feedback["truncated"]
        if not episode.is_whole:
            return None
        del self._open[key]
        return None if episode.cut else episode

    # --- decisions ----------------------------------------------------------------------------------------------

    def decided_alone(self, agent_ids: Sequence[str], signs: Signs) -> None:
        """Take decisions of the version's own, (B,), each without an episode."""
        evidence = self.evidence
        evidence.num_decisions += len(agent_ids)
        for agent_id in set(agent_ids) - evidence.unnamed.keys():
            self._meet(agent_id, True)
        rows = np.flatnonzero(np.logical_or.reduce(list(signs.values()))).tolist() if signs else []
        done = 0
        for row in rows:
            self._count(agent_ids[done:row])
            done = row + 1
            self._show(row, signs, agent_ids[row], None)
        self._count(agent_ids[done:])

    def decided(self, row: int, signs: Signs, agent_id: str, episode: LiveEpisode | None) -> None:
        """Take a decision of the version's own: this row of those whose signs these are."""
        self.evidence.num_decisions += 1
        self._meet(agent_id, episode is None)
        self._show(row, signs, agent_id, episode)

    def unanswered(self, agent_id: str, episode: LiveEpisode | None) -> None:
        """Take a request that the version had no finite answer to; it shows nothing else."""
        self._meet(agent_id, episode is None)
        self._add(UNANSWERED, agent_id, 1.0, self._request(agent_id, episode))

    def _count(self, agent_ids: Sequence[str]) -> None:
        """Requests that nothing speaks against, without an episode."""
        window, unnamed = self.evidence.requests.window, self.evidence.unnamed
        for agent_id in agent_ids:
            window[agent_id] = window.get(agent_id, 0) + 1
            if not unnamed[agent_id]:
                self.evidence.episodes.count(agent_id)

    def _request(self, agent_id: str, episode: LiveEpisode | None) -> tuple[int, int]:
        """Count one."""
        if episode is None and not self.evidence.unnamed[agent_id]:
            self.evidence.episodes.count(agent_id)  # of one decision, by an agent that names others
        return self.evidence.requests.count(agent_id)

    def _show(self, row: int, signs: Signs, agent_id: str, episode: LiveEpisode | None) -> None:
        number = self._request(agent_id, episode)
        for name in self._per_request:
            if _speaks(signs, name, row):
                self._add(name, agent_id, 1.0, number)
        for name in self._per_episode:
            if _speaks(signs, name, row):
                self._break_limit(name, agent_id, episode, number)

    def _break_limit(self, name: str, agent_id: str, episode: LiveEpisode | None, number: tuple[int, int]) -> None:
        """An episode breaks a limit once; to an agent that names none each decision is one."""
        evidence = self.evidence
        if not evidence.unnamed[agent_id]:
            if episode is None:
                before, in_window = evidence.episodes.of(agent_id)
                number = before + in_window, in_window
            elif name in episode.broken:
                return
            else:
                episode.broken.append(name)
                number = episode.number, episode.number_in_window * (episode.window == evidence.window)
        self._add(name, agent_id, 1.0, number)

    def signs(self, decisions: Columns) -> Signs:
        """What speaks against the version in each of its decisions."""
        return self._watch.signs(decisions)

    # --- rewards ------------------------------------------------------------------------------------------------

    def has_returns(self) -> None:
        """It, or what it is held against, has brought in something; looked at when there is a twentieth more."""
        self._num_returns[0] += 1
        seen, now = self._num_returns[1], self._num_returns[0]
        if (monitor := self.evidence.monitors.get(REWARD)) is not None and now > seen * _NEXT_LOOK:
            self._num_returns[1] = now
            monitor.is_new = True

    def returned(self, agent_id: str, value: float, episode: LiveEpisode | None) -> None:
        """Hold a return, or the reward of a decision without an episode, against the stated reference."""
        config, level = self._watch.config, self._watch.levels.get(REWARD)
        if level is None or config.reference is None or config.reward_range is None:
            return
        low, high = config.reward_range
        missing = (high - min(max(value, low), high)) / (high - low)
        if episode is not None and episode.number:
            number = episode.number, episode.number_in_window * (episode.window == self.evidence.window)
        else:
            before, in_window = self.evidence.requests.of(agent_id)  # it came of one of these; which, matters little
            number = before + in_window, in_window
        if missing and number[0]:
            self._add(REWARD, agent_id, missing, number)

    # --- what it amounts to -------------------------------------------------------------------------------------

    def look(self, beside: Beside, is_asked: bool = False) -> Trigger | None:
        """Weigh what has come, or all if it is asked for; a trigger where the evidence came to suffice."""
        evidence, weigher = self.evidence, Weigher(self.evidence, self._watch, beside)
        for name, monitor in evidence.monitors.items():
            has_come = monitor.is_new
            if has_come or (is_asked and not weigher.is_paired(name)):
                monitor.look(weigher.num_values(name), self._combined(name, weigher.e_value(name)))
            if evidence.trigger is None and monitor.refutes and not is_asked:
                is_known = not has_come and name in evidence.suspicions
                suspicion = evidence.suspicions[name] if is_known else self._suspicion(name, beside)
                if suspicion is None:
                    evidence.trigger = weigher.trigger(name)
                else:
                    evidence.suspicions[name] = suspicion
        return evidence.trigger

    def _suspicion(self, name: str, beside: Beside) -> Suspicion | None:
        """Where what refutes the version comes from one token alone, and others ask for as many decisions as it.

        A token that was suspected stays so while it asks for little, also when the others fall silent.
        """
        own, former = self.evidence, self.evidence.suspicions.get(name)
        known = own if self._others is None else self._others[0]
        for token, num_agents in (own.num_agents_by_token() | known.num_agents_by_token()).items():
            asked = known.requests_by_token.under(token)
            stays = former is not None and former.token == token and asked < LEAST_REQUESTS
            if known.requests_by_token.under_others(token) < max(LEAST_REQUESTS, asked) and not stays:
                continue
            e_value = self._e_value_of_others(name, token, beside)
            if e_value < CORROBORATION:
                return Suspicion(
                    version=own.version,
                    monitor=name,
                    token=token,
                    num_agents=num_agents,
                    e_value=own.monitors[name].e_value,
                    e_value_of_others=e_value,
                    num_decisions=own.num_decisions,
                )
        return None

    def _e_value_of_others(self, name: str, token: str, beside: Beside) -> float:
        """What agents of all other tokens show, to this server or to all together."""
        found = Weigher(self.evidence.without(token), self._watch, beside.without(token)).e_value(name)
        if self._others is not None:
            others, beside_all = self._others
            if name in others.monitors:
                all_others = Weigher(others.without(token), self._watch, beside_all.without(token))
                found = max(found, all_others.e_value(name))
        return found

    def describe(self, beside: Beside) -> Json:
        """For whoever looks."""
        self.look(beside, is_asked=self.evidence.trigger is None)
        weigher = Weigher(self.evidence, self._watch, beside)
        told = {
            "control": weigher.control,
            "monitors": {name: weigher.describe(name) for name in self.evidence.monitors},
        }
        return self.evidence.describe() | told

    def hear(self, others: Evidence, beside: Beside, number: int | None) -> None:
        """What all servers know together; `number` is this one's among them."""
        weigher = Weigher(others, self._watch, beside)
        self._others = others, beside
        self._by_all = {name: weigher.e_value(name) for name in others.monitors}
        self._own_part = 0.5 ** (_UNNUMBERED if number is None else number)
        for monitor in self.evidence.monitors.values():
            monitor.is_new = True

    def _combined(self, name: str, e_value: float) -> float:
        """Half is staked on what all servers know together, the rest shared out among them for what each knows."""
        if self._own_part is None:
            return e_value
        return (self._by_all.get(name, 1.0) + self._own_part * e_value + 1.0 - self._own_part) / 2.0

    def _add(self, name: str, agent_id: str, value: float, number: tuple[int, int]) -> None:
        monitor = self.evidence.monitors.get(name)
        if monitor is None:
            return
        of_episodes = name in self._per_episode or name == REWARD
        block = 1 if of_episodes and not self.evidence.unnamed[agent_id] else monitor.block
        monitor.add(agent_id, value, Place(*number, block, has_blocks=self._is_of_few(agent_id)))

    def _is_of_few(self, agent_id: str) -> bool:
        """Whether there are few agents, or few of its token: those may have to show what others show."""
        return len(self.evidence.unnamed) < FEW or self._num_of_token[token_of(agent_id)] < FEW

    def _meet(self, agent_id: str, is_unnamed: bool) -> bool:
        """An agent asks; whether its first request named no episode."""
        unnamed = self.evidence.unnamed
        if agent_id not in unnamed:
            unnamed[agent_id] = is_unnamed
            self._num_of_token[token_of(agent_id)] += 1
        return unnamed[agent_id]


class Weigher:
    """What evidence amounts to, monitor by monitor."""

    def __init__(self, evidence: Evidence, watch: Watch, beside: Beside) -> None:
        self._evidence, self._watch = evidence, watch
        self._trial = _trial(evidence, beside.champion, watch)
        self._per_episode = {one.monitor for one in watch.limits if one.per_episode}
        self._left_out = num_left_out(len(evidence.unnamed), beside.is_alone)
        self._requests = evidence.requests.before, evidence.requests.window
        self._known: dict[bool, Agents] = {}

    def e_value(self, name: str) -> float:
        """The evidence against the version."""
        monitor = self._evidence.monitors[name]
        if self.is_paired(name):
            return 1.0 if self._trial is None else self._trial.evidence(self._watch.config.max_reward_loss)
        return self._agents(self._is_of_episodes(name)).evidence(monitor)

    @property
    def control(self) -> str | None:
        """The version whose returns are held against this one's."""
        return None if self._trial is None else self._trial.control_version

    def num_values(self, name: str) -> int:
        """How many there are, those that are 0 so far among them."""
        if self.is_paired(name):
            return 0 if self._trial is None else sum(one.num_returns for one in self._trial.own.agents.values())
        return sum(sum(one.values()) for one in self._agents(self._is_of_episodes(name)).counts)

    def trigger(self, name: str) -> Trigger:
        """That this monitor refutes the version."""
        evidence, monitor = self._evidence, self._evidence.monitors[name]
        mean, limit = self._shown(name)
        return Trigger(
            version=evidence.version,
            monitor=name,
            e_value=monitor.e_value,
            threshold=monitor.threshold,
            mean=mean,
            limit=limit,
            num_values=self.num_values(name),
            num_decisions=evidence.num_decisions,
            num_agents=len(evidence.unnamed),
            control=self.control if self.is_paired(name) else None,
            tokens=self._tokens(monitor),
        )

    def _tokens(self, monitor: Monitor) -> list[Json]:
        """How many agents each token named that may speak for any, and how many of those showed something."""
        showing = Counter(map(token_of, monitor.life))
        named = self._evidence.num_agents_by_token().most_common()
        return [{"token": one, "num_agents": count, "num_showing": showing[one]} for one, count in named]

    def describe(self, name: str) -> Json:
        """For whoever looks: how far it is from its threshold, how it came there, and which agents stand out."""
        monitor, num_values = self._evidence.monitors[name], self.num_values(name)
        mean, limit = self._shown(name)
        return {
            "limit": limit,
            "mean": mean,
            "num_values": num_values,
            "e_value": monitor.e_value,
            "threshold": monitor.threshold,
            "trace": [*monitor.trace, (num_values, monitor.e_value)],
            "odd_agents": [] if self.is_paired(name) else self._agents(self._is_of_episodes(name)).odd(monitor),
        }

    def _shown(self, name: str) -> tuple[float, float]:
        """The mean of all values and what it may be; of rewards (1 + how much worse in parts of the range) / 2."""
        monitor, config = self._evidence.monitors[name], self._watch.config
        if self.is_paired(name):
            return (1.0 + (0.0 if self._trial is None else self._trial.loss)) / 2.0, monitor.limit
        mean = monitor.total / max(self.num_values(name), 1)
        if name != REWARD:
            return mean, monitor.limit
        worse = mean - monitor.limit + config.max_reward_loss
        return (1.0 + worse) / 2.0, (1.0 + config.max_reward_loss) / 2.0

    def is_paired(self, name: str) -> bool:
        """Whether returns are held against the champion's."""
        return name == REWARD and self._watch.config.reference is None

    def _is_of_episodes(self, name: str) -> bool:
        return name in self._per_episode or name == REWARD

    def _agents(self, of_episodes: bool) -> Agents:
        if of_episodes not in self._known:
            counts = self._counts_of_episodes() if of_episodes else self._requests
            left_out, number = self._left_out, self._evidence.num_windows_before
            self._known[of_episodes] = Agents(counts, self._evidence.unnamed, number, of_episodes, left_out)
        return self._known[of_episodes]

    def _counts_of_episodes(self) -> list[dict[str, int]]:
        """To agents that name none each request is one."""
        evidence = self._evidence
        episodes, unnamed = (evidence.episodes.before, evidence.episodes.window), evidence.unnamed
        return [
            named | {agent: count for agent, count in requests.items() if unnamed[agent]}
            for requests, named in zip(self._requests, episodes, strict=True)
        ]


def _trial(evidence: Evidence, champion: Evidence | None, watch: Watch) -> Trial | None:
    if evidence.arm is None or champion is None or champion.arm is None:
        return None
    return Trial(evidence.version, evidence.arm, champion.version, champion.arm, watch.config.reward_range)


def _speaks(signs: Signs, name: str, row: int) -> bool:
    """Whether a decision speaks against its version, to one monitor."""
    return name in signs and bool(signs[name][row])


def _going_on(former: Monitor | None, level: Level) -> Monitor:
    if former is None or (former.limit, former.block) != (level.limit, level.block):
        return Monitor.at(level)
    former.threshold = level.threshold
    return former
