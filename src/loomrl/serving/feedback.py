"""Rewards arrive later: which decisions wait for one, and the records that join them."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

from loomrl.serving.audit import AuditLog, read_records, record, segments
from loomrl.serving.problems import Problem
from loomrl.serving.requests import Feedback

_REMEMBERED = 500_000  # decisions that may still get feedback; older ones are forgotten first
_DECISION_MARK = b'{"kind":"decision"'  # how a decision's line begins
_Decision = tuple[str, str | None, str]  # agent_id, episode_id, version


class FeedbackLedger:
    """Knows each recent decision and whether its feedback has come; rebuilt from the log after a restart.

    Raises:
        ArtifactError: naming a line of the log that was changed.
    """

    def __init__(self, policy: str, audit: AuditLog, capacity: int = _REMEMBERED) -> None:
        self._policy, self._audit, self._capacity = policy, audit, capacity
        self._waiting: OrderedDict[str, _Decision | None] = OrderedDict()  # None: feedback has come
        self._rebuild()

    def remember(self, decisions: list[dict[str, Any]]) -> None:
        """Expect feedback for these decisions."""
        for decision in decisions:
            self._waiting[decision["decision_id"]] = (
                decision["agent_id"], decision["episode_id"], decision["version"],
            )  # fmt: skip
        while len(self._waiting) > self._capacity:
            self._waiting.popitem(last=False)

    def accept(self, entries: list[Feedback]) -> None:
        """Record feedback, all entries or none.

        Raises:
            Problem: 404 for an unknown decision, 409 for one that has its feedback.
            AuditUnwritable: when it cannot be recorded; it may be sent again.
        """
        seen: set[str] = set()
        for entry in entries:
            if entry.decision_id not in self._waiting:
                raise Problem(404, f"decision {entry.decision_id!r} is unknown here, or too old for feedback")
            if self._waiting[entry.decision_id] is None or entry.decision_id in seen:
                raise Problem(409, f"decision {entry.decision_id!r} has its feedback already")
            seen.add(entry.decision_id)
        self._audit.append([self._record(entry) for entry in entries])
        for entry in entries:
            self._waiting[entry.decision_id] = None

    def _record(self, entry: Feedback) -> dict[str, Any]:
        agent_id, episode_id, version = self._waiting[entry.decision_id] or ("", None, "")
        ended = {"terminated": entry.terminated, "truncated": entry.truncated}
        names = {"decision_id": entry.decision_id, "episode_id": episode_id, "policy": self._policy, "version": version}
        return record("feedback", **names, **ended) | {"agent_id": agent_id, "reward": entry.reward}

    def _rebuild(self) -> None:
        """Read back from as many of the newest segments as hold enough decisions, oldest first, line by line."""
        for path in self._newest():
            for entry in read_records(path):
                if entry["kind"] == "decision":
                    self.remember([entry])
                elif entry["kind"] == "feedback" and entry["decision_id"] in self._waiting:
                    self._waiting[entry["decision_id"]] = None

    def _newest(self) -> list[Path]:
        paths = segments(self._audit.folder)
        num_decisions = 0
        for index in reversed(range(len(paths))):
            with paths[index].open("rb") as file:
                num_decisions += sum(line.startswith(_DECISION_MARK) for line in file)
            if num_decisions >= self._capacity:
                return paths[index:]
        return paths
