"""Versions that monitors took out of service, until the registry names another champion.

One file per version, `home()/quarantine/POLICY/DIGEST.json`: servers of the same home follow it, and what is not done
yet goes on after a restart.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import Field

from loomrl.errors import ArtifactError
from loomrl.serving.guardian.monitor import Trigger
from loomrl.system.files import sha256
from loomrl.system.home import inside
from loomrl.system.schema import Document

MONITORS = "the monitors"  # who acts


class Quarantined(Document):
    """A version that must not decide, why, and what has been done about it."""

    policy: str
    trigger: Trigger
    server: str  # whose monitors
    to: str | None  # the version that decides instead; None where there was none to go back to
    time: str  # ISO 8601, UTC
    done: list[str] = Field(default_factory=list)  # what follows from it and has been done

    @property
    def version(self) -> str:
        """The number of the version that is in quarantine."""
        return self.trigger.version


class Quarantine:
    """The quarantined versions of one policy. Safe to use from several threads; who only looks never waits.

    Made, it has read the folder, and raises as `refresh` does. `announce` is called when the folder has changed.
    """

    def __init__(self, policy: str, announce: Callable[[], None] | None = None) -> None:
        self.folder, self._announce = inside("quarantine", policy), announce
        self._lock = threading.Lock()
        self._held: dict[str, Quarantined] = {}  # in this process alone: not written yet
        self._read: dict[str, Quarantined] = {}
        self._stamp: int | None = None
        self.refresh()

    def refresh(self, has_changed: bool = False) -> None:
        """Read the folder again where it looks changed, or is said to be.

        Raises:
            ArtifactError: naming a file that cannot be read; those known before stay.
        """
        with self._lock:
            stamp = self.folder.stat().st_mtime_ns if self.folder.is_dir() else None
            if has_changed or stamp != self._stamp:
                self._read, self._stamp = {entry.version: entry for entry in self._entries()}, stamp

    def _entries(self) -> Iterator[Quarantined]:
        """Those in the folder; another process may release one while it is read."""
        for path in sorted(self.folder.glob("[0-9a-f]*.json")):
            try:
                yield Quarantined.read(path)
            except ArtifactError:
                if path.exists():
                    raise

    def entries(self) -> list[Quarantined]:
        """All entries of versions in quarantine, oldest first."""
        return sorted({**self._read, **self._held}.values(), key=lambda entry: entry.time)

    def find(self, version: str) -> Quarantined | None:
        """The entry of a version; None where it is not in quarantine."""
        return self._held.get(version) or self._read.get(version)

    def is_written(self, version: str) -> bool:
        """Whether the entry of a version is on the disk, so that it outlives this process."""
        return version in self._read

    def hold(self, entry: Quarantined) -> None:
        """Quarantine a version in this process, from now on; nothing is written."""
        with self._lock:
            self._held[entry.version] = entry

    def put(self, entry: Quarantined) -> None:
        """Write an entry for every process of this home, and for those to come.

        Raises:
            ArtifactError: when the file cannot be written; this process keeps to it all the same.
        """
        with self._lock:
            self._held[entry.version] = entry
            entry.write(self._path(entry.version))
            self._read[entry.version] = self._held.pop(entry.version)
        self._notify()

    def release(self, version: str) -> None:
        """Let a version act again, should it become champion. Nothing happens for one that is not in quarantine.

        Raises:
            OSError: when its file cannot be removed; the next `refresh` that reads the folder puts it back.
        """
        with self._lock:
            self._held.pop(version, None)
            self._read.pop(version, None)
            self._path(version).unlink(missing_ok=True)
        self._notify()

    def _notify(self) -> None:
        if self._announce is not None:
            self._announce()

    def _path(self, version: str) -> Path:
        return self.folder / f"{sha256(version.encode())[:16]}.json"  # a version may be a folder's path
