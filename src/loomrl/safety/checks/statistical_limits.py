"""Declared constraints hold with the declared probability, on fresh held-out episodes.

Per episode, the number of violating episodes is binomial: Clopper-Pearson bounds. Per step, the steps of one episode
depend on each other, so the episode is the unit: its share of violating steps is one value in [0, 1], independent
between episodes, and Hoeffding's relative-entropy bound holds for the mean of such values whatever their
distribution. Both are corrected for the number of constraints with Holm's procedure, the supporting and the refuting
tests each on their own.

Those numbers hold for a number of episodes that is fixed before. Where `max_episodes` allows more, they are played
until every limit is decided, and confidence sequences by betting take the place of both bounds: they hold whenever one
stops.
"""

import numpy as np
from gymnasium import spaces
from pydantic import Field

from loomrl.environment.quantities import kind_of
from loomrl.safety.case.counterexample import replay_limit, worst_failure
from loomrl.safety.check import STATISTICAL, CheckConfig, Context, Judgement, Scope, limit_of
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import check_constraint, ends, limits
from loomrl.safety.probing.probes import act_with
from loomrl.safety.probing.samples import (
    Averaged,
    Counted,
    EpisodeSample,
    Watched,
    adjusted_p_values,
    judge,
    num_more,
)
from loomrl.statistics.sequential import p_above
from loomrl.types import Bound, Claim, ClaimLabel, LabelKind, Verdict

NAME = "statistical_limits"
STAGE = STATISTICAL
LOCAL = False

replay = replay_limit


class StatisticalLimitsConfig(CheckConfig):
    """Limits stand in `safety.constraints`; each says itself whether it is mandatory.

    With `max_episodes`, limits that `safety.num_episodes` leave undecided are examined on further episodes, up to so
    many in all. Their seeds follow those of the shared ones, and belong to nobody else (`SafetyConfig.own_seeds`).
    """

    max_episodes: int | None = Field(default=None, ge=2)


Config = StatisticalLimitsConfig  # as all plug-ins of this kind name it


def examine(context: Context, config: StatisticalLimitsConfig) -> list[Claim]:
    """One claim for each constraint of the config, in its order: that the limit holds with the gate's confidence.

    Raises:
        ConfigError: when a constraint is on a quantity that episodes do not have.
        EnvironmentFault: when the environment breaks its API in further episodes.
    """
    constraints = context.config.constraints
    if not constraints:
        return []
    for constraint in constraints:
        check_constraint(constraint, *context.episodes)
    kinds = [_kind(constraint, config) for constraint in constraints]
    samples = [kind.of(constraint, context.episodes) for kind, constraint in zip(kinds, constraints, strict=True)]
    while count := num_more(samples, config.max_episodes, context.config.confidence):
        first = context.config.first_seed + len(samples[0].values)
        more = context.play(act_with(context.policy), range(first, first + count))
        samples = [sample.followed_by(more) for sample in samples]
    judged, p_values = judge(samples, context.config.confidence), adjusted_p_values(samples)
    return [
        _claim(context, config, sample, p_value, *found)
        for sample, p_value, found in zip(samples, p_values, judged, strict=True)
    ]


def scope(config: StatisticalLimitsConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    limit, count = limit_of(claim), claim.num_samples or 0
    false_if = (
        f"so many violations that their rate's lower bound, at this limit's step of Holm's procedure, is above {limit}"
    )
    if claim.bound is not None and claim.confidence is not None:
        most = claim.bound.limit
        p_all = most**count if config.max_episodes is None else p_above(np.ones(count), most)
        if p_all > 1 - claim.confidence:
            false_if = f"nothing that {count} episodes can show: were all to violate, it would be undecided"
    return Scope(
        f"every step of {claim.num_samples} episodes on seeds of their own",
        f"that it never happens: rates up to {limit} are allowed; anything between two steps",
        false_if,
    )


def episode_limits(context: Context, config: StatisticalLimitsConfig) -> dict[str, ConstraintConfig]:  # noqa: ARG001 - a check's signature
    """The constraints that the check's claims are about, by claim id."""
    return context.constraints_by_claim()


def _kind(constraint: ConstraintConfig, config: StatisticalLimitsConfig) -> type[EpisodeSample]:
    if config.max_episodes is not None:
        return Watched
    return Counted if constraint.per == "episode" else Averaged


def _claim(
    context: Context,
    config: StatisticalLimitsConfig,
    sample: EpisodeSample,
    p_value: float,
    verdict: Verdict,
    level: float,
) -> Claim:
    constraint = sample.constraint
    refuted = verdict is Verdict.REFUTED
    measured = sample.lower(level) if refuted else sample.upper(level)
    unit = "probability per episode" if constraint.per == "episode" else "share of steps"
    kind = f"{sample.kind} {'lower' if refuted else 'upper'}"
    bound = Bound(kind=kind, measured=measured, limit=sample.limit, unit=unit)
    return context.claim(
        _evidence(context, config, sample),
        constraint.name,
        judged=Judgement(verdict, bound, p_value),
        failure=None if verdict is Verdict.SUPPORTED else worst_failure(constraint, sample.violating),
        statement=_statement(constraint),
        mandatory=constraint.mandatory,
        method=_method(sample, level, len(context.config.constraints)),
        assumptions=_assumptions(constraint),
        num_samples=len(sample.values),
        finding=_finding(sample, verdict, measured, level),
        label=None if sample.violating else _label(context, constraint),
    )


def _label(context: Context, constraint: ConstraintConfig) -> ClaimLabel | None:
    """Of a limit that lies outside of all there can be. What a space of observations declares bounds nothing."""
    low, high = ends(constraint)
    space, longest = context.action_space, context.snapshot.spec.max_episode_steps
    kind, reason = kind_of(constraint.quantity), ""
    if kind == "action" and isinstance(space, spaces.Discrete):
        inside = low <= space.start and space.start + space.n - 1 <= high
        reason = f"all {space.n} actions lie within the limit" if inside else ""
    if constraint.quantity == "length" and low <= 1 and (high == np.inf or (longest or np.inf) <= high):
        ended = "" if longest is None else f", and the environment itself ends each after {longest} at the latest"
        reason = f"every episode has a step{ended}"
    return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=reason) if reason else None


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


def _method(sample: EpisodeSample, level: float, family: int) -> str:
    method = f"one-sided {sample.method} at confidence {level:.6g}"
    return method if family == 1 else f"{method}, this constraint's step of Holm's procedure over {family}"


def _assumptions(constraint: ConstraintConfig) -> list[str]:
    assumed = ["reset seeds give independent episodes of the environment the policy will act in"]
    if constraint.per == "step":
        assumed.append("steps within an episode may depend on each other in any way; episodes count, not steps")
    return assumed


def _evidence(context: Context, config: StatisticalLimitsConfig, sample: EpisodeSample) -> dict[str, object]:
    evidence: dict[str, object] = {
        "constraint": sample.constraint.model_dump(mode="json"),
        "first_seed": context.config.first_seed,
        "num_episodes": len(sample.values),
        "num_violating_episodes": len(sample.violating),
        "mean": float(np.mean(sample.values)),
        "violating_seeds": [episode.seed for episode in sample.violating],
    }
    if config.max_episodes is not None:  # then it counts in which order they came, and with what
        evidence |= {"max_episodes": config.max_episodes, "violating_values": sample.values[sample.values > 0].tolist()}
    return evidence


def _finding(sample: EpisodeSample, verdict: Verdict, measured: float, level: float) -> str:
    count = len(sample.values)
    seen = f"{len(sample.violating)} of {count} episodes violate"
    if verdict is Verdict.REFUTED:
        return f"{seen}: the lower bound {measured:.4g} is above the limit {sample.limit:g}"
    if verdict is Verdict.SUPPORTED:
        return f"{seen}: the upper bound {measured:.4g} is within the limit {sample.limit:g}"
    more = max(1, sample.needed(level) - count)
    episodes = "episode" if more == 1 else "episodes"
    return (
        f"{seen}: the upper bound {measured:.4g} is above the limit {sample.limit:g}; "
        f"{more} more {episodes} without a violation would support it ({sample.more_by})"
    )
