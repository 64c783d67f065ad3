"""A shadow's process: challengers decide again what the server's log says was decided, without ever acting.

Only `loomrl.serving.mirror.process` starts it. Each line on its standard input names the challengers that answer from
then on; where the input ends, it finishes what is on record and ends too.
"""

import gc
import logging
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from loomrl.errors import ArtifactError, LoomRLError
from loomrl.serving.decisions.memory import Memories
from loomrl.serving.mirror.state import MAX_TEXT, StatePage, shadow_folder
from loomrl.serving.policy.distance import action_distance, agrees
from loomrl.serving.policy.model import STATE_OUT, NoAnswer, PolicyOutput, ServedPolicy
from loomrl.storage.audit.columns import Columns, count_of, own_choices
from loomrl.storage.audit.following import ChainFollower
from loomrl.storage.audit.log import AuditLog, AuditUnwritable, audit_folder
from loomrl.storage.audit.records import SHADOW, digest, record, shadows
from loomrl.system.lifetime import follow_parent
from loomrl.system.pipes import LineReader

log = logging.getLogger(__name__)
_BATCH = 256  # decisions in hand, when so many wait
_MOST_AT_ONCE = 1_024  # decisions a challenger is asked about: with more, a slow one looks like one that hangs
_GARBAGE = 50_000  # objects between two searches for cycles: records have none
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.004, 0.02  # seconds between two looks at a log that does not grow
_SYNC_SECONDS = 1.0
_Json = dict[str, Any]


class Mirror:
    """Follows the acting server's chain; what challengers would have done goes into a chain of its own."""

    def __init__(self, policy: str, server: str, page: StatePage, control: int, backlog_bytes: int) -> None:
        self._page, self._control, self._backlog_bytes = page, LineReader(control), backlog_bytes
        self._state = page.read()
        followed = audit_folder(policy) / server
        self._audit = AuditLog(policy, shadow_folder(followed).name)
        self._follower = ChainFollower(followed, self._state.settled)
        self._entries: deque[_Json] = deque()  # records that were read and not looked at
        self._challengers: dict[int, ServedPolicy] = {}
        self._memories: dict[str, Memories] = {}  # by version
        self._synced = time.monotonic()

    def run(self) -> None:
        """Work until the input ends.

        Raises:
            ArtifactError: when a challenger's files are not those that the server took into service.
        """
        self._read_server(None)
        pause = _SHORTEST_PAUSE
        while (busy := self._decide_next()) or not self._control.has_ended:
            pause = _SHORTEST_PAUSE if busy else min(2 * pause, _LONGEST_PAUSE)
            self._read_server(0 if busy else pause)
            if time.monotonic() - self._synced >= _SYNC_SECONDS:
                self._sync()
        self._sync()
        self._audit.close()

    # --- what the server says -----------------------------------------------------------------------------------

    def _read_server(self, seconds: float | None) -> None:
        """Wait at most so many seconds for messages of the server, without a limit for None, and carry them out."""
        for line in self._control.read(seconds):
            told = orjson.loads(line)
            if told["failed"] is not None:
                self._record_failure(**told["failed"])
            self._load(told["challengers"])

    def _record_failure(self, version: str, reason: str) -> None:
        """Say of each decision that the process before this one had in hand why its challenger did not answer it.

        The challengers that would have come after it skip them.
        """
        state = self._state
        while not self._entries or self._entries[-1]["sequence"] < state.until:
            if not (entries := self._follower.read()):
                break
            self._entries.extend(entries)
        in_hand = []
        while self._entries and self._entries[0]["sequence"] <= state.until:
            in_hand.append(self._entries.popleft())
        asked = own_choices(in_hand)
        self._append(self._failed(asked, version, reason))
        state.num_errors += max(1, len(asked))  # at least its own end
        state.num_dropped += len(asked) * (len(state.waiting) - 1)
        state.last_error = f"version {version}: {reason}"[:MAX_TEXT]
        self._settle(max(state.settled, state.until))

    def _load(self, challengers: list[_Json]) -> None:
        held, self._challengers = self._challengers, {}
        self._state.loading = True
        for told in challengers:
            self._mark_waiting([told["number"]], self._state.settled)
            self._challengers[told["number"]] = held.get(told["number"]) or _load(told)
        self._state.loading = False
        self._settle(self._state.settled)

    # --- decisions ----------------------------------------------------------------------------------------------

    def _decide_next(self) -> bool:
        """Have all challengers decide the next batch; False when there is none yet."""
        if not self._entries:
            self._skip_where_too_far_behind()
            self._entries.extend(self._follower.read())
        if not self._entries:
            return False
        in_hand, count = [], 0
        while self._entries and count < _BATCH:
            in_hand.append(self._entries.popleft())
            count += count_of(in_hand[-1])
        until = in_hand[-1]["sequence"]
        decisions = own_choices(in_hand)
        numbers = list(self._challengers) if len(decisions) else []
        for index, number in enumerate(numbers):
            self._mark_waiting(numbers[index:], until)
            self._append(self._decide(number, decisions))
        self._settle(until)
        return True

    def _skip_where_too_far_behind(self) -> None:
        """Challengers that cannot keep up miss decisions, and these are counted."""
        if self._follower.backlog_bytes <= self._backlog_bytes:
            return
        while self._follower.backlog_bytes > self._backlog_bytes // 2 and (entries := self._follower.read()):
            self._state.num_dropped += len(own_choices(entries)) * len(self._challengers)
            self._settle(entries[-1]["sequence"])

    def _decide(self, number: int, decisions: Columns) -> list[_Json]:
        """Records for the decisions of other versions: one of the split would agree with itself."""
        own = self._challengers[number].version
        of_others = decisions.only([version != own for version in decisions.of("version")])
        records: list[_Json] = []
        for asked in of_others.parts(_MOST_AT_ONCE):
            records += self._answer(number, asked)
        return records

    def _answer(self, number: int, asked: Columns) -> list[_Json]:
        """One record for all of them; where there is no answer, that of each that has one, and the error's."""
        challenger = self._challengers[number]
        self._state.num_asked += 1
        self._page.write(self._state)
        started = time.thread_time()  # not the clock's: this process waits for all others
        try:
            answer = self._ask(challenger, asked)
        except Exception as error:  # noqa: BLE001 - whatever a challenger does is counted, and on record
            if len(asked) > 1:  # find out which observation it was
                halves = asked.parts((len(asked) + 1) // 2)
                return [entry for half in halves for entry in self._answer(number, half)]
            self._count_error(challenger, error)
            return self._failed(asked, challenger.version, str(error))
        seconds = (time.thread_time() - started) / len(asked)
        self._state.num_mirrored += len(asked)
        self._compare(number, asked, answer)
        return [_decided(self._audit.policy, asked, challenger.version, answer, seconds)]

    def _failed(self, asked: Columns, version: str, reason: str) -> list[_Json]:
        fields = {"action": None, "value": None, "seconds": None, "error": reason}
        return [_shadow(self._audit.policy, names, version, **fields) for names in _rows(asked)]

    def _compare(self, number: int, asked: Columns, answer: PolicyOutput) -> None:
        """Count how many of the decisions it would have taken alike, and what both versions expected of them.

        Actions of another shape than its own are no actions of its task: a version of another kind took them.
        """
        challenger = self._challengers[number]
        taken, rows = _taken(asked, answer.action.shape[1:])
        if len(taken):
            distance = action_distance(taken, answer.action[rows], challenger)
            values = answer.value[rows], asked.array("value")[rows]
            self._state.compare(number, int(agrees(distance, challenger).sum()), *values)

    def _ask(self, challenger: ServedPolicy, asked: Columns) -> PolicyOutput:
        """One that is recurrent remembers of an episode what it was shown: decisions that their version chose."""
        observations = _observations(asked, challenger)
        if not challenger.memory_size:
            return challenger.answer(observations)
        memories = self._memories.setdefault(challenger.version, Memories())
        recalled = memories.recall(challenger, asked.of("agent_id"), asked.of("episode_id"))
        answer = challenger.answer(observations, recalled.states)
        memories.keep(challenger, recalled, answer.outputs[STATE_OUT], is_kept=True)
        return answer

    def _count_error(self, challenger: ServedPolicy, error: Exception) -> None:
        self._state.num_errors += 1
        reason = f"version {challenger.version}: {error}"[:MAX_TEXT]
        if reason != self._state.last_error:  # once, not for each of thousands
            log.log(logging.WARNING if isinstance(error, NoAnswer) else logging.ERROR, "challenger %s", reason)
        self._state.last_error = reason

    # --- what is on record --------------------------------------------------------------------------------------

    def _mark_waiting(self, numbers: list[int], until: int) -> None:
        self._state.waiting, self._state.until = numbers, until
        self._page.write(self._state)

    def _settle(self, sequence: int) -> None:
        self._state.settled = sequence
        self._mark_waiting([], sequence)

    def _append(self, records: Sequence[_Json]) -> None:
        try:
            self._audit.append(records)
        except AuditUnwritable as error:
            self._report(len(records), error)

    def _sync(self) -> None:
        self._synced, head = time.monotonic(), self._audit.head
        try:
            self._audit.sync()
        except AuditUnwritable as error:
            self._report(0, error)
        else:
            self._state.head = asdict(head)
        self._page.write(self._state)

    def _report(self, num_lost: int, error: AuditUnwritable) -> None:
        log.error("%d shadow records lost: %s", num_lost, error)
        self._state.num_errors += num_lost
        self._state.last_error = str(error)[:MAX_TEXT]


def _load(told: _Json) -> ServedPolicy:
    challenger = ServedPolicy.load(Path(told["folder"]), told["version"])
    if challenger.manifest.onnx_sha256 != told["onnx_sha256"]:
        raise ArtifactError(
            f"{told['folder']} no longer holds the graph that the server took into service; load the version again"
        )
    return challenger


def _observations(asked: Columns, challenger: ServedPolicy) -> NDArray[Any]:
    """(B, *obs) as the challenger's graph wants them."""
    observations = asked.array("observation").astype(challenger.dtype)
    if observations.shape[1:] != challenger.shape:
        raise ValueError(f"the challenger observes {challenger.shape}, the request has {observations.shape[1:]}")
    return observations


def _taken(asked: Columns, shape: tuple[int, ...]) -> tuple[NDArray[Any], slice | list[int]]:
    """The actions of this shape that were taken, (N, *shape), and which of the decisions took them."""
    with suppress(ValueError):  # of versions that act in different spaces
        if (actions := asked.array("action")).shape[1:] == shape:
            return actions, slice(None)
    listed = asked.of("action")
    rows = [row for row, action in enumerate(listed) if np.shape(action) == shape]
    return np.array([listed[row] for row in rows]), rows


def _names(asked: Columns) -> dict[str, list[Any]]:
    """What tells each of B decisions from others beside its id, as records have it, column by column."""
    names = {"agent_id": "agent_id", "episode_id": "episode_id", "acting_version": "version"}
    return {name: asked.of(known) for name, known in names.items()}


def _rows(asked: Columns) -> list[_Json]:
    """The same of each decision, with its id."""
    columns = {"decision_id": asked.ids()} | _names(asked)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _decided(policy: str, asked: Columns, version: str, answer: PolicyOutput, seconds: float) -> _Json:
    """The record that mirrors one decision, or several."""
    if len(asked) > 1:
        columns: _Json = {"decision_id": asked.written_ids()} | _names(asked)
        columns |= {"action": answer.action, "value": answer.value.astype(np.float64)}
        told = {"version": version, "seconds": seconds, "error": None}
        dtypes = {"action": answer.action.dtype.name}
        return shadows({"count": len(asked), "dtypes": dtypes, "policy": policy, **told}, columns)
    action, value = answer.action[0], float(answer.value[0])
    hashed = {"action_hash": digest(action), "q_value": value}
    fields = {"action": action.tolist(), "value": value, "seconds": seconds, "error": None}
    return _shadow(policy, _rows(asked)[0], version, **fields) | hashed


def _shadow(policy: str, names: _Json, version: str, **fields: Any) -> _Json:
    return record(SHADOW, policy=policy, version=version, **fields) | names


def main(arguments: list[str]) -> int:
    """Run a shadow; the exit code is 0 when its input ended, else the error's.

    The arguments are the policy, the name of the acting server's chain, the file descriptor of the page of state, how
    many bytes behind the log it may be, and the server's process id.
    """
    policy, server = arguments[:2]
    state_handle, backlog_bytes, parent = map(int, arguments[2:])
    follow_parent(parent)
    gc.set_threshold(_GARBAGE)
    page = StatePage(state_handle)
    try:
        Mirror(policy, server, page, sys.stdin.fileno(), backlog_bytes).run()
    except Exception as error:  # whatever it is, the server is told
        log.error("the shadow ends: %s", error, exc_info=not isinstance(error, LoomRLError))
        state = page.read()
        state.last_error = str(error)[:MAX_TEXT]
        page.write(state)
        return error.exit_code if isinstance(error, LoomRLError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
