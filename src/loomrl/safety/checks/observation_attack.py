"""An attack on the sensors: at every step the observation is moved to where the policy's choice changes most.

The maximal-action-difference attack (Zhang et al., Robust deep reinforcement learning against adversarial perturbations
on state observations, NeurIPS 2020), by trying corners of the allowed box in place of gradients: any policy can be
attacked that can be asked. The environment itself stays as it is.
"""

from itertools import chain
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from loomrl.safety.case.counterexample import Failure, Replayed, describe, replay_limit
from loomrl.safety.check import FALSIFICATION, CheckConfig, Context, Scope
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import check_constraint, limits, violates
from loomrl.safety.probing.probes import (
    UNDISTURBED,
    act_seeing,
    ask_outputs,
    kept_undisturbed,
    keyed_rng,
    noise_scale,
    not_disturbed,
    shield_assumptions,
    shifted,
    to_texts,
)
from loomrl.types import ActFunction, Bound, Claim, Episode, Policy, Verdict

NAME = "observation_attack"
STAGE = FALSIFICATION
LOCAL = False
not_applicable = to_texts

Array = NDArray[np.float64]
_SIZES = 8  # of an attack that breaks a limit, tried from small to large


class ObservationAttackConfig(CheckConfig):
    """Observations are moved by up to `magnitude` standard deviations of each component, over what was recorded.

    `num_candidates` corners are tried for each observation, in `num_episodes` of the safety episodes; those count that
    keep a limit without an attack. Without a magnitude nothing is attacked: what somebody can do to a sensor is for
    people to say.
    """

    mandatory: bool = False
    magnitude: float | None = Field(default=None, gt=0)
    num_episodes: int = Field(default=32, ge=1)
    num_candidates: int = Field(default=16, ge=1)  # corners tried for each observation


Config = ObservationAttackConfig  # as all plug-ins of this kind name it


def examine(context: Context, config: ObservationAttackConfig) -> list[Claim]:
    """One claim for each declared limit, where observations are a Box of floats and a magnitude is given; else none.

    Raises:
        ConfigError: when a limit is on a quantity that episodes do not have.
        EnvironmentFault: when the environment breaks its API.
    """
    space = context.observation_space
    if config.magnitude is None or not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return []
    for constraint in context.config.constraints:
        check_constraint(constraint, *context.episodes)
    attack = Attack(space, noise_scale(context.visited, 1.0), context.config.first_seed, config.num_candidates)
    kept = [kept_undisturbed(context, one)[: config.num_episodes] for one in context.config.constraints]
    seeds = sorted(set(chain.from_iterable(kept)))
    episodes = context.play(attack.on(context.policy, config.magnitude), seeds) if seeds else []
    played = dict(zip(seeds, episodes, strict=True))
    return [
        _claim(context, config, constraint, attack, [played[seed] for seed in some])
        for constraint, some in zip(context.config.constraints, kept, strict=True)
    ]


def scope(config: ObservationAttackConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"{claim.num_samples} attacked episodes, {config.num_candidates} corners tried for each observation",
        "other attacks, larger ones or such as plan several steps; episodes that break the limit undisturbed",
        "an attacked episode that breaks the limit",
    )


def disturbed_limits(context: Context, config: ObservationAttackConfig) -> dict[str, ConstraintConfig]:  # noqa: ARG001 - a check's signature
    """The constraints that the check's claims are about, by claim id."""
    return context.constraints_by_claim()


def _claim(
    context: Context,
    config: ObservationAttackConfig,
    constraint: ConstraintConfig,
    attack: "Attack",
    episodes: list[Episode],
) -> Claim:
    assert config.magnitude is not None
    statement = (
        f"no attack on the sensors of up to {config.magnitude:g} deviations makes {constraint.quantity} leave "
        f"{limits(constraint)}"
    )
    if not episodes:
        return context.undecided(statement, UNDISTURBED, constraint.name)
    broken = [episode for episode in episodes if violates(constraint, episode)]
    size, found = (0.0, None) if not broken else _smallest(context, config.magnitude, constraint, attack, broken[0])
    evidence = {
        "kind": NAME,
        "constraint": constraint.model_dump(mode="json"),
        "noise_scale": attack.scale.ravel().tolist(),
        "key": attack.key,
        "num_candidates": attack.num_candidates,
        "magnitude": size,
        "num_broken": len(broken),
    }
    finding = f"none of {len(episodes)} attacked episodes breaks it"
    if found is not None:
        finding = (
            f"{len(broken)} of {len(episodes)} attacked episodes break it; an attack of {size:.3g} deviations does: "
            f"{describe(constraint, found)}"
        )
    return context.claim(
        evidence,
        constraint.name,
        failure=None if found is None else (finding, found),
        statement=statement,
        method=f"maximal-action-difference attack, {attack.num_candidates} corners tried for each observation",
        verdict=Verdict.SUPPORTED if found is None else Verdict.REFUTED,
        assumptions=[
            "an attack that finds nothing proves nothing: another one may break it",
            *shield_assumptions(context),
        ],
        bound=None
        if found is None
        else Bound(kind="smallest attack found", measured=size, limit=config.magnitude, unit="deviations"),
        num_samples=len(episodes),
        finding=finding,
        label=None if found is not None else not_disturbed(context, config.magnitude * attack.scale),
    )


def _smallest(
    context: Context, magnitude: float, constraint: ConstraintConfig, attack: "Attack", broken: Episode
) -> tuple[float, Episode]:
    """The smallest size, of a few, at which the episode of that seed breaks the limit."""
    for share in range(1, _SIZES):
        size = magnitude * share / _SIZES
        (episode,) = context.play(attack.on(context.policy, size), [broken.seed])
        if violates(constraint, episode):
            return size, episode
    return magnitude, broken


def replay(failure: Failure) -> Replayed:
    """Play the episode with the attack that broke it: reproduced where it breaks the limit again.

    Raises:
        EnvironmentFault: when the environment breaks its API.
    """
    document, space = failure.document, failure.observation_space
    scale = np.asarray(document["noise_scale"]).reshape(space.shape)
    attack = Attack(space, scale, document["key"], document["num_candidates"])
    return replay_limit(failure, attack.on(failure.policy, document["magnitude"]))


class Attack:
    """Moves each observation to the corner, of those tried, at which the policy is farthest from its choice.

    Which corners are tried follows from the observation and `key`, so an attacked episode can be replayed alone.
    `scale` (*obs) is what a magnitude of 1 moves each component by; `num_candidates` corners are tried for each
    observation.
    """

    def __init__(self, space: spaces.Box, scale: Array, key: int, num_candidates: int) -> None:
        self.scale, self.key, self.num_candidates = np.asarray(scale, np.float64), key, num_candidates
        self._space = space

    def on(self, policy: Policy, magnitude: float) -> ActFunction:
        """An act function: the policy's actions on observations that this attack has moved by `magnitude` times its
        scale."""
        return act_seeing(policy, lambda obs: self.moved(policy, obs, magnitude))

    def moved(self, policy: Policy, obs: NDArray[Any], magnitude: float) -> NDArray[Any]:
        """Observations (B, *obs) moved by the attack, by `magnitude` times its scale, within their space; (B, *obs)."""
        rows, count = np.ascontiguousarray(obs), self.num_candidates
        corners = np.stack(
            [keyed_rng(self.key, row).integers(0, 2, (count, *row.shape)) * 2.0 - 1.0 for row in rows]
        )  # (B, K, *obs)
        tried = shifted(
            self._space, np.repeat(rows, count, axis=0), magnitude * self.scale * corners.reshape(-1, *rows.shape[1:])
        )
        outputs = ask_outputs(policy, np.concatenate([rows, tried]))
        before = {name: value[: len(rows)] for name, value in outputs.items()}
        after = {
            name: value[len(rows) :].reshape(len(rows), count, *value.shape[1:]) for name, value in outputs.items()
        }
        best = _difference(before, after).argmax(axis=1)
        return np.asarray(tried.reshape(len(rows), count, *rows.shape[1:])[np.arange(len(rows)), best])


def _difference(before: dict[str, NDArray[Any]], after: dict[str, NDArray[Any]]) -> Array:
    """How far each candidate moves the policy from what it chose, (B, K)."""
    if "logits" in before and before["logits"].ndim == 2 and before["action"].ndim == 1:
        chosen = before["logits"].argmax(axis=1)
        logits = after["logits"].astype(np.float64)  # (B, K, A)
        own = np.take_along_axis(logits, chosen[:, None, None], axis=2)
        np.put_along_axis(logits, chosen[:, None, None], -np.inf, axis=2)
        return np.asarray(logits.max(axis=2) - own[..., 0])
    name = "mean" if "mean" in before else "action"
    change = np.abs(after[name].astype(np.float64) - before[name][:, None].astype(np.float64))
    return np.asarray(change.reshape(*change.shape[:2], -1).sum(axis=2))
