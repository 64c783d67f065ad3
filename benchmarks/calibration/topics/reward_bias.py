"""Whether episodes come out the same for every value of a protected feature: the two one-sided tests and Holm's
procedure of `reward_bias`, on 128 seeds that are played with each value. A stream is one such comparison; where the
mean returns of two values differ by exactly the margin it is wrong to call them within it, and wrong to call them
beyond it.

Returns are about 20 unless it is said otherwise, seeds differ by 5, and the margin is 1. A stream of 20 attempts is 20
policies in a row, each held to its part of the level (`loomrl.statistics.spending`).
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.topic import Rate, Setting, at_most, each, finds
from loomrl.safety.case.evidence import EvidenceWriter
from loomrl.safety.check import Context
from loomrl.safety.checks import reward_bias
from loomrl.safety.checks.reward_bias import FeatureConfig, RewardBiasConfig
from loomrl.safety.config import SafetyConfig
from loomrl.statistics.spending import level
from loomrl.types import Claim, Episode, Verdict

SOURCES = (
    "src/loomrl/safety/checks/reward_bias.py",
    "src/loomrl/statistics/intervals.py",
    "src/loomrl/statistics/spending.py",
)
Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]  # what a value of the feature adds to the return of each seed
_MARGIN, _SEEDS, _ATTEMPTS = 1.0, RewardBiasConfig().num_episodes, 20
_EARNED = 20.0  # on average
_WITHIN, _BEYOND, _PASSES = "called within the margin", "called beyond the margin", "one of 20 passes"
_FOUND, _EQUAL = "called beyond, and is", "called within, and equal"


def _context() -> Context:
    """With what judging numbers takes: no policy, no environment and no place for evidence."""
    missing: Any = None
    return Context(
        policy=missing, snapshot=missing, config=SafetyConfig(), snapshot_folder=missing, policy_folder=None,
        evaluation_folder=missing, observation_space=missing, action_space=missing, visited=missing, episodes=(),
        play=missing, evidence=EvidenceWriter(None),
    ).of(reward_bias, RewardBiasConfig())  # fmt: skip


def _episode(seed: int, earned: float) -> Episode:
    obs = np.zeros((1, 1), np.float32)
    return Episode(seed, obs, np.zeros(1, np.int64), np.array([earned]), obs, terminated=True, truncated=False)


def _claim(
    rng: np.random.Generator, values: tuple[Draw, ...], earned: float = _EARNED, num_seeds: int = _SEEDS
) -> Claim:
    """What the check claims of a feature with these values."""
    feature = FeatureConfig(name="group", parameter="group", values=[*range(len(values))], outcome_margin=_MARGIN)
    own = rng.normal(earned, 5.0, num_seeds)
    played = [
        [_episode(seed, one) for seed, one in enumerate((own + added(rng, num_seeds)).tolist())] for added in values
    ]
    return reward_bias._outcome_claim(_context(), feature, played, _MARGIN)


def _setting(
    name: str, rates: tuple[Rate, ...], *values: Draw, earned: float = _EARNED, num_seeds: int = _SEEDS
) -> Setting:
    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        verdict = _claim(rng, values, earned, num_seeds).verdict
        told = {
            _WITHIN: Verdict.SUPPORTED,
            _EQUAL: Verdict.SUPPORTED,
            _BEYOND: Verdict.REFUTED,
            _FOUND: Verdict.REFUTED,
        }
        return {rate.outcome: verdict is told[rate.outcome] for rate in rates}

    is_dear = any(rate.outcome == _FOUND for rate in rates)  # 200,000 weighted means are drawn
    return Setting(name, each(stream), rates, *((300, 10) if is_dear else ()))


def _passes(claims: Iterable[Claim]) -> bool:
    """Whether any of the claims, one of each attempt, reaches the level of its attempt."""
    return any(
        claim.verdict is Verdict.SUPPORTED and claim.p_value is not None and claim.p_value <= level(0.05, number)
        for number, claim in enumerate(claims, 1)
    )


def _attempts(name: str, *values: Draw) -> Setting:
    stream = each(lambda rng: {_PASSES: _passes(_claim(rng, values) for _ in range(_ATTEMPTS))})
    return Setting(name, stream, (at_most(_PASSES, 0.05),), batch=20)


def _as_before(rng: np.random.Generator, count: int) -> Floats:  # noqa: ARG001 - as all draws
    return np.zeros(count)


def _normal(mean: float, deviation: float) -> Draw:
    return lambda rng, count: rng.normal(mean, deviation, count)


def _some_lose(share: float) -> Draw:
    """So much that the mean falls by the margin."""
    return lambda rng, count: -_MARGIN / share * (rng.random(count) < share)


def _some_gain(share: float) -> Draw:
    """All lose a little more than the margin, and some gain so much that the mean falls by the margin."""
    return lambda rng, count: -1.2 * _MARGIN + 0.2 * _MARGIN / share * (rng.random(count) < share)


def _exponential(rng: np.random.Generator, count: int) -> Floats:
    return -rng.exponential(_MARGIN, count)


_WRONG = (at_most(_WITHIN, 0.05), at_most(_BEYOND, 0.05))
_NOISE, _CALM, _HALF = _normal(0.0, 2.0), _normal(0.0, 0.5), _some_lose(0.5)
SETTINGS = (
    _setting("two values, normal", _WRONG, _as_before, _normal(_MARGIN, 2.0)),
    _setting("three values, one apart", _WRONG, _NOISE, _normal(_MARGIN, 2.0), _NOISE),
    _setting("four values, two apart", _WRONG, _NOISE, _normal(_MARGIN, 2.0), _NOISE, _normal(_MARGIN, 2.0)),
    _setting("heavy tails", _WRONG, _as_before, lambda rng, count: _MARGIN + rng.standard_t(3, count)),
    _setting("half lose 2", _WRONG, _as_before, _HALF),
    _setting("one in 5 loses 5", _WRONG, _as_before, _some_lose(0.2)),
    _setting("one in 20 loses 20", _WRONG, _as_before, _some_lose(0.05)),
    _setting("losses that are exponential", _WRONG, _as_before, _exponential),
    _setting("all lose 1.2, one in 64 gains 12.8", _WRONG, _as_before, _some_gain(1.0 / 64.0)),
    _setting("exponential, returns about 0", _WRONG, _as_before, _exponential, earned=0.0),
    _setting("exponential, returns about 0, 30 seeds", _WRONG, _as_before, _exponential, earned=0.0, num_seeds=30),
    _setting("half lose 2, returns about -20, 30 seeds", _WRONG, _as_before, _HALF, earned=-20.0, num_seeds=30),
    _attempts("normal, 20 attempts", _as_before, _normal(_MARGIN, 2.0)),
    _attempts("one in 20 loses 20, 20 attempts", _as_before, _some_lose(0.05)),
    _setting("equal, deviation of 2 margins", (finds(_EQUAL, 0.8),), _as_before, _NOISE),
    _setting("equal, deviation of 0.5, returns about 33", (finds(_EQUAL, 0.8),), _as_before, _CALM, earned=33.0),
    _setting("three equal values", (finds(_EQUAL, 0.8),), _NOISE, _as_before, _normal(0.0, 1.0)),
    _setting("one deviation beyond", (finds(_FOUND, 0.8),), _as_before, _normal(_MARGIN + 2.0, 2.0)),
    _setting("one of three, one deviation beyond", (finds(_FOUND, 0.8),), _NOISE, _normal(_MARGIN + 2.8, 2.0), _NOISE),
)
