"""Scheduled looks at a champion, `python -m flows.monitor`: how often one that keeps its promises is ever called
degraded, and how often one that does not is found. A stream is 20 looks, at 24 to 100 new episodes each; all claims of
all looks together may be wrong in 5 % of streams.

What agents do is drawn anew in each stream. The claims are those of `loomrl.monitoring.judge`, on a limit of 5 % of
episodes and on a return that may be 25 below the 490 that the evaluation is sure of. Where episodes take several looks,
those that fail end at once with a return of 0, and the others three looks later with 500.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.topic import Setting, Simulation, at_most, each, finds
from loomrl.monitoring.gathered import LookEvidence
from loomrl.monitoring.judge import judge
from loomrl.promotion.comparison.window import WindowEpisode
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.types import Interval, Verdict

SOURCES = (
    "src/loomrl/monitoring/gathered.py",
    "src/loomrl/monitoring/judge.py",
    "src/loomrl/promotion/comparison/window.py",
    "src/loomrl/serving/guardian/monitor.py",
    "src/loomrl/serving/guardian/units.py",
)
Floats = NDArray[np.float64]
Drawn = Callable[[np.random.Generator], tuple[Floats, Floats]]  # of each agent: its rate of violations, its mean return
_DEGRADED, _FOUND = "ever called degraded", "found in 20 looks"
_LIMIT, _ALLOWED, _LOOKS = 0.05, 465.0, 20
_EVALUATED = Interval(estimate=500.0, low=490.0, high=505.0, confidence=0.95, method="bootstrap")
_SPAN = (0.0, 500.0)
_MISSING = (_SPAN[1] - _ALLOWED) / _SPAN[1]  # of the best return, where what is allowed is earned


def _config() -> PolicyConfig:
    document = load_config(Path(__file__).parents[3] / "configs" / "cartpole.yaml").model_dump(mode="json")
    pole = {"name": "pole", "quantity": "observation[2]", "low": -0.2, "high": 0.2, "max_probability": _LIMIT}
    changed = {"safety": {"constraints": [pole]}, "monitoring": {"min_episodes": 10}}
    return PolicyConfig.model_validate(document | changed)


def _episode(agent: int, violates: bool, total: float) -> WindowEpisode:
    made = WindowEpisode(cut=False, agent_id=str(agent), ended=True)
    made.observations, made.actions, made.values = [[0.0, 0.0, 0.3 if violates else 0.0, 0.0]], [1], [1.0]
    made.rewards = {"0": total}
    return made


def _looked_at(drawn: Drawn, per_look: int, outcome: str) -> Callable[[np.random.Generator], dict[str, bool | None]]:
    config = _config()

    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        rates, means = drawn(rng)
        gathered, number = LookEvidence(), len(rates)
        for _ in range(_LOOKS):
            agents = [count % number for count in range(per_look)]
            violated = rng.random(per_look) < rates[agents]
            totals = np.clip(means[agents] + rng.uniform(-15.0, 15.0, per_look), *_SPAN)
            episodes = [_episode(*one) for one in zip(agents, violated.tolist(), totals.tolist(), strict=True)]
            claims, gathered = judge(config, episodes, _EVALUATED, _SPAN, gathered)
            if any(claim.verdict is Verdict.REFUTED for claim in claims):
                return {outcome: True}
        return {outcome: False}

    return stream


def _part(agent: int, number: int, violates: bool, total: float, first: bool, last: bool) -> WindowEpisode:
    """The first or last step of an episode, or its only one, with the return as the reward of the last."""
    made = _episode(agent, violates, total)
    made.episode_id, made.cut, made.ended = str(number), not first, last
    made.rewards = {str(int(last)): total if last else 0.0}
    return made


def _across_looks(number: int, failing: float, violating: float, good: float, outcome: str) -> Simulation:
    """Every agent begins an episode at every look; one that fails ends at once, another three looks later with `good`.

    `failing` of them fail and earn nothing, and `violating` of those violate the limit.
    """
    config, longest = _config(), 3

    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        gathered, failed = LookEvidence(), list[list[bool]]()
        for look in range(_LOOKS):
            failed.append((rng.random(number) < failing).tolist())
            violates, parts = (rng.random(number) < violating).tolist(), list[WindowEpisode]()
            for agent, fails in enumerate(failed[-1]):
                if look >= longest and not failed[-1 - longest][agent]:
                    parts.append(_part(agent, look - longest, False, good, first=False, last=True))
                parts.append(_part(agent, look, fails and violates[agent], 0.0, first=True, last=fails))
            claims, gathered = judge(config, parts, _EVALUATED, _SPAN, gathered)
            if any(claim.verdict is Verdict.REFUTED for claim in claims):
                return {outcome: True}
        return {outcome: False}

    return each(stream)


def _differing(number: int, rate: float, mean: float, spread: float) -> Drawn:
    """Agents that differ, whose rates of violations and returns are these on average."""

    def drawn(rng: np.random.Generator) -> tuple[Floats, Floats]:
        rates, apart = rng.beta(20 * rate, 20 * (1 - rate), number), rng.uniform(-spread, spread, number)
        return rates * (rate / rates.mean()), mean + apart - apart.mean()

    return drawn


def _one_broken(number: int) -> Drawn:
    """All but one keep their promises; that one always violates, and earns nothing."""
    broken = np.arange(number) == 0
    rates, means = np.where(broken, 1.0, 0.01), np.where(broken, 0.0, 470.0)
    return lambda _: (rates, means)


def _wrong(name: str, drawn: Drawn, per_look: int) -> Setting:
    return Setting(name, each(_looked_at(drawn, per_look, _DEGRADED)), (at_most(_DEGRADED, 0.05),))


def _power(name: str, drawn: Drawn, per_look: int) -> Setting:
    return Setting(name, each(_looked_at(drawn, per_look, _FOUND)), (finds(_FOUND, 0.8),))


SETTINGS = (
    _wrong("1 agent at its limits", _differing(1, _LIMIT, _ALLOWED, 0.0), 24),
    _wrong("8 agents that differ, at their limits", _differing(8, _LIMIT, _ALLOWED, 10.0), 24),
    _wrong("40 agents that differ, at their limits", _differing(40, _LIMIT, _ALLOWED, 10.0), 40),
    _wrong("8 agents, one broken", _one_broken(8), 24),
    _wrong("100 agents, one broken", _one_broken(100), 100),
    *(
        Setting(
            f"{number} agents, episodes over four looks but those that fail, at their limits",
            _across_looks(number, _MISSING, _LIMIT / _MISSING, 500.0, _DEGRADED),
            (at_most(_DEGRADED, 0.05),),
        )
        for number in (1, 8, 100)
    ),
    Setting(
        "40 agents, episodes over four looks, returns lower by 90",
        _across_looks(40, 0.0, 0.0, _ALLOWED - 90.0, _FOUND),
        (finds(_FOUND, 0.8),),
    ),
    _power("100 agents, four times as many violations", _differing(100, 4 * _LIMIT, 490.0, 10.0), 100),
    _power("100 agents, returns lower by 90", _differing(100, 0.01, _ALLOWED - 90.0, 20.0), 100),
)
