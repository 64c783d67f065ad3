"""Replay in encrypted files: plain values are in memory alone, and the disk holds the state of one `flush`.

Each array has a file NAME.sealed (`sealed_file`). `index.sealed` holds the tables of all of them, and the random key
that they are encrypted with; the configured keys encrypt the index itself. Replacing it is what makes a flush count:
until then the disk holds the state of the flush before, whatever else was written. Arrays and tables thus always
belong together; only a whole folder that is put back to an older state is not noticed.
"""

import io
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import DTypeLike, NDArray

from loomrl.algorithms.replay.sealed_arrays import PagedArray, ResidentArray
from loomrl.algorithms.replay.sealed_file import NEVER, SealedFile
from loomrl.algorithms.replay.storage import INDEX, PLAIN, SEALED, FolderStorage
from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.security.encryption import KEYS, is_encrypted, keyring, read_private, write_private

_KEY = "key"
_BLOCK, _PAGE, _ROWS_PER_BLOCK = 1 << 16, 4096, 4


class SealedStorage(FolderStorage):
    """Arrays in memory, kept in encrypted files of a folder. Every method that reads or writes files raises
    ArtifactError when that fails, the disk is full, or a file was changed.

    Of a paged array about `cache_bytes` are in memory at a time, the blocks that were touched last; all others are in
    memory as a whole. Room on the disk is taken when an array is made, and what changed blocks need beyond it in
    `flush`.

    Raises:
        ConfigError: as `FolderStorage` does, without keys, and where the folder holds a replay in plain files.
        ArtifactError: as `FolderStorage` does, and where the index was changed.
    """

    def __init__(
        self, folder: Path, spare_fraction: float = 0.02, least_spare_rows: int = 0, cache_bytes: int = 2 << 30
    ) -> None:
        super().__init__(folder, spare_fraction, least_spare_rows)
        self._cache_bytes = cache_bytes
        self._resident: dict[str, ResidentArray] = {}
        self._paged: dict[str, PagedArray] = {}
        try:
            self._tables = self._read_index()
            self._key = self._tables.pop(_KEY, np.frombuffer(AESGCM.generate_key(256), np.uint8))
            self._write_index()  # under the key that is the active one now
        except OSError as error:
            self.close()
            raise self._unwritable("open", error) from error
        except (ArtifactError, ConfigError):
            self.close()
            raise

    def _read_index(self) -> dict[str, NDArray[Any]]:
        if any(self.folder.glob(f"*{PLAIN}")):
            raise ConfigError(
                f"the replay folder {self.folder} holds plain files, and {KEYS} asks for encrypted ones; go on without "
                "keys, or delete what is in it"
            )
        for left in self.folder.glob(f".{INDEX}.*"):  # by a process that was killed
            left.unlink()
        path = self.folder / INDEX
        if not path.exists():
            return {}
        if not is_encrypted(path):
            raise ArtifactError(f"{path} was changed: it is not encrypted; restore the folder as it was")
        with np.load(io.BytesIO(read_private(path))) as arrays:
            return {name: arrays[name] for name in arrays}

    def _write_index(self) -> None:
        if keyring() is None:
            raise ConfigError(
                f"the replay folder {self.folder} is to be encrypted, and no keys are configured in {KEYS}"
            )
        tables = self._tables | {name: array.file.written for name, array in self._arrays().items()}
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **{_KEY: self._key}, **tables)
        write_private(self.folder / INDEX, content.getvalue())

    def _arrays(self) -> dict[str, ResidentArray | PagedArray]:
        return {**self._resident, **self._paged}

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, paged: bool = False) -> NDArray[Any]:
        """A writable array with what the file NAME.sealed holds, decrypted, and zeros beyond it; of a paged array a
        block is decrypted when `prepare_read` or `prepare_write` names it.

        Raises:
            ArtifactError: when there is no room on the disk, or the file was changed.
        """
        size = prod(shape) * np.dtype(dtype).itemsize
        try:
            blocks = self._page(name, shape) if paged else self._take(name, size)
        except OSError as error:
            raise self._unwritable(f"take {size / 1e9:.2f} GB for {name}{SEALED} in", error) from error
        return blocks.reshape(-1)[:size].view(dtype).reshape(shape)

    def _page(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        if name not in self._paged:
            file = self._open(name, -(-_ROWS_PER_BLOCK * shape[-1] // _PAGE) * _PAGE)
            self._paged[name] = PagedArray(file, (shape[0], shape[1], shape[2]), self._cache_bytes)
        return self._paged[name].blocks

    def _take(self, name: str, size: int) -> NDArray[np.uint8]:
        if name not in self._resident:
            self._resident[name] = ResidentArray(self._open(name, _BLOCK))
        self._resident[name].grow(size)
        return self._resident[name].blocks

    def _open(self, name: str, block_bytes: int) -> SealedFile:
        table = self._tables.get(name, np.full(0, NEVER))
        return SealedFile(self.folder / f"{name}{SEALED}", self._key.tobytes(), block_bytes, table)

    def prepare_read(self, name: str, index: NDArray[np.int64], before: int, after: int) -> None:
        """Decrypt the blocks of these rows of a paged array that are not in memory yet; see `Storage.prepare_read`.
        Where memory is full, others leave it, after a `flush` if need be.

        Raises:
            ArtifactError: when a block was changed or cannot be read, or the flush fails.
        """
        array = self._paged[name]
        if array.num_absent:
            self._make_room(array)
            array.read(index, before, after)

    def prepare_write(self, name: str, first: int, stop: int) -> None:
        """Decrypt the blocks of rows `first` to `stop` of a paged array that are not in memory yet: a block is written
        as a whole.

        Raises:
            ArtifactError: when a block was changed or cannot be read, or a flush that makes room fails.
        """
        self._make_room(self._paged[name])
        self._paged[name].write(first, stop)

    def _make_room(self, array: PagedArray) -> None:
        """Before blocks come in, and never between that and their use: a batch may go beyond the room."""
        if array.is_full:
            if array.is_mostly_dirty:
                self.flush()
            array.shrink()

    def flush(self) -> None:
        """Encrypt what changed, write it beside what was there, then let the index say so.

        Raises:
            ArtifactError: when it cannot be written; the disk then holds the state of the flush before.
            ConfigError: when no keys are configured any more.
        """
        arrays = self._arrays().values()
        try:
            for array in arrays:
                array.file.write(array.changed(), array.blocks)
        except OSError as error:
            raise self._unwritable("write to", error) from error
        self._write_index()
        for array in arrays:
            array.settle()

    def close(self) -> None:
        """Release the folder for another process; what was not flushed is lost, and the arrays must not be used any
        more."""
        for array in self._arrays().values():
            array.close()
        self._resident.clear()
        self._paged.clear()
        super().close()
