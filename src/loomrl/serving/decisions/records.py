"""The records that decisions leave: of one, of several, of a version that begins to decide, of what was not decided."""

from typing import Any

import numpy as np

from loomrl.serving.decisions.batches import DecisionBatch
from loomrl.serving.decisions.limits import Shown, Who
from loomrl.serving.decisions.requests import DecisionRequests, token_at
from loomrl.serving.policy.model import ServedPolicy
from loomrl.storage.audit.records import DECISION, FULL_BATCH, action_hashes, decisions, digest, record


def loaded(name: str, policy: ServedPolicy) -> dict[str, Any]:
    """The record that says which files decide under a version's name: recomputing demands the same ones."""
    digests = {"onnx_sha256": policy.manifest.onnx_sha256, "shield_sha256": policy.manifest.shield_sha256}
    exploration = policy.exploration.model_dump(mode="json")
    return record("loaded", policy=name, version=policy.version, exploration=exploration, **digests)


def decided(
    policy: str, batch: DecisionBatch, time: str, seconds: float, num_together: int, route: str
) -> dict[str, Any]:
    """The record of a batch: one decision, or several, asked for at this `time`; `num_together` decisions were made in
    these `seconds`."""
    shared = {
        "policy": policy,
        "version": batch.policy.version,
        "role": batch.source.role,
        "assignment_probability": batch.source.probability,
        "experiment": None if batch.source.split is None else batch.source.split.experiment,
        "override": None if batch.override is None else batch.override.mark(),
        "route": route,
        "seconds": seconds,
        "draw": batch.draw,
    }
    if num_together > FULL_BATCH:
        shared["num_together"] = num_together
    if batch.substitute is not None:
        shared["substitute"] = batch.substitute.mark()
    if batch.source.split is not None:
        shared["shares"] = dict(batch.source.split.shares)
    if len(batch) == 1:
        return _decision(batch, time, shared)
    columns = {
        "agent_id": batch.requests.agent_ids,
        "episode_id": batch.requests.episode_ids,
        "observation": batch.observations,
        "action": batch.action,
        "action_hash": action_hashes(batch.action),
        "q_value": [None] * len(batch) if batch.value is None else batch.value.astype(np.float64),
        "propensity": batch.propensity,
        "exploration_flag": batch.explored,
        "shield": batch.shield,
        "request_id": batch.requests.request_ids or [None] * len(batch),
        **_assigned_versions(batch),
        **batch.marks,
    }
    if batch.requests.by_token is not None:
        # One for all stands once, as `decisions` would find out row by row.
        held = shared if batch.requests.has_one_token else columns
        held["by_token"] = batch.requests.by_token
    dtypes = {"observation": batch.observations.dtype.name, "action": batch.action.dtype.name}
    return decisions({"count": len(batch), "dtypes": dtypes, "reward": None, **shared}, columns, time)


def _decision(batch: DecisionBatch, time: str, shared: dict[str, Any]) -> dict[str, Any]:
    observation, action = batch.observations[0], batch.action[0]
    value = None if batch.value is None else float(batch.value[0])
    fields = record(
        DECISION,
        timestamp=time,
        decision_id=None,
        request_id=None if batch.requests.request_ids is None else batch.requests.request_ids[0],
        episode_id=batch.requests.episode_ids[0],
        observation=observation[()],  # a number where there is but one
        observation_digest=digest(observation),
        action=action.tolist(),
        value=value,
        propensity=batch.propensity[0],
        shield=batch.shield[0],
        limited=False,
        **{name: values[0] for name, values in (batch.marks | _assigned_versions(batch)).items()},
        **_token(batch),
        **shared,
    )
    fields["agent_id"] = batch.requests.agent_ids[0]
    fields["action_hash"] = digest(action)
    fields["q_value"] = value  # actor-critic policies estimate V(s); it stands for Q(s, a) of their own choice
    fields["exploration_flag"] = batch.explored[0]
    return fields


def _assigned_versions(batch: DecisionBatch) -> dict[str, list[Any]]:
    """Which version a split deals each agent; nothing without one."""
    split = batch.source.split
    return {} if split is None else {"dealt": [split.version_of(agent_id) for agent_id in batch.requests.agent_ids]}


def _token(batch: DecisionBatch) -> dict[str, str | None]:
    """Under which token the first was asked, where it may speak for any agent; nothing where none may."""
    return {} if batch.requests.by_token is None else {"by_token": token_at(batch.requests.by_token, 0)}


def unanswered(
    policy: str, batch: DecisionBatch, requests: DecisionRequests, time: str, error: Exception
) -> dict[str, Any]:
    """The record that a version had no answer to a batch asked for at this `time`, and why. It stands under the first
    request's agent: which observation it was is not known.

    `requests` are those that got no answer from the versions they were dealt. Their agents are named with their
    episodes, with a split or without one: a decision is missing in each, and nothing else in the log shows it.
    """
    names: dict[str, Any] = {
        "policy": policy,
        "version": batch.policy.version,
        "episode_id": batch.requests.episode_ids[0],
    }
    if (split := batch.source.split) is not None:
        names |= {"experiment": split.experiment, "shares": dict(split.shares)}
    names["without_answer"] = [
        [agent_id, episode_id, None if split is None else split.version_of(agent_id), asked]
        for agent_id, episode_id, asked in zip(requests.agent_ids, requests.episode_ids, requests.explore, strict=True)
    ]
    found = record("unanswered", timestamp=time, **names, **_token(batch), error=str(error))
    return found | {"agent_id": batch.requests.agent_ids[0]}


def limited(policy: str, who: Who, count: int) -> dict[str, Any]:
    """The record of `count` refusals of the rate limit: of an agent by its id, of all who showed the token of a holder,
    or (None) of all agents together.
    """
    found = record("limited", policy=policy, limited=True, num_refused=count)
    if isinstance(who, Shown):
        return found | {"agent_id": None, "holder": who.holder}
    return found | {"agent_id": who}
