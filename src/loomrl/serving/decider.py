"""Decisions, in the order of authority: a human override, the kill switch, the rate limit, the shield, the policy. Each
is on record before it is answered."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.audit import AuditLog, AuditUnwritable
from loomrl.serving.authority import Authority, Mandate
from loomrl.serving.choosing import Substitute, choose
from loomrl.serving.controls import Controls
from loomrl.serving.exploration import Draws
from loomrl.serving.limits import RateLimiter
from loomrl.serving.memory import Memories, Recalled
from loomrl.serving.metrics import Metrics
from loomrl.serving.model import STATE_OUT, NoAnswer, ServedPolicy
from loomrl.serving.overrides import Override
from loomrl.serving.packing import packed
from loomrl.serving.problems import Problem
from loomrl.serving.records import DECISION, decisions, digest, record
from loomrl.serving.requests import Asks, observation_arrays
from loomrl.serving.roles import Roles
from loomrl.serving.statistics import Statistics


@dataclass(slots=True)
class Group:
    """B asks of one request that one version, or one person, decides; column by column."""

    rows: list[int]  # their places in the request
    asks: Asks
    mandate: Mandate
    observations: NDArray[Any]  # (B, *obs)
    action: NDArray[Any] = field(init=False)  # (B, *action), in the graph's dtype
    value: NDArray[Any] | None = None  # (B,); None where a person named the action
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict)  # all that the policy's graph said
    propensity: list[float] = field(default_factory=list)  # of a deterministic choice 1; densities of sampled vectors
    explored: list[bool] = field(default_factory=list)
    shield: list[dict[str, Any] | None] = field(default_factory=list)  # where another action was taken, and why
    marks: dict[str, list[Any]] = field(default_factory=dict)  # what records say beside, where there is anything to say
    recalled: Recalled | None = None  # what a recurrent policy remembered
    substitute: Substitute | None = None  # what acts where the policy must not
    draw: int | None = None  # which random numbers, where any of them may explore
    record: dict[str, Any] = field(default_factory=dict)
    asked: float = 0.0  # `time.perf_counter()` at which the policy was asked,
    answered: float = 0.0  # and at which it had answered

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def policy(self) -> ServedPolicy:
        """The version that decides, or whose actions a person chose from."""
        return self.mandate.policy

    @property
    def override(self) -> Override | None:
        """Of the person who decides."""
        return self.mandate.override

    def only(self, indices: list[int], policy: ServedPolicy | None = None) -> "Group":
        """Some of them, before anything is decided; by another version in the same role where one is given."""
        rows = [self.rows[index] for index in indices]
        if policy is None or policy is self.policy:
            return Group(rows, self.asks.only(indices), self.mandate, self.observations[indices])
        return _group(rows, self.asks.only(indices), replace(self.mandate, policy=policy))

    def decision_id(self, index: int) -> str:
        """The id of one of its decisions, once they are written."""
        whole: str = self.record["decision_id"]
        return whole if len(self.rows) == 1 else f"{whole}.{index}"

    def decided_by(self, index: int) -> str:
        """`override`, `kill_switch`, `fallback`, `shield`, `explored` or `policy`."""
        if not self.mandate.is_on_trial:
            return self.mandate.role
        if self.shield[index] is not None:
            return "shield"
        return "explored" if self.explored[index] else "policy"


class Decider:
    """Turns asks into recorded decisions. Runs in the event loop: a decision costs microseconds."""

    def __init__(
        self,
        policy: str,
        audit: AuditLog,
        controls: Controls,
        limiter: RateLimiter,
        metrics: Metrics,
        statistics: Statistics,
        memories: Memories,
        draws: Draws,
    ) -> None:
        self.policy, self._audit, self._controls = policy, audit, controls
        self._limiter, self._metrics, self._draws = limiter, metrics, draws
        self._statistics, self._memories = statistics, memories
        self._num_draws = 0
        self._introduced: set[ServedPolicy] = set()  # those whose digests this segment names
        self._segment = ""
        self._authority = Authority(policy, controls.orders, Roles())

    def decide(self, asks: Asks, roles: Roles, started: float, route: str = "decide") -> list[Group]:
        """Decide all asks, or none; what is returned stands in the audit log already.

        `roles` is taken once per request, so that a swap never shows within one. `started` is the
        `time.perf_counter()` at which the request was whole.

        Raises:
            Problem: 400 for a bad observation, 429 with Retry-After, 503 without a policy.
            AuditUnwritable: when a decision could not be recorded; then there is none.
        """
        try:
            authority = self._authority_over(roles)
            groups = [part for group in _assign(asks, authority) for part in self._parted(group, roles)]
            self._limit([agent for group in groups if group.mandate.is_limited for agent in group.asks.agent_ids])
            groups = [decided for group in groups for decided in self._decided(group, authority, route)]
            seconds = round(time.perf_counter() - started, 7)
            for group in groups:
                group.record = _recorded(self.policy, group, seconds, route)
            self._append(groups)
        except (Problem, AuditUnwritable, *NoAnswer):
            if roles.champion is not None:
                self._statistics.count_failure(roles.champion.version, time.perf_counter() - started)
            raise
        self._remember(groups)
        self._observe(groups, started)
        return groups

    def report_refusals(self) -> None:
        """Put refusals on record that no later one has reported. From any thread.

        Raises:
            AuditUnwritable: when they cannot be; they are kept for the next time.
        """
        if refusals := self._limiter.flush():
            self._report(refusals)

    def _report(self, refusals: Mapping[str | None, int]) -> None:
        try:
            self._audit.append([_limited(self.policy, agent_id, count) for agent_id, count in refusals.items()])
        except AuditUnwritable:
            self._limiter.put_back(refusals)
            raise

    def _authority_over(self, roles: Roles) -> Authority:
        """Put together anew where people's orders or the loaded versions have changed."""
        orders, authority = self._controls.orders, self._authority
        if authority.orders is not orders or authority.roles is not roles:
            authority = self._authority = Authority(self.policy, orders, roles)
        return authority

    def _limit(self, agent_ids: list[str]) -> None:
        """What a person or the kill switch decides comes before the limit; everything else comes after it."""
        refusal = self._limiter.take(agent_ids)
        if refusal is None:
            return
        self._metrics.limited.inc()
        if refusal.num_unreported:
            self._report({refusal.agent_id: refusal.num_unreported})
        who = "all agents together" if refusal.agent_id is None else f"agent {refusal.agent_id!r}"
        wait = refusal.retry_after_seconds
        if wait == math.inf:
            raise Problem(413, f"more decisions for {who} than the burst of {refusal.burst:g}")
        raise Problem(
            429,
            f"{who} may ask {refusal.rate:g} times a second; try again in {wait:.3f} s",
            {"Retry-After": str(max(1, math.ceil(wait)))},
        )

    def _decided(self, group: Group, authority: Authority, route: str) -> list[Group]:
        """The group with its decisions; what its policy has no answer to goes to the fallback, where one is set.

        A tensor of the V2 protocol is one version's answer: there the fallback decides for the whole of it.
        """
        try:
            self._consult(group, self._substitute(group, authority))
        except NoAnswer as error:
            if group.mandate.is_on_trial:
                self._audit.append([_unanswered(self.policy, group, error)])
            if not group.mandate.is_on_trial or authority.orders.plan.fallback is None:
                raise
        else:
            return [group]
        can = [route == "decide" and _has_answer(group, index) for index in range(len(group))]
        answered, left = ([index for index, one in enumerate(can) if one is wanted] for wanted in (True, False))
        rest = group.only(left)
        found = [_group(rest.rows, rest.asks, authority.fallback)]
        found += [group.only(answered)] if answered else []
        for part in found:
            self._consult(part, self._substitute(part, authority))
        return found

    def _substitute(self, group: Group, authority: Authority) -> Substitute | None:
        """What acts where a version on trial must not. A person's choice, and the fallback itself, have none."""
        if authority.orders.plan.fallback is None or not group.mandate.is_on_trial or group.policy.guard is None:
            return None
        fallback = authority.fallback
        if fallback.action is not None:
            return Substitute(action=fallback.action)
        if fallback.policy.memory_size:
            raise Problem(
                503,
                f"the fallback, version {fallback.policy.version}, is recurrent: it cannot stand in for single "
                "decisions; set a version without memory, or one action",
            )
        return Substitute(fallback.policy)

    def _consult(self, group: Group, substitute: Substitute | None) -> None:
        """Ask the policy once for all of them, unless a person has named the action."""
        if group.mandate.action is not None:
            count = len(group)
            group.propensity, group.explored, group.shield = [1.0] * count, [False] * count, [None] * count
            group.action = np.stack([group.mandate.action] * count)
            return
        policy, asks, memory = group.policy, group.asks, None
        group.substitute = substitute
        if policy.memory_size:
            group.recalled = self._memories.recall(policy, asks.agent_ids, asks.episode_ids)
            memory = group.recalled.states
        stream = partial(self._draws.at, self._num_draws)
        group.asked = time.perf_counter()
        choices = choose(policy, group.observations, asks.explore, stream, memory, substitute)
        group.answered = time.perf_counter()
        if policy.exploration.share or any(asks.explore):
            group.draw = self._num_draws
            self._num_draws += 1
        group.action, group.value, group.outputs = choices.action, choices.value, choices.outputs
        group.propensity, group.explored, group.shield = choices.propensity, choices.explored, choices.shield
        group.marks = choices.marks if group.recalled is None else choices.marks | {"memory": group.recalled.marks}

    def _parted(self, group: Group, roles: Roles) -> list[Group]:
        """The group, taken apart where episodes stay with a version that remembers them and is still loaded."""
        if not len(self._memories) or not group.mandate.is_on_trial:
            return [group]
        found: dict[ServedPolicy, list[int]] = {}
        for index, ids in enumerate(zip(group.asks.agent_ids, group.asks.episode_ids, strict=True)):
            version = self._memories.version_of(*ids)
            policy = None if version is None else roles.by_version(version)
            found.setdefault(policy or group.policy, []).append(index)
        if found.keys() == {group.policy}:
            return [group]
        return [group.only(indices, policy) for policy, indices in found.items()]

    def _remember(self, groups: list[Group]) -> None:
        for group in groups:
            if group.recalled is not None:
                after, is_kept = group.outputs[STATE_OUT], group.mandate.is_on_trial
                self._memories.keep(group.policy, group.recalled, after, is_kept)

    def _append(self, groups: list[Group]) -> None:
        """Put them on record; before a segment's first decision by a policy stands which files it is."""
        if self._audit.segment != self._segment:
            self._segment, self._introduced = self._audit.segment, set()
        deciding = {group.policy for group in groups}
        deciding |= {group.substitute.policy for group in groups if group.substitute and group.substitute.policy}
        new = deciding - self._introduced
        self._audit.append([*(_loaded(self.policy, policy) for policy in new), *(group.record for group in groups)])
        self._introduced |= new

    def _observe(self, groups: list[Group], started: float) -> None:
        ended = time.perf_counter()
        for group in groups:
            for by, count in Counter(map(group.decided_by, range(len(group)))).items():
                self._metrics.count_decisions(group.policy.version, by, count)
            for mark in group.shield:
                if mark is not None:
                    self._metrics.count_prevented(group.policy.version, mark["by"], mark["fallback"])
            if group.mandate.action is None:
                moments = (started, group.asked, group.answered, ended)
                self._statistics.count(group.policy.version, len(group), moments)
        self._metrics.observe(ended - started)


def _assign(asks: Asks, authority: Authority) -> list[Group]:
    """Who decides which of them."""
    if authority.is_one:
        return [_group(list(range(len(asks))), asks, authority.usual)]
    found: dict[Mandate, list[int]] = {}
    for row, agent_id in enumerate(asks.agent_ids):
        found.setdefault(authority.mandate(agent_id), []).append(row)
    several = len(found) > 1
    return [_group(rows, asks.only(rows) if several else asks, mandate) for mandate, rows in found.items()]


def _group(rows: list[int], asks: Asks, mandate: Mandate) -> Group:
    return Group(rows, asks, mandate, observation_arrays(packed(asks.observations, mandate.policy), mandate.policy))


def _has_answer(group: Group, index: int) -> bool:
    try:
        memory = None if group.recalled is None else group.recalled.states[index : index + 1]
        group.policy.answer(group.observations[index : index + 1], memory)
    except NoAnswer:
        return False
    return True


def _loaded(name: str, policy: ServedPolicy) -> dict[str, Any]:
    """Which files decide under a version's name: a replay demands the same ones."""
    digests = {"onnx_sha256": policy.manifest.onnx_sha256, "shield_sha256": policy.manifest.shield_sha256}
    exploration = policy.exploration.model_dump(mode="json")
    return record("loaded", policy=name, version=policy.version, exploration=exploration, **digests)


def _recorded(policy: str, group: Group, seconds: float, route: str) -> dict[str, Any]:
    """The record of a group: one decision, or several."""
    shared = {
        "policy": policy,
        "version": group.policy.version,
        "role": group.mandate.role,
        "assignment_probability": group.mandate.probability,
        "experiment": group.mandate.experiment,
        "override": None if group.override is None else group.override.mark(),
        "route": route,
        "seconds": seconds,
        "draw": group.draw,
    }
    if group.substitute is not None:
        shared["substitute"] = group.substitute.mark()
    if len(group) == 1:
        return _decision(group, shared)
    columns = {
        "agent_id": group.asks.agent_ids,
        "episode_id": group.asks.episode_ids,
        "observation": group.observations,
        "action": group.action,
        "value": [None] * len(group) if group.value is None else group.value.tolist(),
        "propensity": group.propensity,
        "exploration_flag": group.explored,
        "shield": group.shield,
        "request_id": group.asks.request_ids or [None] * len(group),
        **group.marks,
    }
    dtypes = {"observation": group.observations.dtype.name, "action": group.action.dtype.name}
    return decisions({"count": len(group), "dtypes": dtypes, **shared}, columns)


def _decision(group: Group, shared: dict[str, Any]) -> dict[str, Any]:
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
        **{name: values[0] for name, values in group.marks.items()},
        **shared,
    )
    fields["agent_id"] = group.asks.agent_ids[0]
    fields["action_hash"] = digest(action)
    fields["q_value"] = value  # actor-critic policies estimate V(s); it stands for Q(s, a) of their own choice
    fields["exploration_flag"] = group.explored[0]
    return fields


def _unanswered(policy: str, group: Group, error: Exception) -> dict[str, Any]:
    """On record for the first of them: which observation it was, is not known."""
    names = {"policy": policy, "version": group.policy.version, "episode_id": group.asks.episode_ids[0]}
    return record("unanswered", **names, error=str(error)) | {"agent_id": group.asks.agent_ids[0]}


def _limited(policy: str, agent_id: str | None, count: int) -> dict[str, Any]:
    return record("limited", policy=policy, limited=True, num_refused=count) | {"agent_id": agent_id}
