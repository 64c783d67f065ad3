"""Decisions, in the order of authority: a human override, the kill switch, the rate limit, the shield, the policy. Each
is on record before it is answered."""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np

from loomrl.serving.controls.controls import Controls
from loomrl.serving.decisions import records as decision_records
from loomrl.serving.decisions.authority import Authority, DecisionSource
from loomrl.serving.decisions.choosing import Substitute, choose
from loomrl.serving.decisions.feedback import FeedbackLedger
from loomrl.serving.decisions.groups import DecisionBatch, RequestDecisions
from loomrl.serving.decisions.limits import RateLimiter, Who
from loomrl.serving.decisions.memory import Memories
from loomrl.serving.decisions.requests import DecisionRequests
from loomrl.serving.policy.exploration import Draws
from loomrl.serving.policy.model import STATE_OUT, NoAnswer, ServedPolicy
from loomrl.serving.policy.roles import Roles
from loomrl.serving.telemetry.metrics import ServerMetrics
from loomrl.serving.telemetry.statistics import InferenceStatistics
from loomrl.storage.audit.log import AuditLog, AuditUnwritable
from loomrl.system.http.problems import Problem

REFUSALS = (Problem, AuditUnwritable, *NoAnswer)  # why nothing is decided
Outcome = list[RequestDecisions] | Exception  # what became of one request: its decisions, or why there are none


class Decider:
    """Turns asks into recorded decisions. Runs in the event loop: a decision costs microseconds."""

    def __init__(
        self,
        policy: str,
        audit: AuditLog,
        controls: Controls,
        limiter: RateLimiter,
        metrics: ServerMetrics,
        statistics: InferenceStatistics,
        memories: Memories,
        ledger: FeedbackLedger,
        draws: Draws,
    ) -> None:
        self.policy, self._audit, self._controls = policy, audit, controls
        self._limiter, self._metrics, self._draws = limiter, metrics, draws
        self._statistics, self._memories, self._ledger = statistics, memories, ledger
        self._num_draws = 0
        self._introduced: set[ServedPolicy] = set()  # those whose digests this segment names
        self._segment = ""
        self._authority = Authority(policy, controls.orders, Roles())

    def decide(
        self, asks: DecisionRequests, roles: Roles, started: float, route: str = "decide", is_limited: bool = False
    ) -> list[RequestDecisions]:
        """Decide all asks of a request, or none; what is returned stands in the audit log already.

        `roles` is taken once per request, so that a swap never shows within one. `started` is the
        `time.perf_counter()` at which the request was whole. `is_limited`: the rate limit was asked already.

        Raises:
            Problem: 400 for a bad observation, 429 with Retry-After, 503 without a policy.
            AuditUnwritable: when a decision could not be recorded; then there is none.
            NotFinite, NoState, NotAllowed: where there is no answer.
        """
        try:
            authority = self._authority_over(roles)
            groups = [part for group in _assign(asks, authority) for part in self._parted(group, roles)]
            if not is_limited:
                limited = [agent for group in groups if group.mandate.is_limited for agent in group.asks.agent_ids]
                self._limit(limited, asks.holder)
            groups = [decided for group in groups for decided in self._decided(group, authority, route)]
            self._settle(groups, [started], route)
        except REFUSALS:
            self._count_failure(roles, started)
            raise
        return [RequestDecisions.whole(group) for group in groups]

    def decide_together(
        self, requests: Sequence[DecisionRequests], roles: Roles, starts: Sequence[float], route: str
    ) -> list[Outcome]:
        """Decide requests that came at the same time: each wholly or not at all, whatever becomes of the others.

        Where one version decides for everyone they are one group: one run of its graph, one record, one write. Where
        that does not work out, each is decided by itself.
        """
        authority = self._authority_over(roles)
        if not self._can_join(authority):
            return [self._alone(asks, roles, started, route) for asks, started in zip(requests, starts, strict=True)]
        outcomes: list[Outcome] = [self._refused(asks, roles, starts[n], authority) for n, asks in enumerate(requests)]
        places = [place for place, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)]
        if not places:
            return outcomes
        joined = [requests[place] for place in places]
        try:
            found: Sequence[Outcome] = self._joined(joined, authority, [starts[place] for place in places], route)
        except REFUSALS:
            found = [self._alone(requests[place], roles, starts[place], route, is_limited=True) for place in places]
        for place, outcome in zip(places, found, strict=True):
            outcomes[place] = outcome
        return outcomes

    def report_refusals(self) -> None:
        """Put refusals on record that no later one has reported. From any thread.

        Raises:
            AuditUnwritable: when they cannot be; they are kept for the next time.
        """
        if refusals := self._limiter.flush():
            self._report(refusals)

    def _can_join(self, authority: Authority) -> bool:
        """Whether one version without memory decides for everyone."""
        if not authority.is_one or authority.roles.champion is None or len(self._memories):
            return False
        return authority.usual.action is None and not authority.usual.policy.memory_size

    def _refused(self, asks: DecisionRequests, roles: Roles, started: float, authority: Authority) -> Outcome:
        """Why the rate limit refuses a request; an empty outcome where it does not."""
        if authority.usual.is_limited:
            try:
                self._limit(asks.agent_ids, asks.holder)
            except (Problem, AuditUnwritable) as error:
                self._count_failure(roles, started)
                return error
        return []

    def _joined(
        self, requests: Sequence[DecisionRequests], authority: Authority, starts: Sequence[float], route: str
    ) -> list[Outcome]:
        """What is decided about each of several requests as one group; raises as `decide` does."""
        rows = list(chain.from_iterable(range(len(asks)) for asks in requests))
        group = DecisionBatch.of(rows, DecisionRequests.joined(requests), authority.usual)
        self._consult(group, self._substitute(group, authority))
        self._settle([group], starts, route)
        parts, start = list[Outcome](), 0
        for asks in requests:
            stop = start + len(asks)
            parts.append([RequestDecisions(group, start, stop)])
            start = stop
        return parts

    def _alone(
        self, asks: DecisionRequests, roles: Roles, started: float, route: str, is_limited: bool = False
    ) -> Outcome:
        try:
            return self.decide(asks, roles, started, route, is_limited)
        except REFUSALS as error:
            return error

    def _report(self, refusals: Mapping[Who, int]) -> None:
        try:
            records = [decision_records.limited(self.policy, who, count) for who, count in refusals.items()]
            self._audit.append(records)
        except AuditUnwritable:
            self._limiter.put_back(refusals)
            raise

    def _authority_over(self, roles: Roles) -> Authority:
        """Put together anew where people's orders or the loaded versions have changed."""
        orders, authority = self._controls.orders, self._authority
        if authority.orders is not orders or authority.roles is not roles:
            authority = self._authority = Authority(self.policy, orders, roles)
        return authority

    def _limit(self, agent_ids: list[str], holder: str) -> None:
        """What a person or the kill switch decides comes before the limit; everything else comes after it."""
        refusal = self._limiter.take(agent_ids, holder)
        if refusal is None:
            return
        self._metrics.limited.inc()
        if refusal.num_unreported:
            self._report({refusal.who: refusal.num_unreported})
        who = _named(refusal.who)
        wait = refusal.retry_after_seconds
        if wait == math.inf:
            raise Problem(413, f"more decisions for {who} than the burst of {refusal.burst:g}")
        raise Problem(
            429,
            f"{who} may ask {refusal.rate:g} times a second; try again in {wait:.3f} s",
            {"Retry-After": str(max(1, math.ceil(wait)))},
        )

    def _decided(self, group: DecisionBatch, authority: Authority, route: str) -> list[DecisionBatch]:
        """The group with its decisions; what its policy has no answer to goes to the fallback, where one is set.

        A tensor of the V2 protocol is one version's answer: there the fallback decides for the whole of it.
        """
        try:
            self._consult(group, self._substitute(group, authority))
        except NoAnswer as error:
            if group.mandate.is_on_trial:
                self._audit.append([decision_records.unanswered(self.policy, group, error)])
            if not group.mandate.is_on_trial or authority.orders.plan.fallback is None:
                raise
        else:
            return [group]
        can = [route == "decide" and _has_answer(group, index) for index in range(len(group))]
        answered, left = ([index for index, one in enumerate(can) if one is wanted] for wanted in (True, False))
        rest = group.only(left)
        found = [DecisionBatch.of(rest.rows, rest.asks, authority.fallback)]
        found += [group.only(answered)] if answered else []
        for part in found:
            self._consult(part, self._substitute(part, authority))
        return found

    def _substitute(self, group: DecisionBatch, authority: Authority) -> Substitute | None:
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

    def _consult(self, group: DecisionBatch, substitute: Substitute | None) -> None:
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

    def _parted(self, group: DecisionBatch, roles: Roles) -> list[DecisionBatch]:
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

    def _settle(self, groups: list[DecisionBatch], starts: Sequence[float], route: str) -> None:
        """Put on record what was decided, expect feedback, remember what recurrent policies know now, and count it."""
        seconds = round(time.perf_counter() - starts[0], 7)
        num_together = sum(map(len, groups))
        for group in groups:
            group.record = decision_records.decided(self.policy, group, seconds, num_together, route)
        self._append(groups)
        self._ledger.remember(groups)
        for group in groups:
            if group.recalled is not None:
                after, is_kept = group.outputs[STATE_OUT], group.mandate.is_on_trial
                self._memories.keep(group.policy, group.recalled, after, is_kept)
        self._observe(groups, starts)

    def _append(self, groups: list[DecisionBatch]) -> None:
        """Put them on record; before a segment's first decision by a policy stands which files it is."""
        if self._audit.segment != self._segment:
            self._segment, self._introduced = self._audit.segment, set()
        deciding = {group.policy for group in groups if group.policy.is_loaded}
        deciding |= {group.substitute.policy for group in groups if group.substitute and group.substitute.policy}
        new = deciding - self._introduced
        introductions = [decision_records.loaded(self.policy, policy) for policy in new]
        self._audit.append([*introductions, *(group.record for group in groups)])
        self._introduced |= new

    def _observe(self, groups: list[DecisionBatch], starts: Sequence[float]) -> None:
        ended = time.perf_counter()
        for group in groups:
            for by, count in group.decided_by().items():
                self._metrics.count_decisions(group.policy.version, by, count)
            for mark in filter(None, group.shield):
                self._metrics.count_prevented(group.policy.version, mark["by"], mark["fallback"])
            if group.mandate.action is None:
                moments = (starts[0], group.asked, group.answered, ended)
                self._statistics.count(group.policy.version, len(group), moments, len(starts))
        self._metrics.observe([ended - started for started in starts])

    def _count_failure(self, roles: Roles, started: float) -> None:
        if roles.champion is not None:
            self._statistics.count_failure(roles.champion.version, time.perf_counter() - started)


def _assign(asks: DecisionRequests, authority: Authority) -> list[DecisionBatch]:
    """Who decides which of them."""
    if authority.is_one:
        return [DecisionBatch.of(list(range(len(asks))), asks, authority.usual)]
    found: dict[DecisionSource, list[int]] = {}
    for row, agent_id in enumerate(asks.agent_ids):
        found.setdefault(authority.mandate(agent_id), []).append(row)
    several = len(found) > 1
    return [DecisionBatch.of(rows, asks.only(rows) if several else asks, mandate) for mandate, rows in found.items()]


def _named(who: Who) -> str:
    match who:
        case None:
            return "all agents together"
        case str():
            return f"agent {who!r}"
    return str(who)


def _has_answer(group: DecisionBatch, index: int) -> bool:
    try:
        memory = None if group.recalled is None else group.recalled.states[index : index + 1]
        group.policy.answer(group.observations[index : index + 1], memory)
    except NoAnswer:
        return False
    return True
