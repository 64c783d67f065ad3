"""Checkpoints that are whole or absent, in safe formats, newest intact one first.

One folder for each: `step-000020480/` with `arrays.safetensors`, `values.json` and `SHA256SUMS`. It is written under
a temporary name, synced and renamed, so a process killed at any moment leaves the older ones as they were.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import safetensors.numpy
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError

from loomrl.errors import ArtifactError, ConfigError
from loomrl.system import events
from loomrl.system.files import (
    atomic_path,
    canonical_json,
    read_json,
    sha256,
    sync_folder,
    verify_sums,
    write_atomic,
    write_sums,
)
from loomrl.system.security.encryption import is_encrypted, keyring, read_private, write_private
from loomrl.types import Json

ARRAYS = "arrays.safetensors"
VALUES = "values.json"
_PREFIX = "step-"
_TEMPORARY = ".writing-"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """All state that a bit-identical continuation of a training needs: arrays and JSON values by name, at `step`, the
    environment steps so far."""

    step: int  # environment steps so far
    arrays: dict[str, NDArray[Any]]
    values: Json

    @property
    def digest(self) -> str:
        """SHA-256, 64 hex digits, over all arrays and values; the same before the checkpoint was saved and after it was
        read."""
        arrays = {
            name: [str(array.dtype), list(array.shape), sha256(array.tobytes())] for name, array in self.arrays.items()
        }
        return sha256(canonical_json({"arrays": arrays, "values": self.values}))


class CheckpointStore:
    """The checkpoints of one training run, held by one process at a time. Use it in a `with` statement: entering it
    raises ArtifactError when another process has the folder, or it cannot be made or written. Of the checkpoints the
    newest `keep` are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._lock = FileLock(folder / ".lock")

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise ArtifactError(
                f"another process is training with the same inputs ({self._folder} is locked); wait for it"
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error
        for left_over in self._folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(left_over)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; then remove those of later steps, which are corrupt or cannot be restored, and all but
        the newest `keep`.

        Raises:
            ArtifactError: when the folder cannot be written; older checkpoints stay.
        """
        final = self._folder / f"{_PREFIX}{checkpoint.step:012d}"
        try:
            temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self._folder))
            _write_arrays(temporary / ARRAYS, dict(sorted(checkpoint.arrays.items())))
            write_atomic(temporary / VALUES, canonical_json(checkpoint.values))
            write_sums(temporary)
            if final.exists():  # a corrupt one of the same step: the newest intact one was older
                shutil.rmtree(final)
            os.replace(temporary, final)
            sync_folder(self._folder)
            folders = self._all()
            saved = folders.index(final)  # what lies above was corrupt: counted as newest it would push out intact ones
            for useless in folders[:saved] + folders[saved + self._keep :]:
                shutil.rmtree(useless)
        except (OSError, SafetensorError) as error:
            raise self._unwritable(error) from error

    def newest(self) -> Checkpoint | None:
        """The newest intact checkpoint; None where there is none. Corrupt ones are reported by a warning and skipped.

        Raises:
            ConfigError: when one is encrypted with a key that is not configured.
        """
        return next(self.intact(), None)

    def intact(self) -> Iterator[Checkpoint]:
        """The intact checkpoints, newest first, each read when it is asked for. Corrupt ones are reported by a warning
        and skipped.

        Raises:
            ConfigError: when one is encrypted with a key that is not configured.
        """
        for folder in self._all():
            try:
                checkpoint = _read(folder)
            except ArtifactError as error:
                self.pass_over(f"checkpoint {folder} is corrupt and passed over: {error}")
            else:
                yield checkpoint

    @staticmethod
    def pass_over(message: str) -> None:
        """Log a warning and emit it as an event to whoever follows the training."""
        log.warning(message)
        events.emit("warning", message=message)

    def _all(self) -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob(f"{_PREFIX}*"), reverse=True)

    def _unwritable(self, error: OSError | SafetensorError) -> ArtifactError:
        reason = getattr(error, "strerror", None) or str(error)
        return ArtifactError(f"cannot write checkpoints to {self._folder}: {reason}; set LOOMRL_HOME or free space")


def _write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    if keyring() is not None:
        write_private(path, safetensors.numpy.save(arrays))
        return
    with atomic_path(path) as temporary:  # straight from the arrays: a replay is not copied again
        safetensors.numpy.save_file(arrays, temporary)


def _read(folder: Path) -> Checkpoint:
    verify_sums(folder)
    values = read_json(folder / VALUES)
    try:
        arrays = _read_arrays(folder / ARRAYS)
        return Checkpoint(int(values["env_steps"]), arrays, values)
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise ArtifactError(f"{folder} does not hold a checkpoint: {error!r}") from error


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not is_encrypted(path):
        return safetensors.numpy.load_file(path)
    try:
        return safetensors.numpy.load(read_private(path))
    except ArtifactError as error:  # its checksum is right, so the key is wrong: begun anew, the training would be lost
        raise ConfigError(str(error)) from error
