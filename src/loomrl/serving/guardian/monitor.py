"""One monitor: what agents have shown of one quantity, what refutes it, and how it went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import Field

from loomrl.serving.guardian.tokens import agent_of, token_of, without
from loomrl.serving.guardian.units import FEW, NUM_SCALES, AgentBlocks, over_agents, scales, within_agents
from loomrl.serving.guardian.watch import REWARD, VIOLATIONS, Level
from loomrl.system.schema import Document
from loomrl.types import Json

_TRACE = 128  # points that are kept to draw how a monitor went
_MOST_NAMED = 5  # agents that stand out
_FEW_PART, _LIFE_PART, _WINDOW_PART = 0.5, 0.25, 0.25  # of what is staked


@dataclass(slots=True)
class Monitor:
    """What agents have shown of one quantity. Only those are listed that showed something: to the others all values
    were 0.

    `limit` is what the mean of the values may be, `threshold` the e-value that refutes the version.
    """

    limit: float
    threshold: float
    block: int  # so many values of an agent are one, to what may depend on each other
    total: float = 0.0  # of all values
    life: dict[str, list[float]] = field(default_factory=dict)  # agent -> sums of its first values, by scale
    window: dict[str, list[float]] = field(default_factory=dict)  # the same since the window began
    blocks: dict[str, AgentBlocks] = field(default_factory=dict)  # while there are few agents
    e_value: float = 1.0  # when it was last looked at
    is_new: bool = False  # something has come since
    trace: list[tuple[int, float]] = field(default_factory=list)  # (number of values, e-value)
    stride: int = 1  # values between points of the trace

    @classmethod
    def at(cls, level: Level) -> "Monitor":
        """A new monitor with this level's limit, threshold and block, without any evidence."""
        return cls(level.limit, level.threshold, level.block)

    def add(self, agent_id: str, value: float, place: "ValuePlace") -> None:
        """Add a value of an agent, in (0, 1]; values of 0 are not added. `place` says where it stands among the
        agent's.
        """
        self.is_new = True
        self.total += value
        sizes = scales(place.block)
        _sum(self.life.setdefault(agent_id, [0.0] * NUM_SCALES), value, place.life, sizes)
        if place.in_window:
            _sum(self.window.setdefault(agent_id, [0.0] * NUM_SCALES), value, place.in_window, sizes)
        if place.has_blocks:
            self.blocks.setdefault(agent_id, AgentBlocks()).add(place.life, value, place.block, self.limit)

    def without(self, token: str) -> "Monitor":
        """A copy without what agents of this token have shown. `total`, `e_value` and `trace` stay those of all
        agents.
        """
        life, window = without(self.life, token), without(self.window, token)
        return replace(self, life=life, window=window, blocks=without(self.blocks, token))

    @property
    def refutes(self) -> bool:
        """Whether the e-value has reached the threshold."""
        return self.e_value >= self.threshold

    def look(self, num_values: int, e_value: float) -> None:
        """Keep the e-value that was computed after `num_values` values, and add it to the trace where that is due."""
        self.e_value, self.is_new = e_value, False
        if not self.trace or num_values >= self.trace[-1][0] + self.stride:
            self.trace.append((num_values, e_value))
        if len(self.trace) == _TRACE:
            self.trace, self.stride = self.trace[1::2], max(2 * self.stride, num_values // _TRACE)


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Where a value stands among an agent's.

    Attributes:
        life: its number since the version began, from 1 on.
        in_window: its number in the window, from 1 on; 0 for a value that is not of the window.
        block: how many values of the agent count as one.
        has_blocks: whether the agent's blocks are kept too, as they are while there are few agents.
    """

    life: int
    in_window: int
    block: int
    has_blocks: bool


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents of a version, as one kind of value counts them.

    `left_out` is how many of them may break a limit before the version is what breaks it.
    """

    counts: Sequence[Mapping[str, int]]  # agent -> number of its values: before the window, and in it
    unnamed: Mapping[str, bool]  # agent -> whether it names no episodes
    window_number: int  # windows before this one
    of_episodes: bool  # to those that name them, a value is of an episode
    left_out: int

    def evidence(self, monitor: Monitor) -> float:
        """The e-value of what a monitor was shown, against the version; 1 says nothing.

        Half of what is staked is for the blocks of few agents, the rest in equal parts for all of life and for the
        window.
        """
        number = self.window_number
        begun = 1.0 / ((number + 1.0) * (number + 2.0))
        newest = begun * self._bets(monitor, monitor.window, self.counts[1]) + 1.0 / (number + 2.0)
        few = self._few(monitor) if len(self.unnamed) < FEW else 0.0
        return _FEW_PART * few + _LIFE_PART * self._bets(monitor, monitor.life, self.unnamed) + _WINDOW_PART * newest

    def count(self, agent: str) -> int:
        """How many values an agent has had, before this window and in it."""
        return sum(counts.get(agent, 0) for counts in self.counts)

    def _bets(self, monitor: Monitor, shown: Mapping[str, list[float]], agents: Mapping[str, int]) -> float:
        means = np.array(list(shown.values())).reshape(-1, NUM_SCALES) / scales(monitor.block)
        num_clean = np.full(NUM_SCALES, float(len(agents) - len(shown)))
        named = [place for place, agent in enumerate(shown) if not self.unnamed[agent]]
        if named and self.of_episodes:
            means[named] *= np.array(scales(monitor.block)) / scales(1)
        elif not self.of_episodes:
            means[named, 0] = np.nan
            num_clean[0] = sum(self.unnamed[agent] for agent in agents) - (len(shown) - len(named))
        return over_agents(means, num_clean, monitor.limit, self.left_out)

    def _few(self, monitor: Monitor) -> float:
        nothing = AgentBlocks()
        found = []
        for agent, is_unnamed in self.unnamed.items():
            block = 1 if self.of_episodes and not is_unnamed else monitor.block
            blocks = monitor.blocks.get(agent, nothing)
            takes_first = is_unnamed or self.of_episodes
            found.append(blocks.fortunes(self.count(agent), block, monitor.limit, takes_first))
        return within_agents(found, self.left_out)

    def odd(self, monitor: Monitor) -> list[Json]:
        """The agents, at most five, that are beyond the limit by most and may be what is broken: for a person to look
        at.

        Each is an object of JSON with `agent_id`, `mean`, `num_values`, and `token` where that speaks for any agent.
        """
        rates = {agent: sums[-1] / max(self.count(agent), 1) for agent, sums in monitor.life.items() if sums[-1] >= 2.0}
        most = sorted(rates, key=lambda agent: (-rates[agent], agent))[:_MOST_NAMED]
        return [
            {"agent_id": agent_of(agent), "mean": rates[agent], "num_values": self.count(agent)}
            | ({"token": token} if (token := token_of(agent)) else {})
            for agent in most
            if rates[agent] > monitor.limit
        ]


def _sum(sums: list[float], value: float, number: int, sizes: tuple[int, ...]) -> None:
    for scale, size in enumerate(sizes):
        if number <= size:
            sums[scale] += value


class Trigger(Document):
    """The finding of a monitor that refuted its version: what it measured, the limit, the e-value and its threshold."""

    version: str
    monitor: str
    e_value: float
    threshold: float
    mean: float  # of its values
    limit: float  # that their mean may have
    num_values: int
    num_decisions: int  # the version's own, until then
    num_agents: int = 0  # the version's
    tokens: list[Json] = Field(
        default_factory=list
    )  # that may speak for any agent: whose agents, and how many broke it
    control: str | None = None  # whose rewards it was held against

    @property
    def violates(self) -> bool:
        """Whether a declared limit is broken: then it must not go on, whether or not another can."""
        return self.monitor.startswith(VIOLATIONS)

    @property
    def reason(self) -> str:
        """One line for people: the monitor, what it measured, what is allowed, and the e-value with its threshold."""
        if self.monitor == REWARD:
            than = "the stated reference" if self.control is None else f"version {self.control}"
            found = f"{2 * self.mean - 1:.1%} of the range below {than} in {self.num_values} returns"
            allowed = f"{2 * self.limit - 1:.1%}"
        else:
            found, allowed = f"{self.mean:.1%} of {self.num_values} decisions", f"{self.limit:.1%}"
        agents = f" of {self.num_agents} agents" if self.num_agents else ""
        if len(self.tokens) == 1 and self.tokens[0]["num_agents"] == self.num_agents:
            agents += f", all of the token {self.tokens[0]['token']!r}"
        return (
            f"{self.monitor}: {found}{agents}, {allowed} allowed (e-value {self.e_value:.3g} of {self.threshold:.3g})"
        )
