"""Two versions side by side in production, compared by the agents that a split dealt to them. A stream is a whole
experiment, looked at after every agent; one look that is wrong makes it wrong.

Equal versions are called different in at most 5 % of the streams, whatever agents are like; a difference of one
standard deviation between agents is found with 100 of them; bounds of the mean difference cover it.
"""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.topic import Setting, at_most, covers, each, finds
from loomrl.promotion.comparison.config import ComparisonConfig
from loomrl.promotion.comparison.live import compare_live
from loomrl.promotion.comparison.window import Assignment, WindowEpisode
from loomrl.statistics.assignment import Units, log_evidence, mean_bounds

SOURCES = (
    "src/loomrl/statistics/assignment.py",
    "src/loomrl/promotion/comparison/agents.py",
    "src/loomrl/promotion/comparison/live.py",
)
Floats = NDArray[np.float64]
Stream = Callable[[np.random.Generator], dict[str, bool | None]]
_CONFIDENCE, _BEGIN = 0.95, datetime(2026, 1, 1, tzinfo=UTC)
_LOOKS = (10, 20, 40, 80, 120, 160, 200)


# --- through the whole comparison: agents with several episodes, on the log's own clock ------------------------------


def _episode(
    agent: int, version: str, share: float, begin: float, total: float | None, champion: str = "1"
) -> WindowEpisode:
    """One of one decision; a total of None is not known yet."""
    time = (_BEGIN + timedelta(seconds=begin)).isoformat(timespec="microseconds")
    assignment = Assignment("e", version, {champion: 1.0 - share, "2": share}, time)
    return WindowEpisode(
        cut=False,
        ended=total is not None,
        observations=[[0.0]],
        asked=[False],
        rewards={"0": total},
        agent_id=f"agent {agent}",
        began=time,
        decided_at=[time],
        assignments={(assignment.experiment, assignment.arms): assignment},
    )


def _finding(episodes: list[WindowEpisode], span: tuple[float, float]) -> str:
    found = compare_live(episodes, ("1", "2"), [], ComparisonConfig(), span)
    return found.differences[0].finding


def _fleet(num_agents: int, is_broken: bool, effect: float = 0.0, drift: float = 0.0, changes: bool = False) -> Stream:
    """Agents that differ by one standard deviation, and come one by one; each has from 1 to 12 episodes that are alike.

    Evidence never falls while agents come and episodes end, so that the last look tells what any look told.
    """

    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        own, episodes = rng.normal(size=num_agents), []
        own[0] -= 20.0 * is_broken
        for agent in range(num_agents):
            share = 0.5 if not changes else 0.4 if agent < num_agents // 2 else 0.1
            version = "2" if rng.random() < share else "1"
            for number in range(rng.integers(1, 13)):
                begin = 10.0 * agent + 40.0 * number
                total = own[agent] + effect * (version == "2") + drift * begin / 100.0 + 0.3 * rng.normal()
                episodes.append(_episode(agent, version, share, begin, float(total)))
        finding = _finding(episodes, (-100.0, 100.0))
        return {"called better": finding == "better"} if effect else {"called different": finding != "undecided"}

    return stream


def _replaced(better: float) -> Stream:
    """Equal versions; soon after all agents came, the champion is replaced by one that brings in so much more."""

    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        own, dealt, episodes = rng.normal(size=60), rng.random(60) < 0.5, []
        for agent in range(60):
            for number in range(rng.integers(4, 20)):
                begin = 2.0 * agent + 40.0 * number
                champion = "1" if begin < 130.0 else "3"
                version, total = "2" if dealt[agent] else champion, own[agent] + 0.3 * rng.normal()
                earned = float(total + better * (version == "3"))
                episodes.append(_episode(agent, version, 0.5, begin, earned, champion))
        return {"called different": _finding(episodes, (-100.0, 100.0)) != "undecided"}

    return stream


def _running(rng: np.random.Generator) -> dict[str, bool | None]:
    """What earns with time: the challenger lives five times longer, and its first episodes to end are its worst."""
    dealt, longest = rng.random(100) < 0.5, 60.0
    begins = 0.3 * np.arange(100)
    lengths = np.minimum(rng.exponential(np.where(dealt, 20.0, 4.0)), longest)
    called = []
    for now in (5.0, 10.0, 20.0, 30.0, 45.0, 30.0 + 2 * longest):
        known = [
            _episode(agent, "12"[int(dealt[agent])], 0.5, begin, length if begin + length <= now else None)
            for agent, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True))
            if begin <= now
        ]
        called.append(_finding(known, (0.0, longest)))
    return {"ever called worse": "worse" in called, "called better": called[-1] == "better"}


# --- the statistics alone ---------------------------------------------------------------------------------------


def _units(rng: np.random.Generator, champion: Floats, challenger: Floats, share: Floats | float) -> Units:
    chance = np.broadcast_to(np.asarray(share, dtype=np.float64), champion.shape).copy()
    dealt = rng.random(len(champion)) < chance
    values = np.where(dealt, challenger, champion)
    return Units(dealt, chance, values, values.copy())


def _alike(draw: Callable[[np.random.Generator], Floats], share: Floats | float = 0.5) -> Stream:
    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        values = draw(rng)
        evidence = max(log_evidence(_units(rng, values, values, share)))
        return {"called different": evidence >= math.log(2.0 / (1.0 - _CONFIDENCE))}

    return stream


def _apart(rng: np.random.Generator) -> dict[str, bool | None]:
    values = rng.normal(size=100)
    greater, _ = log_evidence(_units(rng, values, values + 1.0, 0.5))
    return {"found": greater >= math.log(2.0 / (1.0 - _CONFIDENCE))}


def _covered(
    draw: Callable[[np.random.Generator], tuple[Floats, Floats]], effect: float | None, share: Floats | float = 0.5
) -> Stream:
    """Values in [0, 1]; without an `effect` the bounds are about the mean over the very agents that came."""

    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        champion, challenger = draw(rng)
        units, inside = _units(rng, champion, challenger, share), True
        for look in _LOOKS:
            found = mean_bounds(units.only(np.arange(len(units)) < look), (0.0, 1.0), _CONFIDENCE)
            mean = np.mean((challenger - champion)[: found.num_units]) if effect is None else effect
            inside &= bool(found.low <= mean <= found.high)
        return {"mean difference": inside}

    return stream


def _rare(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """The challenger is a little better, but for the one agent in twenty that it ruins."""
    return np.full(200, 0.8), np.where(rng.random(200) < 0.05, 0.0, 0.82)


def _varied(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """The effect differs from agent to agent, and turns while they come."""
    champion = rng.beta(2.0, 5.0, 200)
    return champion, np.clip(champion + rng.normal(size=200) * 0.1 + np.linspace(0.2, -0.2, 200), 0.0, 1.0)


def _skewed(rng: np.random.Generator) -> tuple[Floats, Floats]:
    return rng.beta(0.2, 1.8, 200), rng.beta(0.2, 1.8, 200)


_CHANGED = np.repeat([0.4, 0.1], 100)
_SAME = (at_most("called different", 0.05),)
_FOUND = (finds("called better", 0.8),)
SETTINGS = (
    Setting("8 agents, one broken", each(_fleet(8, True)), _SAME, batch=20),
    Setting("12 agents, one broken", each(_fleet(12, True)), _SAME, batch=20),
    Setting("60 agents, drift", each(_fleet(60, False, drift=1.0)), _SAME, batch=10, in_gate=False),
    Setting("60 agents, shares change", each(_fleet(60, True, 0.0, 0.3, True)), _SAME, batch=10, in_gate=False),
    Setting("60 agents, a better champion later", each(_replaced(5.0)), _SAME, batch=10),
    Setting("60 agents, a worse champion later", each(_replaced(-5.0)), _SAME, batch=10, in_gate=False),
    Setting("100 agents, one deviation", each(_fleet(100, False, effect=1.0)), _FOUND, batch=10, in_gate=False),
    Setting(
        "a challenger that lives longer, running", each(_running),
        (at_most("ever called worse", 0.05), finds("called better", 0.8)), batch=10,
    ),
    Setting("2 agents", each(_alike(lambda rng: rng.normal(size=2))), _SAME),
    Setting("1,000 agents", each(_alike(lambda rng: rng.normal(size=1_000))), _SAME),
    Setting("heavy tails and drift", each(_alike(lambda rng: rng.standard_cauchy(200) + np.arange(200) / 5)), _SAME),
    Setting("failures, 1 in 20", each(_alike(lambda rng: (rng.random(200) < 0.05).astype(np.float64))), _SAME),
    Setting("shares 60/40 to 90/10", each(_alike(lambda rng: rng.normal(size=200), _CHANGED)), _SAME),
    Setting("one deviation, any range", each(_apart), (finds("found", 0.8),)),
    Setting("rare ruin", each(_covered(_rare, 0.95 * 0.82 - 0.8)), (covers("mean difference", 0.95),), in_gate=False),
    Setting("effects that turn", each(_covered(_varied, None)), (covers("mean difference", 0.95),), in_gate=False),
    Setting("skewed", each(_covered(_skewed, 0.0)), (covers("mean difference", 0.95),), in_gate=False),
    Setting(
        "skewed, shares change", each(_covered(_skewed, 0.0, _CHANGED)), (covers("mean difference", 0.95),),
        in_gate=False,
    ),
)  # fmt: skip
