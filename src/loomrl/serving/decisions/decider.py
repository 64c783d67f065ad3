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
from loomrl.serving.decisions.batches import DecisionBatch, RequestDecisions
from loomrl.serving.decisions.choosing import Substitute, choose
from loomrl.serving.decisions.feedback import FeedbackLedger
from loomrl.serving.decisions.limits import RateLimiter, Who
from loomrl.serving.decisions.memory import Memories
from loomrl.serving.decisions.requests import DecisionRequests
from loomrl.serving.policy.exploration import Draws
from loomrl.serving.policy.model import STATE_OUT, NoAnswer, ServedPolicy
from loomrl.serving.policy.roles import Roles
from loomrl.serving.telemetry.metrics import ServerMetrics
from loomrl.serving.telemetry.statistics import InferenceStatistics
from loomrl.storage.audit.log import AuditLog, AuditUnwritable
from loomrl.storage.audit.records import timestamp
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
        self, requests: DecisionRequests, roles: Roles, started: float, route: str = "decide", is_limited: bool = False
    ) -> list[RequestDecisions]:
        """Decide all asks of a request, or none; what is returned stands in the audit log already.

        `roles` is taken once per request, so that a swap never shows within one. `started` is the
        `time.perf_counter()` at which the request was whole. `is_limited`: the rate limit was asked already.

        Raises:
            Problem: 400 for a bad observation, 429 with Retry-After, 503 without a policy.
            AuditUnwritable: when a decision could not be recorded; then there is none.
            NotFinite, NoState, NotAllowed: where there is no answer.
        """
        moment = timestamp()  # of the request: before it matters which version decides for whom
        try:
            authority = self._authority_for(roles)
            batches = [part for batch in _assign(requests, authority) for part in self._split_by_memory(batch, roles)]
            if not is_limited:
                limited = [agent for batch in batches if batch.source.is_limited for agent in batch.requests.agent_ids]
                self._limit(limited, requests.holder)
            batches = [
                decided for batch in batches for decided in self._decided(batch, requests, authority, moment, route)
            ]
            self._settle(batches, moment, [started], route)
        except REFUSALS:
            self._count_failure(roles, started)
            raise
        return [RequestDecisions.whole(batch) for batch in batches]

    def decide_together(
        self, all_requests: Sequence[DecisionRequests], roles: Roles, starts: Sequence[float], route: str
    ) -> list[Outcome]:
        """Decide requests that came at the same time: each wholly or not at all, whatever becomes of the others.

        Returns for each request, in their order, its recorded decisions, or the error that `decide` would have raised.
        Where one version decides for everyone they are one group: one run of its graph, one record, one write. Where
        that does not work out, each is decided by itself.
        """
        authority = self._authority_for(roles)
        if not self._can_join(authority):
            return [
                self._decide_alone(requests, roles, started, route)
                for requests, started in zip(all_requests, starts, strict=True)
            ]
        outcomes: list[Outcome] = [
            self._refused(requests, roles, starts[n], authority) for n, requests in enumerate(all_requests)
        ]
        places = [place for place, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)]
        if not places:
            return outcomes
        joined = [all_requests[place] for place in places]
        try:
            found: Sequence[Outcome] = self._joined(joined, authority, [starts[place] for place in places], route)
        except REFUSALS:
            found = [
                self._decide_alone(all_requests[place], roles, starts[place], route, is_limited=True)
                for place in places
            ]
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

    def _refused(self, requests: DecisionRequests, roles: Roles, started: float, authority: Authority) -> Outcome:
        """Why the rate limit refuses a request; an empty outcome where it does not."""
        if authority.usual.is_limited:
            try:
                self._limit(requests.agent_ids, requests.holder)
            except (Problem, AuditUnwritable) as error:
                self._count_failure(roles, started)
                return error
        return []

    def _joined(
        self, all_requests: Sequence[DecisionRequests], authority: Authority, starts: Sequence[float], route: str
    ) -> list[Outcome]:
        """What is decided about each of several requests as one group; raises as `decide` does."""
        rows, moment = list(chain.from_iterable(range(len(requests)) for requests in all_requests)), timestamp()
        batch = DecisionBatch.of(rows, DecisionRequests.joined(all_requests), authority.usual)
        self._consult(batch, self._substitute(batch, authority))
        self._settle([batch], moment, starts, route)
        outcomes, start = list[Outcome](), 0
        for requests in all_requests:
            stop = start + len(requests)
            outcomes.append([RequestDecisions(batch, start, stop)])
            start = stop
        return outcomes

    def _decide_alone(
        self, requests: DecisionRequests, roles: Roles, started: float, route: str, is_limited: bool = False
    ) -> Outcome:
        try:
            return self.decide(requests, roles, started, route, is_limited)
        except REFUSALS as error:
            return error

    def _report(self, refusals: Mapping[Who, int]) -> None:
        try:
            records = [decision_records.limited(self.policy, who, count) for who, count in refusals.items()]
            self._audit.append(records)
        except AuditUnwritable:
            self._limiter.put_back(refusals)
            raise

    def _authority_for(self, roles: Roles) -> Authority:
        """Who decides for whom now; made anew where people's orders or the loaded versions have changed."""
        orders, authority = self._controls.orders, self._authority
        unknown = self._controls.unknown or self._controls.late
        if authority.orders is not orders or authority.roles is not roles or authority.unknown != unknown:
            authority = self._authority = Authority(self.policy, orders, roles, unknown)
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

    def _decided(
        self, batch: DecisionBatch, requests: DecisionRequests, authority: Authority, moment: str, route: str
    ) -> list[DecisionBatch]:
        """The group with its decisions; what its policy has no answer to goes to the fallback, where one is set, and is
        on record. Without a fallback nobody who asked in these `requests` gets an answer, whichever group it is in.
        """
        try:
            self._consult(batch, self._substitute(batch, authority))
        except NoAnswer as error:
            if not batch.source.is_on_trial:
                raise
            without_answer = requests
            try:
                if authority.orders.plan.fallback is None:
                    raise
                found = self._with_fallback(batch, authority, route)
                without_answer = found[0].requests
            finally:
                self._audit.append([decision_records.unanswered(self.policy, batch, without_answer, moment, error)])
            return found
        return [batch]

    def _with_fallback(self, batch: DecisionBatch, authority: Authority, route: str) -> list[DecisionBatch]:
        """The group with its decisions where its policy has no answer to all of it: what the fallback decides comes
        first.

        A tensor of the V2 protocol is one version's answer: there the fallback decides for the whole of it.
        """
        can = [route == "decide" and _has_answer(batch, index) for index in range(len(batch))]
        answered, left = ([index for index, one in enumerate(can) if one is wanted] for wanted in (True, False))
        rest = batch.only(left)
        found = [DecisionBatch.of(rest.rows, rest.requests, authority.fallback)]
        found += [batch.only(answered)] if answered else []
        for part in found:
            self._consult(part, self._substitute(part, authority))
        return found

    def _substitute(self, batch: DecisionBatch, authority: Authority) -> Substitute | None:
        """What acts where a version on trial must not. A person's choice, and the fallback itself, have none."""
        if authority.orders.plan.fallback is None or not batch.source.is_on_trial or batch.policy.guard is None:
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

    def _consult(self, batch: DecisionBatch, substitute: Substitute | None) -> None:
        """Ask the policy once for all of them, unless a person has named the action."""
        if batch.source.action is not None:
            count = len(batch)
            batch.propensity, batch.explored, batch.shield = [1.0] * count, [False] * count, [None] * count
            batch.action = np.stack([batch.source.action] * count)
            return
        policy, requests, memory = batch.policy, batch.requests, None
        batch.substitute = substitute
        if policy.memory_size:
            batch.recalled = self._memories.recall(policy, requests.agent_ids, requests.episode_ids)
            memory = batch.recalled.states
        stream = partial(self._draws.at, self._num_draws)
        batch.asked = time.perf_counter()
        choices = choose(policy, batch.observations, requests.explore, stream, memory, substitute)
        batch.answered = time.perf_counter()
        if policy.exploration.share or any(requests.explore):
            batch.draw = self._num_draws
            self._num_draws += 1
        batch.action, batch.value, batch.outputs = choices.action, choices.value, choices.outputs
        batch.propensity, batch.explored, batch.shield = choices.propensity, choices.explored, choices.shield
        batch.marks = choices.marks if batch.recalled is None else choices.marks | {"memory": batch.recalled.marks}

    def _split_by_memory(self, batch: DecisionBatch, roles: Roles) -> list[DecisionBatch]:
        """The group, taken apart where episodes stay with a version that remembers them and is still loaded."""
        if not len(self._memories) or not batch.source.is_on_trial:
            return [batch]
        found: dict[ServedPolicy, list[int]] = {}
        for index, ids in enumerate(zip(batch.requests.agent_ids, batch.requests.episode_ids, strict=True)):
            version = self._memories.version_of(*ids)
            policy = None if version is None else roles.by_version(version)
            found.setdefault(policy or batch.policy, []).append(index)
        if found.keys() == {batch.policy}:
            return [batch]
        return [batch.only(indices, policy) for policy, indices in found.items()]

    def _settle(self, batches: list[DecisionBatch], moment: str, starts: Sequence[float], route: str) -> None:
        """Put on record what was decided, expect feedback, remember what recurrent policies know now, and count it."""
        seconds = round(time.perf_counter() - starts[0], 7)
        num_together = sum(map(len, batches))
        for batch in batches:
            batch.record = decision_records.decided(self.policy, batch, moment, seconds, num_together, route)
        self._append(batches)
        self._ledger.remember(batches)
        for batch in batches:
            if batch.recalled is not None:
                after, is_kept = batch.outputs[STATE_OUT], batch.source.is_on_trial
                self._memories.keep(batch.policy, batch.recalled, after, is_kept)
        self._observe(batches, starts)

    def _append(self, batches: list[DecisionBatch]) -> None:
        """Put them on record; before a segment's first decision by a policy stands which files it is."""
        if self._audit.segment != self._segment:
            self._segment, self._introduced = self._audit.segment, set()
        deciding = {batch.policy for batch in batches if batch.policy.is_loaded}
        deciding |= {batch.substitute.policy for batch in batches if batch.substitute and batch.substitute.policy}
        new = deciding - self._introduced
        introductions = [decision_records.loaded(self.policy, policy) for policy in new]
        self._audit.append([*introductions, *(batch.record for batch in batches)])
        self._introduced |= new

    def _observe(self, batches: list[DecisionBatch], starts: Sequence[float]) -> None:
        ended = time.perf_counter()
        for batch in batches:
            for by, count in batch.decided_by().items():
                self._metrics.count_decisions(batch.policy.version, by, count)
            for mark in filter(None, batch.shield):
                self._metrics.count_prevented(batch.policy.version, mark["by"], mark["fallback"])
            if batch.source.action is None:
                moments = (starts[0], batch.asked, batch.answered, ended)
                self._statistics.count(batch.policy.version, len(batch), moments, len(starts))
        self._metrics.observe([ended - started for started in starts])

    def _count_failure(self, roles: Roles, started: float) -> None:
        if roles.champion is not None:
            self._statistics.count_failure(roles.champion.version, time.perf_counter() - started)


def _assign(requests: DecisionRequests, authority: Authority) -> list[DecisionBatch]:
    """Who decides which of them."""
    if authority.is_one:
        return [DecisionBatch.of(list(range(len(requests))), requests, authority.usual)]
    found: dict[DecisionSource, list[int]] = {}
    for row, agent_id in enumerate(requests.agent_ids):
        found.setdefault(authority.source_for(agent_id), []).append(row)
    is_split = len(found) > 1
    return [
        DecisionBatch.of(rows, requests.only(rows) if is_split else requests, source) for source, rows in found.items()
    ]


def _named(who: Who) -> str:
    match who:
        case None:
            return "all agents together"
        case str():
            return f"agent {who!r}"
    return str(who)


def _has_answer(batch: DecisionBatch, index: int) -> bool:
    try:
        memory = None if batch.recalled is None else batch.recalled.states[index : index + 1]
        batch.policy.answer(batch.observations[index : index + 1], memory)
    except NoAnswer:
        return False
    return True
