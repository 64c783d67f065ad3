"""The audit log: append-only hash-chained JSON lines, written before the decision is answered.

Every server process owns one chain, `home()/audit/POLICY/SERVER/NNNNNN.jsonl`: a new segment per start and per
`segment_bytes`, each begun by an `open` record that links to the former segment. Bytes handed to `os.write` survive a
killed process; `sync` makes them survive a power failure.
"""

import errno
import fcntl
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loomrl import __version__
from loomrl.errors import ArtifactError, LoomRLError
from loomrl.files import sync_folder
from loomrl.home import home
from loomrl.serving.chain import GENESIS, BrokenRecord, seal, unseal
from loomrl.serving.records import record

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAX_SERVERS = 1_000


class AuditUnwritable(LoomRLError):
    """A record could not be written whole: nothing may be decided. `full` when space ran out."""

    def __init__(self, message: str, full: bool) -> None:
        super().__init__(message)
        self.full = full


@dataclass(frozen=True)
class Head:
    """The last record of a chain."""

    server: str  # "POLICY/SERVER"
    segment: str
    sequence: int  # -1 when there is none
    digest: str


def audit_folder(policy: str) -> Path:
    """Where a policy's chains lie."""
    return home() / "audit" / policy


class AuditLog:
    """One chain, written by this process alone. Safe to use from several threads."""

    def __init__(self, policy: str, server: str | None = None, segment_bytes: int = 64 * 2**20) -> None:
        self.policy, self.segment_bytes = policy, segment_bytes
        self.folder, self._owner = _claim(audit_folder(policy), server)
        self.server = f"{policy}/{self.folder.name}"
        self.token = secrets.token_hex(6)
        self._lock = threading.Lock()
        self._handle, self._size, self._path = -1, 0, self.folder
        self._num_written = self._num_synced = 0  # writes, to know what is durable
        self._torn = False  # bytes of a record that was not written whole lie at the end
        try:
            self.repaired = repair(self.folder)
            self._sequence, self._digest = last_record(self.folder)
        except BaseException:
            os.close(self._owner)
            raise
        self.segment = ""
        self._open_segment()

    @property
    def head(self) -> Head:
        """The last record written."""
        with self._lock:
            return Head(self.server, self.segment, self._sequence, self._digest)

    def append(self, records: Sequence[dict[str, Any]]) -> list[int]:
        """Write records, all of them or none, and return their sequence numbers.

        A record with a `decision_id` of None gets one.

        Raises:
            AuditUnwritable: when not all bytes could be written; the chain then stands where it stood.
        """
        with self._lock:
            if self._size >= self.segment_bytes:
                self._open_segment()
            return self._write(records)

    def sync(self) -> None:
        """Make everything appended durable. Costs nothing when nothing was.

        Raises:
            AuditUnwritable: when the disk did not take it; the next call tries again.
        """
        with self._lock:
            written = self._num_written
            handle = os.dup(self._handle) if written > self._num_synced else -1
        if handle < 0:
            return
        try:
            os.fdatasync(handle)  # outside the lock, however long it takes
        except OSError as error:
            raise _unwritable(error, self._path) from error
        finally:
            os.close(handle)
        with self._lock:
            self._num_synced = max(self._num_synced, written)

    def close(self) -> None:
        """Sync and give the chain back."""
        self.sync()
        with self._lock:
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1
            os.close(self._owner)

    def _open_segment(self) -> None:
        number = 1 + max((int(path.stem) for path in segments(self.folder)), default=0)
        path = self.folder / f"{number:06d}.jsonl"
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640)
            sync_folder(self.folder)
        except OSError as error:
            raise _unwritable(error, path) from error
        former = self.segment
        if self._handle >= 0:
            os.fdatasync(self._handle)
            os.close(self._handle)
        self._handle, self._size, self._path, self.segment = handle, 0, path, path.stem
        opening = {"policy": self.policy, "server": self.server, "segment": self.segment, "token": self.token}
        repaired = None if former else self.repaired
        self._write([record("open", **opening, loomrl=__version__, repaired=repaired)])

    def _write(self, records: Sequence[dict[str, Any]]) -> list[int]:
        sequence, digest, lines = self._sequence, self._digest, []
        for entry in records:
            sequence += 1
            entry["sequence"] = sequence
            if entry.get("decision_id", "") is None:
                entry["decision_id"] = f"{self.token}-{sequence}"
            line, digest = seal(entry, digest)
            lines.append(line)
        self._write_whole(b"".join(lines))
        first, self._sequence, self._digest = self._sequence + 1, sequence, digest
        return list(range(first, sequence + 1))

    def _write_whole(self, data: bytes) -> None:
        if self._torn:
            self._cut_torn()
        try:
            written = os.write(self._handle, data)
        except OSError as error:
            raise _unwritable(error, self._path) from error
        if written < len(data):  # what a full disk does first
            self._torn = True
            self._cut_torn()
            raise AuditUnwritable(
                f"{self._path}: only {written} of {len(data)} bytes could be written; no space is left: free some",
                full=True,
            )
        self._size += written
        self._num_written += 1

    def _cut_torn(self) -> None:
        """Nothing may be appended behind half a record."""
        try:
            os.ftruncate(self._handle, self._size)
        except OSError as error:
            raise _unwritable(error, self._path) from error
        self._torn = False


def _unwritable(error: OSError, path: Path) -> AuditUnwritable:
    full = error.errno in _FULL
    fix = "free some space" if full else "check the file system"
    return AuditUnwritable(f"{path} cannot be written: {error.strerror}; {fix}", full)


def _claim(folder: Path, server: str | None) -> tuple[Path, int]:
    """The chain's folder, locked for this process; without a name, the first that is free."""
    names: Iterable[str] = [server] if server else (f"server-{number}" for number in range(_MAX_SERVERS))
    for name in names:
        chain = folder / name
        try:
            chain.mkdir(parents=True, exist_ok=True)
            owner = os.open(chain / "owner.lock", os.O_RDWR | os.O_CREAT, 0o640)
        except OSError as error:
            raise ArtifactError(f"cannot make the audit log {chain}: {error.strerror}; check LOOMRL_HOME") from error
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(owner)
            continue
        return chain, owner
    raise ArtifactError(
        f"the audit log {folder / (server or '*')} belongs to a running server; stop it or name another"
    )


def segments(folder: Path) -> list[Path]:
    """A chain's segments, oldest first."""
    return sorted(folder.glob("[0-9]*.jsonl"))


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """A segment's records, one line in memory at a time.

    Raises:
        ArtifactError: naming the first line that is no whole, unchanged record.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield _checked(line, path, number)


def last_record(folder: Path) -> tuple[int, str]:
    """Sequence and hash of a chain's last record; (-1, GENESIS) for an empty chain.

    Raises:
        ArtifactError: when it was changed.
    """
    for path in reversed(segments(folder)):
        lines = path.read_bytes().splitlines(keepends=True)
        if lines:
            last = _checked(lines[-1], path, len(lines))
            return int(last["sequence"]), str(last["hash"])
    return -1, GENESIS


def _checked(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """The record of a line that no crash of ours can have left so: a changed one is never gone on from, nor cut."""
    try:
        return unseal(line)
    except BrokenRecord as error:
        raise ArtifactError(
            f"{path}:{number}: {error}: the audit log was edited or damaged, and stays as it is. "
            "`loomrl audit verify` says where; to serve meanwhile, begin another chain: `loomrl serve --server NAME`"
        ) from error


def repair(folder: Path) -> dict[str, Any] | None:
    """Cut what a crash left half-written at the end of a chain; the bytes are kept beside it as `.torn`.

    Half-written is only what has no line break: it is written last. Returns what was cut, for the next `open` record;
    None where the chain ends well.
    """
    for path in reversed(segments(folder)):
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            torn = path.with_suffix(".torn")
            torn.write_bytes(data[whole:])
            os.truncate(path, whole)
            return {"segment": path.stem, "num_bytes": len(data) - whole, "kept": torn.name}
        if data:
            break
    return None
