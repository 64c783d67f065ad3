"""Curves for TensorBoard, where LOOMRL_TENSORBOARD names a folder: beside MLflow's, while a stage runs."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from loomrl.errors import ConfigError

VARIABLE = "LOOMRL_TENSORBOARD"


class Board:
    """Writes the metrics of one run to FOLDER/POLICY/RUN; does nothing where no folder is named.

    Raises:
        ConfigError: when a folder is named and tensorboardX is not installed.
    """

    def __init__(self, policy: str, run_id: str) -> None:
        self._writer = None
        if folder := os.environ.get(VARIABLE):
            try:
                from tensorboardX import SummaryWriter
            except ImportError as error:
                raise ConfigError(f"{VARIABLE}: {error}; run `pip install 'loomrl[tensorboard]'`") from error
            self._writer = SummaryWriter(str(Path(folder).expanduser() / policy / run_id))

    def add(self, name: str, value: float, step: int, seconds: float) -> None:
        """One point of a curve; `seconds` since the epoch."""
        if self._writer is not None:
            self._writer.add_scalar(name, value, step, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()
