"""The shadow of a server: challengers decide beside the champion, in a process that may crash, hang or fall behind.

Its queue is the audit log. The process follows the server's chain and writes `shadow` records into one of its own,
`SERVER-shadow`; a decision costs the server nothing more, and what is mirrored is what is on record. The queue is
bounded: where the process falls too far behind, it skips decisions and counts them. Here it is started, told which
challengers there are, watched and ended.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from loomrl.serving.mirror.state import MAX_TEXT, Compared, ShadowState, StatePage
from loomrl.serving.policy.model import ServedPolicy
from loomrl.storage.audit.log import AuditLog
from loomrl.system.lifetime import pause_seconds

log = logging.getLogger(__name__)
MOST_FAILURES = 5  # ends of the process with one challenger at work; then that is refused
_LOOK_SECONDS = 0.1
_LOAD_SECONDS = 60.0  # until challengers are loaded: the process gets only what others leave
_FAIR_SHARE = 0.2  # of a processor: who had less and wants to run does not hang
_END_SECONDS = 5.0  # to finish what is on record
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds until a process is started again; doubled with each failure
_NOBODY = 0  # the number of failures with no challenger at work

Key = tuple[str, str]  # version and digest of the graph


@dataclass(frozen=True)
class Challenger:
    """What the shadow's process is told of a challenger. `number` stands for its version and graph, from 1 on."""

    number: int
    version: str
    folder: str
    onnx_sha256: str


class Shadow:
    """Keeps one process at work while there are challengers. A thread of its own watches it.

    A process that ends or hangs raises nothing here: it is started again, and a challenger that it failed with too
    often is named in `refused`.
    """

    def __init__(
        self,
        audit: AuditLog,
        challengers: Callable[[], Sequence[ServedPolicy]],
        backlog_bytes: int,
        hang_seconds: float = 5.0,
    ) -> None:
        self._audit, self._wanted = audit, challengers
        self._backlog_bytes, self._hang_seconds = backlog_bytes, hang_seconds
        self._page = StatePage.create(ShadowState(settled=audit.head.sequence))
        self._child: subprocess.Popen[bytes] | None = None
        self._numbers: dict[Key, int] = {}
        self._told: list[Challenger] = []
        self._failures: Counter[int] = Counter()
        self._failed: dict[str, str] | None = None  # what the next process has to put on record
        self._last_seen, self._since, self._cpu_seconds = self.state, time.monotonic(), 0.0
        self._not_before = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shadow", daemon=True)
        self.refused: dict[Key, str] = {}  # challengers that are shown nothing any more, and why
        self.num_restarts = 0

    @property
    def state(self) -> ShadowState:
        """How far the process has come, and what it counted."""
        return self._page.read()

    @property
    def pid(self) -> int | None:
        """The process id of the challengers' process; None while there is none."""
        child = self._child
        return None if child is None else child.pid

    @property
    def compared(self) -> dict[str, Compared]:
        """How challengers did beside the versions that acted, by the challenger's version."""
        found = self.state.compared
        numbers = {str(number): version for (version, _), number in self._numbers.copy().items()}
        return {numbers[number]: one for number, one in found.items() if number in numbers}

    @property
    def num_pending(self) -> int:
        """How many records of the server's log the challengers have not come to; 0 without challengers."""
        return max(0, self._audit.head.sequence - self.state.settled) if self._admitted() else 0

    def start(self) -> None:
        """Begin watching; the process is started once there is a challenger."""
        self._thread.start()

    def stop(self) -> None:
        """Let the process finish what is on record, within seconds, and end it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    # --- challengers --------------------------------------------------------------------------------------------

    def _admitted(self) -> list[ServedPolicy]:
        return [policy for policy in self._wanted() if _key(policy) not in self.refused]

    def _forget_former(self) -> None:
        """Who is no challenger any more gets another chance when it becomes one again."""
        wanted = {_key(policy) for policy in self._wanted()}
        self.refused = {key: reason for key, reason in self.refused.items() if key in wanted}
        for key in self._numbers.keys() - wanted:
            self._failures.pop(self._numbers[key], None)

    def _describe(self, policy: ServedPolicy) -> Challenger:
        number = self._numbers.setdefault(_key(policy), len(self._numbers) + 1)
        return Challenger(number, policy.version, str(policy.folder), policy.manifest.onnx_sha256)

    # --- the thread ---------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            try:
                self._look()
            except Exception:  # a thread that dies silently would leave the process unwatched
                log.exception("watching the shadow failed; it is tried again")
            if self._stopping.wait(_LOOK_SECONDS):
                break
        self._end()

    def _look(self) -> None:
        """Bury, start, tell or end the process, as the moment asks for."""
        if self._child is not None and (reason := self._why_over(self._child)):
            self._end_process(self._child, reason)
        self._forget_former()
        challengers = [self._describe(policy) for policy in self._admitted()]
        if self._child is None and not challengers and self._failed is None:
            self._follow_idly()
        elif self._child is None and time.monotonic() >= self._not_before:
            self._begin(challengers)
        elif self._child is not None and not challengers:
            self._end()
        elif self._child is not None and challengers != self._told:
            self._send_challengers(self._child, challengers)

    def _follow_idly(self) -> None:
        """A challenger begins with the decisions after it came."""
        state, sequence = self.state, self._audit.head.sequence
        if state.settled != sequence:
            state.settled = state.until = sequence
            self._page.write(state)

    def _begin(self, challengers: list[Challenger]) -> None:
        numbers = map(str, (self._page.handle, self._backlog_bytes, os.getpid()))
        command = [sys.executable, "-m", "loomrl.serving.mirror.child"]
        command += [self._audit.policy, self._audit.folder.name, *numbers]
        state = self.state
        state.loading = True
        self._page.write(state)
        self._last_seen, self._since, self._cpu_seconds = state, time.monotonic(), 0.0
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[self._page.handle])
        if self._failures and challengers:  # else it may be as fast as the server: to take them in, or to record an end
            _give_way(self._child.pid)
        self._send_challengers(self._child, challengers)
        self._failed = None

    def _send_challengers(self, child: subprocess.Popen[bytes], challengers: list[Challenger]) -> None:
        assert child.stdin is not None
        line = orjson.dumps({"challengers": challengers, "failed": self._failed}) + b"\n"
        try:
            os.write(child.stdin.fileno(), line)
        except BrokenPipeError:
            return  # it has ended, which the next look finds
        self._told = challengers

    def _end(self) -> None:
        if self._child is None:
            return
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None

    # --- failures -----------------------------------------------------------------------------------------------

    def _why_over(self, child: subprocess.Popen[bytes]) -> str | None:
        """Why the process does not do its work any more; None where it does."""
        state = self.state
        if (code := child.poll()) is not None:
            named = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}: {state.last_error}"
            return f"its process ended with {named}"
        self._note_progress(child, state)
        waited = time.monotonic() - self._since
        patient = state.loading or self._is_starved(child.pid, waited)
        return f"no answer for {waited:.1f} s" if waited > (_LOAD_SECONDS if patient else self._hang_seconds) else None

    def _note_progress(self, child: subprocess.Popen[bytes], state: ShadowState) -> None:
        idle = not state.loading and state.settled >= self._audit.head.sequence
        if idle or state != self._last_seen:
            self._since, self._cpu_seconds = time.monotonic(), _activity(child.pid)[1]
        if self._last_seen.loading and not state.loading:
            _give_way(child.pid)
        self._last_seen = state

    def _is_starved(self, pid: int, seconds: float) -> bool:
        """Whether the process wants to run and others leave it no processor, or the disk no answer."""
        doing, cpu_seconds = _activity(pid)
        return doing in ("R", "D") and cpu_seconds - self._cpu_seconds < _FAIR_SHARE * seconds

    def _end_process(self, child: subprocess.Popen[bytes], reason: str) -> None:
        """Clear the process away, and hold its end against the challenger that was at work."""
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()
        self._child = None
        self.num_restarts += 1
        number = next(iter(self.state.waiting), _NOBODY)
        self._failures[number] += 1
        pause = pause_seconds(self._failures[number], _FIRST_PAUSE, _LONGEST_PAUSE)
        self._not_before = time.monotonic() + pause
        log.error("the shadow of %s failed: %s; it is started again in %.1f s", self._audit.server, reason, pause)
        if number == _NOBODY:
            self._note(reason)
            return
        key = next(key for key, known in self._numbers.items() if known == number)
        self._failed = {"version": key[0], "reason": reason}
        if self._failures[number] >= MOST_FAILURES:
            self.refused[key] = f"failed {MOST_FAILURES} times, the last time: {reason}"
            log.error("version %s is refused as a challenger: %s", key[0], self.refused[key])

    def _note(self, reason: str) -> None:
        state = self.state
        state.last_error = reason[:MAX_TEXT]
        self._page.write(state)


def _key(policy: ServedPolicy) -> Key:
    return policy.version, policy.manifest.onnx_sha256


def _activity(pid: int) -> tuple[str, float]:
    """What a process does, in the letters of proc(5), and the processor's seconds it had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _give_way(pid: int) -> None:
    """Run a process only while no other wants the processor."""
    try:
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    except OSError as error:  # a container may forbid it, and the process may have ended
        log.warning("the shadow runs at the server's own priority: %s", error.strerror)
