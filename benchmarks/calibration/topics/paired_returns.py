"""Whether a challenger is no worse than the champion, by episodes on the same seeds. A stream is one such comparison,
of a challenger that earns exactly as much less as is not allowed any more; it is wrong when it is called not worse.
Power: the challenger equals the champion on average.

Without a declared range the bounds are those of a t-test, which hold for differences that are about normal, or many and
not too one-sided; `docs/promotion.md` says what they miss. With `return_range` they are by betting.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.topic import Setting, Simulation, at_most, each, finds
from loomrl.promotion.config import PromotionConfig
from loomrl.statistics.paired_returns import compare_returns
from loomrl.types import Verdict

SOURCES = (
    "src/loomrl/statistics/paired_returns.py",
    "src/loomrl/statistics/betting.py",
)
Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]
_MARGIN, _SPAN = 10.0, (0.0, 200.0)
_WRONG, _FOUND = "called not worse", "called not worse, and equal"


def _compared(differences: Draw, num_pairs: int, outcome: str, **config: Any) -> Simulation:
    """Returns of a champion that earns 100, give or take, and of a challenger on the same seeds."""
    settings = PromotionConfig(max_regression=_MARGIN, max_regression_fraction=0.0, **config)

    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        champion = rng.uniform(100.0, 120.0, num_pairs)
        found = compare_returns(champion + differences(rng, num_pairs), champion, settings)
        return {outcome: found.verdict is Verdict.SUPPORTED}

    return each(stream)


def _normal(mean: float, deviation: float) -> Draw:
    return lambda rng, count: rng.normal(mean, deviation, count)


def _some_lose(share: float, loss: float) -> Draw:
    return lambda rng, count: -loss * (rng.random(count) < share)


def _wrong(name: str, differences: Draw, num_pairs: int, **config: Any) -> Setting:
    return Setting(name, _compared(differences, num_pairs, _WRONG, **config), (at_most(_WRONG, 0.05),))


def _power(name: str, differences: Draw, num_pairs: int, **config: Any) -> Setting:
    return Setting(name, _compared(differences, num_pairs, _FOUND, **config), (finds(_FOUND, 0.8),))


_RANGE = {"return_range": _SPAN}
SETTINGS = (
    _wrong("t: normal, 30 pairs", _normal(-_MARGIN, 20.0), 30),
    _wrong("t: normal, 100 pairs", _normal(-_MARGIN, 20.0), 100),
    _wrong("t: uniform, 30 pairs", lambda rng, count: rng.uniform(-40.0, 20.0, count), 30),
    _wrong("t: half lose 20, 100 pairs", _some_lose(0.5, 20.0), 100),
    _power("t: normal, deviation 30, 100 pairs", _normal(0.0, 30.0), 100),
    _wrong("range: normal, 100 pairs", _normal(-_MARGIN, 10.0), 100, **_RANGE),
    _wrong("range: half lose 20, 100 pairs", _some_lose(0.5, 20.0), 100, **_RANGE),
    _wrong("range: one in 10 loses 100, 100 pairs", _some_lose(0.1, 100.0), 100, **_RANGE),
    _wrong("range: one in 10 loses 100, 1,000 pairs", _some_lose(0.1, 100.0), 1_000, **_RANGE),
    _power("range: normal, deviation 10, 400 pairs", _normal(0.0, 10.0), 400, **_RANGE),
)
