"""The checkpoints of an integrated system; without a folder there are none."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from loomrl.errors import ConfigError
from loomrl.training.checkpoints import Checkpoint, CheckpointStore
from loomrl.types import Json

_KEPT = 2


class Checkpoints:
    """The checkpoints of a training with one config; those of another config are refused. Its methods raise
    ArtifactError when the folder cannot be written, or another process has it.

    Args:
        folder: where they are stored, or None to store none.
        config: all settings that training depends on, JSON values.
    """

    def __init__(self, folder: Path | None, config: Json) -> None:
        self._folder, self._config = folder, config

    def newest(self) -> Checkpoint | None:
        """The newest intact checkpoint, or None where there is none.

        Raises:
            ConfigError: when it was made with another config, or is encrypted with a key that is not configured.
        """
        with self._store() as store:
            found = None if store is None else store.newest()
        if found is not None and found.values["config"] != self._config:
            raise ConfigError(f"{self._folder} holds checkpoints of another config; name another checkpoint_folder")
        return found

    def save(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint with the config; of several the newest two are kept. Does nothing without a folder."""
        with self._store() as store:
            if store is not None:
                store.save(
                    Checkpoint(checkpoint.step, checkpoint.arrays, {**checkpoint.values, "config": self._config})
                )

    def _store(self) -> AbstractContextManager[CheckpointStore | None]:
        return nullcontext() if self._folder is None else CheckpointStore(self._folder, _KEPT)
