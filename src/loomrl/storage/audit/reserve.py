"""Room that is reserved beforehand: what a person orders, and its record, are written also where a disk is full.

A file of two slots whose blocks are taken when it is made. A text is written in place, over the slot that does not hold
the newest one: on a file system that overwrites (ext4, XFS, tmpfs, NFS) that takes no new block, and whoever is killed
meanwhile leaves the other slot whole. One that copies what is written (btrfs, ZFS) may want new blocks all the same.
"""

import errno
import hashlib
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path

from loomrl.errors import ArtifactError
from loomrl.system.files import closed_with

SLOT_BYTES = 64 * 1024
_USED = b"texts were written here\n"  # at the end, from the first text on: a file without a whole one is damaged then
_MAX_BYTES = 2 * SLOT_BYTES + len(_USED)
_HEADER = struct.Struct("<32sQQ")  # digest of all that follows, number of the text, bytes of it


class Reserve:
    """A text of at most 65,488 bytes, kept in a file whose room is taken when it is made, so that it can be written
    also where the disk is full. One process at a time may write it.

    Raises:
        ArtifactError: when the file cannot be made, for lack of room above all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        try:
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            self._close = closed_with(self, self._handle)
            if (size := os.fstat(self._handle).st_size) < 2 * SLOT_BYTES:
                _fill(self._handle, size)
        except OSError as error:
            raise ArtifactError(
                f"{self.path}: no room can be reserved for orders: {error.strerror}; free some space"
            ) from error

    @property
    def stamp(self) -> tuple[int, int]:
        """Another one means another text, by whichever process.

        Raises:
            OSError: when the disk does not say.
        """
        found = os.stat(self.path)
        return found.st_mtime_ns, found.st_ino

    @property
    def has_lost(self) -> bool:
        """Whether no text in it is whole though some were written.

        Raises:
            ArtifactError: when the disk fails.
        """
        with self._lock:
            try:
                return self._newest()[0] == 0 and os.pread(self._handle, len(_USED), 2 * SLOT_BYTES) == _USED
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
            ArtifactError: when it is too long, or the disk fails; the former text stays.
        """
        if _HEADER.size + len(text) > SLOT_BYTES:
            raise ArtifactError(f"{self.path}: {len(text)} bytes are more than is reserved; free some space")
        with self._lock:
            number = self._newest()[0] + 1
            body = struct.pack("<QQ", number, len(text)) + text
            try:
                os.pwrite(self._handle, hashlib.sha256(body).digest() + body, number % 2 * SLOT_BYTES)
                with suppress(OSError):  # in a file that an earlier version made there may be no room for it
                    os.pwrite(self._handle, _USED, 2 * SLOT_BYTES)
                os.fsync(self._handle)
            except OSError as error:
                raise ArtifactError(f"{self.path} cannot be written: {error.strerror}; check the disk") from error

    def close(self) -> None:
        """Close the reserve's file; the reserve cannot be used afterwards."""
        self._close()

    def _newest(self) -> tuple[int, bytes]:
        """Of the file that has the name now: another one, or none, may have taken the place of what was opened."""
        if self._handle < 0 or not _is_open_as(self._handle, self.path):
            self._close()
            self._handle = -1
            self._open()
        try:
            return max(_whole(os.pread(self._handle, SLOT_BYTES, slot * SLOT_BYTES)) for slot in (0, 1))
        except OSError as error:
            raise ArtifactError(f"{self.path} cannot be read: {error.strerror}; check the disk") from error


def _fill(handle: int, size: int) -> None:
    """Random bytes: a file system that compresses, or leaves zeros out, reserves room for them too."""
    missing = os.urandom(_MAX_BYTES - size)
    if os.pwrite(handle, missing, size) < len(missing):
        os.ftruncate(handle, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(handle)


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

    It has two slots, which texts are written to in turn. From the second text on both hold a whole one, so that one
    that does not is damage: by an edit, or by a power failure.

    Raises:
        OSError: when the file cannot be read.
    """
    if not path.exists():
        return None
    if not path.is_file() or path.stat().st_size not in (2 * SLOT_BYTES, _MAX_BYTES):
        return f"is no file of {_MAX_BYTES} bytes"
    for _ in range(3):  # a server may be writing
        numbers = sorted(number for number, _ in _slots(path))
        is_used = path.read_bytes()[2 * SLOT_BYTES :] == _USED
        if numbers[0] > 0 or numbers[1] == 1 or not (numbers[1] or is_used):
            return None
    return "holds a damaged text, the newest one perhaps"


def _slots(path: Path) -> list[tuple[int, bytes]]:
    if not path.is_file():
        return [(0, b"")]
    with path.open("rb") as file:
        return [_whole(file.read(SLOT_BYTES)) for _ in (0, 1)]
