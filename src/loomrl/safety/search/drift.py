"""A search for a drift of the sensors that makes the policy break a limit: as small as it can be, and replayable.

A drift adds the same offset to every observation of an episode; the environment itself stays as it is. Drifts and seeds
are searched together by the cross-entropy method (Sankaranarayanan and Fainekos, Falsification of temporal properties
of hybrid systems using the cross-entropy method, HSCC 2012): those that come closest to the limit are drawn from again.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from loomrl.safety.case.counterexample import Failure, Replayed, describe, replay_limit
from loomrl.safety.check import CheckConfig, Context
from loomrl.safety.config import EPISODE_QUANTITIES, ConstraintConfig
from loomrl.safety.constraints import beyond, limits, quantity, violates
from loomrl.safety.probing.probes import (
    UNDISTURBED,
    act_seeing,
    kept_undisturbed,
    noise_scale,
    not_disturbed,
    shield_assumptions,
    shifted,
)
from loomrl.types import ActFunction, Bound, Claim, Episode, Policy, Verdict

NAME = "falsification"

Array = NDArray[np.float64]
_SHRINKINGS = 16  # sizes of a drift that is found, tried at once


class DriftConfig(CheckConfig):
    """Drifts of up to `magnitude` standard deviations of each component are searched: each of `num_rounds` plays
    `population` episodes, at most as many as `safety.num_envs`, with seeds drawn from the first `num_seeds` safety
    episodes that keep the limit without a drift. Without a magnitude none is: what a sensor can be off by is for people
    to say."""

    magnitude: float | None = Field(default=None, gt=0)
    num_rounds: int = Field(default=12, ge=1)
    population: int = Field(default=48, ge=4)
    num_seeds: int = Field(default=16, ge=1)


@dataclass(frozen=True)
class _Found:
    """A drift in standard deviations, (*obs), and the episode it breaks."""

    drift: Array
    episode: Episode


def drift_claims(context: Context, config: DriftConfig) -> list[Claim]:
    """One claim for each declared limit, where observations are a Box and a magnitude is given; else none.

    Raises:
        EnvironmentFault: when the environment breaks its API.
    """
    if config.magnitude is None or not isinstance(context.observation_space, spaces.Box):
        return []
    search = _Search(context, config, config.magnitude)
    return [_claim(context, config, constraint, search) for constraint in context.config.constraints]


def _claim(context: Context, config: DriftConfig, constraint: ConstraintConfig, search: "_Search") -> Claim:
    statement = (
        f"no drift of the sensors of up to {config.magnitude:g} deviations makes {constraint.quantity} leave "
        f"{limits(constraint)}"
    )
    seeds = kept_undisturbed(context, constraint)[: config.num_seeds]
    if not seeds:
        return context.undecided(statement, UNDISTURBED, constraint.name)
    found, num_episodes = search.run(constraint, np.array(seeds))
    evidence: dict[str, Any] = {
        "kind": NAME,
        "constraint": constraint.model_dump(mode="json"),
        "noise_scale": search.scale.ravel().tolist(),
        "num_episodes": num_episodes,
        "drift": None if found is None else found.drift.ravel().tolist(),
    }
    size = 0.0 if found is None else float(np.abs(found.drift).max())
    finding = f"none of {num_episodes} episodes breaks it"
    if found is not None:
        moved = np.flatnonzero(found.drift.ravel())
        finding = (
            f"a drift of {size:.3g} deviations of {len(moved)} component{'s' * (len(moved) != 1)} breaks it: "
            f"{describe(constraint, found.episode)}"
        )
    return context.claim(
        evidence,
        constraint.name,
        failure=None if found is None else (finding, found.episode),
        statement=statement,
        method=f"cross-entropy search over drifts and {len(seeds)} seed{'s' * (len(seeds) != 1)}",
        verdict=Verdict.SUPPORTED if found is None else Verdict.REFUTED,
        assumptions=[
            "a search that finds nothing proves nothing: other drifts and seeds may break it",
            *shield_assumptions(context),
        ],
        bound=Bound(kind="smallest drift found", measured=size, limit=search.magnitude, unit="deviations")
        if found is not None
        else None,
        num_samples=num_episodes,
        finding=finding,
        label=None if found is not None else not_disturbed(context, search.magnitude * search.scale),
    )


def replay_drift(failure: Failure) -> Replayed:
    """Play the episode with the drift that broke it: reproduced where it breaks the limit again.

    Raises:
        EnvironmentFault: when the environment breaks its API.
    """
    document, space = failure.document, failure.observation_space
    offset = np.asarray(document["drift"]).reshape(space.shape) * np.asarray(document["noise_scale"]).reshape(
        space.shape
    )
    return replay_limit(failure, _drifting(failure.policy, space, offset[None]))


class _Search:
    def __init__(self, context: Context, config: DriftConfig, magnitude: float) -> None:
        self.context, self.config, self.magnitude = context, config, magnitude
        self.scale = np.asarray(noise_scale(context.visited, 1.0), np.float64)
        self.population = min(config.population, context.config.num_envs)

    def run(self, constraint: ConstraintConfig, among: NDArray[np.int64]) -> tuple[_Found | None, int]:
        """The smallest drift that was found with these seeds, and how many episodes were played."""
        rng = self.context.rng(f"{NAME}.{constraint.name}")
        shape = self.scale.shape
        mean, spread = np.zeros(shape), np.full(shape, 0.5 * self.magnitude)
        weights = np.full(len(among), 1.0 / len(among))
        played = 0
        for _ in range(self.config.num_rounds):
            drifts = np.clip(
                mean + spread * rng.standard_normal((self.population, *shape)), -self.magnitude, self.magnitude
            )
            seeds = rng.choice(among, size=self.population, p=weights)
            episodes = self._play(drifts, seeds)
            played += len(episodes)
            distances = np.array([_distance(constraint, episode) for episode in episodes])
            broken = [index for index in np.argsort(distances).tolist() if violates(constraint, episodes[index])]
            if broken:
                best = broken[0]
                found, more = self._shrink(constraint, _Found(drifts[best], episodes[best]))
                return found, played + more
            elite = np.argsort(distances, kind="stable")[: max(2, self.population // 6)]
            mean, spread = drifts[elite].mean(0), 0.7 * drifts[elite].std(0) + 0.3 * spread
            counts = np.array([np.count_nonzero(seeds[elite] == seed) for seed in among])
            weights = 0.5 * counts / counts.sum() + 0.5 / len(among)
        return None, played

    def _shrink(self, constraint: ConstraintConfig, found: _Found) -> tuple[_Found, int]:
        """The same drift in fewer components, then smaller, as long as it still breaks the limit."""
        played = 0
        for place in np.argsort(np.abs(found.drift).ravel(), kind="stable").tolist():
            fewer = found.drift.copy()
            fewer.flat[place] = 0.0
            (episode,) = self._play(fewer[None], np.array([found.episode.seed]))
            played += 1
            if violates(constraint, episode):
                found = _Found(fewer, episode)
        shares = np.arange(_SHRINKINGS) / _SHRINKINGS
        smaller = shares.reshape(-1, *(1,) * found.drift.ndim) * found.drift
        for start in range(0, _SHRINKINGS, self.population):
            part = smaller[start : start + self.population]
            episodes = self._play(part, np.full(len(part), found.episode.seed))
            played += len(part)
            for drift, episode in zip(part, episodes, strict=True):
                if violates(constraint, episode):
                    return _Found(drift, episode), played
        return found, played

    def _play(self, drifts: Array, seeds: NDArray[Any]) -> list[Episode]:
        """One episode for each drift, (N, *obs), with its seed; no more than there are environments."""
        act = _drifting(self.context.policy, self.context.observation_space, drifts * self.scale)
        return self.context.play(act, seeds.tolist())


def _drifting(policy: Policy, space: Any, offsets: Array) -> ActFunction:
    """The act function of a policy whose observation in environment i is off by `offsets[i]`, (N, *obs)."""
    return act_seeing(policy, lambda obs: shifted(space, obs, offsets[: len(obs)]))


def _distance(constraint: ConstraintConfig, episode: Episode) -> float:
    """How near an episode comes to breaking a limit; not above 0 where it does."""
    values = quantity(constraint, episode)
    if constraint.quantity in EPISODE_QUANTITIES:
        values = values[-1:]
    return -float(np.max(beyond(constraint, values)))
