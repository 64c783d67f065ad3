"""How far a challenger's continuous actions move in shadow, and how often it fails under sensor noise: how often one
that moves as far as it may, or fails as often as it may, is refused or called within the limit, and how often a flaw is
found.

A stream is one examination. Episodes differ in how far the champion moves in them, in length, and in how hard noise
makes them; those in which the champion fails under noise are left out, as in production. Which noise the champion
withstands is tried on episodes of its own, and is not played here.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.topic import Rate, Setting, at_most, each, finds
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.config import ShadowConfig
from loomrl.shadow.following import PREFIX, claims_of, refuting_confidence
from loomrl.shadow.whole import compare_travel
from loomrl.types import Consequences, Episode, Noisy, Verdict

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.support.policies import continuous_folder

SOURCES = (
    "src/loomrl/shadow/config.py",
    "src/loomrl/shadow/following.py",
    "src/loomrl/shadow/whole.py",
    "src/loomrl/serving/policy/distance.py",
    "src/loomrl/statistics/betting.py",
    "src/loomrl/statistics/clustered.py",
    "src/loomrl/statistics/intervals.py",
)
Floats = NDArray[np.float64]
Excess = Callable[[np.random.Generator, int], Floats]  # by how much more than allowed the challenger's actions move
_CONFIG = ShadowConfig()
_SETTINGS, _ALPHA = _CONFIG.consequences, 1.0 - _CONFIG.confidence
_REFUSED, _REFUTED, _WITHIN, _FOUND = "refused", "refuted", "called within", "refuted, and is beyond"
_TO_AND_FRO = np.tile([[0.5, 0.5], [-0.5, -0.5]], (20, 1))
_HARD, _FAILS_IF_HARD = 0.1, 0.3  # of the noisy episodes; how often the champion fails in those


@cache
def _policy() -> ServedPolicy:
    """Of two actions in [-1, 1]: they are measured in halves of their range."""
    with tempfile.TemporaryDirectory(prefix="loomrl-calibration-") as folder:
        return ServedPolicy.load(continuous_folder(Path(folder)))


def _episode(seed: int, travel: float, length: int) -> Episode:
    """One whose actions move to and fro, so far in every step."""
    action = travel * _TO_AND_FRO[:length]
    return Episode(seed, action, action, action[:, 0], action, terminated=True, truncated=False)


def _verdict(found: Consequences, name: str) -> Verdict:
    (claim,) = (one for one in claims_of(found, _CONFIG) if one.id == f"{PREFIX}.{name}")
    return claim.verdict


def _told(verdict: Verdict, rates: tuple[Rate, ...]) -> dict[str, bool | None]:
    outcomes = {
        _REFUSED: verdict is not Verdict.SUPPORTED,
        _WITHIN: verdict is Verdict.SUPPORTED,
        _REFUTED: verdict is Verdict.REFUTED,
        _FOUND: verdict is Verdict.REFUTED,
    }
    return {rate.outcome: outcomes[rate.outcome] for rate in rates}


def _travels(name: str, rates: tuple[Rate, ...], excess: Excess, count: int = _SETTINGS.num_episodes) -> Setting:
    """The champion's actions move by 0.1 to 0.3 in a step, the challenger's by so much more than twice as far."""

    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        champion, lengths = rng.uniform(0.1, 0.3, count), rng.integers(2, 40, count).tolist()
        challenger = _SETTINGS.max_travel_ratio * champion + excess(rng, count)
        pairs = [
            [_episode(seed, *one) for seed, one in enumerate(zip(moved.tolist(), lengths, strict=True))]
            for moved in (challenger, champion)
        ]
        levels = _CONFIG.confidence, refuting_confidence(_CONFIG.confidence, 0)
        travel = compare_travel(_policy(), *pairs, _SETTINGS.max_travel_ratio, *levels)
        return _told(_verdict(Consequences(examined=True, num_episodes=count, travel=travel), "travel"), rates)

    return Setting(name, each(stream), rates)


def _noisy(name: str, rates: tuple[Rate, ...], failing: float) -> Setting:
    """A challenger that fails in so many of the episodes in which the champion does not, half of them hard ones."""
    hard, easy = _HARD * (1.0 - _FAILS_IF_HARD), 1.0 - _HARD
    chances = np.array([0.5 * failing * (hard + easy) / part for part in (easy, hard)])

    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        is_hard = rng.random(_SETTINGS.num_noisy) < _HARD
        holds = rng.random(len(is_hard)) >= _FAILS_IF_HARD * is_hard
        fails = (rng.random(len(is_hard)) < chances[is_hard.astype(int)]) & holds
        noisy = Noisy(deviations=0.1, withstood=0.2, num_episodes=int(holds.sum()), num_failed=int(fails.sum()))
        return _told(_verdict(Consequences(examined=True, noisy=noisy), "noise"), rates)

    return Setting(name, each(stream), rates)


def _shakes(share: float, other: float = 0.015) -> Excess:
    """In so many episodes actions shake, so that the mean is what is allowed; in the others they move a little less."""
    return lambda rng, count: np.where(rng.random(count) < share, other * (1.0 - share) / share, -other)


def _even(rng: np.random.Generator, count: int) -> Floats:
    return rng.uniform(-0.2, 0.2, count)


_AT_LIMIT = (at_most(_WITHIN, _ALPHA), at_most(_REFUTED, _ALPHA))
_LIMIT = _SETTINGS.max_failures_under_noise
SETTINGS = (
    _travels(
        "moves a little less than allowed", (at_most(_REFUSED, _ALPHA),), lambda rng, n: -rng.uniform(0.0, 0.1, n)
    ),
    _travels("moves as far as allowed", _AT_LIMIT, _even),
    _travels("moves as far as allowed, 20 episodes", _AT_LIMIT, _even, 20),
    _travels("as far as allowed, heavy tail", _AT_LIMIT, lambda rng, n: rng.exponential(0.1, n) - 0.1, 128),
    _travels("one episode in 20 shakes", _AT_LIMIT, _shakes(0.05)),
    _travels("one episode in 100 shakes", _AT_LIMIT, _shakes(0.01)),
    _travels("one episode in 200 shakes", _AT_LIMIT, _shakes(0.005, 0.007)),
    _travels("one episode in 300 shakes as far as can be", _AT_LIMIT, _shakes(1.0 / 300.0, 0.0045)),
    _travels(
        "a little too far, but one in 100 moves far less", _AT_LIMIT, lambda rng, n: -_shakes(0.01, 0.001)(rng, n)
    ),
    _travels("one deviation farther", (finds(_FOUND, 0.8),), lambda rng, n: 0.115 + _even(rng, n)),
    _noisy("fails under noise in 1 of 100", (at_most(_REFUSED, _ALPHA),), 0.01),
    _noisy("fails under noise as often as it may", _AT_LIMIT, _LIMIT),
    _noisy("fails under noise in one of ten", (finds(_REFUSED, 0.8),), 2.0 * _LIMIT),
    _noisy("fails under noise one deviation more often", (finds(_FOUND, 0.8),), _LIMIT + 0.22),
)
