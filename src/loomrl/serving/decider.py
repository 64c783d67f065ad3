"""Decisions, in the order of authority: a human override, the rate limit, the shield, the policy. Each is on record
before it is answered."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.actions import check_action
from loomrl.serving.audit import AuditLog, AuditUnwritable
from loomrl.serving.exploration import explore
from loomrl.serving.limits import RateLimiter, Refusal
from loomrl.serving.metrics import Metrics
from loomrl.serving.mirror import Mirror, Mirrored
from loomrl.serving.model import Answer, NoAnswer, ServedPolicy
from loomrl.serving.overrides import Override, OverrideStore
from loomrl.serving.problems import Problem
from loomrl.serving.records import DECISION, decisions, digest, record
from loomrl.serving.requests import Asks, observation_arrays
from loomrl.serving.roles import Roles
from loomrl.serving.statistics import Statistics


@dataclass(slots=True)
class Group:
    """B asks of one request that one version, or one override, decides; column by column."""

    rows: list[int]  # their places in the request
    asks: Asks
    policy: ServedPolicy
    override: Override | None
    observations: NDArray[Any]  # (B, *obs)
    action: NDArray[Any] = field(init=False)  # (B, *action), in the graph's dtype
    value: NDArray[Any] | None = None  # (B,); None where a person pinned the action
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict)  # all that the policy's graph said
    propensity: list[float] = field(default_factory=list)  # of a deterministic choice 1; densities of sampled vectors
    chosen: list[int | None] = field(default_factory=list)  # by the policy, where the shield took another action
    record: dict[str, Any] = field(default_factory=dict)
    asked: float = 0.0  # `time.perf_counter()` at which the policy was asked,
    answered: float = 0.0  # and at which it had answered

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def pinned(self) -> bool:
        """Whether a person named the action."""
        return self.override is not None and self.override.version is None

    def decision_id(self, index: int) -> str:
        """The id of one of its decisions, once they are written."""
        whole: str = self.record["decision_id"]
        return whole if len(self.rows) == 1 else f"{whole}.{index}"

    def decided_by(self, index: int) -> str:
        """`override`, `shield`, `explored` or `policy`."""
        if self.override is not None:
            return "override"
        if self.chosen[index] is not None:
            return "shield"
        return "explored" if self.asks.explore[index] else "policy"


class Decider:
    """Turns asks into recorded decisions. Runs in the event loop: a decision costs microseconds."""

    def __init__(
        self,
        policy: str,
        audit: AuditLog,
        overrides: OverrideStore,
        limiter: RateLimiter,
        mirror: Mirror,
        metrics: Metrics,
        statistics: Statistics,
        rng: np.random.Generator,
    ) -> None:
        self.policy, self._audit, self._overrides = policy, audit, overrides
        self._limiter, self._mirror, self._metrics, self._rng = limiter, mirror, metrics, rng
        self._statistics = statistics

    def decide(self, asks: Asks, roles: Roles, started: float, route: str = "decide") -> list[Group]:
        """Decide all asks, or none; what is returned stands in the audit log already.

        `roles` is taken once per request, so that a swap never shows within one. `started` is the
        `time.perf_counter()` at which the request was whole.

        Raises:
            Problem: 400 for a bad observation, 429 with Retry-After, 503 without a policy.
            AuditUnwritable: when a decision could not be recorded; then there is none.
        """
        try:
            groups = self._assign(asks, roles)
            self._limit([agent for group in groups if not group.pinned for agent in group.asks.agent_ids])
            for group in groups:
                self._consult(group)
            seconds = round(time.perf_counter() - started, 7)
            for group in groups:
                group.record = _recorded(self.policy, group, seconds, route)
            self._audit.append([group.record for group in groups])
        except (Problem, AuditUnwritable, *NoAnswer):
            if roles.champion is not None:
                self._statistics.count_failure(roles.champion.version, time.perf_counter() - started)
            raise
        self._observe(groups, started)
        if roles.challenger is not None:
            self._offer(groups, roles.challenger)
        return groups

    def report_refusals(self) -> None:
        """Put refusals on record that no later one has reported. From any thread.

        Raises:
            AuditUnwritable: when they cannot be; they are kept for the next time.
        """
        if refusals := self._limiter.flush():
            self._report(refusals)

    def _report(self, refusals: list[Refusal]) -> None:
        try:
            self._audit.append([_limited(self.policy, refusal) for refusal in refusals])
        except AuditUnwritable:
            self._limiter.put_back(refusals)
            raise

    def _assign(self, asks: Asks, roles: Roles) -> list[Group]:
        """Who decides which of them."""
        if not self._overrides:
            return [self._group(list(range(len(asks))), asks, None, roles)]
        found: dict[str, tuple[Override | None, list[int]]] = {}
        for row, agent_id in enumerate(asks.agent_ids):
            override = self._overrides.find(agent_id)
            found.setdefault("" if override is None else override.id, (override, []))[1].append(row)
        return [self._group(rows, asks.only(rows), override, roles) for override, rows in found.values()]

    def _group(self, rows: list[int], asks: Asks, override: Override | None, roles: Roles) -> Group:
        policy = roles.champion
        if override is not None and override.version is not None:
            policy = roles.by_version(override.version)
            if policy is None:
                raise Problem(
                    503, f"{override.describe()}; that version is not loaded: see /status, or clear the override"
                )
        if policy is None:
            raise Problem(
                503, f"{self.policy} has no champion yet; run `loomrl run`, or see /status for a refused version"
            )
        return Group(rows, asks, policy, override, observation_arrays(asks.observations, policy))

    def _limit(self, agent_ids: list[str]) -> None:
        """A person's pinned action comes before the limit; everything the policy decides comes after it."""
        refusal = self._limiter.take(agent_ids)
        if refusal is None:
            return
        self._metrics.limited.inc()
        if refusal.num_unreported:
            self._report([refusal])
        if agent_ids.count(refusal.agent_id) > self._limiter.burst:
            raise Problem(
                413, f"more decisions for agent {refusal.agent_id!r} than its burst of {self._limiter.burst:g}"
            )
        wait = refusal.retry_after_seconds
        raise Problem(
            429,
            f"agent {refusal.agent_id!r} may ask {self._limiter.rate:g} times a second; try again in {wait:.3f} s",
            {"Retry-After": str(max(1, int(wait + 0.999)))},
        )

    def _consult(self, group: Group) -> None:
        """Ask the policy once for all of them, unless a person has decided."""
        count = len(group)
        group.propensity, group.chosen = [1.0] * count, [None] * count
        if group.pinned:
            group.action = np.stack([_pinned_action(group)] * count)
            return
        group.asked = time.perf_counter()
        answer = group.policy.answer(group.observations)
        group.answered = time.perf_counter()
        group.action, group.value, group.outputs = answer.action, answer.value, answer.outputs
        if answer.chosen is not None:
            pairs = zip(answer.chosen.tolist(), answer.action.tolist(), strict=True)
            group.chosen = [chosen if chosen != taken else None for chosen, taken in pairs]
        if any(group.asks.explore):
            self._explore(group, answer)

    def _explore(self, group: Group, answer: Answer) -> None:
        group.action = group.action.copy()
        for index in range(len(group)):
            if group.asks.explore[index]:
                sample = explore(group.policy, answer, index, self._rng)
                group.action[index], group.propensity[index], group.chosen[index] = sample

    def _observe(self, groups: list[Group], started: float) -> None:
        ended = time.perf_counter()
        for group in groups:
            for index in range(len(group)):
                self._metrics.count_decision(group.policy.version, group.decided_by(index))
            if not group.pinned:
                moments = (started, group.asked, group.answered, ended)
                self._statistics.count(group.policy.version, len(group), moments)
        self._metrics.observe(ended - started)

    def _offer(self, groups: list[Group], challenger: ServedPolicy) -> None:
        """Mirror what the policy itself decided: a person's or a random choice says nothing about agreement."""
        for group in groups:
            if group.override is not None:
                continue
            for index, observation in enumerate(group.observations):
                if not group.asks.explore[index]:
                    self._mirror.offer(Mirrored(challenger, observation, _told(self.policy, group, index)))


def _pinned_action(group: Group) -> Any:
    assert group.override is not None
    try:
        return check_action(group.override.action, group.policy)
    except Problem as problem:  # set in the file, where the action space is not known: not the agent's fault
        raise Problem(503, f"{group.override.describe()}: {problem.message}; clear the override") from problem


def _recorded(policy: str, group: Group, seconds: float, route: str) -> dict[str, Any]:
    """The record of a group: one decision, or several."""
    shared = {
        "policy": policy,
        "version": group.policy.version,
        "override": None if group.override is None else group.override.mark(),
        "route": route,
        "seconds": seconds,
    }
    if len(group) == 1:
        return _decision(group, shared)
    shields = [None if chosen is None else {"chosen": chosen} for chosen in group.chosen]
    columns = {
        "agent_id": group.asks.agent_ids,
        "episode_id": group.asks.episode_ids,
        "observation": group.observations,
        "action": group.action,
        "value": [None] * len(group) if group.value is None else group.value.tolist(),
        "propensity": group.propensity,
        "exploration_flag": group.asks.explore,
        "shield": shields,
    }
    dtypes = {"observation": group.observations.dtype.name, "action": group.action.dtype.name}
    return decisions({"count": len(group), "dtypes": dtypes, **shared}, columns)


def _decision(group: Group, shared: dict[str, Any]) -> dict[str, Any]:
    observation, action = group.observations[0], group.action[0]
    value = None if group.value is None else float(group.value[0])
    chosen = group.chosen[0]
    fields = record(
        DECISION,
        decision_id=None,
        episode_id=group.asks.episode_ids[0],
        observation=observation if observation.ndim else observation.item(),
        observation_digest=digest(observation),
        action=action.tolist(),
        value=value,
        propensity=group.propensity[0],
        shield=None if chosen is None else {"chosen": chosen},
        limited=False,
        **shared,
    )
    fields["agent_id"] = group.asks.agent_ids[0]
    fields["action_hash"] = digest(action)
    fields["q_value"] = value  # actor-critic policies estimate V(s); it stands for Q(s, a) of their own choice
    fields["exploration_flag"] = group.asks.explore[0]
    return fields


def _told(policy: str, group: Group, index: int) -> dict[str, Any]:
    """What a mirror's record says of the decision it mirrors."""
    return {
        "decision_id": group.decision_id(index),
        "episode_id": group.asks.episode_ids[index],
        "policy": policy,
        "version": group.policy.version,
        "agent_id": group.asks.agent_ids[index],
    }


def _limited(policy: str, refusal: Refusal) -> dict[str, Any]:
    return record("limited", policy=policy, limited=True, num_refused=refusal.num_unreported) | {
        "agent_id": refusal.agent_id
    }
