"""How often small observation noise changes an action: the bound of `robustness` on the mean change at visited
observations. A stream is one examination; where actions change exactly as much on average as they may, it is wrong to
support the claim, and wrong to refute it.

Policies are simple enough that the mean change is known exactly. Observations differ: noise cannot touch some, at
others it changes every second action. A stream of 20 attempts is 20 policies in a row, each held to its part of the
level (`loomrl.statistics.spending`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.special import ndtr

from benchmarks.calibration.topic import Rate, Setting, at_most, each, finds
from loomrl.safety.case.evidence import EvidenceWriter
from loomrl.safety.check import Context
from loomrl.safety.checks import robustness
from loomrl.safety.checks.robustness import RobustnessConfig
from loomrl.safety.config import SafetyConfig
from loomrl.statistics.spending import level
from loomrl.types import Claim, Verdict

SOURCES = (
    "src/loomrl/safety/checks/robustness.py",
    "src/loomrl/safety/probing/judging.py",
    "src/loomrl/safety/probing/probes.py",
    "src/loomrl/statistics/intervals.py",
    "src/loomrl/statistics/spending.py",
)
Floats = NDArray[np.float64]
_ATTEMPTS, _SPACE = 20, spaces.Box(-np.inf, np.inf, (2,), np.float64)
_SUPPORTED, _REFUTED, _PASSES = "called within the limit", "called beyond the limit", "one of 20 passes"
_KEEPS, _FOUND = "called within, and is", "called beyond, and is"


@dataclass(frozen=True)
class Case:
    """A policy, the observations (N, 2) it visited, and how much noise changes its action at each of them, (N,)."""

    visited: Floats
    changes: Floats  # the mean of each
    policy: Callable[[Floats], NDArray[Any]]
    action_space: Any

    def claim(self, rng: np.random.Generator, beyond: float, **config: int) -> Claim:
        """What the check claims, where actions change more than they may by so much."""
        missing: Any = None
        seed = int(rng.integers(2**31))  # of the check's own random numbers
        settings = RobustnessConfig(max_action_change=float(self.changes.mean()) - beyond, **config)
        context = Context(
            policy=self.policy, snapshot=missing, config=SafetyConfig(first_seed=seed), snapshot_folder=Path(),
            policy_folder=None, evaluation_folder=Path(), observation_space=_SPACE, action_space=self.action_space,
            visited=self.visited, episodes=(), play=missing, evidence=EvidenceWriter(None),
        ).of(robustness, settings)  # fmt: skip
        (claim,) = robustness.examine(context, settings)
        return claim


def _scale(visited: Floats) -> Floats:
    """The deviation of the noise."""
    return np.asarray(RobustnessConfig().noise * visited.std(axis=0))


def _choosing(visited: Floats) -> Case:
    """Two choices: which one is best changes where the first component is 0."""
    changes = ndtr(-np.abs(visited[:, 0]) / _scale(visited)[0])
    return Case(visited, changes, lambda obs: (obs[:, 0] > 0.0).astype(np.int64), spaces.Discrete(2))


def _steering(visited: Floats) -> Case:
    """One action in [-1, 1], proportional to the first component: noise of 0.3 of the range, cut off where it is
    beyond all of it."""
    size = 0.3
    gain = 2.0 * size / _scale(visited)[0]
    mean = size * np.sqrt(2.0 / np.pi) * (1.0 - np.exp(-0.5 / size**2)) + 2.0 * ndtr(-1.0 / size)
    return Case(
        visited, np.full(len(visited), mean), lambda obs: gain * obs[:, :1], spaces.Box(-1.0, 1.0, (1,), np.float64)
    )


def _halves(count: int) -> Floats:
    """Half of the observations where every second action changes, the others out of reach of noise."""
    visited = np.zeros((count, 2))
    visited[::2, 0] = np.where(np.arange(len(visited[::2])) % 2, 1.0, -1.0)
    return visited


def _spread(count: int) -> Floats:
    """More and more of them out of reach: most actions hardly ever change."""
    visited = np.zeros((count, 2))
    visited[:, 0] = np.linspace(-1.0, 1.0, count)
    return visited


def _setting(name: str, rates: tuple[Rate, ...], case: Case, beyond: float = 0.0, **config: int) -> Setting:
    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        verdict = case.claim(rng, beyond, **config).verdict
        told = {_SUPPORTED: Verdict.SUPPORTED, _KEEPS: Verdict.SUPPORTED}
        return {rate.outcome: verdict is told.get(rate.outcome, Verdict.REFUTED) for rate in rates}

    return Setting(name, each(stream), rates)


def _passes(rng: np.random.Generator, case: Case) -> bool:
    """Whether any of the attempts reaches its level."""
    for number in range(1, _ATTEMPTS + 1):
        claim = case.claim(rng, 0.0)
        if claim.verdict is Verdict.SUPPORTED and claim.p_value is not None and claim.p_value <= level(0.05, number):
            return True
    return False


_WRONG, _MANY = (at_most(_SUPPORTED, 0.05), at_most(_REFUTED, 0.05)), RobustnessConfig().num_visited
SETTINGS = (
    _setting("half of 4,096 observations at the edge", _WRONG, _choosing(_halves(_MANY))),
    _setting("half of 64 observations at the edge", _WRONG, _choosing(_halves(64))),
    _setting("4,096 observations, most hardly touched", _WRONG, _choosing(_spread(_MANY))),
    _setting("256 drawn of 5,000 observations", _WRONG, _choosing(_halves(5_000)), num_visited=256),
    _setting("continuous, 64 observations", _WRONG, _steering(_spread(64))),
    Setting(
        "half of 64 observations at the edge, 20 attempts",
        each(lambda rng: {_PASSES: _passes(rng, _choosing(_halves(64)))}),
        (at_most(_PASSES, 0.05),),
    ),
    _setting(
        "a quarter less than may change, 4,096 observations", (finds(_KEEPS, 0.8),), _choosing(_halves(_MANY)), -0.08
    ),
    _setting("0.2 beyond, half a deviation, 64 observations", (finds(_FOUND, 0.8),), _choosing(_halves(64)), 0.2),
    _setting(
        "one deviation beyond, 100 observations, continuous", (finds(_FOUND, 0.8),), _steering(_spread(100)), 0.17
    ),
)
