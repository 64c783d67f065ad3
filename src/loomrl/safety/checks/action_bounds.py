"""Every action is an element of the action space, on visited, random and extreme observations."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.check import FALSIFICATION, Context, Scope
from loomrl.safety.probing.probes import ProbeConfig, ask, ask_outputs, keeps_bounds, not_members
from loomrl.statistics.intervals import clopper_pearson_upper
from loomrl.types import Bound, Claim, ClaimLabel, LabelKind, Verdict

NAME = "action_bounds"
STAGE = FALSIFICATION
LOCAL = True


ActionBoundsConfig = ProbeConfig
Config = ActionBoundsConfig  # as all plug-ins of this kind name it


def examine(context: Context, config: ActionBoundsConfig) -> list[Claim]:
    """One claim: all actions are within the action space; any action outside refutes it."""
    tried = config.observations(context, NAME)
    obs = np.concatenate(list(tried.values()))
    actions = ask(context.policy, obs)
    outside = np.flatnonzero(not_members(context.action_space, actions))
    evidence = {
        "kind": NAME,
        "tried": {name: len(batch) for name, batch in tried.items()},
        "num_outside": len(outside),
        "examples": [{"observation": obs[i].tolist(), "action": repr(actions[i].tolist())} for i in outside[:3]],
    }
    upper = clopper_pearson_upper(0, len(tried["random"]), context.config.confidence)
    found = f"{len(outside)} of {len(obs)} actions are outside the action space"
    failure = None
    if len(outside):
        shown = f"the action for observation {obs[outside[0]].tolist()} is {actions[outside[0]].tolist()}"
        failure = f"{shown}, not an element of {context.action_space}"
    return [
        context.claim(
            evidence,
            failure=failure,
            statement="every action is an element of the action space",
            method="search for a failure over visited, uniform random and extreme observations",
            verdict=Verdict.REFUTED if len(outside) else Verdict.SUPPORTED,
            assumptions=[
                f"no failure among the random observations bounds their failing share by {upper:.2g}",
                "observations that were not tried are not covered one by one",
            ],
            confidence=context.config.confidence,
            bound=Bound(kind="count", measured=len(outside), limit=0, unit="actions outside"),
            num_samples=len(obs),
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
    """A policy with one logit for each action that always takes the largest has no action outside to take; one that
    clips or squashes its actions has none but such as are not finite."""
    if isinstance(context.action_space, spaces.Box) and keeps_bounds(context.policy):
        reason = "the policy keeps its actions within their bounds: only one that is not finite lies outside"
        return ClaimLabel(kind=LabelKind.REPEATS, reason=reason, claim="finiteness")
    if getattr(context.policy, "action_kind", None) in ("multi_discrete", "multi_binary"):
        reason = "the policy takes the likeliest value of each component: it has no other action to take"
        return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=reason)
    space, outputs = context.action_space, ask_outputs(context.policy, obs)
    logits = outputs.get("logits")
    if not isinstance(space, spaces.Discrete) or logits is None or logits.shape != (len(obs), space.n):
        return None
    if not np.array_equal(np.argmax(logits, axis=1) + space.start, actions):
        return None
    reason = f"the policy takes the largest of {space.n} logits, one for each action: it has no other action to take"
    return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=reason)


def replay(failure: Failure) -> Replayed:
    """Ask the policy about the first observation that failed: reproduced where its action is outside the action space
    again."""
    obs = failure.observation()
    action = ask(failure.policy, obs)
    return Replayed(
        reproduced=bool(not_members(failure.action_space, action)[0]),
        finding=f"the action for {obs[0].tolist()} is {action[0].tolist()}",
    )
