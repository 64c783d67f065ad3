"""What follows from taking a version out of service: on record, in the registry, in LoomDB, in Prefect.

Each step is tried again until it succeeds, across restarts too, so that nothing stays half done: the server stopped
using the version before, and no step waits for another. When all is done and the registry names another champion, the
version leaves quarantine, and a person may promote it again.
"""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from filelock import FileLock, Timeout

from loomrl.errors import ArtifactError, ConfigError, LoomRLError, ServiceError
from loomrl.serving.guardian.announce import announce
from loomrl.serving.guardian.quarantine import MONITORS, Quarantine, Quarantined
from loomrl.storage.audit.records import record
from loomrl.types import Json

log = logging.getLogger(__name__)
EVENT = "monitors"  # the kind of LoomDB's events
EVENTS = ("promotion", "rollback", "refusal", EVENT)  # all kinds that say what became of a version
_RETRY_SECONDS = 1.0  # after a failure, doubled with each, ...
_MOST_SECONDS = 30.0  # ... to this
_MOVE_TIMEOUT_SECONDS = 120.0

Steps = dict[str, Callable[[Quarantined], Any]]


class ConsequenceWorker:
    """Carries out the steps that follow from each entry of the quarantine, in a thread of its own.

    A step that fails is logged and tried again until it succeeds; `errors` says why it failed last.
    """

    def __init__(self, quarantine: Quarantine, steps: Steps, is_named: Callable[[str], bool]) -> None:
        """`is_named`: whether the registry or a person still wants a version to act."""
        self._quarantine, self._steps, self._is_named = quarantine, steps, is_named
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="consequences", daemon=True)
        self.entering = threading.Lock()  # held while an entry is made: none is acted on before it is whole
        self.errors: dict[str, str] = {}  # step -> why it is tried again
        self.released: list[str] = []  # versions that have left quarantine and nobody has taken note of

    def start(self) -> None:
        """Begin, with what an earlier process left undone."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End, waiting at most so long for the step at work; what is not done goes on with the next start."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_seconds)

    def draw(self) -> None:
        """Wake the thread that carries out what a quarantine entails."""
        self._wake.set()

    def keep(self, entry: Quarantined) -> bool:
        """Write an entry of the quarantine; returns whether that was possible. Why not is logged, and in `errors`."""
        return self._attempt("quarantine", entry, self._quarantine.put)

    def _run(self) -> None:
        wait = _RETRY_SECONDS
        while not self._stopping.is_set():
            self._wake.wait(wait)
            self._wake.clear()
            try:
                is_done = self._finish_all()
            except Exception:  # a thread that dies silently would leave the registry on a refuted version
                log.exception("what follows from a rollback failed; it is tried again")
                is_done = False
            wait = _RETRY_SECONDS if is_done else min(2 * wait, _MOST_SECONDS)

    def _finish_all(self) -> bool:
        """Do what is left to do; whether nothing is. One process of this home at a time."""
        if not self._quarantine.entries():
            return True
        try:
            self._quarantine.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._quarantine.folder / "finishing.lock", timeout=0):
                self._quarantine.refresh()
                with self.entering:
                    entries = self._quarantine.entries()
                done = [self._finish(entry) for entry in entries]
                return all(done)
        except Timeout:
            return True
        except ArtifactError as error:
            self.errors["quarantine"] = str(error)
            return False

    def _finish(self, entry: Quarantined) -> bool:
        for name, step in self._steps.items():
            if name not in entry.done and self._attempt(name, entry, step):
                entry = entry.model_copy(update={"done": [*entry.done, name]})
                self.keep(entry)
        is_done = self._steps.keys() <= set(entry.done)
        if is_done and not self._is_named(entry.version):
            self._quarantine.release(entry.version)
            self.released.append(entry.version)
        return is_done

    def _attempt(self, name: str, entry: Quarantined, step: Callable[[Quarantined], Any]) -> bool:
        try:
            step(entry)
        except (LoomRLError, OSError) as error:
            if self.errors.get(name) != str(error):
                log.error("%s: %s; it is tried again", name, error)
            self.errors[name] = str(error)
            return False
        self.errors.pop(name, None)
        return True


def standard_steps(
    append: Callable[[list[Json]], Any], drop: Callable[[Quarantined], Any], has_registry: bool
) -> Steps:
    """What follows from an entry of the quarantine: the name of each step and the function that takes the entry.

    In their order: `audit` puts it on record with `append`, `plan` takes it out of the plan with `drop`, `aliases`
    moves the registry's aliases (only with `has_registry`), `loomdb` and `prefect` tell those. A function raises where
    its step has to be tried again.
    """
    steps: Steps = {"audit": lambda entry: append([_audit_record(entry)]), "plan": drop}
    if has_registry:
        steps["aliases"] = move_aliases
    return steps | {"loomdb": _record_event, "prefect": announce}


def move_aliases(entry: Quarantined) -> None:
    """Let the registry name the champion before this version. That there is none to go back to is no error: it is
    logged.

    Raises:
        ServiceError: when it could not be moved.
    """
    try:
        log.info("%s", take_back(entry.policy, entry.version, entry.trigger.reason, MONITORS))
    except ConfigError as error:
        log.error("%s", error)


def take_back(policy: str, version: str, reason: str, person: str) -> str:
    """Let the registry name the champion before `version`; returns the line that says what was done.

    `person` is who acts. It takes seconds: a process of its own runs `loomrl.monitoring.take_back`.

    Raises:
        ConfigError: when there is nothing to go back to.
        ServiceError: when the aliases could not be moved, or not within two minutes.
    """
    command = [sys.executable, "-m", "loomrl.monitoring.take_back", policy, version, reason, person]
    try:
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_MOVE_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"the aliases were not moved within {_MOVE_TIMEOUT_SECONDS:g} s") from error
    told = next(reversed((ended.stdout + ended.stderr).strip().splitlines()), "nothing said")
    if ended.returncode == ConfigError.exit_code:
        raise ConfigError(told)
    if ended.returncode:
        raise ServiceError(f"the aliases were not moved: {told}")
    return told


def _audit_record(entry: Quarantined) -> Json:
    names = {"policy": entry.policy, "version": entry.version, "to": entry.to, "reason": entry.trigger.reason}
    return record("rollback", **names, trigger=entry.trigger.to_json(), decided=entry.time)


def _record_event(entry: Quarantined) -> None:
    from loomrl.storage.loomdb.database import LoomDB

    with LoomDB.open() as db:
        db.record_event(EVENT, entry.to_json() | {"reason": entry.trigger.reason})
