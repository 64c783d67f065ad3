"""The policy server's monitors: how often they take a version out that keeps its limits, or equals its control, and
how often they find one that does not. Every record is looked at; all together may be wrong in 5 % of streams.

Fleets of two to 1,000 agents decide through the same code as in production (`loomrl.serving.guardian.stream`), several
at once or one by one, at one server or at several that share what they know. What each agent does is drawn anew in
every stream.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.topic import Setting, at_most, each, finds
from loomrl.serving.guardian.config import MonitorsConfig
from loomrl.serving.guardian.sharing import Shared
from loomrl.serving.guardian.stream import Stream
from loomrl.serving.guardian.watch import Watch
from loomrl.storage.audit.records import decisions
from loomrl.types import Json

SOURCES = (
    "src/loomrl/statistics/assignment.py",
    "src/loomrl/serving/guardian/evidence.py",
    "src/loomrl/serving/guardian/monitor.py",
    "src/loomrl/serving/guardian/sharing.py",
    "src/loomrl/serving/guardian/stream.py",
    "src/loomrl/serving/guardian/tokens.py",
    "src/loomrl/serving/guardian/trial.py",
    "src/loomrl/serving/guardian/units.py",
    "src/loomrl/serving/guardian/version_monitors.py",
    "src/loomrl/serving/guardian/watch.py",
    "src/loomrl/serving/guardian/weigher.py",
)
Floats = NDArray[np.float64]
_ALARM, _FOUND = "taken out", "taken out"
_BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
_PUSH = {"name": "push", "quantity": "action", "low": None, "high": 0.5, "per": "step", "max_probability": 0.01}
_UNKNOWN = {"mean": [0.0], "precision": [[1.0]], "threshold": 9.0}
_LIMITS = (0.01, 0.2, 0.1, 0.05)  # of violations, shield, unknown observations, slow answers
_PATIENCE = 60.0  # mean number of decisions in one state, where states last


@dataclass(frozen=True)
class Fleet:
    """How a fleet decides. By default every agent does exactly what it may, where monitors err most."""

    num_agents: int
    num_rounds: int = 60  # in each of which every agent decides once, in the mean
    differ: float = 0.0  # agents' own rates are beta-distributed about the limit; the greater, the wider
    broken: int = 0  # agents that break every limit in every decision
    rates: tuple[float, ...] = _LIMITS
    lasting: bool = False  # whether what an agent does goes on for some 60 decisions
    unequal: bool = False  # the n-th agent decides 1 / n times as often as the first
    seconds: float = 1.0  # between rounds
    num_servers: int = 1  # agents ask one at random; the last one dies half-way
    num_tokens: int = 0  # that may speak for any agent, and have equal parts of the fleet; 0: each agent has its own
    num_names: int = 0  # that one more token takes, after three rounds, to break every limit in every decision


def watch(**settings: Any) -> Watch:
    """What is known of a version with one limit on its actions and an alarm on what it observes."""
    config = MonitorsConfig(**settings).model_dump(mode="json")
    told = {"constraints": [_PUSH], "out_of_distribution": _UNKNOWN, "dtype": "float64", "config": config}
    return Watch.read(told)


def decided(time: datetime, version: str, agents: list[str], flags: NDArray[np.bool_], **named: Any) -> Json:
    """A record of decisions; `flags` (N, 4) say which limits each of them breaks."""
    columns = {
        "agent_id": agents,
        "episode_id": [None] * len(agents),
        "observation": 9.0 * flags[:, 2:3],
        "action": flags[:, 0].astype(int),
        "exploration_flag": [False] * len(agents),
        "shield": [{"by": "look-up"} if one else None for one in flags[:, 1].tolist()],
        "seconds": np.where(flags[:, 3], 0.2, 5e-5),
    }
    names = {"role": "champion", "experiment": None} | named
    told = {"count": len(agents), "version": version, "override": None, **names}
    return decisions(told, columns) | {"timestamp": time.isoformat(), "decision_id": f"{time.timestamp()}"}


def _rates(rng: np.random.Generator, fleet: Fleet) -> Floats:
    """Of each agent and limit, (N, 4)."""
    means = np.tile(fleet.rates, (fleet.num_agents, 1))
    if fleet.differ:
        strength = 1.0 / fleet.differ
        means = rng.beta(np.maximum(means * strength, 1e-9), np.maximum((1.0 - means) * strength, 1e-9))
    means[: fleet.broken] = 1.0
    return np.asarray(rng.permutation(means))


def _flags(rng: np.random.Generator, fleet: Fleet) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """The agents of each round, and which limits they break."""
    rates = _rates(rng, fleet)
    shares = 1.0 / np.arange(1.0, fleet.num_agents + 1.0) if fleet.unequal else np.ones(fleet.num_agents)
    shares = rng.permutation(shares / shares.sum())
    state = rng.random(rates.shape) < rates
    for _ in range(fleet.num_rounds):
        agents = rng.permutation(fleet.num_agents)
        if fleet.unequal:
            agents = rng.choice(fleet.num_agents, fleet.num_agents, p=shares)
        changes = rng.random(rates.shape) < (1.0 / _PATIENCE if fleet.lasting else 1.0)
        state = np.where(changes, rng.random(rates.shape) < rates, state)
        yield agents, state[agents]


def _asked(
    fleet: Fleet, time: datetime, agents: NDArray[np.int64], flags: NDArray[np.bool_], number: int
) -> list[Json]:
    """The records of some agents' decisions, token by token, and of those that take names."""
    told = []
    for token in range(max(fleet.num_tokens, 1)):
        rows = agents % max(fleet.num_tokens, 1) == token
        names = [f"agent-{agent}" for agent in agents[rows].tolist()]
        if names:
            shown = {"by_token": f"token-{token}"} if fleet.num_tokens else {}
            told.append(decided(time, "1", names, flags[rows], **shown))
    if fleet.num_names and number >= 3 and 0 in agents:  # once in a round
        names = [f"name-{number}" for number in range(fleet.num_names)]
        told.append(decided(time, "1", names, np.ones((len(names), 4), bool), by_token="another"))
    return told


def _share(servers: list[Stream], num_alive: int, number: int) -> bool:
    """All tell what they have seen, as `loomrl.serving.guardian.exchange` does; whether one of those alive is
    alarmed.
    """
    rows = [evidence for server in servers for evidence in server.evidence_to_share()]
    for place, server in enumerate(servers[:num_alive]):
        for one in server.evidence_to_share():
            revision = number * len(servers) + place
            for known, agents in ((one.homes, one.unnamed), (one.window_homes, one.requests.window)):
                known.update(dict.fromkeys(agents.keys() - known.keys(), revision))
    told = [server.merge(Shared(place, {"1": rows}, {})) for place, server in enumerate(servers[:num_alive], 1)]
    return any(told)


def _limits(fleet: Fleet) -> Callable[[np.random.Generator], dict[str, bool | None]]:
    """One version against what is declared."""

    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        known = watch()
        servers = [Stream(lambda _version: known, is_shared=fleet.num_servers > 1) for _ in range(fleet.num_servers)]
        for number, (agents, flags) in enumerate(_flags(rng, fleet)):
            time = _BEGUN + timedelta(seconds=fleet.seconds * number)
            alive = servers[:-1] if fleet.num_servers > 1 and 2 * number >= fleet.num_rounds else servers
            for part in np.array_split(np.arange(len(agents)), min(len(agents), 4)):
                asked = rng.integers(len(alive), size=len(part))
                for place, server in enumerate(alive):
                    rows = part[asked == place]
                    told = _asked(fleet, time, agents[rows], flags[rows], number) if len(rows) else []
                    if told and server.process(told):
                        return {_ALARM: True}
            if fleet.num_servers > 1 and _share(servers, len(alive), number):
                return {_ALARM: True}
        return {_ALARM: False}

    return stream


@dataclass(frozen=True)
class Split:
    """Two versions side by side: agents dealt to them by chance, each with episodes of its own length and return."""

    num_agents: int
    share: float = 0.5
    num_episodes: int = 30
    worse: float = 0.0  # version 2's loss, in standard deviations between agents
    between: float = 80.0  # standard deviation of agents' mean returns, of 0 to 500
    within: float = 40.0
    broken: int = 0  # agents that bring in nothing
    drift: float = 0.0  # what all returns lose, little by little
    longer: float = 1.0  # how much longer version 2's episodes are, in rounds
    wears: float = 0.0  # what an agent loses with each of its episodes, whichever version decides
    before: int | None = None  # which of the two arms had a third version until half-way; agents then come one by one


def _split(split: Split) -> Callable[[np.random.Generator], dict[str, bool | None]]:
    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        known = watch()
        monitors = Stream(lambda _version: known)
        mean = rng.normal(300.0, split.between, split.num_agents)
        arm = (rng.random(split.num_agents) < split.share).astype(int)
        mean -= arm * split.worse * split.between
        mean[rng.permutation(split.num_agents)[: split.broken]] = -np.inf
        due = rng.exponential(1.0, split.num_agents)
        if split.before is not None:
            due += rng.uniform(0.0, 0.8 * split.num_episodes, split.num_agents)
        age = np.zeros(split.num_agents)
        length = 1.0 + arm * (split.longer - 1.0)
        clean, waiting = np.zeros((1, 4), bool), list[Json]()
        for number in range(split.num_episodes * split.num_agents):
            agent = int(np.argmin(due))
            now, elapsed = due[agent], due[agent] / split.num_episodes
            due[agent] += length[agent] * rng.uniform(0.5, 1.5)
            versions, role = ["1", "2"], ("champion", "split")[arm[agent]]
            if split.before is not None and elapsed < 0.5:
                versions[split.before] = "3"
            version = versions[arm[agent]]
            expected = mean[agent] - split.drift * elapsed - split.wears * age[agent]
            brought = rng.normal(expected, split.within) if np.isfinite(mean[agent]) else 0.0
            age[agent] += 1
            time = _BEGUN + timedelta(seconds=60.0 * now)
            name = f"agent-{agent}"
            named = {
                "role": role,
                "experiment": "x",
                "shares": {versions[0]: 1.0 - split.share, versions[1]: split.share},
            }
            record = decided(time, version, [name], clean, **named) | {"decision_id": str(number)}
            told = {"kind": "feedback", "timestamp": time.isoformat(), "agent_id": name, "episode_id": None}
            told |= {"version": version, "decision_id": f"{number}.0", "terminated": False, "truncated": False}
            waiting += [record, told | {"reward": float(np.clip(brought, 0.0, 500.0))}]
            if len(waiting) >= split.num_agents // 4:
                if monitors.process(waiting):
                    return {_ALARM: True}
                waiting.clear()
        return {_ALARM: False}

    return stream


def _fair(name: str, fleet: Fleet, **options: Any) -> Setting:
    return Setting(name, each(_limits(fleet)), (at_most(_ALARM, 0.05),), batch=20, **options)


def _equal(name: str, split: Split, **options: Any) -> Setting:
    return Setting(name, each(_split(split)), (at_most(_ALARM, 0.05),), batch=20, **options)


def _bad(name: str, simulation: Callable[[np.random.Generator], dict[str, bool | None]]) -> Setting:
    return Setting(name, each(simulation), (finds(_FOUND, 0.8),), batch=20)


_LARGE = Fleet(1000, num_rounds=8)
_ATTACKED = Fleet(40, num_rounds=30, num_names=30)
_VIOLATES, _SOMETIMES = (1.0, 0.0, 0.0, 0.0), (0.2, 0.0, 0.0, 0.0)
SETTINGS = (
    *(_fair(f"{count} agents at their limits", Fleet(count)) for count in (2, 8, 40)),
    _fair("1,000 agents at their limits", _LARGE, in_gate=False),
    *(_fair(f"{count} agents that differ", Fleet(count, differ=0.05)) for count in (2, 8, 40)),
    _fair("1,000 agents that differ", replace(_LARGE, differ=0.05), in_gate=False),
    *(_fair(f"{count} agents, one broken", Fleet(count, broken=1)) for count in (2, 8, 40)),
    _fair("8 agents, two broken", Fleet(8, broken=2)),
    _fair("100 agents, three broken", Fleet(100, broken=3, num_rounds=30)),
    _fair("1,000 agents, 10 broken", replace(_LARGE, broken=10, rates=(0.001, 0.19, 0.09, 0.04)), in_gate=False),
    *(_fair(f"{count} agents, states that last", Fleet(count, lasting=True, num_rounds=120)) for count in (8, 40)),
    *(_fair(f"{count} agents, unequal traffic", Fleet(count, unequal=True, differ=0.05)) for count in (8, 40)),
    *(_fair(f"{count} agents, two servers, one dies", Fleet(count, num_servers=2), in_gate=False) for count in (8, 40)),
    _fair("8 agents over two days", Fleet(8, seconds=1800.0, num_rounds=100)),
    _fair("40 agents of two tokens, a third takes 30 names", replace(_ATTACKED, num_tokens=2)),
    _fair("40 agents of two tokens, one broken, a third takes 30 names", replace(_ATTACKED, num_tokens=2, broken=1)),
    _fair("40 agents with tokens of their own, another takes 30 names", _ATTACKED),
    _equal("equal versions, 8 agents that differ", Split(8)),
    _equal("equal versions, 8 agents, one broken", Split(8, broken=1, between=1.0)),
    _equal("equal versions, 100 agents, share 10 %", Split(100, share=0.1, num_episodes=10)),
    _equal("equal versions, 40 agents, drift", Split(40, drift=200.0)),
    _equal("equal versions, 40 agents, episodes that take longer", Split(40, longer=4.0, drift=100.0)),
    _equal(
        "equal versions, agents that wear, another challenger half-way",
        Split(80, 0.5, 8, wears=40.0, between=40.0, before=1),
        num_streams=400,
        in_gate=False,
    ),
    _equal(
        "equal versions, agents that learn, another champion half-way",
        Split(80, 0.5, 8, wears=-40.0, between=40.0, before=0),
        num_streams=400,
        in_gate=False,
    ),
    _bad("40 agents, every decision violates", _limits(Fleet(40, rates=_VIOLATES, num_rounds=3))),
    _bad("8 agents, every decision violates", _limits(Fleet(8, rates=_VIOLATES, num_rounds=5))),
    _bad("40 agents, 1 in 5 decisions violates", _limits(Fleet(40, rates=_SOMETIMES, num_rounds=10))),
    _bad("8 agents, 1 in 5 decisions violates", _limits(Fleet(8, rates=_SOMETIMES, num_rounds=40))),
    _bad("40 agents of two tokens, every decision violates", _limits(Fleet(40, 6, rates=_VIOLATES, num_tokens=2))),
    _bad("8 agents of two tokens, 1 in 5 decisions violates", _limits(Fleet(8, 40, rates=_SOMETIMES, num_tokens=2))),
    _bad("a robot alone, every decision violates", _limits(Fleet(1, rates=_VIOLATES, num_rounds=301))),
    _bad("returns lower by one standard deviation, 100 + 100 agents", _split(Split(200, worse=1.0))),
)
