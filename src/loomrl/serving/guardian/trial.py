"""Returns of a version beside those of the champion, by agents that one experiment dealt to the one or the other.

A split deals agents to versions by chance. If the versions are equal, it changes nothing which one an agent was dealt,
however agents differ, whoever is broken and whatever drifts: that is what
`loomrl.statistics.assignment.log_evidence` tests. An
agent's value is its first return, or the mean of its first 4, 16 or 64. While it is not known, the agent stands where
it speaks least against the version, so that an episode that goes on speaks against nobody.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from loomrl.statistics.assignment import Units, log_evidence

_SIZES = (1, 4, 16, 64)  # returns of an agent that make a value
_MOST_RETURNS = _SIZES[-1]
_MOST_AGENTS = 10_000
_MOST = 230.0  # logarithm of evidence beyond any level; infinity could not be written
Span = tuple[float, float]
Place = tuple[int, int]  # of an experiment among a version's, and of a return among an agent's first ones there


@dataclass(slots=True)
class Enrolled:
    """An agent that an experiment dealt to a version: `num_returns` of its episodes came, `total` is their sum.

    `counts` and `sums` are of its first 1, 4, 16 and 64 returns.
    """

    time: str  # of its first decision, ISO 8601
    shares: dict[str, float]  # version -> share of agents that were dealt to it then, above 0
    asked: bool = False  # to explore, in that decision: what it shows is not what the others show
    until: str = ""  # ISO 8601: then another decided for it, or could that could not at first: what follows is left out
    num_begun: int = 0  # episodes, or decisions without one
    num_returns: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * len(_SIZES))  # of returns among the first so many
    sums: list[float] = field(default_factory=lambda: [0.0] * len(_SIZES))
    total: float = 0.0

    def ended_at(self, time: str) -> "Enrolled":
        """The same where it counts until this time, ISO 8601: unchanged if it ended then or before, else without
        returns, for nobody knows which of them came later."""
        if self.until and self.until <= time:
            return self
        return Enrolled(self.time, self.shares, self.asked, time, self.num_begun)


def first_enrolled(several: Sequence[Enrolled]) -> Enrolled:
    """The first of what servers and arms of one experiment know of one agent, as far as it counts by all of them."""
    first = min(several, key=lambda one: one.time)
    ends = [one.until for one in several if one.until]
    ends += [one.time for one in several if not one.shares.keys() <= first.shares.keys()]
    return first.ended_at(min(ends)) if ends else first


@dataclass
class Arm:
    """One version in one experiment: its enrolled agents and their returns."""

    experiment: str
    is_champion: bool
    number: int = 1  # of the version's experiments
    agents: dict[str, Enrolled] = field(default_factory=dict)
    span: Span | None = None  # the lowest and the highest return
    common: set[str] | None = None  # the versions that each agent could be dealt to

    def __post_init__(self) -> None:
        if self.common is None and self.agents:  # one that was saved without
            self.common = set.intersection(*(set(one.shares) for one in self.agents.values()))

    @property
    def is_full(self) -> bool:
        """Whether it enrols no more agents."""
        return len(self.agents) >= _MOST_AGENTS

    def enrol(self, agent_id: str, time: str, shares: dict[str, float], asked: bool = False) -> None:
        """Enrol an agent with its first decision, at this time (ISO 8601) and with these shares of the versions.

        An agent that is enrolled already stays as it is, and where the arm is full no more are enrolled.
        """
        if not self.is_full and agent_id not in self.agents:
            self.agents[agent_id] = Enrolled(time, shares, asked)
            self.common = set(shares) if self.common is None else self.common & shares.keys()

    def end_others(self, agent_ids: Iterable[str], versions: Set[str], time: str) -> None:
        """End what counts of these agents at this time, ISO 8601, where one of the `versions`, which now can decide,
        could not at first."""
        if self.common is not None and versions <= self.common:
            return
        known = ((agent_id, self.agents.get(agent_id)) for agent_id in agent_ids)
        self.end([name for name, one in known if one is not None and not versions <= one.shares.keys()], time)

    def end(self, agent_ids: Iterable[str], time: str) -> None:
        """End what counts of these agents at this time, ISO 8601."""
        for agent_id in agent_ids:
            enrolled = self.agents.get(agent_id)
            if enrolled is not None and not enrolled.until:
                enrolled.until = time

    def begin_return(self, agent_id: str) -> Place:
        """Count an episode, or a decision without one, that this agent begins.

        Returns the experiment's number and the return's among the agent's first 64, from 1 on; 0 for others, and for an
        agent that is not enrolled or counts no more.
        """
        if not self.goes_on(agent_id):
            return self.number, 0
        enrolled = self.agents[agent_id]
        enrolled.num_begun += 1
        return self.number, enrolled.num_begun

    def goes_on(self, agent_id: str) -> bool:
        """Whether another return of this agent counts."""
        enrolled = self.agents.get(agent_id)
        return enrolled is not None and enrolled.num_begun < _MOST_RETURNS and not enrolled.until

    def returned(self, agent_id: str, value: float, place: Place) -> None:
        """Add a return; `place` is what `begin_return` gave for its episode. Nothing happens for 0, or what another
        experiment gave."""
        enrolled, (experiment, number) = self.agents.get(agent_id), place
        if enrolled is None or enrolled.until or not number or experiment != self.number:
            return
        low, high = self.span or (value, value)
        self.span = min(low, value), max(high, value)
        enrolled.num_returns += 1
        enrolled.total += value
        for index, size in enumerate(_SIZES):
            if number <= size:
                enrolled.counts[index] += 1
                enrolled.sums[index] += value


def _mean(agents: Sequence[Enrolled]) -> float | None:
    """Over all their returns; None where there is none yet."""
    num_returns = sum(one.num_returns for one in agents)
    return sum(one.total for one in agents) / num_returns if num_returns else None


def _weight(number: int) -> float:
    """Of an experiment's evidence: 0.9 for the first, 0.1 in all for those that follow."""
    return 0.9 if number == 1 else 0.1 / (number * (number - 1))


@dataclass(frozen=True)
class ChampionTrial:
    """The returns of a version beside those of the champion of its experiment.

    `own` are its agents and returns, `control` the champion's.
    """

    version: str
    own: Arm
    control_version: str
    control: Arm
    declared: Span | None  # the range of returns, where it was stated
    others: Sequence[Arm] = ()  # of other versions in the experiment
    before: Sequence[Mapping[str, str]] = ()  # agent -> when the experiment dealt it, in arms that are no more

    @property
    def span(self) -> Span | None:
        """The lowest and highest return, as declared, else as seen: losses are parts of that range. None where it is
        empty.
        """
        seen = [end for arm in (self.own, self.control) if arm.span is not None for end in arm.span]
        span = self.declared or (min(seen, default=0.0), max(seen, default=0.0))
        return span if span[0] < span[1] else None

    def evidence(self, max_loss: float) -> float:
        """The e-value, at least 1, that the version is worse than the champion by more than `max_loss` of the range of
        returns.

        It is 1, which says nothing, while there is no range. The chance of a false alarm is shared out among all
        experiments a version may ever take part in.
        """
        span = self.span
        if span is None:
            return 1.0
        order = self._in_order()
        margin = max_loss * (span[1] - span[0])
        peaks = [log_evidence(self._units(order, place, margin))[1] for place in range(len(_SIZES))]
        return max(1.0, _weight(self.own.number) * math.exp(min(max(peaks), _MOST)) / len(_SIZES))

    @property
    def loss(self) -> float:
        """How much lower the mean of all returns is than the champion's, in parts of the range; below 0 where it is
        higher, and 0 while one of the two has no return, or there is no range.
        """
        order, span = self._in_order(), self.span
        own, control = (_mean([one for one, is_own in order if is_own is side]) for side in (True, False))
        return 0.0 if own is None or control is None or span is None else (control - own) / (span[1] - span[0])

    def _in_order(self) -> list[tuple[Enrolled, bool]]:
        """Agents as they were enrolled, each where it was dealt first, and whether to the version itself. Those that
        were dealt first to neither of the two, or when they could not have been dealt to the other, are left out, and
        who asked to explore then."""
        found: dict[str, list[tuple[Enrolled, Arm]]] = {}
        for arm in (self.own, self.control, *self.others):
            for agent_id, enrolled in arm.agents.items():
                found.setdefault(agent_id, []).append((enrolled, arm))
        chosen = []
        for agent_id, several in found.items():
            first, arm = several[0] if len(several) == 1 else min(several, key=lambda one: one[0].time)
            if arm is not self.own and arm is not self.control:
                continue
            if first.asked or not 0.0 < self._chance(first.shares) < 1.0:
                continue
            dealt = [times[agent_id] for times in self.before if agent_id in times]
            if dealt and min(dealt) < first.time:
                continue
            known = first if len(several) == 1 else first_enrolled([one for one, _ in several])
            later = [time for time in dealt if time > first.time]
            chosen.append((first.time, agent_id, known.ended_at(min(later)) if later else known, arm is self.own))
        return [(known, is_own) for _, _, known, is_own in sorted(chosen, key=lambda one: one[:2])]

    def _chance(self, shares: Mapping[str, float]) -> float:
        """Of an agent that was dealt to one of the two: that it was this version."""
        own, control = (shares.get(version, 0.0) for version in (self.version, self.control_version))
        return own / (own + control) if own + control else 0.0

    def _units(self, order: list[tuple[Enrolled, bool]], place: int, margin: float) -> Units:
        size = _SIZES[place]
        means = [
            one.sums[place] / size + is_own * margin if one.counts[place] == size else None for one, is_own in order
        ]
        known = [mean for mean in means if mean is not None]
        least, greatest = min(known, default=0.0), max(known, default=0.0)
        return Units(
            is_challenger=np.array([is_own for _, is_own in order], dtype=np.bool_),
            probability=np.array([self._chance(one.shares) for one, _ in order]),
            low=np.array([least - 1.0 if mean is None else mean for mean in means]),
            high=np.array([greatest + 1.0 if mean is None else mean for mean in means]),
        )
