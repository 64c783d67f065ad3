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
_USED = b"texts were written here\n"  # at the end, from the first text on: a file without a whole one is damaged then
_NUM_BYTES = 2 * SLOT_BYTES + len(_USED)


class Reserve:
    """A text of at most 65,488 bytes, kept in a file whose room is taken when it is made, so that it can be written
    also where the disk is full. One process at a time may write it. A file that is removed or replaced while it is open
    is made, or opened, anew.

    Raises:
        ArtifactError: when the file cannot be made, for lack of room above all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._handle, self._is_closed = -1, False
        self._current()

    @property
    def stamp(self) -> tuple[int, int]:
        """Another one means another text, by whichever process.

        Raises:
            OSError: when the disk does not say.
        """
        found = os.stat(self.path)
        return found.st_mtime_ns, found.st_ino

    @property
    def is_there(self) -> bool:
        """Whether what was written last stands in the file that has the name now."""
        return self._handle >= 0 and _is_open_as(self._handle, self.path)

    @property
    def has_lost(self) -> bool:
        """Whether no text in it is whole though some were written, or it is shorter than it was made.

        Raises:
            ArtifactError: when the disk fails.
        """
        with self._lock:
            number, _ = self._newest()
            try:
                return number == 0 and _is_used(self._handle)
            except OSError as error:
                raise ArtifactError(f"{self.path} cannot be read: {error.strerror}; check the disk") from error

    def read(self) -> bytes:
        """The newest text that was written whole; empty where none was.

        Raises:
            ArtifactError: when the disk fails.
        """
        with self._lock:
            return self._newest()[1]

    def write(self, text: bytes) -> None:
        """Put a text in place of the one there is, and have the disk take it.

        Raises:
            ArtifactError: when it is too long, and the former text stays; or when the disk fails, and either may be
                read afterwards.
        """
        if _HEADER.size + len(text) > SLOT_BYTES:
            raise ArtifactError(f"{self.path}: {len(text)} bytes are more than is reserved; free some space")
        with self._lock:
            number, _ = self._newest()
            try:
                for one in (number + 1, number + 2):
                    body = struct.pack("<QQ", one, len(text)) + text
                    _write_all(self._handle, hashlib.sha256(body).digest() + body, one % 2 * SLOT_BYTES)
                    with suppress(OSError):  # there may be no room for it where an earlier version made the file
                        os.pwrite(self._handle, _USED, 2 * SLOT_BYTES)
                    os.fsync(self._handle)
            except OSError as error:
                raise ArtifactError(f"{self.path} cannot be written: {error.strerror}; check the disk") from error

    def close(self) -> None:
        """Close the reserve's file; the reserve cannot be used afterwards."""
        with self._lock:
            self._is_closed = True
            self._drop()

    def _newest(self) -> tuple[int, bytes]:
        handle = self._current()
        try:
            return max(_whole(os.pread(handle, SLOT_BYTES, slot * SLOT_BYTES)) for slot in (0, 1))
        except OSError as error:
            raise ArtifactError(f"{self.path} cannot be read: {error.strerror}; check the disk") from error

    def _current(self) -> int:
        """The file that has the name now, opened; made where there is none."""
        if self._is_closed:
            raise ArtifactError(f"{self.path} was closed")
        if self._handle >= 0 and not _is_open_as(self._handle, self.path):
            self._drop()
        if self._handle < 0:
            try:
                if not self.path.exists():
                    _make(self.path)
                self._handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                fix = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "see to it"
                raise ArtifactError(
                    f"{self.path}: no room can be reserved for orders: {error.strerror}; {fix}"
                ) from error
            self._close = closed_with(self, self._handle)
        return self._handle

    def _drop(self) -> None:
        if self._handle >= 0:
            self._close()
            self._handle = -1


def _make(path: Path) -> None:
    """Under its name only when it has all its room, whoever makes it at once. Random bytes: a file system that
    compresses, or leaves zeros out, reserves room for them too.

    Raises:
        OSError: when there is no room.
    """
    made = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    handle = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    try:
        _write_all(handle, os.urandom(_NUM_BYTES), 0)
        os.fsync(handle)
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


def _write_all(handle: int, data: bytes, place: int) -> None:
    if os.pwrite(handle, data, place) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_used(handle: int) -> bool:
    """Whether texts were written to a file, or bytes of it were cut off."""
    is_short = os.fstat(handle).st_size < 2 * SLOT_BYTES
    return is_short or os.pread(handle, len(_USED), 2 * SLOT_BYTES) == _USED


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
    if not path.is_file() or path.stat().st_size not in (2 * SLOT_BYTES, _NUM_BYTES):
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
