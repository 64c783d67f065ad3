"""Plays the episode again that speaks most against a challenger that was refused beside the champion."""

from pathlib import Path

import numpy as np

from loomrl.errors import ConfigError
from loomrl.runs.config import PolicyConfig
from loomrl.safety.replay import CounterexampleReplay
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.consequences import play_again, play_pair
from loomrl.shadow.following import PREFIX, limit_id
from loomrl.shadow.handover import Handover, fails
from loomrl.shadow.whole import allowed_travel, travel
from loomrl.types import Claim, Consequences


def replay(
    claim: Claim,
    found: Consequences,
    config: PolicyConfig,
    snapshot_folder: Path,
    challenger: ServedPolicy,
    champion: ServedPolicy,
) -> CounterexampleReplay:
    """Play a claim's failure again, of `not_worse` of promotion or of one about what follows (`found`).

    A failure that is not there any more is no error: the result says so. `identical` says whether state, actions and
    returns are those of the report, None where that holds a seed alone.

    Raises:
        ConfigError: when the claim has no counterexample, or a package that the environment needs is missing.
        GateRefused: when a version has no answer to an observation.
        EnvironmentFault: when the environment breaks its API, or the episode does not repeat.
        ArtifactError: when the snapshot was changed.
    """
    if claim.counterexample is None or claim.counterexample.seed is None:
        raise ConfigError(f"claim {claim.id} is {claim.verdict} and has no counterexample to replay")
    seed, kept = claim.counterexample.seed, found.counterexamples.get(claim.id)
    if kept is None:
        both = play_pair(seed, snapshot_folder, challenger, champion)
    else:
        both = play_again(kept, config, snapshot_folder, challenger, champion)
    reproduced, finding = _judged(claim, both, found, config, challenger)
    return CounterexampleReplay(
        claim=claim.id,
        seed=seed,
        reproduced=reproduced,
        identical=None if kept is None else both.shown(kept.violated) == kept,
        finding=f"version {challenger.version} beside {champion.version}: {finding}",
    )


def _judged(
    claim: Claim, both: Handover, found: Consequences, config: PolicyConfig, challenger: ServedPolicy
) -> tuple[bool, str]:
    """Whether the failure is there again, and what happens now."""
    assert claim.bound is not None, "a refuted claim has a bound"
    limits = {limit_id(limit.name): limit for limit in config.safety.constraints}
    returns = (
        f"in the episode of seed {both.champion.seed}, from step {both.step} on, the challenger comes to a return of "
        f"{both.challenger.episode_return:.6g}, the champion to {both.champion.episode_return:.6g}"
    )
    if (limit := limits.get(claim.id)) is not None:
        excess = both.excess(limit)
        return excess > claim.bound.limit, f"{returns}; {limit.name} is {'broken' if excess else 'kept'}"
    name = claim.id.removeprefix(f"{PREFIX}.")
    if name == "travel":
        moved, before = (travel(challenger, one) for one in (both.challenger, both.champion))
        allowed = float(allowed_travel(np.array([before]), config.shadow.consequences.max_travel_ratio)[0])
        told = f"in the episode of seed {both.champion.seed} actions move {moved:.4g} halves of their range in a step"
        return moved > allowed, f"{told}, the champion's {before:.4g}; allowed is {allowed:.4g}"
    if name in ("disturbed", "noise"):
        return fails(both, config.safety.constraints, found.return_scale or 0.0), returns
    return both.weight * both.difference < claim.bound.limit, returns
