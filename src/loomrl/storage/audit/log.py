"""The audit log: append-only hash-chained JSON lines, written before the decision is answered.

Every server process owns one chain, `home()/audit/POLICY/SERVER/NNNNNN.jsonl`: a new segment per start and per
`segment_bytes`, each begun by an `open` record that links to the former segment. Bytes handed to `os.write` survive a
killed process; `sync` makes them survive a power failure. Where keys are configured, what was observed is sealed.
"""

import errno
import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from loomrl import __version__
from loomrl.errors import ArtifactError, LoomRLError
from loomrl.storage.audit.chain import seal, writable
from loomrl.storage.audit.records import record
from loomrl.storage.audit.reserve import Reserve
from loomrl.storage.audit.sealing import Sealer
from loomrl.storage.audit.segments import PLAIN, RESERVE, last_record, lines_backwards, segments, waiting_records
from loomrl.system.files import sha256, sync_folder
from loomrl.system.home import inside, shares_loomdb
from loomrl.system.names import checked_name
from loomrl.system.security.encryption import keyring

log = logging.getLogger(__name__)
_HANG_SECONDS, _STILL_SECONDS = 2.0, 0.01  # that another writer is waited for; where the last one was in vain
_LOOK_SECONDS = 0.1  # between looks whether who writes a chain has ended
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAX_SERVERS = 1_000
_UNKNOWN = b"\0"  # no lines: what a damaged reserve held


class AuditUnwritable(LoomRLError):
    """A record could not be written whole, so nothing may be decided. `full` says that the disk has no room."""

    def __init__(self, message: str, full: bool) -> None:
        super().__init__(message)
        self.full = full


class NotDurable(AuditUnwritable):
    """Records are written whole, but the disk did not take them: a power failure may lose them."""


@dataclass(frozen=True)
class ChainHead:
    """The last record of a chain: server, segment, sequence and hash (`digest`)."""

    server: str  # "POLICY/SERVER"
    segment: str
    sequence: int  # -1 when there is none
    digest: str


def default_name(kind: str) -> str:
    """What chains of a kind are called where nobody named them: `KIND`, or `HOST-KIND` where hosts share a LoomDB."""
    return f"{socket.gethostname()}-{kind}" if shares_loomdb() else kind


def audit_folder(policy: str) -> Path:
    """The folder that holds a policy's chains, `LOOMRL_HOME/audit/POLICY`; it need not be there.

    Raises:
        ConfigError: for what is no name, such as `../x`.
    """
    return inside("audit", policy)


class AuditLog:
    """One chain, written by this process alone, from several threads if need be, until it is closed; nothing but its
    properties may be asked afterwards.

    `server` is the chain's name; None: the first that is free of `server-0`, `server-1`, ... (with the host in front
    where hosts share a LoomDB). `opening` is put into the `open` record that begins each segment. The ids of decisions
    begin with `token_prefix`. With `reserves`, records of orders find room in `CHAIN/reserve` where the disk is full,
    also where no segment can be begun. Who writes a chain of this name now has `patience_seconds` to end: the workers
    of a killed server do so by themselves.

    Raises:
        ArtifactError: when the chain cannot be made, belongs to a running server, or was edited.
        AuditUnwritable: when no segment can be begun and nothing is reserved.
        ConfigError: for keys that cannot be read.
    """

    def __init__(
        self,
        policy: str,
        server: str | None = None,
        segment_bytes: int = 64 * 2**20,
        opening: Mapping[str, Any] | None = None,
        token_prefix: str = "",
        reserves: bool = False,
        patience_seconds: float = 0.0,
    ) -> None:
        self.policy, self.segment_bytes = policy, segment_bytes
        self._opening, self._ring = dict(opening or {}), keyring()
        self._sealer: Sealer | None = None
        self._first: dict[str, Any] = {}  # the record that opens this segment
        self.folder, self._owner = _claim(audit_folder(policy), server, patience_seconds)
        self.server = f"{policy}/{self.folder.name}"
        self.token = token_prefix + secrets.token_hex(6)[len(token_prefix) :]
        self._syncing, self._lock = threading.Lock(), threading.Lock()  # who needs both takes them in this order
        self._handle, self._size, self._path, self.segment = -1, 0, self.folder, ""
        self._num_durable_bytes, self._lost = 0, False  # of this segment; whether its last sync failed
        self._torn = False  # bytes of a record that was not written whole lie at the end
        self._hangs = False  # whether another writer was waited for in vain
        self._begun = False  # whether the record that opens this segment is written, or waits
        self._reserve: Reserve | None = None
        self._queued: list[dict[str, Any]] = []  # records of orders, that come before whatever is written next
        self._waiting = b""  # lines that follow the last one of the segment, for which there was no room
        self._kept = b""  # what the reserve holds: those, as soon as the disk has taken them
        self._unkept: str | None = None  # why it does not
        try:
            self._reserve = Reserve(self.folder / RESERVE) if reserves else None
            self.repaired = repair(self.folder)
            last_segment = next((path.stem for path in reversed(_written_segments(self.folder))), "")
            self._head = last_segment, *last_record(self.folder)  # of the last record: also its sequence and hash
            self._num_in_log = self._sequence + 1  # records; what waits follows them
            self._recall_waiting()
            self.durable_sequence = self._sequence  # everything up to this record is on the disk
            self._name_segment()
            try:
                self._open_segment()
            except AuditUnwritable as error:
                if self._reserve is None:
                    raise
                log.error("no segment is begun, orders alone find room: %s", error)
        except BaseException:
            self._owner.release()
            raise

    @property
    def head(self) -> ChainHead:
        """The chain's head: server, segment, sequence and hash of the last record, one that waits for room included.
        No writer is waited for: a disk may hang.
        """
        return ChainHead(self.server, *self._head)

    @property
    def _sequence(self) -> int:
        return self._head[1]

    @property
    def is_durable(self) -> bool:
        """Whether every appended record is on the disk, in the log or in the reserve."""
        return self.durable_sequence >= self._sequence

    def append(self, records: Sequence[dict[str, Any]]) -> list[int]:
        """Write records, all of them or none, and return their sequence numbers.

        A record with a `decision_id` of None gets one; each gets its `sequence`, in place.

        Raises:
            AuditUnwritable: when not all bytes could be written, the log is closed, or the disk keeps another writer
                waiting; the chain then stands where it stood.
        """
        if self._is_segment_due():
            self._begin_segment()
        self._acquire(self._lock)
        try:
            return self._write(records)
        finally:
            self._lock.release()

    def append_order(self, records: Sequence[dict[str, Any]]) -> list[int]:
        """Write records of what a person ordered. Where the log takes none they are kept in the reserve, linked into
        the chain like any other, and stand in the log before whatever it takes next.

        Returns their sequence numbers, which they keep wherever they wait. Nothing is raised: where the reserve fails,
        too, they are kept in memory, and the server's log says so.
        """
        sequences = self._append_or_wait(list(map(writable, records)))
        self.keep_orders()
        return sequences

    def queue_order(self, records: Sequence[dict[str, Any]]) -> None:
        """Have records of what a person ordered stand before whatever is written from now on. Nothing is waited for:
        they are written with that, or with the next `keep_orders` or `sync`, as `append_order` writes them.
        """
        self._queued += list(map(writable, records))

    def keep_orders(self) -> None:
        """Write the records of orders that are queued, and have the reserve hold those that wait for room. Costs
        nothing where there are none.

        Nothing is raised: where the disk does not take them, the server's log says so.
        """
        self._write_queued()
        if self._waiting and not self._is_kept(self._waiting):
            try:
                self.sync()
            except NotDurable as error:
                log.error("%s", error)

    @property
    def num_waiting_bytes(self) -> int:
        """Bytes of the records of orders that the log has no room for yet; 0 where none wait."""
        return len(self._waiting)

    def _write_queued(self) -> None:
        if self._queued:
            self._append_or_wait(())

    def _append_or_wait(self, records: Sequence[dict[str, Any]]) -> list[int]:
        try:
            return self.append(records)
        except AuditUnwritable as error:
            if not self._owner.is_locked:  # closed
                return []
            log.error("records of orders wait: %s", error)
            with self._lock:
                return self._wait(records)

    def sync(self) -> None:
        """Make everything appended or queued durable. Costs nothing when nothing was.

        Raises:
            NotDurable: when the disk did not take it; the next call tries again.
        """
        self._write_queued()
        with self._syncing:
            with self._lock:
                size, sequence, num_in_log, waiting = self._size, self._sequence, self._num_in_log, self._waiting
            adds = waiting.startswith(self._kept)
            if adds:  # else the reserve holds what is in the log by now, and may go once that is synced
                self._fill_reserve(waiting)
            if num_in_log - 1 > self.durable_sequence or not adds:
                self._flush(size)  # outside the lock, however long it takes
                self._num_durable_bytes, self.durable_sequence = size, max(self.durable_sequence, num_in_log - 1)
            self._fill_reserve(waiting)
            if waiting and not self._is_kept(waiting):
                raise NotDurable(f"records of orders are kept in memory alone: {self._unkept}", full=True)
            self.durable_sequence = max(self.durable_sequence, sequence)

    def close(self) -> None:
        """Sync the log and close its files; another process may write the chain then, and this one no more. Harmless
        when it is closed.

        Raises:
            NotDurable: when the disk did not take all records; nothing is closed then, and the chain stays this
                process's.
        """
        if not self._owner.is_locked:
            return
        self.sync()
        with self._syncing, self._lock:
            if self._handle >= 0:
                os.close(self._handle)
            self._handle = -1
            if self._reserve is not None:
                self._reserve.close()
            self._owner.release()

    def _flush(self, size: int) -> None:
        """Sync the segment, or where none is begun, the one that a former process left; what a failed sync may have
        dropped is written again, for Linux takes it for written."""
        try:
            if self._lost:
                _write_again(self._path, self._num_durable_bytes, size)
            if self._handle >= 0:
                os.fdatasync(self._handle)
            else:
                for former in _written_segments(self.folder)[-1:]:
                    _sync(former)
        except OSError as error:
            self._lost = True
            unwritable = _unwritable(error, self._path)
            raise NotDurable(str(unwritable), unwritable.full) from error
        self._lost = False

    def _acquire(self, lock: threading.Lock) -> None:
        """Wait for another writer, but not for a disk that hangs."""
        if not lock.acquire(timeout=_STILL_SECONDS if self._hangs else _HANG_SECONDS):
            self._hangs = True
            raise AuditUnwritable(f"{self._path}: the disk hangs; check it", full=False)
        self._hangs = False

    def _is_segment_due(self) -> bool:
        return self._handle < 0 or self._size >= self.segment_bytes

    def _begin_segment(self) -> None:
        """Open the next segment, unless another writer has. While the one before is being synced it stays the one that
        is written, however large."""
        if self._handle < 0:
            self._acquire(self._syncing)
        elif not self._syncing.acquire(blocking=False):
            return
        try:
            self._acquire(self._lock)
            try:
                if self._is_segment_due():
                    self._open_segment()
            finally:
                self._lock.release()
        finally:
            self._syncing.release()

    def _name_segment(self) -> None:
        """Say which segment comes next, and what opens it; the file is made by `_open_segment`."""
        former = _written_segments(self.folder)[-1:]
        self.segment = f"{1 + (int(former[0].stem) if former else 0):06d}"
        self._sealer = None if self._ring is None else Sealer(self._ring)
        opening = {"policy": self.policy, "server": self.server, "segment": self.segment, "token": self.token}
        sealed_with = None if self._sealer is None else self._sealer.key_id
        repaired = None if self._handle >= 0 else self.repaired
        versions = {"loomrl": __version__, "sealed_with": sealed_with, "repaired": repaired}
        self._first, self._begun = record("open", **opening, **versions, **self._opening), False

    def _open_segment(self) -> None:
        if not self._owner.is_locked:
            raise AuditUnwritable(f"{self.folder}: this log is closed; open it anew", full=False)
        if self._torn:
            self._cut_torn()
        if self._handle >= 0:
            self._write(())  # what waits belongs to this segment
            self._flush(self._size)
        else:
            self._finish_former()
        named, first, begun = self.segment, self._first, self._begun
        if self._handle >= 0:
            self._name_segment()
        path = self.folder / f"{self.segment}{PLAIN}"
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
            sync_folder(self.folder)
        except OSError as error:
            self.segment, self._first, self._begun = named, first, begun
            raise _unwritable(error, path) from error
        if self._handle >= 0:
            os.close(self._handle)
            self.durable_sequence = self._sequence
        self._handle, self._size, self._path, self._num_durable_bytes = handle, 0, path, 0
        self._write(())

    def _finish_former(self) -> None:
        """Sync the last segment, which a process that was killed may have left to the kernel, and end it with the
        lines that waited for room when that process ended."""
        former = _written_segments(self.folder)[-1:]
        if not former:
            return
        ended, self._waiting = _parted(self._waiting)
        try:
            if ended:
                _append_whole(former[0], ended)
            _sync(former[0])
        except OSError as error:
            self._waiting = ended + self._waiting
            raise _unwritable(error, former[0]) from error

    def _recall_waiting(self) -> None:
        """Go on behind the lines that a former process left in the reserve; those the log has are there no more. Where
        the log has lost its end they follow on nothing: what they say is put on record.

        Raises:
            ArtifactError: when one was changed.
        """
        if self._reserve is None:
            return
        self._kept = self._reserve.read()
        if self._reserve.has_lost:
            self._queue_damage(f"{self._reserve.path} is damaged: records of orders may be missing here", [])
        adrift: list[bytes] = []
        for line, kept in waiting_records(self.folder):
            if kept["sequence"] == self._sequence + 1 and kept["previous_hash"] == self._head[2]:
                self._waiting += line
                segment = str(kept.get("segment", "")) if kept["kind"] == "open" else self._head[0]
                self._head = segment, int(kept["sequence"]), str(kept["hash"])
            elif kept["sequence"] > self._sequence:
                adrift.append(line)
        if adrift:
            why = (
                f"the log was cut off behind record {self._sequence}: what it lacks is lost but for these lines, which"
            )
            self._queue_damage(f"{why} waited in {self._reserve.path}", adrift)

    def _queue_damage(self, reason: str, lines: Sequence[bytes]) -> None:
        """What the reserve holds is kept until this is on record."""
        said = {"reason": reason, **({"lines": [one.decode() for one in lines]} if lines else {})}
        self.queue_order([record("damaged", policy=self.policy, **said)])
        self._kept = _UNKNOWN

    def _wait(self, records: Sequence[dict[str, Any]]) -> list[int]:
        """Link records into the chain for which the log has no room."""
        queued = list(self._queued)
        data, sequence, digest = self._sealed((*queued, *records))
        self._waiting += data
        return self._go_on(sequence, digest, len(queued), len(records))

    def _go_on(self, sequence: int, digest: str, num_queued: int, num_records: int) -> list[int]:
        """The chain has come so far; returns the sequence numbers of its last records."""
        del self._queued[:num_queued]
        self._begun, self._head = True, (self.segment, sequence, digest)
        return list(range(sequence - num_records + 1, sequence + 1))

    def _is_kept(self, waiting: bytes) -> bool:
        """Whether the reserve holds what waits, and nothing else, and nobody has removed it."""
        return waiting == self._kept and (not waiting or self._reserve is None or self._reserve.holds_last)

    def _fill_reserve(self, waiting: bytes) -> None:
        """Have it hold what waits, and nothing else."""
        if self._is_kept(waiting):
            return
        try:
            if self._reserve is None:
                raise ArtifactError("no room is reserved")
            self._reserve.write(waiting)
        except ArtifactError as error:
            if self._unkept != str(error):
                log.error("records of orders are kept in memory alone: %s", error)
            self._unkept = str(error)
            return
        self._kept, self._unkept = waiting, None
        if waiting:
            log.error("records of orders are kept in %s: there is no room for them in the log", self.folder / RESERVE)

    def _write(self, records: Sequence[dict[str, Any]]) -> list[int]:
        """Whatever waits for room, what opens the segment, and these: all of it or nothing."""
        queued = list(self._queued)
        data, sequence, digest = self._sealed((*queued, *records))
        if self._waiting or data:
            self._write_whole(self._waiting + data)
        self._waiting, self._num_in_log = b"", sequence + 1
        return self._go_on(sequence, digest, len(queued), len(records))

    def _sealed(self, records: Sequence[dict[str, Any]]) -> tuple[bytes, int, str]:
        """The lines of records as they follow in the chain, behind what opens the segment where that is not written;
        and the sequence and digest of the last."""
        (_, sequence, digest), lines = self._head, []
        for entry in records if self._begun else (self._first, *records):
            sequence += 1
            entry["sequence"] = sequence
            if entry.get("decision_id", "") is None:
                entry["decision_id"] = f"{self.token}-{sequence}"
            line, digest = seal(entry if self._sealer is None else self._sealer.seal(entry), digest)
            lines.append(line)
        return b"".join(lines), sequence, digest

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


def _written_segments(folder: Path) -> list[Path]:
    """Those that hold anything; one that was made without room for a line is taken by whoever comes next."""
    return [path for path in segments(folder) if path.stat().st_size]


def _parted(waiting: bytes) -> tuple[bytes, bytes]:
    """Lines of the segment that was written last, and those that open another and follow."""
    lines = waiting.splitlines(keepends=True)
    opened = next((place for place, line in enumerate(lines) if line.startswith(b'{"kind":"open"')), len(lines))
    return b"".join(lines[:opened]), b"".join(lines[opened:])


def _append_whole(path: Path, data: bytes) -> None:
    """All of it, or an `OSError` and nothing."""
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        if file.write(data) < len(data):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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


def _claim(folder: Path, server: str | None, patience_seconds: float) -> tuple[Path, FileLock]:
    """The chain's folder, locked for this process; without a name, the first that is free."""
    base, patience_seconds = default_name("server"), patience_seconds if server else 0.0
    names: Iterable[str] = [server] if server else (f"{base}-{number}" for number in range(_MAX_SERVERS))
    for name in names:
        chain = folder / checked_name(name, "the name of a chain")
        try:
            chain.mkdir(parents=True, exist_ok=True)
            owner = FileLock(chain / "owner.lock", patience_seconds, mode=0o640, thread_local=False)
            owner.acquire(poll_interval=_LOOK_SECONDS)
        except Timeout:
            continue
        except OSError as error:
            raise ArtifactError(f"cannot make the audit log {chain}: {error.strerror}; check LOOMRL_HOME") from error
        return chain, owner
    raise ArtifactError(
        f"the audit log {folder / (server or '*')} belongs to a running server; stop it or name another"
    )


def repair(folder: Path) -> dict[str, Any] | None:
    """Cut what a crash left half-written at the end of a chain; the bytes are kept beside it as `.torn`.

    Half-written is only what has no line break: it is written last. Returns what was cut, for the next `open` record:
    `segment`, `num_bytes`, their SHA-256 `digest` and `kept`, the name of that file, None where the disk had no room
    for it. Returns None where the chain ends well.

    Raises:
        OSError: when the segment cannot be read or cut; it is as it was.
    """
    for path in reversed(segments(folder)):
        last = next(lines_backwards(path), b"")
        if last and not last.endswith(b"\n"):
            kept = _kept_beside(_free_name(path), last)
            os.truncate(path, path.stat().st_size - len(last))
            return {"segment": path.stem, "num_bytes": len(last), "digest": sha256(last), "kept": kept}
        if last:
            break
    return None


def _free_name(path: Path) -> Path:
    """Where half a record at a segment's end is kept: not over another, which a record may name."""
    names = (path.with_suffix(".torn" if number == 1 else f".{number}.torn") for number in count(1))
    return next(name for name in names if not name.exists())


def _kept_beside(torn: Path, data: bytes) -> str | None:
    """The name of the file that half a record is kept in; None without room: nobody was answered by it."""
    try:
        torn.write_bytes(data)
    except OSError as error:
        log.error("%s is not kept: %s", torn, error.strerror)
        torn.unlink(missing_ok=True)
        return None
    return torn.name
