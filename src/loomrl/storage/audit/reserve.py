"""Room that is reserved beforehand: what a person orders, and its record, are written also where a disk is full.

A file of two slots whose blocks are taken when it is made. A text is written in place, to both slots, one after the
other: on a file system that overwrites (ext4, XFS, tmpfs, NFS) that takes no new block, whoever is killed meanwhile
leaves one slot whole, and where a byte of one changes the other has the text. One that copies what is written (btrfs,
ZFS) may want new blocks all the same.
"""

import errno
import hashlib
import os
import secrets
import struct
import threading
from contextlib import suppress
from pathlib import Path

from loomrl.errors import ArtifactError
from loomrl.system.files import closed_with, sync_folder

SLOT_BYTES = 64 * 1024
_HEADER = struct.Struct("<32sQQ")  # digest of all that follows, number of the text, bytes of it
_NUM_BYTES = 2 * SLOT_BYTES + 64
# Earlier versions made files of two slots without any text, and, as they wrote the first, put this behind them.
_USED = b"texts were written here\n"
_NUM_BYTES_BEFORE = 2 * SLOT_BYTES, 2 * SLOT_BYTES + len(_USED)


class TooLong(ArtifactError):
    """More than is reserved; the former text stays."""


class Reserve:
    """A text of at most 65,488 bytes, kept in a file whose room is taken when it is made, so that it can be written
    also where the disk is full. One process at a time may write it. A file that is replaced while it is open is opened
    anew, and one that is removed is made anew by who writes next.

    Raises:
        ArtifactError: when the file cannot be made, for lack of room above all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._handle, self._is_closed = -1, False
        self._is_written: bool | None = None  # whether the disk took what was written last; None: nothing was
        self._torn_slot: int | None = (
            None  # the disk holds the former text in the other one alone, for all that is known
        )
        self._opened(makes=True)

    @property
    def holds_last(self) -> bool:
        """Whether this process has written, and the disk taken, what stands in the file that has the name now."""
        return self._is_written is True and self._handle >= 0 and _is_open_as(self._handle, self.path)

    @property
    def has_failed(self) -> bool:
        """Whether the disk did not take what this process wrote last: what is read may be gone with the next boot."""
        return self._is_written is False

    @property
    def has_lost(self) -> bool:
        """Whether no text in it is whole though some were written.

        Raises:
            ArtifactError: when the disk fails.
        """
        with self._lock:
            number, _ = self._newest()
            try:
                return number == 0 and self._handle >= 0 and _is_used(self._handle)
            except OSError as error:
                raise ArtifactError(f"{self.path} cannot be read: {error.strerror}; check the disk") from error

    def read(self) -> bytes:
        """The newest text that was written whole; empty where none was, or there is no file any more.

        Raises:
            ArtifactError: when the disk fails.
        """
        with self._lock:
            return self._newest()[1]

    def write(self, text: bytes) -> None:
        """Put a text in place of the one there is, and have the disk take it.

        Raises:
            TooLong: when it is too long, and the former text stays.
            ArtifactError: when the disk fails, and either may be read afterwards.
        """
        if _HEADER.size + len(text) > SLOT_BYTES:
            raise TooLong(f"{self.path}: {len(text)} bytes are more than is reserved; free some space")
        with self._lock:
            self._opened(makes=True)
            number, former = self._newest()
            self._is_written = False
            try:
                if os.fstat(self._handle).st_size < 2 * SLOT_BYTES:  # the room behind is reserved no more
                    self._make_anew(number, former)
                    number, _ = self._newest()
                first = number + 1 if self._torn_slot in (None, (number + 1) % 2) else number + 2
                for one in (first, first + 1):
                    self._torn_slot = one % 2
                    _write_all(self._handle, _slot(one, text), self._torn_slot * SLOT_BYTES)
                    with suppress(OSError):  # there may be no room for it where an earlier version made the file
                        os.pwrite(self._handle, _USED, 2 * SLOT_BYTES)
                    os.fsync(self._handle)
            except OSError as error:
                raise ArtifactError(f"{self.path} cannot be written: {error.strerror}; check the disk") from error
            self._is_written, self._torn_slot = True, None

    def _make_anew(self, number: int, text: bytes) -> None:
        """Where there is room for it, with what stands in the one there is."""
        with suppress(OSError):
            _make(self.path, number, text, replaces=True)
            self._drop()
            self._handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._close = closed_with(self, self._handle)

    def close(self) -> None:
        """Close the reserve's file; the reserve cannot be used afterwards."""
        with self._lock:
            self._is_closed = True
            self._drop()

    def _newest(self) -> tuple[int, bytes]:
        if (handle := self._opened()) < 0:
            return 0, b""
        try:
            return max(_whole(os.pread(handle, SLOT_BYTES, slot * SLOT_BYTES)) for slot in (0, 1))
        except OSError as error:
            raise ArtifactError(f"{self.path} cannot be read: {error.strerror}; check the disk") from error

    def _opened(self, makes: bool = False) -> int:
        """The file that has the name now; where there is none, -1, or one that is made."""
        if self._is_closed:
            raise ArtifactError(f"{self.path} was closed")
        if self._handle >= 0 and not _is_open_as(self._handle, self.path):
            self._drop()
        if self._handle < 0:
            try:
                if not self.path.exists():
                    if not makes:
                        return -1
                    _make(self.path)
                self._handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                fix = "free some space" if is_full else "check LOOMRL_HOME and its permissions"
                raise ArtifactError(
                    f"{self.path}: no room can be reserved for orders: {error.strerror}; {fix}"
                ) from error
            self._close = closed_with(self, self._handle)
        return self._handle

    def _drop(self) -> None:
        if self._handle >= 0:
            self._close()
            self._handle = -1


def _make(path: Path, number: int = 0, text: bytes = b"", replaces: bool = False) -> None:
    """Under its name only when it has all its room, and the text in both slots, whoever makes it at once. Random bytes
    behind: a file system that compresses, or leaves zeros out, reserves room for them too.

    Raises:
        OSError: when there is no room.
    """
    made = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    handle = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        _write_all(handle, os.urandom(_NUM_BYTES), 0)
        for one in (number + 1, number + 2):
            _write_all(handle, _slot(one, text), one % 2 * SLOT_BYTES)
        os.fsync(handle)
        if replaces:
            made.replace(path)
        else:
            _name(made, path)
        sync_folder(path.parent)
    finally:
        os.close(handle)
        made.unlink(missing_ok=True)


def _name(made: Path, path: Path) -> None:
    """Where another process was quicker, its file stays; a file system without hard links cannot tell."""
    try:
        os.link(made, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        made.rename(path)


def _slot(number: int, text: bytes) -> bytes:
    body = struct.pack("<QQ", number, len(text)) + text
    return hashlib.sha256(body).digest() + body


def _write_all(handle: int, data: bytes, place: int) -> None:
    if os.pwrite(handle, data, place) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_used(handle: int) -> bool:
    """Whether texts were written to a file: to all but those of earlier versions one is, as it is made."""
    if os.fstat(handle).st_size not in _NUM_BYTES_BEFORE:
        return True
    return os.pread(handle, len(_USED), 2 * SLOT_BYTES) == _USED


def _whole(slot: bytes) -> tuple[int, bytes]:
    """The number and the text of a slot; (0, b"") for one that holds none, or half of one."""
    if len(slot) < _HEADER.size:
        return 0, b""
    digest, number, length = _HEADER.unpack_from(slot)
    body = slot[32 : _HEADER.size + length]
    is_whole = _HEADER.size + length <= len(slot) and hashlib.sha256(body).digest() == digest
    return (number, body[16:]) if is_whole else (0, b"")


def _is_open_as(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False
    except OSError:  # who reads or writes it says so
        return True


def reserved_text(path: Path) -> bytes:
    """The newest whole text in the reserve's file, for who only reads; empty where there is no such file, or no text.

    Raises:
        OSError: when the file cannot be read.
    """
    return max(_slots(path))[1]


def damage(path: Path) -> str | None:
    """What is wrong with a reserve's file, as the end of a sentence; None for nothing, and where there is no file.

    Where texts were written both slots hold a whole one, but where only one ever was: by an earlier version, or by who
    was killed at the first. Another slot is damage: by an edit, or by a power failure.

    Raises:
        OSError: when the file cannot be read.
    """
    if not path.exists():
        return None
    if not path.is_file() or path.stat().st_size not in (_NUM_BYTES, *_NUM_BYTES_BEFORE):
        return f"is no file of {_NUM_BYTES} bytes"
    for _ in range(3):  # a server may be writing
        numbers = sorted(number for number, _ in _slots(path))
        with path.open("rb") as file:
            is_used = _is_used(file.fileno())
        if numbers[0] > 0 or numbers[1] == 1 or not (numbers[1] or is_used):
            return None
    return "holds a damaged text, the newest one perhaps"


def _slots(path: Path) -> list[tuple[int, bytes]]:
    if not path.is_file():
        return [(0, b"")]
    with path.open("rb") as file:
        return [_whole(file.read(SLOT_BYTES)) for _ in (0, 1)]
