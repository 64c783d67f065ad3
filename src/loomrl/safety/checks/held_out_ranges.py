"""What was learnt holds where parameters lie outside the ranges of training: the same seeds, in both.

For environments that draw their parameters for each episode (`environment.randomize`), with ranges that are `held_out`.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from loomrl.safety.check import FALSIFICATION, CheckConfig, Context, Scope
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import violates
from loomrl.safety.probing.judging import APPROXIMATE, METHOD, judge_drop, least_return, return_limit
from loomrl.safety.probing.worlds import DRAWN, are_alike, play_there, with_held_out_ranges
from loomrl.types import Claim, ClaimLabel, Episode, LabelKind

NAME = "held_out_ranges"
STAGE = FALSIFICATION
LOCAL = False


class HeldOutRangesConfig(CheckConfig):
    """Held-out values of the parameters may lower the mean return by `max_return_drop` of its size.

    `num_episodes` of the safety episodes are compared. The bounds are from `bootstrap_replicates` resamples.
    """

    max_return_drop: float = Field(default=0.1, gt=0)
    num_episodes: int = Field(default=64, ge=2)
    bootstrap_replicates: int = Field(default=2_000, ge=100)


Config = HeldOutRangesConfig  # as all plug-ins of this kind name it


def examine(context: Context, config: HeldOutRangesConfig) -> list[Claim]:
    """One claim where a range of the environment is held out, else none.

    Raises:
        EnvironmentFault: when the environment breaks its API.
    """
    ranges = context.snapshot.spec.randomize
    held_out = {name: one["held_out"] for name, one in sorted(ranges.items()) if one["held_out"] is not None}
    if not held_out:
        return []
    inside = list(context.episodes[: config.num_episodes])
    seeds = [episode.seed for episode in inside]
    outside = play_there(context, with_held_out_ranges(context), seeds, context.rng(NAME))
    before, after = (np.array([episode.episode_return for episode in group]) for group in (inside, outside))
    limit = return_limit(before, config.max_return_drop)
    drop = judge_drop(context, NAME, before, after, limit, config.bootstrap_replicates)
    where = ", ".join(f"{name} in [{low:g}, {high:g}]" for name, (low, high) in held_out.items())
    evidence = {
        "kind": NAME,
        "held_out": held_out,
        "seeds": seeds,
        "returns": before.tolist(),
        "held_out_returns": after.tolist(),
        "num_violating_episodes": sum(violates(least_return(inside, config.max_return_drop), one) for one in outside),
        "parameters": {name: [float(episode.info[DRAWN + name][0]) for episode in outside] for name in sorted(ranges)},
    }
    return [
        context.claim(
            evidence,
            judged=drop,
            statement=f"with {where}, which training never met, the mean return is at most "
            f"{config.max_return_drop:.0%} lower",
            method=METHOD,
            assumptions=["parameters are uniform in the held-out ranges", APPROXIMATE],
            num_samples=len(inside),
            label=_label(inside, outside),
            finding=(
                f"mean returns are {before.mean():.4g} inside and {after.mean():.4g} outside: a fall of "
                f"{(before - after).mean():.4g}, bound {drop.bound.measured:.4g}; allowed is {limit:.4g}"
            ),
        )
    ]


def _label(inside: Sequence[Episode], outside: Sequence[Episode]) -> ClaimLabel | None:
    """Of a claim about parameters that change nothing that was observed or earned."""
    if not are_alike(inside, outside):
        return None
    reason = "the held-out values changed nothing that was observed or earned in any episode"
    return ClaimLabel(kind=LabelKind.NEVER_BROKEN, reason=f"{reason}: whether they matter is not known")


def disturbed_limits(context: Context, config: HeldOutRangesConfig) -> dict[str, ConstraintConfig]:
    """The return below which an episode lost more than may be lost on average, by claim id."""
    return {NAME: least_return(context.episodes[: config.num_episodes], config.max_return_drop)}


def scope(config: HeldOutRangesConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"{claim.num_samples} seeds, each played inside and outside the ranges of training",
        "values in neither of these ranges; how good the policy is inside them",
        f"a fall of the mean return that is above {config.max_return_drop:.0%} also at its lower bound",
    )
