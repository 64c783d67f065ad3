"""Where a buffer's arrays live.

A buffer asks its storage for named arrays and works on them in place; it keeps no other bulk data. Whatever can hand
out such arrays can hold a replay buffer: memory, files mapped into it, or encrypted files (`sealed`).
"""

import mmap
import os
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike, NDArray

from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.security.encryption import KEYS, key_of

PLAIN, SEALED = ".bin", ".sealed"  # how the names of a folder's files end
INDEX = f"index{SEALED}"  # of encrypted files: their tables and their key


class Storage:
    """Gives a replay buffer its arrays by name, in memory or in files. What a subclass does not override does nothing;
    where files fail or the disk is full, its methods raise ArtifactError.

    `keeps` says whether arrays outlive the process; a saved state then only says where it stands in them.
    """

    keeps: ClassVar[bool] = False  # whether arrays outlive the process; a saved state then only says where it stands

    def spare_rows(self, num_rows: int) -> int:  # noqa: ARG002 - a storage's signature
        """Rows beyond the `num_rows` newest that are kept, so that a state saved that many rows ago is still whole; 0
        where saved states hold their own."""
        return 0

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, paged: bool = False) -> NDArray[Any]:
        """A writable contiguous array: what is kept under this name, zeros beyond it along the first axis.

        A `paged` one is a ring (B, P, f) of rows, of which a storage may have only those in memory that
        `prepare_read` and `prepare_write` named last.

        Raises:
            ArtifactError: where there is no room.
        """
        raise NotImplementedError

    def prepare_read(self, name: str, index: NDArray[np.int64], before: int, after: int) -> None:
        """Announce that rows of a paged array are about to be read: for every r * B + b in `index` (N,) row r of
        environment b, the `before` rows before it and the `after` rows after it."""

    def prepare_write(self, name: str, first: int, stop: int) -> None:
        """Announce that rows `first` to `stop` (exclusive) of all environments of a paged array are about to be
        written."""

    def flush(self) -> None:
        """Make everything written so far outlive a crash of the machine, where arrays are kept at all."""

    def close(self) -> None:
        """Release files and locks that other processes may want; the arrays must not be used any more."""


class MemoryStorage(Storage):
    """Arrays in memory. A saved state holds copies of them."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, paged: bool = False) -> NDArray[Any]:  # noqa: ARG002 - a storage's signature
        """An array in memory: what an array of this name held, and zeros beyond. The system gives the pages when they
        are first written.

        Raises:
            ArtifactError: when there is not enough memory.
        """
        try:
            array: NDArray[Any] = np.zeros(shape, dtype)
        except MemoryError as error:
            size = prod(shape) * np.dtype(dtype).itemsize / 1e9
            raise ArtifactError(
                f"no memory for the replay array {name!r} ({size:.2f} GB); lower replay_capacity, or set "
                "replay_storage to disk"
            ) from error
        if (kept := self._arrays.get(name)) is not None:
            array[: len(kept)] = kept
        self._arrays[name] = array
        return array


class FolderStorage(Storage):
    """What storages that keep their arrays in files of a folder have in common.

    One process holds the folder at a time. A state saved with `state_dict` can be restored from the folder until
    `spare_fraction` of the capacity, or `least_spare_rows` steps of all environments if these are more, has been
    written after it.

    Raises:
        ConfigError: when one of these two is negative.
        ArtifactError: when the folder cannot be made or is held by another process.
    """

    keeps: ClassVar[bool] = True

    def __init__(self, folder: Path, spare_fraction: float = 0.02, least_spare_rows: int = 0) -> None:
        if not 0.0 <= spare_fraction < np.inf:
            raise ConfigError(f"replay spare_fraction is {spare_fraction}; it must be 0 or more")
        if least_spare_rows < 0:
            raise ConfigError(f"replay least_spare_rows is {least_spare_rows}; it must be 0 or more")
        self.folder = folder
        self._spare_fraction, self._least_spare_rows = spare_fraction, least_spare_rows
        self._lock = FileLock(folder / ".lock")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise ArtifactError(f"the replay folder {folder} is in use by another process; wait for it") from error
        except OSError as error:
            raise self._unwritable("open", error) from error

    def spare_rows(self, num_rows: int) -> int:
        """Rows kept beyond the `num_rows` newest: the share `spare_fraction` of them, but at least `least_spare_rows`
        and 1."""
        return max(1, self._least_spare_rows, round(self._spare_fraction * num_rows))

    def close(self) -> None:
        """Release the folder for another process; this one's arrays must not be used any more."""
        self._lock.release()

    def _unwritable(self, what: str, error: OSError) -> ArtifactError:
        reason = error.strerror or str(error)
        return ArtifactError(
            f"cannot {what} the replay folder {self.folder}: {reason}; free space, lower "
            "training.parameters.replay_capacity, or set LOOMRL_HOME to another disk"
        )


class MappedStorage(FolderStorage):
    """Arrays in files of a folder, mapped into memory: the system keeps in RAM what fits, the disk holds the rest.

    Room is taken from the disk when an array is made, so that a full disk is an error then and no crash later.

    Raises:
        ConfigError: as `FolderStorage` does, and where the folder holds an encrypted replay.
        ArtifactError: as `FolderStorage` does.
    """

    def __init__(self, folder: Path, spare_fraction: float = 0.02, least_spare_rows: int = 0) -> None:
        super().__init__(folder, spare_fraction, least_spare_rows)
        self._maps: dict[str, mmap.mmap] = {}
        if any(folder.glob(f"*{SEALED}")):
            self.close()
            index = folder / INDEX
            key = f" with the key {key_of(index)!r}" if index.is_file() else ""
            raise ConfigError(
                f"the replay folder {folder} is encrypted{key}; configure the keys that it was written with in {KEYS}, "
                "or delete what is in it"
            )

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, paged: bool = False) -> NDArray[Any]:  # noqa: ARG002 - a storage's signature
        """A writable array mapped from the file NAME.bin, which holds raw values row by row; where the file is new or
        shorter, zeros.

        Raises:
            ArtifactError: when the file cannot be opened, or the disk has no room for it.
        """
        path, size = self.folder / f"{name}{PLAIN}", prod(shape) * np.dtype(dtype).itemsize
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if (present := os.fstat(handle).st_size) < size:
                    os.posix_fallocate(handle, present, size - present)
                mapped = mmap.mmap(handle, size)
            finally:
                os.close(handle)
        except OSError as error:
            raise self._unwritable(f"take {size / 1e9:.2f} GB for {path.name} in", error) from error
        mapped.madvise(mmap.MADV_RANDOM)  # samples lie anywhere: reading ahead would push out what is needed
        self._maps[name] = mapped
        return np.frombuffer(mapped, dtype).reshape(shape)

    def flush(self) -> None:
        """Write changed pages to the disk and wait for it.

        Raises:
            ArtifactError: when they cannot be written.
        """
        try:
            for mapped in self._maps.values():
                mapped.flush()
        except OSError as error:
            raise self._unwritable("write to", error) from error
