"""What a champion's log with 100 agents tells of a challenger that earns one standard deviation between agents more,
and differs in every decision. With 8 single decisions of each agent it is called better in 80 % of logs where the
server explores in 40 % of decisions; of episodes of two decisions a share of 80 % does it, because weights multiply. To
say it of other agents, too, takes 12 single decisions of each at a share of 80 %.

What is drawn is drawn by the server's own code (`loomrl.serving.decisions.choosing`). Agents differ by 20 % of the
range of a reward, and one is broken. The verdict is that of promotion: the lower bound of the improvement, at
95 %, is not below 0.
"""

import copy
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.calibration.topic import Rate, Setting, at_most, each, finds
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.report import estimate
from loomrl.promotion.comparison.window import WindowEpisode
from loomrl.serving.config import ExplorationConfig
from loomrl.serving.decisions.choosing import choose
from loomrl.serving.policy.model import ServedPolicy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.support.policies import discrete_folder
from tests.support.simulated_logs import episode

SOURCES = (
    "src/loomrl/statistics/betting.py",
    "src/loomrl/promotion/comparison/off_policy",
    "src/loomrl/serving/decisions/choosing.py",
    "src/loomrl/serving/policy/exploration.py",
    "tests/support/simulated_logs.py",
)
_OBSERVATION = [0.0, 0.0, 1.0, 0.0]
_NUM_AGENTS, _DEVIATION, _NOISE = 100, 0.2, 0.05
_FOUND, _WRONG = "called better", "called better, and is not"


@dataclass(frozen=True)
class Log:
    """How a log comes about, and what is asked of it."""

    share: float  # of decisions in which the server explores, with all actions alike
    num_episodes: int = 8  # of each agent
    num_steps: int = 1
    better: float = _DEVIATION  # by how much the challenger's action earns more, in every decision
    units: str = "episodes"

    def is_better(self, rng: np.random.Generator) -> bool:
        """Whether the log calls the challenger better."""
        champion, challenger = _policies()
        champion.exploration = ExplorationConfig(kind="epsilon", epsilon=1.0, share=self.share)
        settings = OffPolicyConfig.model_validate(
            {
                "units": self.units, "reward_range": (0.0, 1.0), "max_steps": self.num_steps,
                "min_propensity": self.share / 2.0,
            }
        )  # fmt: skip
        found = estimate("cartpole", self._episodes(rng, champion), champion, challenger, settings).improvement
        return found is not None and found.low is not None and found.low >= settings.min_improvement

    def _episodes(self, rng: np.random.Generator, champion: ServedPolicy) -> list[WindowEpisode]:
        count = _NUM_AGENTS * self.num_episodes
        reach = np.sqrt(3.0) * _DEVIATION
        usual = rng.uniform(0.4 - reach, 0.4 + reach, _NUM_AGENTS)
        agent = np.arange(count) % _NUM_AGENTS
        observations = np.tile(np.array(_OBSERVATION, np.float32), (count * self.num_steps, 1))
        chosen = choose(champion, observations, [False] * len(observations), lambda _row: rng)
        actions = chosen.action.reshape(count, self.num_steps)
        propensities = np.reshape(chosen.propensity, (count, self.num_steps))
        rewards = usual[agent][:, None] + self.better * actions + rng.uniform(-_NOISE, _NOISE, actions.shape)
        rewards[agent == 0] = 0.0  # it is broken
        asked = [False] * self.num_steps
        rows = zip(agent.tolist(), actions.tolist(), propensities.tolist(), rewards.tolist(), strict=True)
        return [
            episode(
                [(_OBSERVATION, *step) for step in zip(*columns, strict=True)],
                agent_id=f"agent-{name}", asked=asked, explored=asked,
            )
            for name, *columns in rows
        ]  # fmt: skip


@cache
def _loaded() -> tuple[ServedPolicy, ServedPolicy]:
    """Champion and challenger: each always takes one of two actions, and not the same."""
    with tempfile.TemporaryDirectory(prefix="loomrl-calibration-") as folder:
        weights = np.zeros((4, 2), np.float32)
        weights[2] = [1.0, -1.0]
        folders = [discrete_folder(Path(folder) / name, one) for name, one in (("1", weights), ("2", -weights))]
        champion, challenger = (ServedPolicy.load(one, one.name) for one in folders)
        return champion, challenger


def _policies() -> tuple[ServedPolicy, ServedPolicy]:
    champion, challenger = _loaded()
    return copy.copy(champion), challenger


def _setting(name: str, rate: Rate, log: Log) -> Setting:
    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        return {rate.outcome: log.is_better(rng)}

    return Setting(name, each(stream), (rate,), num_streams=300, batch=10)


_POWER = finds(_FOUND, 0.8)
SETTINGS = (
    _setting("single decisions, share 0.4", _POWER, Log(0.4)),
    _setting("single decisions, share 0.8, of other agents", _POWER, Log(0.8, num_episodes=12, units="agents")),
    _setting("two decisions, share 0.8", _POWER, Log(0.8, num_steps=2)),
    _setting("single decisions, share 0.4, no better", at_most(_WRONG, 0.05), Log(0.4, better=0.0)),
)
