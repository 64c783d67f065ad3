"""The plain values of encrypted files, in memory: of an array as a whole, or of those blocks that are in use."""

import hashlib
import mmap
import os
from math import prod

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.replay.sealed_file import SealedFile
from loomrl.system.files import closed_with


class _Memory:
    """Zeros in blocks, behind which stands no file of a disk; the system gives pages when they are touched.

    Arrays that were made before `grow` still see the same bytes. Core dumps leave them out.
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._handle = os.memfd_create("replay")
        self.close = closed_with(self, self._handle)

    def grow(self, num_blocks: int) -> None:
        size = num_blocks * self._block_bytes
        os.ftruncate(self._handle, size)
        self._map = mmap.mmap(self._handle, size)
        self._map.madvise(mmap.MADV_DONTDUMP)
        self.blocks: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8).reshape(num_blocks, self._block_bytes)

    def drop(self, block: int) -> None:
        """Give its pages back to the system."""
        self._map.madvise(mmap.MADV_REMOVE, block * self._block_bytes, self._block_bytes)


class _SealedArray:
    """An encrypted file, and memory for the plain values of its blocks."""

    def __init__(self, file: SealedFile) -> None:
        self.file = file
        self._memory = _Memory(file.block_bytes)

    @property
    def blocks(self) -> NDArray[np.uint8]:
        """The array's bytes as uint8 (num_blocks, block_bytes), zeros where a block is not in memory; writing to it
        changes the array."""
        return self._memory.blocks

    def close(self) -> None:
        """Release the memory and close the file."""
        self._memory.close()
        self.file.close()


class ResidentArray(_SealedArray):
    """An encrypted array that is in memory as a whole, `blocks` (num_blocks, block_bytes). Digests of its blocks tell
    what changed since the last flush."""

    def __init__(self, file: SealedFile) -> None:
        super().__init__(file)
        self._settled: list[bytes] = []  # digest of each block as it is on the disk
        self._found: list[bytes] = []

    def grow(self, size: int) -> None:
        """Make room for `size` bytes at least, in memory and in the file. Bytes that were not in memory yet come from
        the file, or are zeros.

        Raises:
            ArtifactError: when a block of the file was changed or cannot be read.
            OSError: when there is no room on the disk.
        """
        self.file.grow(-(-size // self.file.block_bytes))
        self._memory.grow(len(self.file.table))
        for block in range(len(self._settled), len(self.blocks)):
            if self.file.is_written(block):
                self.file.read(block, self.blocks[block])
            self._settled.append(_digest(self.blocks[block]))

    def changed(self) -> list[int]:
        """The numbers of the blocks that differ from those on the disk."""
        self._found = [_digest(block) for block in self.blocks]
        return [number for number, digest in enumerate(self._found) if digest != self._settled[number]]

    def settle(self) -> None:
        """Record that the blocks `changed` found are on the disk now."""
        self.file.settle()
        self._settled = self._found


class PagedArray(_SealedArray):
    """An encrypted ring (B, P, f) of rows, of which those blocks are in memory that were touched last, `cache_bytes` of
    them. Making it raises OSError when there is no room on the disk."""

    def __init__(self, file: SealedFile, shape: tuple[int, int, int], cache_bytes: int) -> None:
        super().__init__(file)
        self._num_envs, self._num_slots, self._row_bytes = shape
        file.grow(-(-prod(shape) // file.block_bytes))
        num_blocks = len(file.table)
        self._memory.grow(num_blocks)
        self._room = cache_bytes // file.block_bytes
        self._clock = 0
        self._touched = np.zeros(num_blocks, np.int64)  # when a block in memory was; 0: it is not in memory
        self._dirty = np.zeros(num_blocks, np.bool_)
        self._num_present = 0
        self.num_absent = int(np.count_nonzero(file.is_written(np.arange(num_blocks))))  # on the disk alone

    @property
    def is_full(self) -> bool:
        """Whether more blocks are in memory than there is room for, so that `shrink` is due."""
        return self._num_present > self._room

    @property
    def is_mostly_dirty(self) -> bool:
        """Whether blocks that were not flushed take more than half of the room."""
        return int(np.count_nonzero(self._dirty)) > self._room // 2

    def read(self, index: NDArray[np.int64], before: int, after: int) -> None:
        """Bring the blocks of the rows `index` (N,) into memory, with `before` and `after` rows around each: see
        `Storage.prepare_read`.

        Raises:
            ArtifactError: when a block of the file was changed or cannot be read.
        """
        row, env = np.divmod(index, self._num_envs)
        self._touch(env[:, None], row[:, None] + np.arange(-before, after + 1))

    def write(self, first: int, stop: int) -> None:
        """Bring the blocks of rows `first` to `stop` (exclusive) into memory, and count them as changed: see
        `Storage.prepare_write`.

        Raises:
            ArtifactError: when a block of the file was changed or cannot be read.
        """
        rows = np.arange(first, min(stop, first + self._num_slots))
        self._dirty[self._touch(np.arange(self._num_envs)[:, None], rows)] = True

    def _touch(self, env: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bring in the blocks in which rows begin and end; returns their numbers."""
        start = ((env * self._num_slots + row % self._num_slots) * self._row_bytes).ravel()
        ends = np.concatenate([start, start + self._row_bytes - 1])
        blocks = np.unique(ends // self.file.block_bytes)
        new = blocks[self._touched[blocks] == 0]
        stored = new[self.file.is_written(new)]
        for block in stored.tolist():
            self.file.read(block, self.blocks[block])
        self._clock += 1
        self._touched[blocks] = self._clock
        self._num_present += len(new)
        self.num_absent -= len(stored)
        return blocks

    def shrink(self) -> None:
        """Drop flushed blocks, those first that were touched longest ago, until an eighth of the room is free."""
        flushed = np.flatnonzero((self._touched > 0) & ~self._dirty)
        oldest_first = flushed[np.argsort(self._touched[flushed])]
        dropped = oldest_first[: self._num_present - self._room * 7 // 8]
        for block in dropped.tolist():
            self._memory.drop(block)
        self._touched[dropped] = 0
        self._num_present -= len(dropped)
        self.num_absent += int(np.count_nonzero(self.file.is_written(dropped)))

    def changed(self) -> list[int]:
        """The numbers of the blocks that were prepared for writing since the last flush."""
        changed: list[int] = np.flatnonzero(self._dirty).tolist()
        return changed

    def settle(self) -> None:
        """Record that the blocks `changed` named are on the disk now."""
        self.file.settle()
        self._dirty.fill(False)


def _digest(block: NDArray[np.uint8]) -> bytes:
    return hashlib.blake2b(block.data, digest_size=16).digest()
