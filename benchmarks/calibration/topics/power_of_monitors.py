"""What the policy server's monitors find with 100 agents in all: a version whose returns are lower by one standard
deviation between agents than they may be is taken out in 80 % of streams, with 50 agents beside 50 of the champion; so
is one that breaks a limit more often by as much. What may be lost is no part of that deviation: where a loss of 5 % of
the range is allowed, which is the default, and agents differ by 16 % of it, one deviation in all is found in 4 of 10.

A stream is one experiment: agents dealt by chance, each with episodes of its own, weighed by the monitor that compares
returns (`loomrl.serving.guardian.trial`) at the level which that has by default. Evidence never falls while episodes
end, so one look at the end says whether any look found something. Two settings go through the server's whole stream of
records instead, as the topic on monitors does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.topic import Rate, Setting, at_most, each, finds
from benchmarks.calibration.topics import monitors
from benchmarks.calibration.topics.monitors import Fleet, Split, watch
from loomrl.serving.guardian.trial import Arm, ChampionTrial
from loomrl.serving.guardian.watch import REWARD

SOURCES = ("benchmarks/calibration/topics/monitors.py", *monitors.SOURCES)
Floats = NDArray[np.float64]
_WRONG, _FOUND = "called worse", "taken out"
_SPAN, _WATCH = (0.0, 500.0), watch()
_MAY_LOSE = _WATCH.config.max_reward_loss * (_SPAN[1] - _SPAN[0])
_THRESHOLD = _WATCH.levels[REWARD].threshold


@dataclass(frozen=True)
class Experiment:
    """A version and the champion beside each other; returns are within 0 and 500 and about 300."""

    lower: float = 0.0  # by how much the version's returns are, in standard deviations between agents
    beyond: float = _MAY_LOSE  # and by how much besides
    max_loss: float = _WATCH.config.max_reward_loss  # what the version may lose, in parts of the range
    num_agents: int = 100
    between: float = 80.0
    within: float = 40.0
    tails: float = 0.0  # degrees of freedom of how agents differ, 0: normal
    is_broken: bool = False  # whether one agent brings in nothing
    unequal: bool = False  # whether agents have from 1 to 32 episodes, instead of 16

    def is_found(self, rng: np.random.Generator) -> bool:
        """Whether the version is taken out."""
        number = self.num_agents
        apart = rng.standard_t(self.tails, number) if self.tails else rng.normal(size=number)
        spread = np.sqrt(self.tails / (self.tails - 2.0)) if self.tails else 1.0
        means = 300.0 + self.between * apart / spread
        own, control = Arm("x", is_champion=False), Arm("x", is_champion=True)
        is_own = rng.random(number) < 0.5
        means -= is_own * (self.lower * self.between + self.beyond)
        means[0] = 0.0 if self.is_broken else means[0]
        counts = rng.integers(1, 33, number) if self.unequal else np.full(number, 16)
        for agent in range(number):
            name, arm = f"agent-{agent}", own if is_own[agent] else control
            arm.enrol(name, f"{agent:06}", {"1": 0.5, "2": 0.5})
            returns = rng.normal(means[agent], self.within * (means[agent] > 0.0), counts[agent])
            for value in np.clip(returns, *_SPAN).tolist():
                arm.returned(name, value, arm.begin_return(name))
        return ChampionTrial("2", own, "1", control, _SPAN).evidence(self.max_loss) >= _THRESHOLD


def _trial(name: str, rate: Rate, experiment: Experiment) -> Setting:
    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        return {rate.outcome: experiment.is_found(rng)}

    return Setting(name, each(stream), (rate,))


def _of_records(name: str, stream: Callable[[np.random.Generator], dict[str, bool | None]]) -> Setting:
    return Setting(name, each(stream), (_POWER,), num_streams=200, batch=20)


_POWER, _LEVEL = finds(_FOUND, 0.8), at_most(_WRONG, 1.0 / _THRESHOLD)
_ALL = Experiment(lower=1.0, beyond=0.0)
_VIOLATES = (0.0317, 0.0, 0.0, 0.0)  # 0.01 and the deviation between agents that differ so
SETTINGS = (
    _trial("returns as low as they may be", _LEVEL, Experiment()),
    _trial("as low as they may be, heavy tails, one broken", _LEVEL, Experiment(tails=3.0, is_broken=True)),
    _trial("as low as they may be, unequal numbers of episodes", _LEVEL, Experiment(unequal=True)),
    _trial("lower by one deviation than they may be", _POWER, Experiment(lower=1.0)),
    _trial("lower by one deviation, heavy tails, one broken", _POWER, Experiment(1.0, tails=3.0, is_broken=True)),
    _trial("lower by one deviation, nothing may be lost", _POWER, Experiment(1.0, 0.0, max_loss=0.0)),
    _trial("one deviation in all, 5 % of the range may be lost", finds(_FOUND, 0.3), _ALL),
    _trial(
        "200 agents, one deviation in all, 5 % of the range may be lost", _POWER, Experiment(1.0, 0.0, num_agents=200)
    ),
    _of_records(
        "lower by one deviation than they may be, as records",
        monitors._split(Split(100, num_episodes=10, worse=1.3125)),
    ),
    _of_records(
        "violations one deviation above the limit, 300 decisions each",
        monitors._limits(Fleet(100, num_rounds=300, differ=0.05, rates=_VIOLATES)),
    ),
)
