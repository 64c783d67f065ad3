"""The policy does its task: its return reaches a threshold with a declared probability.

Without this, a policy that does nothing at all could respect every other limit.
"""

import numpy as np
from pydantic import Field

from loomrl.safety.case.counterexample import replay_limit, worst_failure
from loomrl.safety.check import STATISTICAL, CheckConfig, Context, Judgement, Scope
from loomrl.safety.config import ConstraintConfig
from loomrl.statistics import intervals as statistics
from loomrl.types import Bound, Claim, Verdict

NAME = "minimum_return"
STAGE = STATISTICAL
LOCAL = False

replay = replay_limit


class MinimumReturnConfig(CheckConfig):
    """`threshold` defaults to the environment's reward threshold; where there is neither, nothing is claimed.

    The default probability 0.5 asks that the median return reaches the threshold.
    """

    threshold: float | None = None
    min_probability: float = Field(default=0.5, gt=0, lt=1)


Config = MinimumReturnConfig  # as all plug-ins of this kind name it


def examine(context: Context, config: MinimumReturnConfig) -> list[Claim]:
    """One claim about the share of episodes that return at least the threshold, or none where no threshold is known."""
    threshold = _threshold(context, config)
    if threshold is None:
        return []
    returns = np.array([episode.episode_return for episode in context.episodes])
    reached, count = int(np.count_nonzero(returns >= threshold)), len(returns)
    judged, finding = judge(reached, count, threshold, config.min_probability, context.config.confidence)
    constraint = _constraint(threshold, config)
    evidence = {
        "constraint": constraint.model_dump(mode="json"),
        "first_seed": context.config.first_seed,
        "num_episodes": count,
        "num_reached": reached,
        "min_return": float(returns.min()),
        "median_return": float(np.median(returns)),
        "mean_return": float(returns.mean()),
    }
    supported = judged.verdict is Verdict.SUPPORTED
    return [
        context.claim(
            evidence,
            judged=judged,
            failure=None if supported else worst_failure(constraint, context.episodes),
            statement=f"an episode returns at least {threshold:g} with probability at least {config.min_probability:g}",
            method=f"one-sided Clopper-Pearson bound over episodes at confidence {context.config.confidence:g}",
            assumptions=["reset seeds give independent episodes of the environment the policy will act in"],
            num_samples=count,
            finding=finding,
        )
    ]


def scope(config: MinimumReturnConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    least, count = config.min_probability, claim.num_samples or 0
    false_if = f"so few episodes at the threshold that the upper bound of their share is below {least:g}"
    if claim.confidence is not None and statistics.clopper_pearson_upper(0, count, claim.confidence) >= least:
        false_if = f"nothing that {count} episodes can show: were none to reach it, it would be undecided"
    return Scope(
        f"the returns of {count} episodes on seeds of their own",
        "that a high return is what people want; how low the other returns are",
        false_if,
    )


def episode_limits(context: Context, config: MinimumReturnConfig) -> dict[str, ConstraintConfig]:
    """Claim id -> the limit that the claim is about, as one on the shared episodes; empty where no threshold is
    known."""
    threshold = _threshold(context, config)
    return {} if threshold is None else {NAME: _constraint(threshold, config)}


def _threshold(context: Context, config: MinimumReturnConfig) -> float | None:
    return context.snapshot.spec.reward_threshold if config.threshold is None else config.threshold


def _constraint(threshold: float, config: MinimumReturnConfig) -> ConstraintConfig:
    return ConstraintConfig(name=NAME, quantity="return", low=threshold, max_probability=1 - config.min_probability)


def judge(reached: int, count: int, threshold: float, limit: float, confidence: float) -> tuple[Judgement, str]:
    """Whether so many of `count` episodes reach the threshold that their probability is at least `limit`; and that in
    words.

    It is SUPPORTED when the lower bound reaches the limit, REFUTED when the upper bound does not, else UNDECIDED.
    ValueError without any episode.
    """
    lower = statistics.clopper_pearson_lower(reached, count, confidence)
    upper = statistics.clopper_pearson_upper(reached, count, confidence)
    if upper < limit:
        verdict, end, measured, found = Verdict.REFUTED, "upper", upper, f"below {limit:g}"
    elif lower >= limit:
        verdict, end, measured, found = Verdict.SUPPORTED, "lower", lower, f"at least {limit:g}"
    else:
        more = statistics.trials_needed(count - reached, 1 - limit, confidence) - count
        found = f"below {limit:g}; {max(more, 1)} more successes would support it"
        verdict, end, measured = Verdict.UNDECIDED, "lower", lower
    bound = Bound(kind=f"clopper-pearson {end}", measured=measured, limit=limit, unit="probability per episode")
    judged = Judgement(verdict, bound, statistics.binomial_p_below(count - reached, count, 1 - limit))
    return judged, f"{reached} of {count} episodes reach {threshold:g}: the {end} bound {measured:.4g} is {found}"
