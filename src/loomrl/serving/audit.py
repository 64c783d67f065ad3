"""The audit log: append-only hash-chained JSON lines, written before the decision is answered.

Every server process owns one chain, `home()/audit/POLICY/SERVER/NNNNNN.jsonl`: a new segment per start and per
`segment_bytes`, each begun by an `open` record that links to the former segment. Bytes handed to `os.write` survive a
killed process; `sync` makes them survive a power failure. Where keys are configured, what was observed is sealed.
"""

import errno
import fcntl
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loomrl import __version__
from loomrl.encryption import keyring
from loomrl.errors import ArtifactError, LoomRLError
from loomrl.files import sync_folder
from loomrl.home import home, shares_loomdb
from loomrl.serving.chain import seal
from loomrl.serving.records import record
from loomrl.serving.sealing import Sealer
from loomrl.serving.segments import PLAIN, last_record, lines_backwards, segments

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAX_SERVERS = 1_000


class AuditUnwritable(LoomRLError):
    """A record could not be written whole: nothing may be decided. `full` when space ran out."""

    def __init__(self, message: str, full: bool) -> None:
        super().__init__(message)
        self.full = full


class NotDurable(AuditUnwritable):
    """Records are written whole, but the disk did not take them."""


@dataclass(frozen=True)
class Head:
    """The last record of a chain."""

    server: str  # "POLICY/SERVER"
    segment: str
    sequence: int  # -1 when there is none
    digest: str


def default_name(kind: str) -> str:
    """How chains are named where nobody named them; where LoomDB holds those of several hosts, by the host."""
    return f"{socket.gethostname()}-{kind}" if shares_loomdb() else kind


def audit_folder(policy: str) -> Path:
    """Where a policy's chains lie."""
    return home() / "audit" / policy


class AuditLog:
    """One chain, written by this process alone. Safe to use from several threads.

    `opening` is put into every `open` record. The ids of decisions begin with `token_prefix`.

    Raises:
        ArtifactError: when the chain cannot be made, belongs to a running server, or was edited.
        ConfigError: for keys that cannot be read.
    """

    def __init__(
        self,
        policy: str,
        server: str | None = None,
        segment_bytes: int = 64 * 2**20,
        opening: Mapping[str, Any] | None = None,
        token_prefix: str = "",
    ) -> None:
        self.policy, self.segment_bytes = policy, segment_bytes
        self._opening, self._ring = dict(opening or {}), keyring()
        self._sealer: Sealer | None = None
        self._first: dict[str, Any] = {}  # the record that opens this segment
        self.folder, self._owner = _claim(audit_folder(policy), server)
        self.server = f"{policy}/{self.folder.name}"
        self.token = token_prefix + secrets.token_hex(6)[len(token_prefix) :]
        self._syncing, self._lock = threading.Lock(), threading.Lock()  # who needs both takes them in this order
        self._handle, self._size, self._path, self.segment = -1, 0, self.folder, ""
        self._num_durable_bytes, self._lost = 0, False  # of this segment; whether its last sync failed
        self._torn = False  # bytes of a record that was not written whole lie at the end
        try:
            self.repaired = repair(self.folder)
            self._sequence, self._digest = last_record(self.folder)
            self.durable_sequence = self._sequence  # everything up to this record is on the disk
            self._open_segment()
        except BaseException:
            os.close(self._owner)
            raise

    @property
    def head(self) -> Head:
        """The last record written."""
        with self._lock:
            return Head(self.server, self.segment, self._sequence, self._digest)

    @property
    def is_durable(self) -> bool:
        """Whether everything appended is on the disk."""
        return self.durable_sequence >= self._sequence

    def append(self, records: Sequence[dict[str, Any]]) -> list[int]:
        """Write records, all of them or none, and return their sequence numbers.

        A record with a `decision_id` of None gets one.

        Raises:
            AuditUnwritable: when not all bytes could be written; the chain then stands where it stood.
        """
        if self._size >= self.segment_bytes:
            with self._syncing, self._lock:
                if self._size >= self.segment_bytes:
                    self._open_segment()
        with self._lock:
            self._begin_segment()
            return self._write(records)

    def sync(self) -> None:
        """Make everything appended durable. Costs nothing when nothing was.

        Raises:
            NotDurable: when the disk did not take it; the next call tries again.
        """
        with self._syncing:
            with self._lock:
                size, sequence = self._size, self._sequence
            if sequence > self.durable_sequence:
                self._flush(size)  # outside the lock, however long it takes
                self._num_durable_bytes, self.durable_sequence = size, sequence

    def close(self) -> None:
        """Sync and give the chain back."""
        self.sync()
        with self._syncing, self._lock:
            os.close(self._handle)
            os.close(self._owner)

    def _flush(self, size: int) -> None:
        """Sync the segment; what a failed sync may have dropped is written again, for Linux takes it for written."""
        try:
            if self._lost:
                _write_again(self._path, self._num_durable_bytes, size)
            os.fdatasync(self._handle)
        except OSError as error:
            self._lost = True
            unwritable = _unwritable(error, self._path)
            raise NotDurable(str(unwritable), unwritable.full) from error
        self._lost = False

    def _open_segment(self) -> None:
        if self._torn:
            self._cut_torn()
        former = segments(self.folder)[-1:]
        if self._handle >= 0:
            self._flush(self._size)
        elif former:
            _sync(former[0])  # a process that was killed may have left it to the kernel
        number = 1 + (int(former[0].stem) if former else 0)
        path = self.folder / f"{number:06d}{PLAIN}"
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640)
            sync_folder(self.folder)
        except OSError as error:
            raise _unwritable(error, path) from error
        repaired = None if self.segment else self.repaired
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._size, self._path, self.segment = handle, 0, path, path.stem
        self._num_durable_bytes, self.durable_sequence = 0, self._sequence
        self._sealer = None if self._ring is None else Sealer(self._ring)
        opening = {"policy": self.policy, "server": self.server, "segment": self.segment, "token": self.token}
        sealed_with = None if self._sealer is None else self._sealer.key_id
        versions = {"loomrl": __version__, "sealed_with": sealed_with, "repaired": repaired}
        self._first = record("open", **opening, **versions, **self._opening)
        self._begin_segment()

    def _begin_segment(self) -> None:
        """Nothing comes before what opens a segment, also where there was no room for it at first."""
        if not self._size:
            self._write([self._first])

    def _write(self, records: Sequence[dict[str, Any]]) -> list[int]:
        sequence, digest, lines = self._sequence, self._digest, []
        for entry in records:
            sequence += 1
            entry["sequence"] = sequence
            if entry.get("decision_id", "") is None:
                entry["decision_id"] = f"{self.token}-{sequence}"
            line, digest = seal(entry if self._sealer is None else self._sealer.seal(entry), digest)
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

    def _cut_torn(self) -> None:
        """Nothing may be appended behind half a record."""
        try:
            os.ftruncate(self._handle, self._size)
        except OSError as error:
            raise _unwritable(error, self._path) from error
        self._torn = False


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fdatasync(file.fileno())


def _write_again(path: Path, start: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        data = file.read(size - start)
        file.seek(start)
        file.write(data)


def _unwritable(error: OSError, path: Path) -> AuditUnwritable:
    full = error.errno in _FULL
    fix = "free some space" if full else "check the file system"
    return AuditUnwritable(f"{path} cannot be written: {error.strerror}; {fix}", full)


def _claim(folder: Path, server: str | None) -> tuple[Path, int]:
    """The chain's folder, locked for this process; without a name, the first that is free."""
    base = default_name("server")
    names: Iterable[str] = [server] if server else (f"{base}-{number}" for number in range(_MAX_SERVERS))
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


def repair(folder: Path) -> dict[str, Any] | None:
    """Cut what a crash left half-written at the end of a chain; the bytes are kept beside it as `.torn`.

    Half-written is only what has no line break: it is written last. Returns what was cut, for the next `open` record;
    None where the chain ends well.
    """
    for path in reversed(segments(folder)):
        last = next(lines_backwards(path), b"")
        if last and not last.endswith(b"\n"):
            torn = path.with_suffix(".torn")
            torn.write_bytes(last)
            os.truncate(path, path.stat().st_size - len(last))
            return {"segment": path.stem, "num_bytes": len(last), "kept": torn.name}
        if last:
            break
    return None
