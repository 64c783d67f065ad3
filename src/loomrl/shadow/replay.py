"""Plays the episode again that shows worst why a challenger was refused beside the champion."""

from pathlib import Path

import numpy as np

from loomrl.errors import ConfigError
from loomrl.runs.config import PolicyConfig
from loomrl.safety.replay import CounterexampleReplay
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.config import SOON
from loomrl.shadow.continuations import Continuations
from loomrl.shadow.following import PREFIX
from loomrl.shadow.handover import Handover, fails, played_again
from loomrl.shadow.whole import allowed_travel, travel
from loomrl.storage.registry import PolicyVersion
from loomrl.types import Claim, Consequences, Continuation


def with_command(claim: Claim, challenger: PolicyVersion) -> Claim:
    """The claim with the command that plays its counterexample again, if it has one."""
    if claim.counterexample is None:
        return claim
    command = f"loomrl policy replay {challenger.policy}@{challenger.version} {claim.id}"
    return claim.model_copy(
        update={"counterexample": claim.counterexample.model_copy(update={"replay_command": command})}
    )


def replay(
    claim: Claim,
    found: Consequences,
    config: PolicyConfig,
    snapshot_folder: Path,
    challenger: ServedPolicy,
    champion: ServedPolicy,
) -> CounterexampleReplay:
    """Play a refuted claim's counterexample again, `not_worse` of promotion or one about what follows (`found`).

    A failure that is not there any more is no error: the result says so.

    Raises:
        ConfigError: when the claim has no counterexample, or a package that the environment needs is missing.
        GateRefused: when a version has no answer to an observation.
        EnvironmentFault: when the environment breaks its API, or the episode does not repeat.
        ArtifactError: when the snapshot was changed.
    """
    if claim.counterexample is None or claim.counterexample.seed is None:
        raise ConfigError(f"claim {claim.id} is {claim.verdict} and has no counterexample to replay")
    seed, kept = claim.counterexample.seed, found.counterexamples
    state = kept[claim.id] if claim.id in kept else Continuation(seed=seed, champion_return=0.0, challenger_return=0.0)
    unit = np.array(found.noisy.unit).reshape(challenger.shape) if found.noisy is not None and state.noise else None
    both = played_again(state, unit, Continuations(snapshot_folder, 1), challenger, champion)
    reproduced, finding = _judged(claim, both, found, config, challenger)
    return CounterexampleReplay(claim=claim.id, seed=seed, reproduced=reproduced, identical=None, finding=finding)


def _judged(
    claim: Claim, both: Handover, found: Consequences, config: PolicyConfig, challenger: ServedPolicy
) -> tuple[bool, str]:
    """Whether the failure is there again, and what happens now."""
    name = claim.id.removeprefix(f"{PREFIX}.")
    returns = (
        f"in the episode of seed {both.champion.seed}, from step {both.step} on, the challenger comes to a return of "
        f"{both.challenger.episode_return:.6g}, the champion to {both.champion.episode_return:.6g}"
    )
    if name == "travel":
        moved, before = (travel(challenger, one) for one in (both.challenger, both.champion))
        allowed = float(allowed_travel(np.array([before]), config.shadow.consequences.max_travel_ratio)[0])
        told = f"in the episode of seed {both.champion.seed} actions move {moved:.4g} halves of their range in a step"
        return moved > allowed, f"{told}, the champion's {before:.4g}; allowed is {allowed:.4g}"
    for limit in config.safety.constraints:
        if limit.name == name:
            excess = both.excess(limit)
            return excess > 0, f"{returns}; {name} is {'broken' if excess else 'kept'}"
    if name in ("disturbed", "noise"):
        within = SOON * found.burst_steps if name == "disturbed" else None
        return fails(both, config.safety.constraints, found.return_scale or 0.0, within), returns
    assert claim.bound is not None, "a refuted claim about returns has a bound"
    return both.difference < claim.bound.limit, returns
