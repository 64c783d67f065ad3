"""Audit logs as servers write them, for tests of what reads them."""

from typing import Any

from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record


def decide(log: AuditLog, agent: str, episode: str | None, observation: Any, version: str = "1", **changes: Any) -> str:
    """Put a decision on record; returns its id."""
    names = {"decision_id": None, "episode_id": episode, "policy": log.policy, "version": version}
    told = {"observation": observation, "action": 1, "value": 0.5, "propensity": 1.0, "override": None, **changes}
    entry = record("decision", **names, **told) | {"agent_id": agent}
    log.append([entry])
    return str(entry["decision_id"])


def reward(
    log: AuditLog, decision: str, agent: str, episode: str | None, value: float, ended: bool = False, **more: Any
) -> None:
    """Put a decision's feedback on record."""
    names = {"decision_id": decision, "episode_id": episode, "policy": log.policy, "version": "1"}
    told = {"agent_id": agent, "reward": value, **more}
    log.append([record("feedback", **names, terminated=ended, truncated=False) | told])


def play(log: AuditLog, episode: str, angles: list[float], agent: str = "a", **changes: Any) -> None:
    """One whole episode of CartPole at these pole angles, a reward of 1 a step."""
    for step, angle in enumerate(angles, start=1):
        decision = decide(log, agent, episode, [0.0, 0.0, angle, 0.0], **changes)
        reward(log, decision, agent, episode, 1.0, ended=step == len(angles))
