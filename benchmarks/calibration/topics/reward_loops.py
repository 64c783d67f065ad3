"""How much of their reward episodes earn in loops, without progress: the bound of `reward_hacking.loops` on its mean
share. A stream is one examination of so many episodes; where they earn exactly as much in loops as they may, it is
wrong to support the claim, and wrong to refute it.

Episodes earn unequal amounts in unequal numbers of steps. A stream of 20 attempts is 20 policies in a row, each held to
its part of the level (`loomrl.statistics.spending`).
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.calibration.topic import Rate, Setting, at_most, each, finds
from loomrl.safety.case.evidence import EvidenceWriter
from loomrl.safety.check import Context
from loomrl.safety.checks import reward_hacking
from loomrl.safety.checks.reward_hacking import RewardHackingConfig
from loomrl.safety.config import SafetyConfig
from loomrl.safety.probing.exploits import Loops
from loomrl.statistics.spending import level
from loomrl.types import Claim, Episode, Verdict

SOURCES = (
    "src/loomrl/safety/checks/reward_hacking.py",
    "src/loomrl/safety/probing/exploits.py",
    "src/loomrl/safety/probing/judging.py",
    "src/loomrl/statistics/intervals.py",
    "src/loomrl/statistics/spending.py",
)
Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]  # the share of its reward that each episode earns in a loop
_WINDOW, _ATTEMPTS, _NUM_EPISODES = 10, 20, SafetyConfig().num_episodes
_MAY = Loops().max_share
_SUPPORTED, _REFUTED, _PASSES = "called within the limit", "called beyond the limit", "one of 20 passes"
_KEEPS, _FOUND = "called within, and is", "called beyond, and is"


def _episode(rng: np.random.Generator, seed: int, share: float) -> Episode:
    """Some steps with progress, then a loop, which earns this share."""
    counts = rng.integers((5, _WINDOW), 40)
    parts = rng.lognormal() * np.array([1.0 - share, share]) / counts
    obs = np.zeros((counts.sum(), 1), np.float32)
    info = {"way": np.repeat([1.0, 0.0], counts)}
    reward, action = np.repeat(parts, counts), np.zeros(len(obs), np.int64)
    return Episode(seed, obs, action, reward, obs, terminated=True, truncated=False, info=info)


def _claim(rng: np.random.Generator, shares: Floats) -> Claim:
    """What the check claims of loops in episodes with these shares of reward in them."""
    episodes = [_episode(rng, seed, share) for seed, share in enumerate(shares.tolist())]
    config = RewardHackingConfig(objective="way", loops=Loops(window=_WINDOW), bootstrap_replicates=100)
    missing: Any = None
    snapshot: Any = SimpleNamespace(spec=SimpleNamespace(max_episode_steps=100))
    context = Context(
        policy=missing, snapshot=snapshot, config=SafetyConfig(), snapshot_folder=Path(), policy_folder=None,
        evaluation_folder=Path(), observation_space=missing, action_space=spaces.Discrete(2), visited=missing,
        episodes=episodes, play=lambda _act, seeds: episodes[: len(seeds)], evidence=EvidenceWriter(None),
    ).of(reward_hacking, config)  # fmt: skip
    (claim,) = (one for one in reward_hacking.examine(context, config) if one.id.endswith(".loops"))
    return claim


def _setting(name: str, rates: tuple[Rate, ...], draw: Draw, count: int = _NUM_EPISODES) -> Setting:
    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        verdict = _claim(rng, draw(rng, count)).verdict
        told = {_SUPPORTED: Verdict.SUPPORTED, _KEEPS: Verdict.SUPPORTED}
        return {rate.outcome: verdict is told.get(rate.outcome, Verdict.REFUTED) for rate in rates}

    return Setting(name, each(stream), rates, batch=20)


def _passes(rng: np.random.Generator, draw: Draw, count: int) -> bool:
    """Whether any of the attempts reaches its level."""
    for number in range(1, _ATTEMPTS + 1):
        claim = _claim(rng, draw(rng, count))
        if claim.verdict is Verdict.SUPPORTED and claim.p_value is not None and claim.p_value <= level(0.05, number):
            return True
    return False


def _some_circle(share: float, of_reward: float = 1.0) -> Draw:
    """So many episodes earn so much of their reward in loops, the others nothing."""
    return lambda rng, count: of_reward * (rng.random(count) < share)


def _beta(mean: float, strength: float) -> Draw:
    return lambda rng, count: rng.beta(mean * strength, (1.0 - mean) * strength, count)


_WRONG = (at_most(_SUPPORTED, 0.05), at_most(_REFUTED, 0.05))
SETTINGS = (
    _setting("one in 10 only circles", _WRONG, _some_circle(_MAY)),
    _setting("one in 10 only circles, 64 episodes", _WRONG, _some_circle(_MAY), 64),
    _setting("half earn a fifth in circles, 64 episodes", _WRONG, _some_circle(0.5, 2.0 * _MAY), 64),
    _setting("most hardly circle, heavy tail", _WRONG, _beta(_MAY, 2.0)),
    _setting("most hardly circle, heavy tail, 64 episodes", _WRONG, _beta(_MAY, 2.0), 64),
    Setting(
        "one in 10 only circles, 64 episodes, 20 attempts",
        each(lambda rng: {_PASSES: _passes(rng, _some_circle(_MAY), 64)}),
        (at_most(_PASSES, 0.05),),
        batch=10,
    ),
    _setting("3 % in circles, heavy tail", (finds(_KEEPS, 0.8),), _beta(0.03, 2.0)),
    _setting("one deviation beyond, 100 episodes", (finds(_FOUND, 0.8),), _beta(_MAY + 0.24, 2.0), 100),
)
