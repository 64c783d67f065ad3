"""Watches what versions decide and takes a refuted one back by itself.

A process of its own (`guardian_child`) follows the audit chains and feeds the monitors, so that it costs the server
neither its interpreter nor its time. On a trigger the server stops using the version at once; all else follows in
`loomrl.serving.guardian.consequences`. It reads the chains, not the server's memory: what it knows survives a restart,
of the server's or its own, and one guardian can watch the workers of a whole host.
"""

import contextlib
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from typing_extensions import TypedDict

from loomrl.errors import LoomRLError
from loomrl.serving.guardian.consequences import ConsequenceWorker, standard_steps
from loomrl.serving.guardian.monitor import Trigger
from loomrl.serving.guardian.quarantine import Quarantine, Quarantined
from loomrl.serving.guardian.tokens import Suspicion
from loomrl.serving.guardian.watch import Watch
from loomrl.storage.audit.records import record, timestamp
from loomrl.system.lifetime import pause_seconds
from loomrl.system.pipes import LineReader
from loomrl.types import Json

log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.05  # between looks at the process, and at what it must know
_START_SECONDS = 10.0  # that a server's start waits for it
_SILENT_SECONDS = 60.0  # it says something twice a second; the machine may be busy
_END_SECONDS = 8.0  # to take what was written last
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds until it is started again; doubled with each failure
_SHOWN = b'{"shown":'


class GuardianShown(TypedDict):
    """How the process does that watches what versions decide."""

    pid: int | None
    num_restarts: int
    last_error: str | None
    suspicions: list[str]  # since the server started: which token alone speaks against which version


@dataclass(frozen=True)
class GuardianHooks:
    """What the guardian asks of the server that it watches, or of the supervisor of several."""

    watch: Callable[[str], Watch | None]  # what is known of a version; None for one that is not loaded
    is_ready: Callable[[], bool]  # there is a version to watch
    take_out: Callable[[str], str | None]  # let a quarantined version decide no more; returns who does instead
    is_named: Callable[[str], bool]  # the registry or a person still wants this version to act
    append: Callable[[list[Json]], Any]  # to the audit log
    drop: Callable[[Quarantined], Any]  # a version, from what people planned for it
    has_registry: bool


class Guardian:
    """The monitors of one policy over one or more audit chains. A thread of its own keeps their process at work.

    A process that fails raises nothing here: it is started again, after 0.5 to 30 s, and `last_error` says why.
    """

    def __init__(
        self, policy: str, name: str, chains: Callable[[], Sequence[Path]], quarantine: Quarantine, hooks: GuardianHooks
    ) -> None:
        """`name` tells its file from other guardians' of the policy. `chains` may name more folders later."""
        self._policy, self._name, self._chains, self._quarantine, self._hooks = policy, name, chains, quarantine, hooks
        self._consequences = ConsequenceWorker(
            quarantine, standard_steps(hooks.append, hooks.drop, hooks.has_registry), hooks.is_named
        )
        self._child: subprocess.Popen[bytes] | None = None
        self._following: list[str] | None = None  # as the process was told
        self._triggered: set[str] = set()  # versions of which it is not told yet that their quarantine is on the disk
        self._begun = self._heard = self._not_before = time.monotonic()
        self._num_failures = 0  # one after the other
        self._shown = b"{}"
        self._is_up, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="guardian", daemon=True)
        self.num_restarts = 0
        self.last_error: str | None = None
        self.suspicions: list[Suspicion] = []
        self._unrecorded = deque[Suspicion]()
        self._next_record = -math.inf  # time.monotonic() seconds

    @property
    def shown(self) -> dict[str, Any]:
        """The monitors by version, as JSON values that are half a second old; empty until the process has told of
        them.
        """
        found: dict[str, Any] = orjson.loads(self._shown)
        return found

    @property
    def pid(self) -> int | None:
        """The process id of the monitors' process; None while there is none."""
        child = self._child
        return None if child is None else child.pid

    def start(self) -> None:
        """Start to watch. Returns once the process is at work, or after 10 s."""
        self._consequences.start()
        self._thread.start()
        self._is_up.wait(_START_SECONDS)

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Have the process take what was written last and keep its evidence, then end it. Waits at most
        `timeout_seconds` for that, and for the step at work of what follows from a quarantine.
        """
        deadline = time.monotonic() + timeout_seconds
        self._stopping.set()
        self._thread.join(timeout_seconds)
        self._consequences.stop(max(0.0, deadline - time.monotonic()))

    def describe(self) -> dict[str, Any]:
        """The monitors by version, the versions in quarantine, the errors of what follows from that, and the process:
        the JSON values of `GET /monitors`.
        """
        entries = [entry.to_json() | {"reason": entry.trigger.reason} for entry in self._quarantine.entries()]
        errors = dict(self._consequences.errors)
        return {
            "policy": self._policy,
            "versions": self.shown,
            "quarantined": entries,
            "errors": errors,
            "process": self.process(),
        }

    def process(self) -> GuardianShown:
        """The state of the monitors' process, as JSON values: id, restarts, last error and suspicions."""
        return {
            "pid": self.pid,
            "num_restarts": self.num_restarts,
            "last_error": self.last_error,
            "suspicions": [one.reason for one in self.suspicions],
        }

    # --- the process --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look_after_process()
                self._listen(_LOOK_SECONDS)
                self._record_suspicions()
            except Exception:  # a guardian that dies silently would protect nobody
                log.exception("guarding %s failed; it is tried again", self._policy)
                self._stopping.wait(_LOOK_SECONDS)
        self._end()

    def _look_after_process(self) -> None:
        """Start the process, send it updates, or end it, whichever is due."""
        now = time.monotonic()
        if self._child is None:
            if now >= self._not_before:
                self._begin()
            return
        if (code := self._child.poll()) is not None:
            self._listen(0)  # what it said last
            self._end_process(self._child, f"its process ended with exit code {code}")
        elif now - self._heard > _SILENT_SECONDS:
            self._end_process(self._child, f"its process said nothing for {_SILENT_SECONDS:g} s")
        else:
            self._send_updates()

    def _begin(self) -> None:
        command = [sys.executable, "-m", "loomrl.serving.guardian.child", self._policy, self._name, str(os.getpid())]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        self._hearing = LineReader(self._child.stdout.fileno())
        self._following, self._triggered = None, set()
        self._begun = self._heard = time.monotonic()
        self._send({"quarantined": [entry.version for entry in self._quarantine.entries()]})

    def _end_process(self, child: subprocess.Popen[bytes], reason: str) -> None:
        """End the process and count the failure; the next one goes on from what this one kept."""
        child.kill()
        self._close(child)
        if time.monotonic() - self._begun > _LONGEST_PAUSE:
            self._num_failures = 0
        self._num_failures += 1
        self.num_restarts += 1
        pause = pause_seconds(self._num_failures, _FIRST_PAUSE, _LONGEST_PAUSE)
        self._not_before = time.monotonic() + pause
        self.last_error = reason
        log.error("the guardian of %s failed: %s; it is started again in %.1f s", self._policy, reason, pause)

    def _end(self) -> None:
        """Let the process take what was written last, answering what it asks."""
        if self._child is None:
            return
        self._send({"end": True})
        deadline = time.monotonic() + _END_SECONDS
        while self._listen(_LOOK_SECONDS) and time.monotonic() < deadline:
            self._confirm_quarantines()
        self._child.kill()
        self._close(self._child)

    def _close(self, child: subprocess.Popen[bytes]) -> None:
        child.wait()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        child.stdout.close()
        self._child = None

    # --- what is said -------------------------------------------------------------------------------------------

    def _send_updates(self) -> None:
        """Which chains to follow: none while there is no version to watch; and who has left quarantine."""
        following = [str(folder) for folder in self._chains()] if self._hooks.is_ready() else []
        if following != self._following:
            self._send({"follow": following})
            self._following = following
        self._confirm_quarantines()
        while self._consequences.released:
            self._send({"forget": [self._consequences.released.pop()]})

    def _confirm_quarantines(self) -> None:
        """Confirm to the process each trigger whose quarantine is on the disk: at once, or when there is room again."""
        for version in sorted(self._triggered):
            if self._quarantine.is_written(version):
                self._send({"kept": version})
                self._triggered.discard(version)

    def _send(self, told: Json) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the next look finds
            os.write(self._child.stdin.fileno(), orjson.dumps(told) + b"\n")

    def _listen(self, seconds: float) -> bool:
        """Obey what the process says within this time; False where it will say no more."""
        if self._child is None:
            self._stopping.wait(seconds)
            return False
        for line in self._hearing.read(seconds):
            self._heard = time.monotonic()
            self._is_up.set()
            self._obey(line)
        return not self._hearing.has_ended

    def _obey(self, line: bytes) -> None:
        if line.startswith(_SHOWN):
            self._shown = line[len(_SHOWN) : -1]  # read when somebody looks
            return
        said = orjson.loads(line)
        if "wanted" in said:
            watch = self._hooks.watch(said["wanted"])
            self._send({"watch": {said["wanted"]: None if watch is None else watch.told}})
        elif "trigger" in said:
            self._take_out(Trigger.model_validate(said["trigger"]))
        elif "suspicion" in said:
            self._suspect(Suspicion.model_validate(said["suspicion"]))

    def _suspect(self, found: Suspicion) -> None:
        """For people to judge: the version goes on."""
        log.error("%s %s", self._policy, found.reason)
        self.suspicions.append(found)
        self._unrecorded.append(found)

    def _record_suspicions(self) -> None:
        """Put them on record, as soon as there is room."""
        while self._unrecorded and time.monotonic() >= self._next_record:
            found = self._unrecorded[0]
            named = {"policy": self._policy, "version": found.version, "reason": found.reason}
            try:
                self._hooks.append([record("suspicion", **named, suspicion=found.to_json())])
            except (LoomRLError, OSError) as error:
                log.error("a suspicion is not on record: %s; it is tried again", error)
                self._next_record = time.monotonic() + _LONGEST_PAUSE
                return
            self._unrecorded.popleft()

    def _take_out(self, trigger: Trigger) -> None:
        """Stop using a version: first in this process, where nothing can fail, then in the file that others follow."""
        self._triggered.add(trigger.version)
        if self._quarantine.find(trigger.version) is None:  # else a process that was killed before it knew repeats it
            log.error("%s version %s is taken out of service: %s", self._policy, trigger.version, trigger.reason)
            entry = Quarantined(policy=self._policy, trigger=trigger, server=self._name, to=None, time=timestamp())
            with self._consequences.entering:
                self._quarantine.hold(entry)
                taken_out = entry.model_copy(update={"to": self._hooks.take_out(trigger.version)})
                self._consequences.keep(taken_out)
            self._consequences.draw()
        self._confirm_quarantines()
