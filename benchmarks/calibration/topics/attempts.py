"""Attempts to pass the gate. A stream is 20 policies in a row, each on episodes of its own; every one falls, or fails,
exactly as much as its limit does not allow, so the stream is wrong when any of them passes. Levels are spent over the
attempts as `loomrl.statistics.spending` says. Power: a single policy at its first attempt. Where limits are watched, as
in CartPole's config, there are two, 720 episodes become up to 7,200 until both are decided, and a stream is also wrong
when a limit that is kept exactly is refuted in a single attempt.

Returns are 100 before and fall by 10 on average, which is the limit, in 64 episodes. Hardly any episode loses over 100:
`docs/safety.md` says what happens where one can.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.topic import Setting, Simulation, at_most, each, finds
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.probing.samples import Watched, adjusted_p_values, judge, num_more
from loomrl.statistics.intervals import binomial_p_below, paired_p_below
from loomrl.statistics.spending import level
from loomrl.types import Verdict

SOURCES = (
    "src/loomrl/safety/probing/samples.py",
    "src/loomrl/statistics/intervals.py",
    "src/loomrl/statistics/sequential.py",
    "src/loomrl/statistics/spending.py",
)
Floats = NDArray[np.float64]
_ALPHA, _ATTEMPTS, _EPISODES, _LIMIT, _REPLICATES = 0.05, 20, 64, 10.0, 2_000
_LEVELS = [level(_ALPHA, number) for number in range(1, _ATTEMPTS + 1)]
_PASSES, _FIRST, _REFUTED = "one of 20 passes", "the first attempt passes", "the first attempt is refuted"
_FEWEST, _MOST = 720, 7_200  # episodes that are watched
Losses = Callable[[np.random.Generator], Floats]


def _reaches(losses: Floats, alpha: float, rng: np.random.Generator) -> bool:
    before = np.full(_EPISODES, 100.0)
    return paired_p_below(before, before - losses, _LIMIT, _REPLICATES, rng) <= alpha


def _falls(draw: Losses) -> Simulation:
    return each(lambda rng: {_PASSES: any(_reaches(draw(rng), alpha, rng) for alpha in _LEVELS)})


def _keeps(draw: Losses) -> Simulation:
    return each(lambda rng: {_FIRST: _reaches(draw(rng), _LEVELS[0], rng)})


def _crash(size: float, noise: float = 0.0) -> Losses:
    """So many lose `size` that the mean falls by the limit; the others only differ."""

    def draw(rng: np.random.Generator) -> Floats:
        return size * (rng.random(_EPISODES) < _LIMIT / size) + rng.normal(0.0, noise, _EPISODES)

    return draw


def _fails(limit: float, episodes: int, rate: float) -> Callable[[np.random.Generator, int], NDArray[np.bool_]]:
    """Which of (streams, attempts) pass a limit on how many episodes may fail."""
    p_values = np.array([binomial_p_below(failed, episodes, limit) for failed in range(episodes + 1)])
    return lambda rng, num_streams: p_values[rng.binomial(episodes, rate, (num_streams, _ATTEMPTS))] <= _LEVELS


def _any_fails(limit: float, episodes: int) -> Simulation:
    passes = _fails(limit, episodes, limit)
    return lambda rng, num_streams: {_PASSES: passes(rng, num_streams).any(axis=1).tolist()}


def _first_fails(limit: float, episodes: int, rate: float) -> Simulation:
    passes = _fails(limit, episodes, rate)
    return lambda rng, num_streams: {_FIRST: passes(rng, num_streams)[:, 0].tolist()}


@dataclass(frozen=True)
class _Attempt:
    """What came of two limits that were watched until both were decided: the greater P-value of the two, and whether
    one is refuted."""

    p_value: float
    is_refuted: bool


def _attempt(limit: float, rates: tuple[float, float], rng: np.random.Generator) -> _Attempt:
    """Of a policy that breaks each of two limits in an episode with these probabilities."""
    fails = (rng.random((2, _MOST)) < np.reshape(rates, (2, 1))).astype(np.float64)
    allowed = ConstraintConfig(name="limit", quantity="length", high=0.0, max_probability=limit)
    played, more = 0, _FEWEST
    while more:
        played += more
        samples = [Watched(allowed, of_one[:played], ()) for of_one in fails]
        more = num_more(samples, _MOST, 1.0 - _ALPHA)
    verdicts = [verdict for verdict, _ in judge(samples, 1.0 - _ALPHA)]
    is_supported = all(verdict is Verdict.SUPPORTED for verdict in verdicts)
    return _Attempt(max(adjusted_p_values(samples)) if is_supported else 1.0, Verdict.REFUTED in verdicts)


def _any_watched(limit: float, other: float) -> Simulation:
    """One limit is just not kept, the other is broken with the probability `other`."""

    def stream(rng: np.random.Generator) -> dict[str, bool]:
        attempts = [_attempt(limit, (limit, other), rng) for _ in _LEVELS]
        return {
            _PASSES: any(one.p_value <= alpha for one, alpha in zip(attempts, _LEVELS, strict=True)),
            _REFUTED: attempts[0].is_refuted,
        }

    return each(stream)


def _first_watched(limit: float, rate: float) -> Simulation:
    return each(lambda rng: {_FIRST: _attempt(limit, (rate, rate), rng).p_value <= _LEVELS[0]})


_WRONG, _RIGHT = (at_most(_PASSES, _ALPHA),), (finds(_FIRST, 0.8),)
_WATCHED = (*_WRONG, at_most(_REFUTED, _ALPHA))
SETTINGS = (
    Setting("half lose 20", _falls(_crash(20.0)), _WRONG),
    Setting("one in 5 loses 50", _falls(_crash(50.0)), _WRONG),
    Setting("one in 10 loses all", _falls(_crash(100.0)), _WRONG),
    Setting("one in 10 loses all, noise", _falls(_crash(100.0, noise=5.0)), _WRONG),
    Setting("normal, deviation 10", _falls(lambda rng: rng.normal(_LIMIT, 10.0, _EPISODES)), _WRONG),
    Setting("normal, deviation 30", _falls(lambda rng: rng.normal(_LIMIT, 30.0, _EPISODES)), _WRONG),
    Setting("exponential", _falls(lambda rng: rng.exponential(_LIMIT, _EPISODES)), _WRONG),
    Setting("beta, most lose nothing", _falls(lambda rng: 100.0 * rng.beta(0.2, 1.8, _EPISODES)), _WRONG),
    Setting("falls by 1, deviation 2", _keeps(lambda rng: rng.normal(1.0, 2.0, _EPISODES)), _RIGHT),
    Setting("falls by 3, deviation 5", _keeps(lambda rng: rng.normal(3.0, 5.0, _EPISODES)), _RIGHT),
    Setting("1 % of 672 may fail", _any_fails(0.01, 672), _WRONG),
    Setting("5 % of 400 may fail", _any_fails(0.05, 400), _WRONG),
    Setting("1 % of 672 may fail, 1 in 5,000 does", _first_fails(0.01, 672, 0.0002), _RIGHT),
    Setting("two limits of 1 %, watched, both just kept", _any_watched(0.01, 0.01), _WATCHED, batch=10),
    Setting("two limits of 1 %, watched, one never broken", _any_watched(0.01, 0.0), _WATCHED, batch=10),
    Setting("two limits of 5 %, watched, both just kept", _any_watched(0.05, 0.05), _WATCHED, batch=10),
    Setting("two limits of 1 %, watched, 1 in 1,000 breaks each", _first_watched(0.01, 0.001), _RIGHT),
)
