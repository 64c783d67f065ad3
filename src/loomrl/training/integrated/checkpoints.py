"""The checkpoints of an integrated system; without a folder there are none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loomrl.errors import ConfigError
from loomrl.training.checkpoints import Checkpoint, CheckpointStore
from loomrl.types import Json

_KEPT = 2


class Checkpoints:
    """Those of one config: others are never continued.

    Args:
        folder: where they lie, or None.
        config: what training follows from, JSON values.
    """

    def __init__(self, folder: Path | None, config: Json) -> None:
        self._folder, self._config = folder, config

    def newest(self) -> Checkpoint | None:
        """Where to go on.

        Raises:
            ConfigError: when it is of another config.
        """
        with self._store() as store:
            found = None if store is None else store.newest()
        if found is not None and found.values["config"] != self._config:
            raise ConfigError(f"{self._folder} holds checkpoints of another config; name another checkpoint_folder")
        return found

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint."""
        with self._store() as store:
            if store is not None:
                store.save(
                    Checkpoint(checkpoint.step, checkpoint.arrays, {**checkpoint.values, "config": self._config})
                )

    @contextmanager
    def _store(self) -> Iterator[CheckpointStore | None]:
        if self._folder is None:
            yield None
            return
        with CheckpointStore(self._folder, _KEPT) as store:
            yield store
