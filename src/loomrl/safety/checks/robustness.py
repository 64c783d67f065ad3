"""Small observation noise changes few actions: a local probe around visited observations.

How much the return suffers is the claim of `disturbed_return`, which needs the environment.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from loomrl.safety.check import FALSIFICATION, CheckConfig, Context, Scope
from loomrl.safety.probing.judging import judge_mean
from loomrl.safety.probing.probes import (
    ask,
    disturbed,
    noise_scale,
    not_disturbed,
    sample_visited,
    to_texts,
)
from loomrl.types import Claim

NAME = "robustness"
STAGE = FALSIFICATION
LOCAL = True
not_applicable = to_texts


class RobustnessConfig(CheckConfig):
    """Noise of `noise` standard deviations of each component may change the action by `max_action_change` on average.

    The change of a discrete action is 0 or 1; of a continuous one, its largest component's as a share of the range
    between its bounds. The bound is from `num_visited` observations, drawn from those of the safety episodes; all of
    them where they are fewer.
    """

    mandatory: bool = False
    noise: float = Field(default=0.05, gt=0)
    max_action_change: float = Field(default=0.25, gt=0, lt=1)
    num_visited: int = Field(default=4_096, ge=1)


Config = RobustnessConfig  # as all plug-ins of this kind name it


def examine(context: Context, config: RobustnessConfig) -> list[Claim]:
    """One claim where observations are a Box: small noise changes actions little. Else none."""
    if not isinstance(context.observation_space, spaces.Box):
        return []
    rng = context.rng(NAME)
    obs = sample_visited(context.visited, config.num_visited, rng)
    scale = noise_scale(context.visited, config.noise)
    # Recorded observations may repeat: each needs noise of its own, or the bound would count one draw many times.
    noisy = disturbed(context.observation_space, obs, scale, rng)
    change = action_change(context.action_space, ask(context.policy, obs), ask(context.policy, noisy))
    limit, mean = config.max_action_change, float(np.mean(change))
    evidence = {"kind": NAME, "noise_scale": scale.ravel().tolist(), "mean_change": mean, "num_visited": len(obs)}
    unit = "share of decisions" if isinstance(context.action_space, spaces.Discrete) else "share of the action range"
    judged = judge_mean(context, change, limit, unit)
    return [
        context.claim(
            evidence,
            judged=judged,
            statement=(
                f"noise of {config.noise:g} standard deviations on each observation component changes the action at "
                f"visited observations by at most {limit:g} ({unit}) on average"
            ),
            method="one-sided Hoeffding relative-entropy bound over independent noise at recorded observations",
            assumptions=[
                "Gaussian noise, independent at each decision; the recorded observations stand for themselves"
            ],
            num_samples=len(obs),
            label=not_disturbed(context, scale, is_noise=True),
            finding=f"the action changes by {mean:.3g} on average; its one-sided bound is {judged.bound.measured:.3g}",
        )
    ]


def scope(config: RobustnessConfig, claim: Claim) -> Scope:
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"{claim.num_samples} visited observations, each with noise of its own",
        "noise that somebody chooses, and what a changed action costs",
        f"a mean change of the action whose lower bound is above {config.max_action_change:g}",
    )


def action_change(space: Any, before: NDArray[Any], after: NDArray[Any]) -> NDArray[np.float64]:
    """How far each action moved, in [0, 1], (N,), from actions (N, *action) before and after.

    Of a Box it is the largest component's move as a share of its range, else 0 or 1.
    """
    if not isinstance(space, spaces.Box):
        return np.asarray(np.any((before != after).reshape(len(before), -1), axis=1), dtype=np.float64)
    span = (space.high - space.low).astype(np.float64)
    moved = np.abs(after.astype(np.float64) - before) / np.where(np.isfinite(span) & (span > 0), span, 1.0)
    return np.asarray(np.clip(np.max(moved.reshape(len(moved), -1), axis=1), 0.0, 1.0))
