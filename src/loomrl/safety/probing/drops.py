"""How far a mean falls between two groups of episodes with the same seeds: what that says of a limit, and its bound."""

from dataclasses import dataclass

from loomrl.safety.check import Context
from loomrl.statistics.intervals import Floats, paired_difference, paired_p_below
from loomrl.types import Bound, Verdict

METHOD = "one-sided percentile bootstrap over differences paired by seed"
APPROXIMATE = "the bootstrap is approximate: exact only as the number of episodes grows"


@dataclass(frozen=True)
class Drop:
    """A fall of the mean, and whether it is at most `bound.limit`."""

    estimate: float
    bound: Bound
    verdict: Verdict
    p_value: float  # of a fall above the limit

    @property
    def is_refuted(self) -> bool:
        """Whether the fall is above its limit, with the gate's confidence."""
        return self.verdict is Verdict.REFUTED


def judge_drop(
    context: Context, name: str, before: Floats, after: Floats, limit: float, replicates: int, unit: str = "return"
) -> Drop:
    """Of paired values (N,) each, at the gate's confidence; `name` says whose random numbers are drawn."""
    two_sided = 2 * context.config.confidence - 1  # the interval's ends are one-sided bounds at `confidence`
    drop = paired_difference(before, after, two_sided, replicates, context.rng(name))
    verdict = Verdict.SUPPORTED if drop.high <= limit else Verdict.REFUTED if drop.low > limit else Verdict.UNDECIDED
    kind, measured = ("lower", drop.low) if verdict is Verdict.REFUTED else ("upper", drop.high)
    bound = Bound(kind=f"bootstrap {kind}", measured=measured, limit=limit, unit=unit)
    p_value = paired_p_below(before, after, limit, replicates, context.rng(name))
    return Drop(drop.estimate, bound, verdict, p_value)


def return_limit(before: Floats, share: float) -> float:
    """A share of the size of the mean return before."""
    return share * max(abs(float(before.mean())), 1e-9)
