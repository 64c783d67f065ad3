"""Challenger against champion on the same seeds, as a paired comparison.

Episodes of one seed are a pair, and pairs are independent. With `promotion.return_range` the bounds are by betting
(`loomrl.statistics.betting`), exact for returns within that range, whatever their distribution. Without it they are
those of a one-sided paired t-test of non-inferiority: with d the mean of (challenger - champion) over the champion's
seeds, s its standard deviation and n the pairs, the challenger is *not worse* when the lower bound d - t(n-1,
confidence) * s / sqrt(n) is at least -margin, *worse* when the upper bound is below -margin, and undecided in between.
The t interval was chosen over the percentile bootstrap because it needs no random numbers and holds its level with few
pairs, where the bootstrap's is too narrow (Efron & Tibshirani 1993, ch. 12-14). Where every difference is the same, s
is 0 and both bounds are that difference: on these seeds the comparison is then exact. The t bounds hold for differences
that are about normal or many; a ruin so rare that these seeds hardly show it is not in them (where 1 % of episodes lose
everything, 100 pairs miss it in 37 %). Each claim is about one challenger: among several that are tried, the chance
that some worse one passes adds up.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loomrl.statistics.clustered import bounded_mean_over_units
from loomrl.system.schema import Document
from loomrl.types import Verdict

if TYPE_CHECKING:
    from loomrl.promotion.config import PromotionConfig

Floats = NDArray[np.float64]


class ReturnComparison(Document):
    """The paired comparison in numbers. Returns are undiscounted sums of rewards.

    `difference` is the mean of challenger - champion over the pairs, `low` and `high` are one-sided bounds of it, each
    at `confidence`, and `margin` is how much less the challenger may earn. `pairs_needed` is about how many pairs would
    decide what is undecided; None where it is decided, or no number would.
    """

    num_pairs: int
    challenger_mean: float
    champion_mean: float
    difference: float
    low: float  # one-sided bounds of it, each at `confidence`
    high: float
    margin: float
    confidence: float
    verdict: Verdict  # SUPPORTED: not worse than -margin; REFUTED: worse; UNDECIDED
    pairs_needed: int | None  # where undecided: about how many pairs would decide, at this difference and spread

    def sentence(self) -> str:
        """The comparison as one sentence for a report, which begins with the verdict in words."""
        found = (
            f"mean return {self.challenger_mean:.6g} against the champion's {self.champion_mean:.6g} on the same "
            f"{self.num_pairs} seeds; difference {self.difference:+.6g}, lower {self.confidence:.0%} bound "
            f"{self.low:+.6g}, allowed {-self.margin:+.6g}"
        )
        if self.verdict is Verdict.SUPPORTED:
            return f"not worse than the champion: {found}"
        if self.verdict is Verdict.REFUTED:
            return f"worse than the champion: {found}, upper bound {self.high:+.6g}"
        hint = f"; about {self.pairs_needed} episodes would decide" if self.pairs_needed else ""
        return f"not shown to be as good as the champion: {found}{hint}"


def compare_returns(challenger: Floats, champion: Floats, config: "PromotionConfig") -> ReturnComparison:
    """Compare two versions' returns (n,), paired by seed; n is at least 2.

    The bounds are by betting where `config.return_range` is given, else those of a t-test. `config` is the section
    `promotion`, of which confidence, margins and range are read. Nothing is checked.
    """
    from scipy.special import stdtrit

    difference = challenger - champion  # (n,)
    n, mean, spread = len(difference), float(difference.mean()), float(difference.std(ddof=1))
    if np.ptp(difference) == 0:  # exact, where rounding in the mean would leave a spread of 1e-17
        mean, spread = float(difference[0]), 0.0
    quantile = float(stdtrit(n - 1, config.confidence))
    reach = quantile * spread / math.sqrt(n)
    margin = max(config.max_regression, config.max_regression_fraction * abs(float(champion.mean())))
    low, high = mean - reach, mean + reach
    if config.return_range is not None:
        low, high = _bounds_by_betting(challenger, champion, config.return_range, config.confidence)
    verdict = judge_margin(low, high, margin)
    return ReturnComparison(
        num_pairs=n,
        challenger_mean=float(challenger.mean()),
        champion_mean=float(champion.mean()),
        difference=mean,
        low=low,
        high=high,
        margin=margin,
        confidence=config.confidence,
        verdict=verdict,
        pairs_needed=_pairs_needed(mean, spread, margin, quantile) if verdict is Verdict.UNDECIDED else None,
    )


def _bounds_by_betting(
    challenger: Floats, champion: Floats, span: tuple[float, float], confidence: float
) -> tuple[float, float]:
    """One-sided bounds of the mean difference of returns within `span`; those outside count as its ends."""
    width = span[1] - span[0]
    difference = challenger.clip(*span) - champion.clip(*span)
    bounds = bounded_mean_over_units(difference, (-width, width), confidence, confidence)
    return bounds.low, bounds.high


def judge_margin(low: float, high: float, margin: float) -> Verdict:
    """Whether a difference between these bounds is no worse than -margin: SUPPORTED, REFUTED where it surely is worse,
    or UNDECIDED."""
    if low >= -margin:
        return Verdict.SUPPORTED
    return Verdict.REFUTED if high < -margin else Verdict.UNDECIDED


def _pairs_needed(mean: float, spread: float, margin: float, quantile: float) -> int | None:
    room = abs(mean + margin)
    return math.ceil((quantile * spread / room) ** 2) + 1 if room > 0 else None
