"""What is gathered about one version: its monitors, its open episodes, its rewards beside those of its control."""

from collections import defaultdict, deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from loomrl.monitoring.monitor import Monitor, Trigger
from loomrl.monitoring.watch import REWARD, UNANSWERED, Level, Signs, Watch
from loomrl.serving.columns import Columns
from loomrl.types import Json

_MOST_EPISODES = 10_000  # open ones; the oldest are forgotten
_MOST_REWARDS = 512  # the newest, as controls of other versions
_PATIENCE = 8  # whole episodes that may wait for an older one, and two more for each that is not whole

Key = tuple[str, str]  # agent_id, episode_id


@dataclass(slots=True)
class Stretch:
    """Requests of an episode that follow each other, of which one, drawn when the first comes, gives the values."""

    drawn: int  # its number in the episode
    bets: dict[str, int]  # monitor -> number of its value, which counts as 0 until then


@dataclass(slots=True)
class LiveEpisode:
    """A named episode as far as one version decided in it."""

    agent_id: str
    episode_id: str
    cut: bool  # another decided in it too: its return is not this version's
    num_requests: int = 0
    num_decisions: int = 0
    num_rewards: int = 0
    total: float = 0.0
    ended: bool = False
    kept: dict[str, int] | None = None  # monitor of a limit not broken yet -> number of the value that says so
    stretches: dict[int, Stretch] = field(default_factory=dict)  # by length; those whose drawn request is to come

    @property
    def key(self) -> Key:
        """What tells it from others that are open."""
        return self.agent_id, self.episode_id

    @property
    def is_whole(self) -> bool:
        """Whether it has ended and every reward of it has come."""
        return self.ended and self.num_rewards >= self.num_decisions

    def forget(self, monitors: Set[str]) -> None:
        """These have begun anew: what they bet on it is void."""
        for bets in (self.kept or {}, *(stretch.bets for stretch in self.stretches.values())):
            for name in monitors & bets.keys():
                del bets[name]


@dataclass(slots=True)
class Rewards:
    """A version's rewards, and those of its control that wait for their pair; the newest come last."""

    own: list[float] = field(default_factory=list)
    controls: list[float] = field(default_factory=list)
    span: tuple[float, float] | None = None  # the lowest and the highest of all pairs

    def loss(self, reward: float, reference: float | None, span: tuple[float, float] | None) -> float | None:
        """How a reward compares with the control's: 0 is better by the whole `span`, 1 is worse by it.

        None where no control is left, or no two rewards have differed yet. Where no span is stated it is that of the
        pairs before, so that both rewards are clipped alike.
        """
        keep(self.own, reward)
        control = self.controls.pop() if self.controls else reference
        if control is None:
            return None
        before, pair = span or self.span, (control, reward)
        self.span = min(*pair, *(self.span or pair)), max(*pair, *(self.span or pair))
        if before is None or before[0] == before[1]:
            return None
        low, high = before
        difference = min(max(control, low), high) - min(max(reward, low), high)
        return (difference / (high - low) + 1.0) / 2.0


@dataclass
class Evidence:
    """All that was gathered about one version, as plain values."""

    version: str
    control: str | None  # the version that acted last when this one came
    num_decisions: int = 0  # its own
    monitors: dict[str, Monitor] = field(default_factory=dict)
    rewards: Rewards = field(default_factory=Rewards)
    episodes: list[LiveEpisode] = field(default_factory=list)  # in the order they began
    trigger: Trigger | None = None

    def describe(self) -> Json:
        """For whoever looks."""
        return {
            "control": self.control,
            "num_decisions": self.num_decisions,
            "trigger": None if self.trigger is None else self.trigger.to_json() | {"reason": self.trigger.reason},
            "monitors": {name: monitor.describe() for name, monitor in self.monitors.items()},
        }


class VersionMonitors:
    """The monitors of one version at work."""

    def __init__(self, evidence: Evidence, watch: Watch) -> None:
        """A monitor whose limit is another than before begins anew."""
        self.evidence, self._watch = evidence, watch
        former = evidence.monitors
        evidence.monitors = {name: _going_on(former.get(name), level) for name, level in watch.levels.items()}
        for episode in evidence.episodes:
            episode.forget({name for name in former if former[name] is not evidence.monitors.get(name)})
        self._shown = watch.shown
        self._per_episode = [one.monitor for one in watch.limits if one.per_episode and one.monitor in watch.levels]
        self._by_length = defaultdict[int, list[str]](list)  # monitors that take one value of so many decisions
        for name in sorted(set(self._shown) - set(self._per_episode)):
            self._by_length[watch.spacing(name)].append(name)
        self._open = {episode.key: episode for episode in evidence.episodes if not episode.is_whole}
        self._in_order = deque(episode for episode in evidence.episodes if not episode.cut)
        self._num_whole = sum(episode.is_whole for episode in self._in_order)

    def list_episodes(self) -> None:
        """Put the episodes that are not done with into the evidence."""
        in_order = [episode for episode in self._in_order if not episode.cut]
        self.evidence.episodes = [*in_order, *(episode for episode in self._open.values() if episode.cut)]

    def has_open(self, key: Key) -> bool:
        """Whether this version decides in the episode."""
        return key in self._open and not self._open[key].ended

    def opened(self, key: Key, elsewhere: bool) -> LiveEpisode:
        """The open episode of this key; begun now if there is none. `elsewhere`: another version began it."""
        if self.has_open(key):
            return self._open[key]
        self.leave(key)
        episode = self._open[key] = LiveEpisode(*key, cut=elsewhere)
        if not elsewhere:
            self._in_order.append(episode)
        if len(self._open) > _MOST_EPISODES:
            self.leave(next(iter(self._open)))
        return episode

    def leave(self, key: Key) -> bool:
        """Forget an open episode: it goes on without this version. Whether there was one."""
        episode = self._open.pop(key, None)
        if episode is not None:
            episode.cut = True
            self._withdraw(episode)
        return episode is not None

    def signs(self, decisions: Columns) -> Signs:
        """What speaks against the version in each of its decisions."""
        return self._watch.signs(decisions)

    def decided_alone(self, count: int, signs: Signs) -> None:
        """Take decisions of the version's own, each without an episode; those behind a trigger are left."""
        row = 0
        for unusual in np.flatnonzero(np.logical_or.reduce(list(signs.values()))).tolist() if signs else ():
            self._decided_well(unusual - row)
            self.decided(unusual, signs, None)
            if self.evidence.trigger is not None:
                return
            row = unusual + 1
        self._decided_well(count - row)

    def decided(self, row: int, signs: Signs, episode: LiveEpisode | None) -> None:
        """Take a decision of the version's own: this row of those whose signs these are."""
        self.evidence.num_decisions += 1
        if episode is None:
            for name in self._shown:
                self._add(name, _speaks(signs, name, row))
            return
        self._hold_limits(row, signs, episode)
        for name, number in self._drawn(episode).items():
            if _speaks(signs, name, row):
                self._correct(name, number)

    def _decided_well(self, count: int) -> None:
        """Take decisions that nothing speaks against, each without an episode."""
        self.evidence.num_decisions += count
        for name in self._shown:
            self.evidence.monitors[name].add_zeros(count)

    def unanswered(self, episode: LiveEpisode | None) -> None:
        """Take a request that the version had no finite answer to."""
        if episode is None:
            self._add(UNANSWERED, True)
            return
        bets = self._drawn(episode)
        if (number := bets.pop(UNANSWERED, None)) is not None:
            self._correct(UNANSWERED, number)
        for name, number in bets.items():  # there is no decision that would show more
            self.evidence.monitors[name].withdraw(number)

    def rewarded(self, feedback: Json, key: Key) -> Iterator[float]:
        """Take the feedback on a decision in a named episode; the returns that count now."""
        episode = self._open.get(key)
        if episode is None:
            return
        episode.num_rewards += 1
        episode.total += feedback["reward"]
        if feedback["terminated"] or feedback["truncated"]:
            episode.ended = True
            self._withdraw(episode)
        if episode.is_whole:
            del self._open[key]
            self._num_whole += not episode.cut
            yield from self._next_returns()

    def compare(self, reward: float) -> None:
        """Hold a return, or the reward of a decision without an episode, against one of the control's."""
        config = self._watch.config
        loss = self.evidence.rewards.loss(reward, config.reference, config.reward_range)
        if loss is not None:
            self._add(REWARD, loss)

    def _drawn(self, episode: LiveEpisode) -> dict[str, int]:
        """Count a request of an episode. Where it is the one drawn of its stretch: the bets on what it shows."""
        request, bets = episode.num_requests, dict[str, int]()
        episode.num_requests += 1
        for length, names in self._by_length.items():
            if request % length == 0:
                begun = {name: self.evidence.monitors[name].add(0.0) for name in names}
                episode.stretches[length] = Stretch(request + _draw(episode.key, request, length), begun)
            if length in episode.stretches and episode.stretches[length].drawn == request:
                bets |= episode.stretches.pop(length).bets
        return bets

    def _withdraw(self, episode: LiveEpisode) -> None:
        """The episode is over before the drawn requests came."""
        for stretch in episode.stretches.values():
            for name, number in stretch.bets.items():
                self.evidence.monitors[name].withdraw(number)
        episode.stretches.clear()

    def _hold_limits(self, row: int, signs: Signs, episode: LiveEpisode) -> None:
        """An episode keeps its limits when it begins, and breaks each once."""
        if episode.kept is None:
            episode.kept = {name: self.evidence.monitors[name].add(0.0) for name in self._per_episode}
        for name in self._per_episode:
            if name in episode.kept and _speaks(signs, name, row):
                self._correct(name, episode.kept.pop(name))

    def _next_returns(self) -> Iterator[float]:
        """In the order of their beginnings; an episode that keeps too many waiting is left out."""
        while self._in_order:
            first = self._in_order[0]
            num_open = len(self._in_order) - self._num_whole
            if not (first.is_whole or first.cut or self._num_whole > _PATIENCE + 2 * num_open):
                return
            self._in_order.popleft()
            if first.is_whole and not first.cut:
                self._num_whole -= 1
                yield first.total

    def _add(self, name: str, value: float) -> None:
        monitor = self.evidence.monitors.get(name)
        if monitor is None:
            return
        monitor.add(float(value))
        if value > monitor.test.limit:
            self._look(name, monitor)

    def _correct(self, name: str, number: int) -> None:
        monitor = self.evidence.monitors[name]
        monitor.correct(number)
        self._look(name, monitor)

    def _look(self, name: str, monitor: Monitor) -> None:
        evidence, test = self.evidence, monitor.test
        if evidence.trigger is not None or not monitor.refutes:
            return
        evidence.trigger = Trigger(
            version=evidence.version,
            monitor=name,
            e_value=test.e_value,
            threshold=monitor.threshold,
            mean=test.mean,
            limit=test.limit,
            num_values=test.num_values,
            num_decisions=evidence.num_decisions,
            control=evidence.control if name == REWARD else None,
        )


def _speaks(signs: Signs, name: str, row: int) -> bool:
    """Whether a decision speaks against its version, to one monitor."""
    return name in signs and bool(signs[name][row])


def _draw(key: Key, begin: int, length: int) -> int:
    """Which request of a stretch is looked at: each is equally likely, and a restart draws the same."""
    digest = blake2b("\n".join((*key, str(begin))).encode(), digest_size=8).digest()
    return int.from_bytes(digest) % length


def _going_on(former: Monitor | None, level: Level) -> Monitor:
    if former is None or former.test.limit != level.limit:
        return Monitor.at(level)
    former.threshold = level.threshold
    return former


def keep(rewards: list[float], newest: float) -> None:
    """Append the newest; the oldest of too many go."""
    rewards.append(newest)
    del rewards[:-_MOST_REWARDS]
