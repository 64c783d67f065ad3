"""What was learnt holds where parameters lie outside the ranges of training: the same seeds, in both.

For environments that draw their parameters for each episode (`environment.randomize`), with ranges that are `held_out`.
"""

import numpy as np
from pydantic import Field

from loomrl.evaluation.statistics import paired_difference
from loomrl.safety.check import STATISTICAL, CheckConfig, Context
from loomrl.safety.worlds import play_there, with_held_out_ranges
from loomrl.types import Bound, Claim, Verdict

NAME = "held_out_ranges"
STAGE = STATISTICAL
LOCAL = False


class Config(CheckConfig):
    """Held-out values of the parameters may lower the mean return by `max_return_drop` of its size."""

    max_return_drop: float = Field(default=0.1, gt=0)
    num_episodes: int = Field(default=64, ge=2)
    bootstrap_replicates: int = Field(default=2_000, ge=100)


def examine(context: Context, config: Config) -> list[Claim]:
    """One claim, where a range is held out."""
    ranges = context.snapshot.spec.randomize
    held_out = {name: one["held_out"] for name, one in sorted(ranges.items()) if one["held_out"] is not None}
    if not held_out:
        return []
    inside = list(context.episodes[: config.num_episodes])
    seeds = [episode.seed for episode in inside]
    outside = play_there(context, with_held_out_ranges(context), seeds, context.rng(NAME))
    before, after = (np.array([episode.episode_return for episode in group]) for group in (inside, outside))
    two_sided = 2 * context.config.confidence - 1  # the interval's ends are one-sided bounds at `confidence`
    drop = paired_difference(before, after, two_sided, config.bootstrap_replicates, context.rng(NAME))
    limit = config.max_return_drop * max(abs(float(before.mean())), 1e-9)
    verdict = Verdict.SUPPORTED if drop.high <= limit else Verdict.REFUTED if drop.low > limit else Verdict.UNDECIDED
    refuted = verdict is Verdict.REFUTED
    measured = drop.low if refuted else drop.high
    where = ", ".join(f"{name} in [{low:g}, {high:g}]" for name, (low, high) in held_out.items())
    evidence = {
        "kind": NAME,
        "held_out": held_out,
        "seeds": seeds,
        "returns": before.tolist(),
        "held_out_returns": after.tolist(),
        "parameters": {
            name: [float(episode.info[f"parameter.{name}"][0]) for episode in outside] for name in sorted(ranges)
        },
    }
    return [
        Claim(
            id=NAME,
            stage=STAGE,
            statement=f"with {where}, which training never met, the mean return is at most "
            f"{config.max_return_drop:.0%} lower",
            mandatory=config.mandatory,
            method="one-sided percentile bootstrap over differences paired by seed",
            verdict=verdict,
            assumptions=[
                "parameters are uniform in the held-out ranges",
                "the bootstrap is approximate: exact only as the number of episodes grows",
            ],
            confidence=context.config.confidence,
            bound=Bound(
                kind=f"bootstrap {'lower' if refuted else 'upper'}", measured=measured, limit=limit, unit="return"
            ),
            num_samples=len(inside),
            evidence=[context.evidence.json(NAME, evidence)],
            finding=(
                f"mean returns are {before.mean():.4g} inside and {after.mean():.4g} outside: a fall of "
                f"{drop.estimate:.4g}, bound {measured:.4g}; allowed is {limit:.4g}"
            ),
        )
    ]
