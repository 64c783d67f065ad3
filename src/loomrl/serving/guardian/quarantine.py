"""Versions that monitors took out of service, until the registry names another champion.

One file per version, `home()/quarantine/POLICY/DIGEST.json`: servers of the same home follow it, and what is not done
yet goes on after a restart.
"""

import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from loomrl.errors import ArtifactError
from loomrl.serving.guardian.monitor import Trigger
from loomrl.system.files import sha256
from loomrl.system.home import inside
from loomrl.system.schema import Document

log = logging.getLogger(__name__)
MONITORS = "the monitors"  # who acts
_NAME = re.compile(r"[0-9a-f].*\.json")


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

    Made, it has read the folder as far as it can be. `announce` is called when the folder has changed. A file that
    cannot be read bars the version that its name stands for; where the folder cannot be read, `unknown` says so, and no
    version may act.
    """

    def __init__(self, policy: str, announce: Callable[[], None] | None = None) -> None:
        self.folder, self._announce = inside("quarantine", policy), announce
        self._lock = threading.Lock()
        self._held: dict[str, Quarantined] = {}  # in this process alone: not written yet
        self._read: dict[str, Quarantined] = {}
        self._unread: frozenset[str] = frozenset()  # names of files that cannot be read
        self._stamp: int | None = None
        self.unknown: str | None = None  # why it is not known what is in quarantine
        try:
            self.refresh()
        except ArtifactError as error:
            log.error("%s", error)

    def refresh(self, has_changed: bool = False) -> None:
        """Read the folder again where it looks changed, or is said to be.

        Raises:
            ArtifactError: naming what cannot be read; all else is known.
        """
        with self._lock:
            try:
                stamp = self._look()
                if has_changed or stamp != self._stamp or self._unread or self.unknown is not None:
                    self._read_folder()
                    self._stamp, self.unknown = stamp, None
            except OSError as error:
                self.unknown = f"{self.folder} cannot be read: {error.strerror}; check the disk"
                raise ArtifactError(self.unknown) from error
            if self._unread:
                named = ", ".join(sorted(self._unread))
                raise ArtifactError(f"{self.folder}: {named}: cannot be read; the version it is about does not act")

    def _look(self) -> int | None:
        try:
            return self.folder.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _read_folder(self) -> None:
        """Another process may release an entry while it is read."""
        found, unread = dict[str, Quarantined](), set[str]()
        for path in sorted(self._files()):
            try:
                entry = Quarantined.read(path)
                if self._path(entry.version).name == path.name:
                    found[entry.version] = entry
                else:  # damaged: it is about the version that its name stands for
                    unread.add(path.name)
            except ArtifactError:
                if os.path.lexists(path):
                    unread.add(path.name)
        self._read, self._unread = found, frozenset(unread)

    def _files(self) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        except FileNotFoundError:
            return []

    def entries(self) -> list[Quarantined]:
        """All entries of versions in quarantine, oldest first."""
        return sorted({**self._read, **self._held}.values(), key=lambda entry: entry.time)

    def find(self, version: str) -> Quarantined | None:
        """The entry of a version; None where it is not in quarantine."""
        return self._held.get(version) or self._read.get(version)

    def bars(self, version: str) -> bool:
        """Whether a version must not act: it is in quarantine, or a file that cannot be read is about it."""
        return self.find(version) is not None or self._path(version).name in self._unread

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
