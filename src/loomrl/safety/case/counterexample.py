"""Failures anyone can replay: how they are recorded in a case and played again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.evaluation.evaluate import play
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import beyond, ends, limits, quantity, violates, violations
from loomrl.safety.probing.probes import act_with
from loomrl.types import ActFunction, Claim, Episode, Json


@dataclass(frozen=True)
class Failure:
    """A claim that shows a failure, with its evidence and what it is about, for its check's `replay`.

    `document` is the claim's first evidence, as JSON; `seed` is that of the episode, None where the counterexample is
    none.
    """

    claim: Claim
    document: Json  # the claim's first evidence
    seed: int | None  # the episode's, where the counterexample is one
    policy: Any
    snapshot_folder: Path
    policy_folder: Path
    evaluation_folder: Path
    observation_space: Any
    action_space: Any

    def play(self, act: ActFunction) -> Episode:
        """The counterexample's episode, played again by an act function. There must be a seed.

        Raises:
            EnvironmentFault: when the environment breaks its API.
            LoomRLError: when an action is not finite, or the snapshot was changed.
        """
        assert self.seed is not None, "a counterexample that is an episode has a seed"
        return play(act, self.snapshot_folder, [self.seed], 1, "replay")[0]

    def observation(self) -> NDArray[Any]:
        """The counterexample's observation, (1, *obs): that of the first of the document's `examples`, which must be
        there."""
        return np.asarray([self.document["examples"][0]["observation"]], dtype=self.observation_space.dtype)


@dataclass(frozen=True)
class Replayed:
    """What a check's `replay` found: whether the failure is there again, and in a sentence what happens now.

    The gate compares `episode`, if there is one, with the recorded steps.
    """

    reproduced: bool
    finding: str
    episode: Episode | None = None


def replay_limit(failure: Failure, act: ActFunction | None = None) -> Replayed:
    """Play the episode that violated the limit in the claim's evidence, as the policy acts or as `act` does.

    Raises:
        ConfigError: when the episode has no quantity as the limit is on.
        EnvironmentFault: when the environment breaks its API.
    """
    constraint = ConstraintConfig.model_validate(failure.document["constraint"])
    episode = failure.play(act_with(failure.policy) if act is None else act)
    if violates(constraint, episode):
        return Replayed(reproduced=True, finding=describe(constraint, episode), episode=episode)
    return Replayed(reproduced=False, finding=f"{constraint.quantity} respects its limit now", episode=episode)


def worst_failure(constraint: ConstraintConfig, episodes: Sequence[Episode]) -> tuple[str, Episode] | None:
    """The violating episode that goes farthest beyond the limit, and what happens in it; ties go to the smallest seed.
    None where no episode violates."""
    violating = [episode for episode in episodes if violates(constraint, episode)]
    worst = min(violating, key=lambda episode: (-_excess(constraint, episode), episode.seed), default=None)
    return None if worst is None else (describe(constraint, worst), worst)


def describe(constraint: ConstraintConfig, episode: Episode) -> str:
    """One sentence on an episode that breaks a limit: which limit breaks at which step first, and by which value."""
    step = int(np.flatnonzero(violations(constraint, episode))[0])
    value = float(quantity(constraint, episode)[step])
    shown = f"{value:.6g}"
    if float(shown) in ends(constraint):
        shown = f"{value:.12g}"  # it lies a little beyond
    return (
        f"in the episode of seed {episode.seed}, {constraint.quantity} is {shown} after step {step + 1} of "
        f"{episode.length}; allowed is {limits(constraint)}"
    )


def _excess(constraint: ConstraintConfig, episode: Episode) -> float:
    excess = beyond(constraint, quantity(constraint, episode)[violations(constraint, episode)])
    return float(np.max(np.where(np.isnan(excess), np.inf, excess)))
