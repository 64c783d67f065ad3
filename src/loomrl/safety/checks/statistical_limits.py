"""Declared constraints hold with the declared probability, on fresh held-out episodes.

Per episode, the number of violating episodes is binomial: Clopper-Pearson bounds. Per step, the steps of one episode
depend on each other, so the episode is the unit: its share of violating steps is one value in [0, 1], independent
between episodes, and Hoeffding's relative-entropy bound holds for the mean of such values whatever their
distribution. Both are corrected for the number of constraints with Holm's procedure, the supporting and the refuting
tests each on their own.
"""

from dataclasses import dataclass

import numpy as np

from loomrl.evaluation import statistics
from loomrl.safety.check import STATISTICAL, CheckConfig, Context
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import check_constraint, limits, violations
from loomrl.safety.counterexample import episode_counterexample, replay_limit
from loomrl.types import Bound, Claim, Counterexample, Verdict

NAME = "statistical_limits"
STAGE = STATISTICAL
LOCAL = False

replay = replay_limit


class Config(CheckConfig):
    """Limits stand in `safety.constraints`; each says itself whether it is mandatory."""


@dataclass(frozen=True)
class Sample:
    """One value in [0, 1] per episode: 0 or 1 for `per: episode`, the share of violating steps for `per: step`."""

    constraint: ConstraintConfig
    values: statistics.Floats  # (N,)

    @property
    def binary(self) -> bool:
        return self.constraint.per == "episode"

    @property
    def violating(self) -> int:
        return int(np.count_nonzero(self.values))

    def p_supporting(self) -> float:
        limit = self.constraint.max_probability
        if self.binary:
            return statistics.binomial_p_below(self.violating, len(self.values), limit)
        return statistics.bounded_mean_p_below(self.values, limit)

    def p_refuting(self) -> float:
        limit = self.constraint.max_probability
        if self.binary:
            return statistics.binomial_p_above(self.violating, len(self.values), limit)
        return statistics.bounded_mean_p_above(self.values, limit)

    def upper(self, confidence: float) -> float:
        if self.binary:
            return statistics.clopper_pearson_upper(self.violating, len(self.values), confidence)
        return statistics.bounded_mean_upper(self.values, confidence)

    def lower(self, confidence: float) -> float:
        if self.binary:
            return statistics.clopper_pearson_lower(self.violating, len(self.values), confidence)
        return statistics.bounded_mean_lower(self.values, confidence)

    def needed(self, confidence: float) -> int:
        """How many episodes would support the limit, those to come without a violation."""
        if self.binary:
            return statistics.trials_needed(self.violating, self.constraint.max_probability, confidence)
        return statistics.values_needed(self.values, self.constraint.max_probability, confidence)


def examine(context: Context, config: Config) -> list[Claim]:
    """One claim per constraint."""
    constraints = context.config.constraints
    if not constraints:
        return []
    for constraint in constraints:
        check_constraint(constraint, context.episodes[0])
    samples = [measure(constraint, context) for constraint in constraints]
    alpha = 1.0 - context.config.confidence
    supporting, refuting = [s.p_supporting() for s in samples], [s.p_refuting() for s in samples]
    levels_up = statistics.holm_confidence(supporting, context.config.confidence)
    levels_down = statistics.holm_confidence(refuting, context.config.confidence)
    supported, refuted = statistics.holm(supporting, alpha), statistics.holm(refuting, alpha)
    # Holm stops at the first constraint that fails: the others then wait for that one's level too.
    strictest = max((level for level, passed in zip(levels_up, supported, strict=True) if not passed), default=0.0)
    claims = []
    for index, sample in enumerate(samples):
        if refuted[index]:
            claims.append(_claim(context, sample, Verdict.REFUTED, levels_down[index]))
        elif supported[index]:
            claims.append(_claim(context, sample, Verdict.SUPPORTED, levels_up[index]))
        else:
            claims.append(_claim(context, sample, Verdict.UNDECIDED, strictest))
    return claims


def measure(constraint: ConstraintConfig, context: Context) -> Sample:
    """Evaluate a constraint on the shared safety episodes."""
    marks = [violations(constraint, episode) for episode in context.episodes]
    share = np.array([np.mean(mark) for mark in marks])
    return Sample(constraint, (share > 0).astype(np.float64) if constraint.per == "episode" else share)


def _claim(context: Context, sample: Sample, verdict: Verdict, level: float) -> Claim:
    constraint = sample.constraint
    name = f"{NAME}.{constraint.name}"
    refuted = verdict is Verdict.REFUTED
    measured = sample.lower(level) if refuted else sample.upper(level)
    kind = ("clopper-pearson" if sample.binary else "hoeffding") + (" lower" if refuted else " upper")
    unit = "probability per episode" if sample.binary else "share of steps"
    return Claim(
        id=name,
        stage=STAGE,
        statement=_statement(constraint),
        mandatory=constraint.mandatory,
        method=_method(sample, level, len(context.config.constraints)),
        verdict=verdict,
        assumptions=_assumptions(constraint),
        confidence=context.config.confidence,
        bound=Bound(kind=kind, measured=measured, limit=constraint.max_probability, unit=unit),
        num_samples=len(sample.values),
        evidence=[context.evidence.json(name, _evidence(context, sample))],
        counterexample=_counterexample(context, name, constraint) if refuted else None,
        finding=_finding(sample, verdict, measured, level),
    )


def _counterexample(context: Context, name: str, constraint: ConstraintConfig) -> Counterexample | None:
    return episode_counterexample(context, name, constraint, context.episodes)


def _statement(constraint: ConstraintConfig) -> str:
    limit = f"{constraint.max_probability:g}"
    if constraint.per == "episode":
        return (
            f"{constraint.quantity} stays {limits(constraint)} in an episode, except with probability at most {limit}"
        )
    return (
        f"{constraint.quantity} is {limits(constraint)}, except at a share of at most {limit} of an episode's steps, "
        "averaged over episodes"
    )


def _method(sample: Sample, level: float, family: int) -> str:
    bound = "Clopper-Pearson bound over episodes" if sample.binary else "Hoeffding relative-entropy bound over episodes"
    if family == 1:
        return f"one-sided {bound} at confidence {level:.6g}"
    return f"one-sided {bound} at confidence {level:.6g}, this constraint's step of Holm's procedure over {family}"


def _assumptions(constraint: ConstraintConfig) -> list[str]:
    assumed = ["reset seeds give independent episodes of the environment the policy will act in"]
    if constraint.per == "step":
        assumed.append("steps within an episode may depend on each other in any way; episodes count, not steps")
    return assumed


def _evidence(context: Context, sample: Sample) -> dict[str, object]:
    violating = [episode.seed for episode, value in zip(context.episodes, sample.values, strict=True) if value > 0]
    return {
        "constraint": sample.constraint.model_dump(mode="json"),
        "first_seed": context.config.first_seed,
        "num_episodes": len(sample.values),
        "num_violating_episodes": sample.violating,
        "mean": float(np.mean(sample.values)),
        "violating_seeds": violating,
    }


def _finding(sample: Sample, verdict: Verdict, measured: float, level: float) -> str:
    constraint, count = sample.constraint, len(sample.values)
    seen = f"{sample.violating} of {count} episodes violate"
    if verdict is Verdict.REFUTED:
        return f"{seen}: the lower bound {measured:.4g} is above the limit {constraint.max_probability:g}"
    if verdict is Verdict.SUPPORTED:
        return f"{seen}: the upper bound {measured:.4g} is within the limit {constraint.max_probability:g}"
    more = max(1, sample.needed(level) - count)
    episodes = "episode" if more == 1 else "episodes"
    return (
        f"{seen}: the upper bound {measured:.4g} is above the limit {constraint.max_probability:g}; "
        f"{more} more {episodes} without a violation would support it (safety.num_episodes)"
    )
