"""Shadow's bounds on what follows where challenger and champion differ, over episodes that differ: how often a
challenger that is no worse is refused, how often one that breaks a limit more often than allowed is called within it,
and how often a flaw is found.

One disagreement of an episode is drawn by stakes and rarity, with known chances; the outcomes of an episode depend on
each other as much as they may, and the drawn ones are likelier to be bad. Failures after disturbances are counted, of
the champion too.
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibration.topic import Rate, Setting, Simulation, at_most, covers, each, finds
from loomrl.shadow.config import ShadowConfig
from loomrl.shadow.following import claims_of, refuting_confidence
from loomrl.shadow.sampling import probabilities
from loomrl.statistics.clustered import mean_over_units, rate_over_units
from loomrl.types import Consequences, LimitFollowed, Verdict

SOURCES = ("src/loomrl/shadow", "src/loomrl/statistics/intervals.py", "src/loomrl/statistics/clustered.py")
Floats = NDArray[np.float64]
_CONFIG = ShadowConfig()
_LIMIT, _SCALE = 0.05, 100.0
_REFUSED, _WITHIN, _MEAN = "refused", "called within a limit that it breaks", "mean difference of returns"


def _difference(rng: np.random.Generator, mean: float) -> float:
    """The weighted outcome of one drawn disagreement of an episode, whose stakes go with what follows."""
    own, count = rng.normal(mean, 10.0), int(rng.integers(1, 40))  # what all of the episode's outcomes share
    stakes = rng.exponential(1.0, count)
    outcomes = own + 5.0 * (stakes - 1.0) + rng.standard_t(4, count)  # of mean 0 but for `own`
    chances = probabilities(stakes, rng.random(count))
    drawn = int(rng.choice(count, p=chances))
    return float(outcomes[drawn] / (chances[drawn] * count))


def _examined(rng: np.random.Generator, broken: float, mean: float, failing: float) -> Consequences:
    """What an examination with the default settings finds of a challenger with these rates."""
    settings = _CONFIG.consequences
    marks = (rng.random(settings.num_episodes) < broken).astype(np.float64)
    rate = rate_over_units(marks, _CONFIG.confidence, refuting_confidence(_CONFIG.confidence, 1))
    return Consequences(
        examined=True,
        num_episodes=settings.num_episodes,
        limits=[
            LimitFollowed(
                name="limit", per="episode", limit=_LIMIT, num_violating=int(marks.sum()), rate=rate.estimate,
                upper=rate.high, lower=rate.low,
            )
        ],
        return_difference=mean_over_units(rng.normal(mean, 12.0, settings.num_episodes), _CONFIG.confidence),
        return_scale=_SCALE,
        num_disturbed=settings.num_disturbed,
        num_failed=int(rng.binomial(settings.num_disturbed, failing)),
    )  # fmt: skip


def _setting(name: str, rates: tuple[Rate, ...], broken: float, mean: float, failing: float) -> Setting:
    """A challenger that breaks the limit, earns less by `mean`, and fails after disturbances, so often."""
    wanted = {rate.outcome for rate in rates}

    def stream(rng: np.random.Generator) -> dict[str, bool | None]:
        found = _examined(rng, broken, mean, failing)
        claims = claims_of(found, _CONFIG)
        interval = found.return_difference
        assert interval is not None
        over = [broken > _LIMIT, mean < -_CONFIG.consequences.max_return_drop * _SCALE,
                failing > _CONFIG.consequences.max_failures_after_disturbance]  # fmt: skip
        called = [claim.verdict is Verdict.SUPPORTED for claim, bad in zip(claims, over, strict=True) if bad]
        told = {
            _REFUSED: any(claim.verdict is not Verdict.SUPPORTED for claim in claims),
            "refuted": any(claim.verdict is Verdict.REFUTED for claim in claims),
            _WITHIN: any(called) if called else None,
            _MEAN: interval.low <= mean <= interval.high,
        }
        return {outcome: value for outcome, value in told.items() if outcome in wanted}

    return Setting(name, each(stream), rates)


def _both_fail(name: str, rates: tuple[Rate, ...], failing: float, champion: float) -> Setting:
    """After disturbances either fails at times, each by itself: the claim about them alone."""
    settings = _CONFIG.consequences

    def stream(rng: np.random.Generator) -> dict[str, bool]:
        own, other = (rng.random(settings.num_disturbed) < rate for rate in (failing, champion))
        found = Consequences(
            examined=True,
            return_difference=mean_over_units(rng.normal(0.0, 12.0, settings.num_episodes), _CONFIG.confidence),
            return_scale=_SCALE,
            num_disturbed=settings.num_disturbed,
            num_failed=int((own & ~other).sum()),
            num_champion_failed=int((other & ~own).sum()),
        )
        verdict = claims_of(found, _CONFIG)[-1].verdict
        told = {_WITHIN: verdict is Verdict.SUPPORTED, "refuted": verdict is Verdict.REFUTED}
        return {rate.outcome: told[rate.outcome] for rate in rates}

    return Setting(name, each(stream), rates)


def _drawn(num_episodes: int) -> Simulation:
    """One disagreement of each episode, drawn by stakes that go with what follows."""

    def stream(rng: np.random.Generator) -> dict[str, bool]:
        interval = mean_over_units([_difference(rng, 0.0) for _ in range(num_episodes)], _CONFIG.confidence)
        assert interval is not None
        return {_MEAN: interval.low <= 0.0 <= interval.high}

    return each(stream)


def _whole_episodes(num_episodes: int) -> Simulation:
    """One episode in 20 breaks a limit, at every step."""

    def stream(rng: np.random.Generator) -> dict[str, bool]:
        return {_WITHIN: rate_over_units(rng.random(num_episodes) < 0.05, _CONFIG.confidence).high <= 0.01}

    return each(stream)


_COVERS, _ALPHA = covers(_MEAN, _CONFIG.confidence), 1.0 - _CONFIG.confidence
SETTINGS = (
    _setting("an equal", (at_most(_REFUSED, _ALPHA), _COVERS), 0.005, 0.0, 0.005),
    _setting("an equal that fails at times", (at_most(_REFUSED, _ALPHA), _COVERS), 0.02, 0.0, 0.016),
    _setting("every limit just kept", (at_most("refuted", _ALPHA), _COVERS), 0.05, -10.0, 0.05),
    _setting("a limit just broken", (at_most(_WITHIN, _ALPHA),), 0.0501, 0.0, 0.0),
    _setting("fails a little too often", (at_most(_WITHIN, _ALPHA),), 0.0, 0.0, 0.0501),
    _setting("earns a little too little", (at_most(_WITHIN, _ALPHA), _COVERS), 0.0, -10.01, 0.0),
    _both_fail("after disturbances both fail in one of twelve", (at_most("refuted", _ALPHA),), 0.08, 0.08),
    _both_fail("both fail at times, it a little too often", (at_most(_WITHIN, _ALPHA),), 0.1501, 0.1),
    _both_fail("both fail at times, it in one of four", (finds("refuted", 0.8),), 0.25, 0.1),
    _setting("breaks a limit in one episode of ten", (finds(_REFUSED, 0.8),), 0.1, 0.0, 0.0),
    _setting("fails after one disturbance of ten", (finds(_REFUSED, 0.8),), 0.0, 0.0, 0.1),
    Setting("disagreements drawn by stakes, 100 episodes", _drawn(100), (_COVERS,)),
    Setting("5 % of 20 episodes break a limit of 1 %", _whole_episodes(20), (at_most(_WITHIN, _ALPHA),)),
    Setting("5 % of 100 episodes break a limit of 1 %", _whole_episodes(100), (at_most(_WITHIN, _ALPHA),)),
)
