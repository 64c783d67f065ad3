"""Rewards arrive later: which decisions wait for one, and the records that join them."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from loomrl.serving.decisions.asking_tokens import AskingTokens
from loomrl.serving.decisions.batches import DecisionBatch
from loomrl.serving.decisions.requests import ByToken, Feedback, token_at
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import DECISION, DECISIONS, column, holds, record, record_of, row_of
from loomrl.system.http.problems import Problem
from loomrl.system.http.tokens import Holder

_REMEMBERED = 500_000  # decisions that may still get feedback; older ones are forgotten first


@dataclass(slots=True)
class _Waiting:
    """The decisions of one record."""

    agent_ids: list[str]
    episode_ids: list[str | None]
    version: str
    tokens: ByToken = None
    done: int = 0  # bit by bit those whose feedback has come: a set for each would be most of what is kept

    def is_done(self, row: int) -> bool:
        return bool(self.done >> row & 1)

    def finish(self, row: int) -> None:
        self.done |= 1 << row


class FeedbackLedger:
    """Knows each recent decision and whether its feedback has come."""

    def __init__(
        self, policy: str, audit: AuditLog, capacity: int = _REMEMBERED, asking: AskingTokens | None = None
    ) -> None:
        """`asking` are the tokens that may speak for any agent and asked for decisions, here or at other workers."""
        self._policy, self._audit, self._capacity = policy, audit, capacity
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()  # by the id of their record
        self._num_waiting = 0
        self._asking = AskingTokens() if asking is None else asking

    def remember(self, batches: Iterable[DecisionBatch]) -> None:
        """Accept feedback, from now on, for the decisions of these batches; beyond `capacity` decisions the oldest are
        forgotten.
        """
        for batch in batches:
            requests = batch.requests
            self._expect(
                batch.record["decision_id"],
                _Waiting(requests.agent_ids, requests.episode_ids, batch.policy.version, requests.by_token),
            )

    def accept(
        self, entries: list[Feedback], check: Callable[[Iterable[str]], Holder | None] = lambda _agent_ids: None
    ) -> list[tuple[str, str | None]]:
        """Record feedback, all entries or none; returns agent and episode of those that have ended. `check` returns
        whose token the sender showed.

        Raises:
            Problem: 404 for an unknown decision, 409 for one that has its feedback, 403 from a token that asks for
                decisions itself for one that another asked for, and what `check` says of the agents that the
                decisions were made for.
            AuditUnwritable: when it cannot be recorded; it may be sent again.
        """
        found = [self._find(entry.decision_id) for entry in entries]
        holder = check(waiting.agent_ids[row] for waiting, row in found)
        sender = None if holder is None else holder.shared_name
        seen: set[str] = set()
        for entry, (waiting, row) in zip(entries, found, strict=True):
            if sender is not None and token_at(waiting.tokens, row) != sender and sender in self._asking:
                raise Problem(
                    403,
                    f"decision {entry.decision_id!r} was asked for with another token; that of {sender!r} asks for "
                    "decisions itself, so it reports on its own alone: use one that asks for none",
                )
            if waiting.is_done(row) or entry.decision_id in seen:
                raise Problem(409, f"decision {entry.decision_id!r} has its feedback already")
            seen.add(entry.decision_id)
        mark = {} if sender is None else {"told_by_token": sender}
        self._audit.append([self._record(entry, *place) | mark for entry, place in zip(entries, found, strict=True)])
        for waiting, row in found:
            waiting.finish(row)
        places = zip(entries, found, strict=True)
        ended = [place for entry, place in places if entry.terminated or entry.truncated]
        return [(waiting.agent_ids[row], waiting.episode_ids[row]) for waiting, row in ended]

    def _find(self, decision_id: str) -> tuple[_Waiting, int]:
        """The record a decision stands in, and its place there."""
        waiting = self._waiting.get(record_of(decision_id))
        if waiting is not None:
            row = row_of(decision_id, len(waiting.agent_ids))
            if row is not None:
                return waiting, row
        raise Problem(404, f"decision {decision_id!r} is unknown here, or too old for feedback")

    def _record(self, entry: Feedback, waiting: _Waiting, row: int) -> dict[str, Any]:
        fields = record(
            "feedback",
            decision_id=entry.decision_id,
            episode_id=waiting.episode_ids[row],
            policy=self._policy,
            version=waiting.version,
            terminated=entry.terminated,
            truncated=entry.truncated,
        )
        told: dict[str, Any] = {} if entry.cost is None else {"cost": entry.cost}
        if waiting.tokens is not None:
            told["by_token"] = token_at(waiting.tokens, row)
        return fields | {"agent_id": waiting.agent_ids[row], "reward": entry.reward} | told

    def _expect(self, record_id: str, waiting: _Waiting) -> None:
        self._waiting[record_id] = waiting
        if waiting.tokens is not None:
            tokens = (waiting.tokens,) if isinstance(waiting.tokens, str) else waiting.tokens
            self._asking.add(token for token in tokens if token is not None)
        self._num_waiting += len(waiting.agent_ids)
        while self._num_waiting > self._capacity and len(self._waiting) > 1:
            _, forgotten = self._waiting.popitem(last=False)
            self._num_waiting -= len(forgotten.agent_ids)

    def recall(self, entry: dict[str, Any]) -> None:
        """Take up what a record of the log says, a decision or its feedback: after a restart, for the newest, oldest
        first.
        """
        if entry["kind"] in (DECISION, DECISIONS):
            self._expect(entry["decision_id"], _waiting(entry))
        elif entry["kind"] == "feedback":
            self._take_back(entry["decision_id"])

    def _take_back(self, decision_id: str) -> None:
        """Feedback came before the restart; its decision may be forgotten."""
        waiting = self._waiting.get(record_of(decision_id))
        row = None if waiting is None else row_of(decision_id, len(waiting.agent_ids))
        if waiting is not None and row is not None:
            waiting.finish(row)


def _waiting(entry: dict[str, Any]) -> _Waiting:
    """From a record of the log."""
    tokens = column(entry, "by_token") if holds(entry, "by_token") else None
    return _Waiting(
        column(entry, "agent_id"), column(entry, "episode_id"), entry.get("shared", entry)["version"], tokens
    )
