"""The encrypted file of one array: blocks in frames, and a table of where each block lies.

A frame is one block under AES-256-GCM with a random nonce of 12 bytes, and the tag. Blocks are never written over: a
changed one goes into a free frame, and its old frame is free once the table that names the new one is on the disk. So
whatever table is there, the frames that it names are whole. The table holds the nonces too: a frame that was changed,
moved or put back to what it was before does not open.
"""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from loomrl.errors import ArtifactError

ENTRY = np.dtype([("place", np.int64), ("nonce", "V12")])
NEVER = np.array((-1, bytes(12)), ENTRY)  # a block that was never written: zeros
_NONCE, _TAG = 12, 16


class SealedFile:
    """The encrypted file of one array: blocks of `block_bytes` bytes by number. `table` says which were written, and
    where they lie; `written` is what it becomes with the next `settle`. Making it opens the file, or makes it, and
    raises OSError where that fails."""

    def __init__(self, path: Path, key: bytes, block_bytes: int, table: NDArray[np.void]) -> None:
        self.path, self.block_bytes, self.table = path, block_bytes, table
        self._cipher, self._frame_bytes = AESGCM(key), block_bytes + _TAG
        self._name = path.stem
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._num_frames = os.fstat(self._handle).st_size // self._frame_bytes
        free = np.ones(self._num_frames, np.bool_)
        used = table["place"][table["place"] >= 0]
        free[used[used < self._num_frames]] = False
        self._free: list[int] = np.flatnonzero(free).tolist()
        self.written = table  # what the table is to be once it is on the disk

    def grow(self, num_blocks: int) -> None:
        """Have `num_blocks` blocks at least, and a frame of the disk for each. Raises OSError when there is no room for
        them."""
        added = max(0, num_blocks - len(self.table))
        self._make_frames(len(self.table) + added - self._num_frames)
        self.table = self.written = np.append(self.table, np.full(added, NEVER))

    def _make_frames(self, count: int) -> None:
        if count > 0:
            os.posix_fallocate(self._handle, self._num_frames * self._frame_bytes, count * self._frame_bytes)
            self._free += range(self._num_frames, self._num_frames + count)
            self._num_frames += count

    def is_written(self, blocks: Any) -> Any:
        """Whether blocks are on the disk; those that were never written are zeros. A bool for one number, an array of
        bool for an array of numbers."""
        return self.table["place"][blocks] >= 0

    def read(self, block: int, target: NDArray[np.uint8]) -> None:
        """Fill `target` (block_bytes,) with a block that was written, decrypted.

        Raises:
            ArtifactError: when the block was changed, or the file cannot be read.
        """
        entry = self.table[block]
        try:
            frame = os.pread(self._handle, self._frame_bytes, int(entry["place"]) * self._frame_bytes)
            plain = self._cipher.decrypt(entry["nonce"].tobytes(), frame, self._bound_to(block))
        except OSError as error:
            raise ArtifactError(f"cannot read {self.path}: {error.strerror}") from error
        except InvalidTag as error:
            raise ArtifactError(
                f"{self.path} was changed: its block {block} cannot be decrypted; restore the folder as it was, or "
                "delete what is in it and train from the start"
            ) from error
        target[...] = np.frombuffer(plain, np.uint8)

    def write(self, blocks: list[int], memory: NDArray[Any]) -> None:
        """Put blocks of `memory` (num_blocks, block_bytes) into free frames and wait for the disk.

        They count once `settle` is called. After a failure the frames stay taken: a table that names them may have
        reached the disk.

        Raises:
            OSError: when they cannot be written, also where the disk is full; the blocks as they were stay readable.
        """
        self.written = self.table.copy()
        self._make_frames(len(blocks) - len(self._free))
        for block in blocks:
            place, nonce = self._free.pop(), os.urandom(_NONCE)
            frame = self._cipher.encrypt(nonce, memory[block], self._bound_to(block))
            if os.pwrite(self._handle, frame, place * self._frame_bytes) < len(frame):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.written[block] = place, nonce
        if blocks:
            os.fsync(self._handle)

    def settle(self) -> None:
        """Record that the table `written` is on the disk now: the frames that its blocks had before are free."""
        replaced = self.table["place"][self.table["place"] != self.written["place"]]
        self._free += replaced[replaced >= 0].tolist()
        self.table = self.written

    def close(self) -> None:
        """Close the file; it cannot be read or written any more."""
        os.close(self._handle)

    def _bound_to(self, block: int) -> bytes:
        return f"{self._name}/{block}".encode()
