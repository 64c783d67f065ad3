"""Watches what versions decide and takes a refuted one back by itself.

A thread follows the audit chains and feeds the monitors. On a trigger the server stops using the version at once;
all else follows in `loomrl.monitoring.consequences`. It reads the chains, not the server's memory: what it knows
survives a restart, and one guardian can watch the workers of a whole host.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from loomrl.errors import ArtifactError
from loomrl.home import home
from loomrl.monitoring.consequences import Consequences, standard_steps
from loomrl.monitoring.monitor import Trigger
from loomrl.monitoring.stream import STATE, Stream, StreamState
from loomrl.monitoring.tail import Position, Tail
from loomrl.monitoring.watch import Watch
from loomrl.schema import Document
from loomrl.serving.quarantine import Quarantine, Quarantined
from loomrl.serving.records import timestamp
from loomrl.types import Json

log = logging.getLogger(__name__)
_KINDS = ("decision", "decisions", "feedback", "unanswered")
_LOOK_SECONDS = 0.01  # at 1,000 decisions a second ten are made in between
_YIELD_RECORDS = 16  # after so many the event loop, which shares the interpreter, has its turn
_SHOW_SECONDS = 0.5
_SAVE_SECONDS = 5.0


@dataclass(frozen=True)
class Reins:
    """How the guardian holds a server, or the supervisor of several."""

    watch: Callable[[str], Watch | None]  # what is known of a version; None for one that is not loaded
    is_ready: Callable[[], bool]  # there is a version to watch
    take_out: Callable[[str], str | None]  # let a quarantined version decide no more; returns who does instead
    is_named: Callable[[str], bool]  # the registry or a person still wants this version to act
    append: Callable[[list[Json]], Any]  # to the audit log
    drop: Callable[[Quarantined], Any]  # a version, from what people planned for it
    has_registry: bool


class _Kept(Document):
    """The guardian's file: the evidence, and how far each chain was read for it."""

    positions: dict[str, Position] = Field(default_factory=dict)  # chain -> position
    stream: dict[str, Any] = Field(default_factory=dict)  # a StreamState


class Guardian:
    """The monitors of one policy over one or more audit chains."""

    def __init__(
        self, policy: str, name: str, chains: Callable[[], Sequence[Path]], quarantine: Quarantine, reins: Reins
    ) -> None:
        """`name` tells its file from other guardians' of the policy. `chains` may name more folders later."""
        self._policy, self._name, self._chains, self._quarantine, self._reins = policy, name, chains, quarantine, reins
        self._path = home() / "monitors" / policy / f"{name}.json"
        self._positions, state = _read(self._path)
        self._tails: dict[str, Tail] = {}
        self._stream = Stream(reins.watch, state)
        self._consequences = Consequences(
            quarantine, standard_steps(reins.append, reins.drop, reins.has_registry), reins.is_named
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guardian", daemon=True)
        self.shown: dict[str, Any] = {}  # the monitors by version, as they stood half a second ago

    def start(self) -> None:
        """Watch."""
        self._consequences.start()
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Take what was written last and keep the evidence."""
        self._stopping.set()
        self._thread.join(timeout_seconds)
        self._consequences.stop(timeout_seconds)

    def describe(self) -> dict[str, Any]:
        """The monitors and what they led to, as JSON values."""
        entries = [entry.to_json() | {"reason": entry.trigger.reason} for entry in self._quarantine.entries()]
        errors = dict(self._consequences.errors)
        return {"policy": self._policy, "versions": self.shown, "quarantined": entries, "errors": errors}

    def _run(self) -> None:
        shown = saved = time.monotonic()
        while not self._stopping.wait(_LOOK_SECONDS):
            try:
                self._look()
                now = time.monotonic()
                if now - shown >= _SHOW_SECONDS:
                    self.shown, shown = self._stream.describe(), now
                if now - saved >= _SAVE_SECONDS:
                    self._save()
                    saved = now
            except Exception:  # a guardian that dies silently would protect nobody
                log.exception("watching %s failed; it is tried again", self._policy)
        self._look()
        self._save()
        for tail in self._tails.values():
            tail.close()

    def _look(self) -> None:
        """Take what the chains gained."""
        while self._consequences.released:
            self._stream.forget(self._consequences.released.pop())
        if not self._reins.is_ready():
            return
        for folder in self._chains():
            if folder.name not in self._tails:
                self._tails[folder.name] = Tail(folder, self._positions.get(folder.name, Position()))
            for number, entry in enumerate(self._tails[folder.name].read(_KINDS), start=1):
                if (trigger := self._stream.take(entry)) is not None:
                    self._take_out(trigger)
                if number % _YIELD_RECORDS == 0:
                    time.sleep(0)

    def _take_out(self, trigger: Trigger) -> None:
        """Stop using a version: first in this process, where nothing can fail, then in the file that others follow."""
        log.error("%s version %s is taken out of service: %s", self._policy, trigger.version, trigger.reason)
        entry = Quarantined(policy=self._policy, trigger=trigger, server=self._name, to=None, time=timestamp())
        with self._consequences.entering:
            self._quarantine.hold(entry)
            self._consequences.keep(entry.model_copy(update={"to": self._reins.take_out(trigger.version)}))
        self._consequences.draw()
        self.shown = self._stream.describe()

    def _save(self) -> None:
        """Evidence and positions of one moment; a restart goes on from there.

        Not synced: that would keep decisions waiting to be watched, and what a power failure damages the log still has.
        """
        self._positions |= {name: tail.position for name, tail in self._tails.items()}
        kept = _Kept(positions=self._positions, stream=STATE.dump_python(self._stream.state(), mode="json"))
        temporary = self._path.with_suffix(".new")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(kept.to_bytes())
        temporary.replace(self._path)


def _read(path: Path) -> tuple[dict[str, Position], StreamState]:
    """What an earlier process kept; nothing where that cannot be read: the log has all of it."""
    try:
        kept = _Kept.read(path) if path.is_file() else _Kept()
        return kept.positions, STATE.validate_python(kept.stream)
    except (ArtifactError, ValidationError) as error:
        log.error("%s: evidence is gathered anew from the audit log: %s", path, error)
        return {}, StreamState()
