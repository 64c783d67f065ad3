"""Decisions, in the order of authority: a human override, the rate limit, the shield, the policy. Each is on record
before it is answered."""

import hashlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.audit import AuditLog, AuditUnwritable, record
from loomrl.serving.exploration import explore
from loomrl.serving.limits import RateLimiter, Refusal
from loomrl.serving.metrics import Metrics
from loomrl.serving.mirror import Mirror, Mirrored, action_hash
from loomrl.serving.model import ServedPolicy
from loomrl.serving.overrides import Override, OverrideStore
from loomrl.serving.problems import Problem
from loomrl.serving.requests import Ask, observation_array
from loomrl.serving.roles import Roles


@dataclass(slots=True)
class _Pending:
    """One ask on its way to a decision."""

    ask: Ask
    observation: NDArray[Any]  # (*obs)
    policy: ServedPolicy
    override: Override | None
    action: Any = None  # array or scalar of the graph's dtype
    value: float | None = None
    propensity: float = 1.0  # of a deterministic choice; a density where a continuous action was sampled
    explored: bool = False
    chosen: int | None = None  # by the policy, where the shield took another action


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
        rng: np.random.Generator,
    ) -> None:
        self.policy, self._audit, self._overrides = policy, audit, overrides
        self._limiter, self._mirror, self._metrics, self._rng = limiter, mirror, metrics, rng

    def decide(self, asks: list[Ask], roles: Roles, started: float, route: str = "decide") -> list[dict[str, Any]]:
        """The decisions' audit records, in the order of the asks, already written.

        `roles` is taken once per request, so that a swap never shows within one. `started` is the
        `time.perf_counter()` at which the request was whole.

        Raises:
            Problem: 400 for a bad observation, 429 with Retry-After, 503 without a policy.
            AuditUnwritable: when the decision could not be recorded; then there is none.
        """
        pending = [self._prepare(ask, roles) for ask in asks]
        self._limit(pending)
        self._consult(pending)
        records = self._record(pending, started, route)
        self._audit.append(records)
        self._observe(records, time.perf_counter() - started)
        if roles.challenger is not None:
            self._offer(pending, records, roles.challenger)
        return records

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

    def _prepare(self, ask: Ask, roles: Roles) -> _Pending:
        override = self._overrides.find(ask.agent_id) if self._overrides else None
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
        return _Pending(ask, observation_array(ask.observation, policy), policy, override)

    def _limit(self, pending: list[_Pending]) -> None:
        """A person's pinned action comes before the limit; everything the policy decides comes after it."""
        refusal = self._limiter.take([entry.ask.agent_id for entry in pending if not _pinned(entry)])
        if refusal is None:
            return
        self._metrics.limited.inc()
        if refusal.num_unreported:
            self._report([refusal])
        if sum(entry.ask.agent_id == refusal.agent_id for entry in pending) > self._limiter.burst:
            raise Problem(
                413, f"more decisions for agent {refusal.agent_id!r} than its burst of {self._limiter.burst:g}"
            )
        wait = refusal.retry_after_seconds
        raise Problem(
            429,
            f"agent {refusal.agent_id!r} may ask {self._limiter.rate:g} times a second; try again in {wait:.3f} s",
            {"Retry-After": str(max(1, int(wait + 0.999)))},
        )

    def _consult(self, pending: list[_Pending]) -> None:
        """Ask each policy once, for all observations it must decide."""
        groups: dict[int, list[_Pending]] = {}
        for entry in pending:
            if _pinned(entry):
                _pin_action(entry)
            else:
                groups.setdefault(id(entry.policy), []).append(entry)
        for group in groups.values():
            policy = group[0].policy
            single = len(group) == 1  # np.stack costs more than the decision
            answer = policy.answer(group[0].observation[None] if single else np.stack([e.observation for e in group]))
            for index, entry in enumerate(group):
                entry.action, entry.value = answer.action[index], float(answer.value[index])
                if entry.ask.explore:
                    entry.action, entry.propensity, entry.chosen = explore(policy, answer, index, self._rng)
                    entry.explored = True
                elif answer.chosen is not None and answer.chosen[index] != entry.action:
                    entry.chosen = int(answer.chosen[index])

    def _record(self, pending: list[_Pending], started: float, route: str) -> list[dict[str, Any]]:
        seconds = round(time.perf_counter() - started, 7)
        return [_decision(self.policy, entry, seconds, route) for entry in pending]

    def _observe(self, records: list[dict[str, Any]], seconds: float) -> None:
        for entry in records:
            self._metrics.count_decision(entry["version"], _kind(entry))
        self._metrics.observe(seconds)

    def _offer(self, pending: list[_Pending], records: list[dict[str, Any]], challenger: ServedPolicy) -> None:
        """Mirror what the policy itself decided: a person's or a random choice says nothing about agreement."""
        for entry, written in zip(pending, records, strict=True):
            if entry.override is None and not entry.explored:
                self._mirror.offer(Mirrored(challenger, entry.observation, written))


def _pinned(entry: _Pending) -> bool:
    return entry.override is not None and entry.override.version is None


def _pin_action(entry: _Pending) -> None:
    assert entry.override is not None
    try:
        entry.action = check_action(entry.override.action, entry.policy)
    except Problem as problem:  # set in the file, where the action space is not known: not the agent's fault
        raise Problem(503, f"{entry.override.describe()}: {problem.message}; clear the override") from problem


def check_action(value: Any, policy: ServedPolicy) -> Any:
    """An action a person names, in the graph's dtype.

    Raises:
        Problem: 400 when it is not in the action space.
    """
    space = policy.manifest.environment.action
    if policy.kind == "discrete":
        start, size = int(space.get("start", 0)), int(space["n"])
        if isinstance(value, bool) or not isinstance(value, int) or not start <= value < start + size:
            raise Problem(400, f"action {value!r} is not one of {start} to {start + size - 1}")
        return np.int64(value)
    if policy.chooses:
        return _check_choices(value, policy)
    try:
        action = np.array(value, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise Problem(400, f"action {value!r} is no list of numbers") from error
    shape = tuple(policy.manifest.outputs["action"]["shape"][1:])
    if action.shape != shape or not np.isfinite(action).all():
        raise Problem(400, f"action {value!r} must be {list(shape)} finite numbers")
    if policy.bounds is not None and ((action < policy.bounds[0]) | (action > policy.bounds[1])).any():
        raise Problem(400, f"action {value!r} leaves the action space's bounds")
    return action


def _check_choices(value: Any, policy: ServedPolicy) -> Any:
    """Several whole numbers, each within its own range."""
    space = policy.manifest.environment.action
    start = np.asarray(space.get("start", 0))
    size = np.asarray(space["nvec"]) if policy.kind == "multi_discrete" else np.full(space["shape"], 2)
    try:
        action = np.array(value)
    except ValueError as error:
        raise Problem(400, f"action {value!r} is ragged") from error
    if action.shape != size.shape or action.dtype.kind != "i":
        raise Problem(400, f"action {value!r} must be {list(size.shape)} whole numbers")
    if ((action < start) | (action >= start + size)).any():
        ranges = f"{start.tolist()} to {(start + size - 1).tolist()}"
        raise Problem(400, f"action {value!r} is not within {ranges}")
    return action.astype(policy.manifest.outputs["action"]["dtype"])


def _decision(policy: str, entry: _Pending, seconds: float, route: str) -> dict[str, Any]:
    fields = record(
        "decision",
        decision_id=None,
        episode_id=entry.ask.episode_id,
        policy=policy,
        version=entry.policy.version,
        observation=entry.observation.tolist(),
        observation_digest=hashlib.sha256(entry.observation.tobytes()).hexdigest(),
        action=entry.action.tolist(),
        value=entry.value,
        propensity=entry.propensity,
        override=None if entry.override is None else entry.override.mark(),
        shield=None if entry.chosen is None else {"chosen": entry.chosen},
        limited=False,
        route=route,
        seconds=seconds,
    )
    fields["agent_id"] = entry.ask.agent_id
    fields["action_hash"] = action_hash(entry.action)
    fields["q_value"] = entry.value  # actor-critic policies estimate V(s); it stands for Q(s, a) of their own choice
    fields["exploration_flag"] = entry.explored
    return fields


def _kind(decision: dict[str, Any]) -> str:
    """Who decided."""
    if decision["override"]:
        return "override"
    if decision["shield"]:
        return "shield"
    return "explored" if decision["exploration_flag"] else "policy"


def _limited(policy: str, refusal: Refusal) -> dict[str, Any]:
    return record("limited", policy=policy, limited=True, num_refused=refusal.num_unreported) | {
        "agent_id": refusal.agent_id
    }
