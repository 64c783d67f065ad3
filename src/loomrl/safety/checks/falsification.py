"""A search for states in which the policy fails although it need not, without being told where to look.

Three searches, each of which names what it finds and replays it: states that are reached by pushes and from which the
policy fails although a recovery exists (`falsification.recovery`), narrow bands in which it chooses otherwise than on
both sides (`falsification.lone_choices`), and, where a magnitude is declared, drifts of the sensors that break a limit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pydantic import Field

from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.check import FALSIFICATION, NOT_EXAMINED, Context, Scope
from loomrl.safety.config import SEARCHES, ConstraintConfig
from loomrl.safety.constraints import check_constraint
from loomrl.safety.probing.playing import Field as PlayingField
from loomrl.safety.probing.playing import Lead
from loomrl.safety.probing.probes import ask, is_recurrent, one_action_alone, shield_assumptions, to_texts
from loomrl.safety.search.drift import DriftConfig, drift_claims, replay_drift
from loomrl.safety.search.lone_choices import STEEPEST, WIDEST, LoneChoice, find_lone_choices
from loomrl.safety.search.recovery import RECOVERED, Failing, RecoverySearch, Scale, broken
from loomrl.types import Bound, Claim, ClaimLabel, Episode, LabelKind, Verdict

NAME = "falsification"
STAGE = FALSIFICATION
LOCAL = False
RECOVERY, LONE_CHOICES = (f"{NAME}.{search}" for search in SEARCHES)
_MOST = 1e300  # stands for what is not finite
_AT_RANDOM = 16  # episodes of random actions, to tell what failing is worth


def not_applicable(observation_space: Any, action_space: Any) -> str | None:
    """Why nothing is searched: for texts, and for spaces nothing can be pushed in; None elsewhere."""
    if reason := to_texts(observation_space, action_space):
        return reason
    if not isinstance(action_space, spaces.Box | spaces.Discrete):
        return f"actions are {action_space}; what is pushed is one choice or a Box"
    return None


class FalsificationConfig(DriftConfig):
    """What the three searches may try. Up to `num_leads` episodes are led somewhere and left to the policy for
    `horizon` steps.

    Recoveries are tried from up to `max_failures` of the states it fails from where first leads ended, from as many
    where leads that went on did, and from states close by. `num_lines` lines through what was met are looked along for
    lone choices.
    """

    num_leads: int = Field(default=864, ge=1)
    horizon: int = Field(default=150, ge=1)
    max_failures: int = Field(default=64, ge=1)
    num_lines: int = Field(default=2_048, ge=1)


Config = FalsificationConfig  # as all plug-ins of this kind name it


def examine(context: Context, config: FalsificationConfig) -> list[Claim]:
    """One claim for each search: whether it found a failure. Lone choices are looked for where observations are a Box
    of floats, drifts where a magnitude is given.

    Raises:
        ConfigError: when a declared limit is on a quantity that episodes do not have.
        EnvironmentFault: when the environment breaks its API.
    """
    for constraint in context.config.constraints:
        check_constraint(constraint, *context.episodes)
    claims = [_recovery(context, config)]
    if isinstance(context.observation_space, spaces.Box) and context.observation_space.dtype.kind == "f":
        claims.append(_lone_choices(context, config))
    return claims + drift_claims(context, config)


def scope(config: FalsificationConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    if claim.id == RECOVERY:
        return Scope(
            f"{claim.num_samples} states at the ends of up to {config.num_leads} led episodes",
            "states that were not reached; failures from which the policy's ordinary behaviour knows no way out either",
            "a state from which the policy fails of its own where its ordinary behaviour recovers",
        )
    if claim.id == LONE_CHOICES:
        return Scope(
            f"{claim.num_samples} lines through observations that were met, along one component each",
            "bands off these lines, or along several components at once",
            f"a band of at most {WIDEST:g} deviations in which the policy surely does what it does on neither side",
        )
    return Scope(
        f"{claim.num_samples} episodes under drifts of the sensors that were searched for",
        "drifts that were not tried, and drifts that change with time; episodes that break the limit undisturbed",
        "a drift within the magnitude that breaks the limit",
    )


def disturbed_limits(context: Context, config: FalsificationConfig) -> dict[str, ConstraintConfig]:
    """The constraints that the claims about drifts are about, by claim id; empty where no drift is searched."""
    return {} if config.magnitude is None else context.constraints_by_claim()


def replay(failure: Failure) -> Replayed:
    """Lead to the state again and leave the policy there, ask it about the three observations, or play the drift.

    It is reproduced where the policy fails there as it did.

    Raises:
        EnvironmentFault: when the environment breaks its API.
    """
    replays = {RECOVERY: _replay_recovery, LONE_CHOICES: _replay_lone_choice}
    return replays.get(failure.document["kind"], replay_drift)(failure)


# --- states a policy fails from -----------------------------------------------------------------------------------


def _recovery(context: Context, config: FalsificationConfig) -> Claim:
    field = PlayingField.of(context)
    scale = Scale(context.episodes, _at_random(context, config.horizon), context.config.constraints, config.horizon)
    search = RecoverySearch(field, scale, context.visited)
    own = context.config.seeds
    seeds = [own[index % len(own)] for index in range(config.num_leads)]
    latest = max(1, int(np.median([episode.length for episode in context.episodes])) // 2)
    found = search.run(seeds, min(latest, config.horizon), context.rng(RECOVERY), config.max_failures)
    worst = found[0] if found else None
    method = (
        f"up to {config.num_leads} led episodes; recoveries tried from up to {config.max_failures} failures where "
        f"first leads ended and {config.max_failures} where leads that went on did, and from states close by"
    )
    finding = f"from none of {search.num_states} states does it fail of its own where a recovery exists"
    if search.why_not:
        method, finding = NOT_EXAMINED, search.why_not
    if worst is not None:
        finding = _describe_failure(worst, scale)
    assumptions = [
        "a search that finds nothing proves nothing: other states may be reached",
        "recoveries are the policy's own: what it does at observations it meets in ordinary episodes",
    ]
    return context.claim(
        _recovery_evidence(search, scale, worst),
        "recovery",
        failure=None if worst is None else (finding, worst.episode),
        statement=(
            "where pushes and misled sensors lead an episode, the policy goes on as well as its own ordinary behaviour "
            "would, wherever that recovers"
        ),
        mandatory=config.mandatory and not search.why_not,
        method=method,
        verdict=Verdict.REFUTED if worst is not None else Verdict.UNDECIDED if search.why_not else Verdict.SUPPORTED,
        assumptions=[*assumptions, *shield_assumptions(context)],
        bound=None
        if worst is None
        else Bound(
            kind="loss",
            measured=_finite(worst.recovered - worst.relative_return),
            limit=RECOVERED,
            unit="ordinary returns",
        ),
        num_samples=search.num_states,
        finding=finding,
        label=one_action_alone(context.action_space) or _nothing_to_lose(scale, search),
    )


def _nothing_to_lose(scale: Scale, search: RecoverySearch) -> ClaimLabel | None:
    """The label where whoever acts earns the same and breaks no limit, as far as was seen."""
    if not scale.is_flat or search.num_failed:
        return None
    reason = "ordinary, random and led episodes earn the same at every step that was seen, and break no limit"
    return ClaimLabel(kind=LabelKind.NEVER_BROKEN, reason=f"{reason}: whether any can fail is not known")


def _recovery_evidence(search: RecoverySearch, scale: Scale, worst: Failing | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": RECOVERY,
        "num_states": search.num_states,
        "horizon": scale.horizon,
        "scale": scale.size,
        "limits": [one.model_dump(mode="json") for one in scale.constraints],
    }
    if worst is None:
        return found
    step = worst.lead.stop
    return found | {
        "seed": worst.lead.seed,
        "step": step,
        "state": worst.episode.obs[step].tolist(),
        "actions": worst.episode.action[:step].tolist(),
        "earned": _earned(worst.episode, step, scale.horizon),
        "broken": scale.broken(worst.episode, step),
        "recovery": worst.by,
        "recovery_actions": worst.recovery.action[step : step + scale.horizon].tolist(),
        "recovery_earned": _earned(worst.recovery, step, scale.horizon),
        "contradiction": worst.contradiction,
        "neighbours": worst.neighbours,
        "confirmed": worst.confirmed,
    }


def _describe_failure(worst: Failing, scale: Scale) -> str:
    step = worst.lead.stop
    own, other = (_outcome(one, step, scale.horizon, scale.constraints) for one in (worst.episode, worst.recovery))
    return (
        f"in the episode of seed {worst.lead.seed}, {step - worst.lead.start} steps of other actions from step "
        f"{worst.lead.start} on lead to {_shown(worst.episode.obs[step])}; from there the policy {own}, "
        f"{worst.by} {other}; so it is from {worst.confirmed} of {worst.neighbours} states close by, "
        f"and at the most it is {worst.contradiction:.3g} times as sure as usual of what contradicts its ordinary "
        "behaviour"
    )


def _outcome(episode: Episode, step: int, horizon: int, constraints: Sequence[ConstraintConfig]) -> str:
    """What comes of an episode from a step on."""
    if not np.isfinite(np.sum(episode.reward[step:])):
        return "gives no action"
    names = broken(constraints, episode, step, horizon)
    return f"earns {_earned(episode, step, horizon):.6g}" + (f" and breaks {', '.join(names)}" if names else "")


def _shown(obs: Any) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in np.ravel(obs)[:16]) + (", ...]" if np.size(obs) > 16 else "]")


def _earned(episode: Episode, step: int, horizon: int) -> float:
    """What is earned in so many steps from a step on; -1e300 where an action was none."""
    return _finite(float(np.nan_to_num(np.sum(episode.reward[step : step + horizon]), nan=-_MOST)))


def _finite(value: float) -> float:
    """What JSON can hold."""
    return min(max(value, -_MOST), _MOST)


def _replay_recovery(failure: Failure) -> Replayed:
    document, space = failure.document, failure.action_space
    field = PlayingField(failure.snapshot_folder, failure.policy, space, failure.observation_space, 1)
    actions = np.asarray(document["actions"], space.dtype).reshape(-1, *space.shape)
    onwards = np.asarray(document["recovery_actions"], space.dtype).reshape(-1, *space.shape)
    constraints = [ConstraintConfig(**one) for one in document.get("limits", [])]
    step, horizon, seed = len(actions), int(document["horizon"]), int(document["seed"])
    (episode,) = field.play([Lead(seed, step, step, actions=actions)], horizon)
    whole = np.concatenate([actions, onwards])
    (recovery,) = field.play([Lead(seed, len(whole), len(whole), actions=whole)], 0)
    earned, possible = (_earned(one, step, horizon) for one in (episode, recovery))
    own, others = (set(broken(constraints, one, step, horizon)) for one in (episode, recovery))
    finding = (
        f"in the episode of seed {seed}, after {step} recorded actions at {_shown(episode.obs[step])}, the policy "
        f"{_outcome(episode, step, horizon, constraints)}; the recovery's recorded actions, from the same state, "
        f"{_outcome(recovery, step, horizon, constraints)}"
    )
    return Replayed(reproduced=earned < possible or bool(own - others), finding=finding, episode=episode)


def _at_random(context: Context, horizon: int) -> list[Episode]:
    """Episodes of random actions, by leads that end nowhere."""
    rng, space = context.rng(f"{RECOVERY}.random"), context.action_space
    seeds = context.config.seeds[:_AT_RANDOM]
    if isinstance(space, spaces.Discrete):
        drawn = rng.integers(space.start, space.start + space.n, size=(len(seeds), horizon))
    else:
        low, high = np.maximum(space.low, -1e3), np.minimum(space.high, 1e3)
        drawn = low + rng.random((len(seeds), horizon, *space.shape)) * (high - low)
    leads = [
        Lead(seed, horizon, horizon, actions=row.astype(space.dtype)) for seed, row in zip(seeds, drawn, strict=True)
    ]
    return PlayingField.of(context).play(leads, 1)


# --- choices that stand alone -------------------------------------------------------------------------------------


def _lone_choices(context: Context, config: FalsificationConfig) -> Claim:
    worst, num_lines = find_lone_choices(
        context.policy,
        context.observation_space,
        context.action_space,
        context.visited,
        config.num_lines,
        context.rng(LONE_CHOICES),
    )
    evidence: dict[str, Any] = {"kind": LONE_CHOICES, "num_lines": num_lines}
    finding = f"none on {num_lines} lines through observations that were met"
    if worst is not None:
        observations = [worst.before, worst.within, worst.after]
        evidence["examples"] = [{"observation": one.tolist()} for one in observations]
        evidence["component"], evidence["width"] = worst.component, worst.width
        finding = _describe_choice(context.policy, worst)
    assumptions = ["bands along other directions, and away from these lines, are not seen"]
    if is_recurrent(context.policy):
        assumptions.append("the policy is recurrent and was asked with the memory of an episode's start, with no other")
    return context.claim(
        evidence,
        "lone_choices",
        failure=None if worst is None else finding,
        statement=(
            f"along no component is there a band of at most {WIDEST:g} deviations in which the policy surely does what "
            "it surely does on neither side"
        ),
        method=f"{num_lines} lines through observations that were met, one component at a time",
        verdict=Verdict.SUPPORTED if worst is None else Verdict.REFUTED,
        assumptions=assumptions,
        bound=None
        if worst is None
        else Bound(kind="steepness", measured=worst.confidence / worst.width, limit=STEEPEST, unit="per deviation"),
        num_samples=num_lines,
        finding=finding,
        label=one_action_alone(context.action_space) if num_lines else _nothing_varies(),
    )


def _nothing_varies() -> ClaimLabel:
    reason = "no component of the observations that were met varies, so that no line goes along one"
    return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=reason)


def _describe_choice(policy: Any, worst: LoneChoice) -> str:
    before, within, after = ask(policy, np.stack([worst.before, worst.within, worst.after])).tolist()
    return (
        f"at {_shown(worst.within)} the policy chooses {within}, and {before} and {after} on either side, where "
        f"observation[{worst.component}] is {worst.before.reshape(-1)[worst.component]:.5g} or "
        f"{worst.after.reshape(-1)[worst.component]:.5g}: a band {worst.width:.2g} deviations wide"
    )


def _replay_lone_choice(failure: Failure) -> Replayed:
    obs = np.asarray([one["observation"] for one in failure.document["examples"]], failure.observation_space.dtype)
    before, within, after = ask(failure.policy, obs)
    alone = bool(np.any(before != within) and np.any(after != within))
    finding = (
        f"the policy chooses {before.tolist()}, {within.tolist()} and {after.tolist()} at {_shown(obs[1])} and beside"
    )
    return Replayed(reproduced=alone, finding=finding)
