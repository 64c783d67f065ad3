"""Failures anyone can replay: how they are recorded in a case and played again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.evaluation.evaluate import play
from loomrl.safety.check import Context
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import limits, quantity, violations
from loomrl.safety.probing.probes import act_with
from loomrl.types import ActFunction, Claim, Counterexample, Episode, Evidence, Json

PLACEHOLDER = "{case}"  # stands for the case's folder until the gate knows where that is


@dataclass(frozen=True)
class Failure:
    """A refuted claim with its evidence and what it is about, for its check's `replay`."""

    claim: Claim
    document: Json  # the claim's first evidence
    seed: int | None  # the episode's, where the counterexample is one
    policy: Any
    snapshot_folder: Path
    observation_space: Any
    action_space: Any

    def play(self, act: ActFunction) -> Episode:
        """The counterexample's episode, played again."""
        assert self.seed is not None, "a counterexample that is an episode has a seed"
        return play(act, self.snapshot_folder, [self.seed], 1, "replay")[0]

    def observation(self) -> NDArray[Any]:
        """The counterexample's observation, (1, *obs)."""
        return np.asarray([self.document["examples"][0]["observation"]], dtype=self.observation_space.dtype)


@dataclass(frozen=True)
class Replayed:
    """What a check's `replay` found. The gate compares `episode`, if there is one, with the recorded steps."""

    reproduced: bool
    finding: str
    episode: Episode | None = None


def replay_limit(failure: Failure, act: ActFunction | None = None) -> Replayed:
    """Play the episode that violated the limit in the claim's evidence, as the policy acts or as `act` does."""
    constraint = ConstraintConfig.model_validate(failure.document["constraint"])
    episode = failure.play(act_with(failure.policy) if act is None else act)
    if np.any(violations(constraint, episode)):
        return Replayed(reproduced=True, finding=describe(constraint, episode), episode=episode)
    return Replayed(reproduced=False, finding=f"{constraint.quantity} respects its limit now", episode=episode)


def worst_episode(constraint: ConstraintConfig, episodes: Sequence[Episode]) -> Episode | None:
    """The violating episode that goes farthest beyond the limit; ties go to the smallest seed."""
    violating = [episode for episode in episodes if np.any(violations(constraint, episode))]
    return min(violating, key=lambda episode: (-_excess(constraint, episode), episode.seed), default=None)


def episode_counterexample(
    context: Context, claim: str, constraint: ConstraintConfig, episodes: Sequence[Episode]
) -> Counterexample | None:
    """Record the worst violating episode; None where no episode violates."""
    worst = worst_episode(constraint, episodes)
    return None if worst is None else recorded(context, claim, describe(constraint, worst), worst)


def recorded(context: Context, claim: str, description: str, episode: Episode) -> Counterexample:
    """An episode as a claim's counterexample, written beside its evidence."""
    return Counterexample(
        description=description,
        seed=episode.seed,
        evidence=context.evidence.episode(f"{claim}.counterexample", episode),
        replay_command=replay_command(claim),
    )


def describe(constraint: ConstraintConfig, episode: Episode) -> str:
    """One sentence: which limit breaks at which step, and by which value."""
    step = int(np.flatnonzero(violations(constraint, episode))[0])
    value = float(quantity(constraint, episode)[step])
    return (
        f"in the episode of seed {episode.seed}, {constraint.quantity} is {value:.6g} after step {step + 1} of "
        f"{episode.length}; allowed is {limits(constraint)}"
    )


def observation_counterexample(claim: str, description: str, evidence: Evidence) -> Counterexample:
    """A single observation, kept in the claim's evidence, on which the policy fails."""
    return Counterexample(description=description, seed=None, evidence=evidence, replay_command=replay_command(claim))


def replay_command(claim: str) -> str:
    """The command that replays a claim's counterexample."""
    return f"loomrl safety replay {PLACEHOLDER} {claim}"


def _excess(constraint: ConstraintConfig, episode: Episode) -> float:
    values = quantity(constraint, episode)[violations(constraint, episode)]
    low = -np.inf if constraint.low is None else constraint.low
    high = np.inf if constraint.high is None else constraint.high
    beyond = np.maximum(low - values, values - high)
    return float(np.max(np.where(np.isnan(beyond), np.inf, beyond)))
