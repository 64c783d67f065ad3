"""Every action is an element of the action space, on visited, random and extreme observations."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from loomrl.safety.case.counterexample import Failure, Replayed, observation_counterexample
from loomrl.safety.check import FALSIFICATION, CheckConfig, Context, Scope
from loomrl.safety.probing.probes import ask, ask_outputs, not_members, probe_observations
from loomrl.statistics.intervals import clopper_pearson_upper
from loomrl.types import Bound, Claim, ClaimLabel, LabelKind, Verdict

NAME = "action_bounds"
STAGE = FALSIFICATION
LOCAL = True


class ActionBoundsConfig(CheckConfig):
    """How many observations of each kind the check asks the policy about."""

    num_visited: int = Field(default=20_000, ge=1)
    num_random: int = Field(default=4_096, ge=1)
    num_extreme: int = Field(default=512, ge=1)


Config = ActionBoundsConfig  # as all plug-ins of this kind name it


def examine(context: Context, config: ActionBoundsConfig) -> list[Claim]:
    """One claim: all actions are within the action space; any action outside refutes it."""
    tried = probe_observations(
        context.observation_space,
        context.visited,
        config.num_visited,
        config.num_random,
        config.num_extreme,
        context.rng(NAME),
    )
    obs = np.concatenate(list(tried.values()))
    actions = ask(context.policy, obs)
    outside = np.flatnonzero(not_members(context.action_space, actions))
    evidence = {
        "kind": NAME,
        "tried": {name: len(batch) for name, batch in tried.items()},
        "num_outside": len(outside),
        "examples": [{"observation": obs[i].tolist(), "action": repr(actions[i].tolist())} for i in outside[:3]],
    }
    written = context.evidence.json(NAME, evidence)
    upper = clopper_pearson_upper(0, len(tried["random"]), context.config.confidence)
    found = f"{len(outside)} of {len(obs)} actions are outside the action space"
    counterexample = None
    if len(outside):
        shown = f"the action for observation {obs[outside[0]].tolist()} is {actions[outside[0]].tolist()}"
        counterexample = observation_counterexample(NAME, f"{shown}, not an element of {context.action_space}", written)
    return [
        Claim(
            id=NAME,
            stage=STAGE,
            statement="every action is an element of the action space",
            mandatory=config.mandatory,
            method="search for a failure over visited, uniform random and extreme observations",
            verdict=Verdict.REFUTED if len(outside) else Verdict.SUPPORTED,
            assumptions=[
                f"no failure among the random observations bounds their failing share by {upper:.2g}",
                "observations that were not tried are not covered one by one",
            ],
            confidence=context.config.confidence,
            bound=Bound(kind="count", measured=len(outside), limit=0, unit="actions outside"),
            num_samples=len(obs),
            evidence=[written],
            counterexample=counterexample,
            finding=found,
            label=_label(context, obs, actions),
        )
    ]


def scope(config: ActionBoundsConfig, claim: Claim) -> Scope:  # noqa: ARG001 - a check's signature
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"{claim.num_samples} observations: visited, uniform random and extreme ones",
        "anything about observations that were not tried, or about whether the actions are good ones",
        "an action outside the action space for any of these observations",
    )


def _label(context: Context, obs: NDArray[Any], actions: NDArray[Any]) -> ClaimLabel | None:
    """A policy with one logit for each action that always takes the largest has no action outside to take."""
    space, outputs = context.action_space, ask_outputs(context.policy, obs)
    logits = outputs.get("logits")
    if not isinstance(space, spaces.Discrete) or logits is None or logits.shape != (len(obs), space.n):
        return None
    if not np.array_equal(np.argmax(logits, axis=1) + space.start, actions):
        return None
    reason = f"the policy takes the largest of {space.n} logits, one for each action: it has no other action to take"
    return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=reason)


def replay(failure: Failure) -> Replayed:
    """Ask the policy about the first observation that failed."""
    obs = failure.observation()
    action = ask(failure.policy, obs)
    return Replayed(
        reproduced=bool(not_members(failure.action_space, action)[0]),
        finding=f"the action for {obs[0].tolist()} is {action[0].tolist()}",
    )
