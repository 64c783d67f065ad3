"""The policy does its task: its return reaches a threshold with a declared probability.

Without this, a policy that does nothing at all could respect every other limit.
"""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from loomrl.safety.case.counterexample import episode_counterexample, replay_limit
from loomrl.safety.check import STATISTICAL, CheckConfig, Context, Scope
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


@dataclass(frozen=True)
class ReturnOutcome:
    """Episodes that reach the threshold, and what that says about their probability."""

    verdict: Verdict
    bound: Bound
    finding: str


def examine(context: Context, config: MinimumReturnConfig) -> list[Claim]:
    """One claim about the mean return, or none where no threshold is known."""
    threshold = _threshold(context, config)
    if threshold is None:
        return []
    returns = np.array([episode.episode_return for episode in context.episodes])
    reached, count = int(np.count_nonzero(returns >= threshold)), len(returns)
    outcome = judge(reached, count, threshold, config.min_probability, context.config.confidence)
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
    refuted = outcome.verdict is Verdict.REFUTED
    return [
        Claim(
            id=NAME,
            stage=STAGE,
            statement=f"an episode returns at least {threshold:g} with probability at least {config.min_probability:g}",
            mandatory=config.mandatory,
            method=f"one-sided Clopper-Pearson bound over episodes at confidence {context.config.confidence:g}",
            verdict=outcome.verdict,
            assumptions=["reset seeds give independent episodes of the environment the policy will act in"],
            confidence=context.config.confidence,
            p_value=statistics.binomial_p_below(count - reached, count, 1 - config.min_probability),
            bound=outcome.bound,
            num_samples=count,
            evidence=[context.evidence.json(NAME, evidence)],
            counterexample=episode_counterexample(context, NAME, constraint, context.episodes) if refuted else None,
            finding=outcome.finding,
        )
    ]


def scope(config: MinimumReturnConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"the returns of {claim.num_samples} episodes on seeds of their own",
        "that a high return is what people want; how low the other returns are",
        f"so few episodes at the threshold that the upper bound of their share is below {config.min_probability:g}",
    )


def episode_limits(context: Context, config: MinimumReturnConfig) -> dict[str, ConstraintConfig]:
    """The limit that the claim is about, as one on the shared episodes."""
    threshold = _threshold(context, config)
    return {} if threshold is None else {NAME: _constraint(threshold, config)}


def _threshold(context: Context, config: MinimumReturnConfig) -> float | None:
    return context.snapshot.spec.reward_threshold if config.threshold is None else config.threshold


def _constraint(threshold: float, config: MinimumReturnConfig) -> ConstraintConfig:
    return ConstraintConfig(name=NAME, quantity="return", low=threshold, max_probability=1 - config.min_probability)


def judge(reached: int, count: int, threshold: float, limit: float, confidence: float) -> ReturnOutcome:
    """Supported when the lower bound reaches the limit, refuted when the upper bound does not."""
    seen = f"{reached} of {count} episodes reach {threshold:g}"
    lower = statistics.clopper_pearson_lower(reached, count, confidence)
    upper = statistics.clopper_pearson_upper(reached, count, confidence)
    if upper < limit:
        bound = Bound(kind="clopper-pearson upper", measured=upper, limit=limit, unit="probability per episode")
        return ReturnOutcome(
            verdict=Verdict.REFUTED, bound=bound, finding=f"{seen}: the upper bound {upper:.4g} is below {limit:g}"
        )
    bound = Bound(kind="clopper-pearson lower", measured=lower, limit=limit, unit="probability per episode")
    if lower >= limit:
        finding = f"{seen}: the lower bound {lower:.4g} is at least {limit:g}"
        return ReturnOutcome(verdict=Verdict.SUPPORTED, bound=bound, finding=finding)
    more = statistics.trials_needed(count - reached, 1 - limit, confidence) - count
    finding = f"{seen}: the lower bound {lower:.4g} is below {limit:g}; {max(more, 1)} more successes would support it"
    return ReturnOutcome(verdict=Verdict.UNDECIDED, bound=bound, finding=finding)
