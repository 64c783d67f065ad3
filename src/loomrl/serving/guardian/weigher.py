"""What evidence about a version amounts to, monitor by monitor."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loomrl.serving.guardian.evidence import DealtBefore, VersionEvidence
from loomrl.serving.guardian.monitor import Agents, Monitor, Trigger
from loomrl.serving.guardian.tokens import token_of
from loomrl.serving.guardian.trial import Arm, ChampionTrial
from loomrl.serving.guardian.units import num_left_out
from loomrl.serving.guardian.watch import REWARD, Watch
from loomrl.types import Json


@dataclass(frozen=True)
class Beside:
    """What is known beside a version's own evidence."""

    is_alone: bool  # the policy has but one agent
    champion: VersionEvidence | None  # that of the same experiment
    others: Sequence[Arm] = ()  # of further versions, in any experiment
    before: Sequence[DealtBefore] = ()  # in arms that are no more

    def without(self, token: str) -> "Beside":
        """A copy without what agents of this token have shown of the champion."""
        return replace(self, champion=None if self.champion is None else self.champion.without(token))


class Weigher:
    """Computes e-values and triggers from one version's evidence, monitor by monitor.

    A `name` is that of one of the version's monitors; `e_value`, `trigger` and `describe` raise KeyError for another.
    """

    def __init__(self, evidence: VersionEvidence, watch: Watch, beside: Beside) -> None:
        self._evidence, self._watch = evidence, watch
        self._trial = _trial(evidence, beside, watch)
        self._per_episode = {one.monitor for one in watch.limits if one.per_episode}
        self._left_out = num_left_out(len(evidence.unnamed), beside.is_alone)
        self._requests = evidence.requests.before, evidence.requests.window
        self._known: dict[bool, Agents] = {}

    def e_value(self, name: str) -> float:
        """The e-value of this monitor's evidence against the version; 1 says nothing."""
        monitor = self._evidence.monitors[name]
        if self.is_paired(name):
            return 1.0 if self._trial is None else self._trial.evidence(self._watch.config.max_reward_loss)
        return self._agents(self._is_of_episodes(name)).evidence(monitor)

    @property
    def control(self) -> str | None:
        """The version whose returns are held against this one's; None where there is none."""
        return None if self._trial is None else self._trial.control_version

    def num_values(self, name: str) -> int:
        """How many values the monitor judges by, those that are 0 among them; returns, where it compares with the
        champion's.
        """
        if self.is_paired(name):
            return 0 if self._trial is None else sum(one.num_returns for one in self._trial.own.agents.values())
        return sum(sum(one.values()) for one in self._agents(self._is_of_episodes(name)).counts)

    def trigger(self, name: str) -> Trigger:
        """What a monitor found, as the trigger that takes the version out; `e_value` is that of the last look."""
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
        """A monitor as JSON values: its limit, mean and number of values, e-value and threshold, the trace that led
        there, and the agents that stand out.
        """
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
        """Whether this monitor compares returns with the champion's instead of with a stated reference."""
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


def _trial(evidence: VersionEvidence, beside: Beside, watch: Watch) -> ChampionTrial | None:
    own, champion = evidence.arm, beside.champion
    if own is None or champion is None or (control := champion.arm) is None:
        return None
    others = [arm for arm in beside.others if arm.experiment == own.experiment]
    before = [dealt[own.experiment] for dealt in beside.before if own.experiment in dealt]
    return ChampionTrial(evidence.version, own, champion.version, control, watch.config.reward_range, others, before)
