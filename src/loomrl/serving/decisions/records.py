"""The records that decisions leave: of one, of several, of a version that begins to decide, of what was not decided."""

from typing import Any

import numpy as np

from loomrl.serving.decisions.groups import DecisionBatch
from loomrl.serving.decisions.limits import Shown, Who
from loomrl.serving.decisions.requests import token_at
from loomrl.serving.policy.model import ServedPolicy
from loomrl.storage.audit.records import DECISION, FULL_BATCH, action_hashes, decisions, digest, record


def loaded(name: str, policy: ServedPolicy) -> dict[str, Any]:
    """Which files decide under a version's name: a replay demands the same ones."""
    digests = {"onnx_sha256": policy.manifest.onnx_sha256, "shield_sha256": policy.manifest.shield_sha256}
    exploration = policy.exploration.model_dump(mode="json")
    return record("loaded", policy=name, version=policy.version, exploration=exploration, **digests)


def decided(policy: str, group: DecisionBatch, seconds: float, num_together: int, route: str) -> dict[str, Any]:
    """The record of a group: one decision, or several; `num_together` decisions were made in these `seconds`."""
    shared = {
        "policy": policy,
        "version": group.policy.version,
        "role": group.mandate.role,
        "assignment_probability": group.mandate.probability,
        "experiment": None if group.mandate.split is None else group.mandate.split.experiment,
        "override": None if group.override is None else group.override.mark(),
        "route": route,
        "seconds": seconds,
        "draw": group.draw,
    }
    if num_together > FULL_BATCH:
        shared["num_together"] = num_together
    if group.substitute is not None:
        shared["substitute"] = group.substitute.mark()
    if group.mandate.split is not None:
        shared["shares"] = dict(group.mandate.split.shares)
    if len(group) == 1:
        return _decision(group, shared)
    columns = {
        "agent_id": group.asks.agent_ids,
        "episode_id": group.asks.episode_ids,
        "observation": group.observations,
        "action": group.action,
        "action_hash": action_hashes(group.action),
        "q_value": [None] * len(group) if group.value is None else group.value.astype(np.float64),
        "propensity": group.propensity,
        "exploration_flag": group.explored,
        "shield": group.shield,
        "request_id": group.asks.request_ids or [None] * len(group),
        **_dealt(group),
        **group.marks,
    }
    if group.asks.by_token is not None:
        # One for all stands once, as `decisions` would find out row by row.
        held = shared if group.asks.has_one_token else columns
        held["by_token"] = group.asks.by_token
    dtypes = {"observation": group.observations.dtype.name, "action": group.action.dtype.name}
    return decisions({"count": len(group), "dtypes": dtypes, "reward": None, **shared}, columns)


def _decision(group: DecisionBatch, shared: dict[str, Any]) -> dict[str, Any]:
    observation, action = group.observations[0], group.action[0]
    value = None if group.value is None else float(group.value[0])
    fields = record(
        DECISION,
        decision_id=None,
        request_id=None if group.asks.request_ids is None else group.asks.request_ids[0],
        episode_id=group.asks.episode_ids[0],
        observation=observation[()],  # a number where there is but one
        observation_digest=digest(observation),
        action=action.tolist(),
        value=value,
        propensity=group.propensity[0],
        shield=group.shield[0],
        limited=False,
        **{name: values[0] for name, values in (group.marks | _dealt(group)).items()},
        **_token(group),
        **shared,
    )
    fields["agent_id"] = group.asks.agent_ids[0]
    fields["action_hash"] = digest(action)
    fields["q_value"] = value  # actor-critic policies estimate V(s); it stands for Q(s, a) of their own choice
    fields["exploration_flag"] = group.explored[0]
    return fields


def _dealt(group: DecisionBatch) -> dict[str, list[Any]]:
    """Which version a split deals each agent; nothing without one."""
    split = group.mandate.split
    return {} if split is None else {"dealt": [split.version_of(agent_id) for agent_id in group.asks.agent_ids]}


def _token(group: DecisionBatch) -> dict[str, str | None]:
    """Under which token the first was asked, where it may speak for any agent; nothing where none may."""
    return {} if group.asks.by_token is None else {"by_token": token_at(group.asks.by_token, 0)}


def unanswered(policy: str, group: DecisionBatch, error: Exception) -> dict[str, Any]:
    """On record for the first of them: which observation it was, is not known.

    While a split is in force, all agents that got no answer are named with their episodes: they count, too.
    """
    names: dict[str, Any] = {
        "policy": policy,
        "version": group.policy.version,
        "episode_id": group.asks.episode_ids[0],
    }
    if (split := group.mandate.split) is not None:
        names |= {"experiment": split.experiment, "shares": dict(split.shares)}
        agents = zip(group.asks.agent_ids, group.asks.episode_ids, _dealt(group)["dealt"], strict=True)
        names["without_answer"] = [list(one) for one in agents]
    return record("unanswered", **names, **_token(group), error=str(error)) | {"agent_id": group.asks.agent_ids[0]}


def limited(policy: str, who: Who, count: int) -> dict[str, Any]:
    """Refusals of the rate limit: of an agent, of all who showed the token of `holder`, or, with neither, of all."""
    found = record("limited", policy=policy, limited=True, num_refused=count)
    if isinstance(who, Shown):
        return found | {"agent_id": None, "holder": who.holder}
    return found | {"agent_id": who}
