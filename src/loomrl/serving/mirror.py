"""The challenger decides mirrored requests without ever acting.

A worker thread behind a bounded queue: when the challenger cannot keep up, requests are dropped and counted, and the
champion's answers never wait. Each result becomes a `shadow` record that names the decision it mirrors.
"""

import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.serving.audit import AuditLog, AuditUnwritable
from loomrl.serving.model import Answer, NoAnswer, ServedPolicy
from loomrl.serving.records import digest, record

log = logging.getLogger(__name__)
_BATCH = 16


@dataclass(frozen=True)
class Mirrored:
    """One decision of the acting policy, to be decided again."""

    challenger: ServedPolicy
    observation: NDArray[Any]  # (*obs)
    decision: dict[str, Any]  # its ids: decision, episode, agent, policy and version


class Mirror:
    """The queue and its worker."""

    def __init__(self, audit: AuditLog, capacity: int = 4_096) -> None:
        self._audit = audit
        self._queue: queue.Queue[Mirrored | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self.num_mirrored = self.num_dropped = self.num_errors = 0
        self.last_error: str | None = None

    @property
    def num_pending(self) -> int:
        """Requests that are queued or being decided."""
        return self._queue.unfinished_tasks

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()

    def offer(self, mirrored: Mirrored) -> None:
        """Queue one decision, or drop and count it. Never waits."""
        try:
            self._queue.put_nowait(mirrored)
        except queue.Full:
            self.num_dropped += 1

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Decide what is queued, then end the worker."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < _BATCH and batch[-1] is not None and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            self._decide([entry for entry in batch if entry is not None])
            for _ in batch:
                self._queue.task_done()
            if batch[-1] is None:
                return

    def _decide(self, batch: list[Mirrored]) -> None:
        by_version: dict[str, list[Mirrored]] = {}
        for entry in batch:
            by_version.setdefault(entry.challenger.version, []).append(entry)
        for group in by_version.values():
            self._append(self._records(group))

    def _records(self, group: list[Mirrored]) -> list[dict[str, Any]]:
        challenger = group[0].challenger
        started = time.perf_counter()
        try:
            answer = challenger.answer(_stack(group, challenger))
        except Exception as error:  # noqa: BLE001 - whatever a challenger does, it is counted and never stops the server
            if len(group) > 1:  # find out which observation it was
                return [entry for single in group for entry in self._records([single])]
            self._count_error(challenger, error)
            return [_failed(group[0], error)]
        seconds = time.perf_counter() - started
        self.num_mirrored += len(group)
        return [_decided(entry, answer, index, seconds) for index, entry in enumerate(group)]

    def _count_error(self, challenger: ServedPolicy, error: Exception) -> None:
        self.num_errors += 1
        self.last_error = f"version {challenger.version}: {error}"
        level = logging.WARNING if isinstance(error, NoAnswer) else logging.ERROR
        log.log(level, "challenger version %s failed: %s", challenger.version, error)

    def _append(self, records: list[dict[str, Any]]) -> None:
        try:
            self._audit.append(records)
        except AuditUnwritable as error:
            self.num_errors += len(records)
            self.last_error = str(error)
            log.error("shadow records lost: %s", error)


def _stack(group: list[Mirrored], challenger: ServedPolicy) -> NDArray[Any]:
    observations = np.stack([entry.observation for entry in group]).astype(challenger.dtype, copy=False)
    if observations.shape[1:] != challenger.shape:
        raise ValueError(f"the challenger observes {challenger.shape}, the request has {observations.shape[1:]}")
    return observations


def _shadow(entry: Mirrored, **fields: Any) -> dict[str, Any]:
    decision = entry.decision
    return record(
        "shadow",
        decision_id=decision["decision_id"],
        episode_id=decision["episode_id"],
        policy=decision["policy"],
        version=entry.challenger.version,
        acting_version=decision["version"],
        **fields,
    ) | {"agent_id": decision["agent_id"]}


def _decided(entry: Mirrored, answer: Answer, index: int, seconds: float) -> dict[str, Any]:
    action, value = answer.action[index], float(answer.value[index])
    hashed = {"action_hash": digest(action), "q_value": value}
    return _shadow(entry, action=action.tolist(), value=value, seconds=seconds, error=None) | hashed


def _failed(entry: Mirrored, error: Exception) -> dict[str, Any]:
    return _shadow(entry, action=None, value=None, seconds=None, error=str(error))
