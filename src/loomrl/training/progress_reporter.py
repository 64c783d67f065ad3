"""Tells how a training goes."""

import math
import time
from types import TracebackType
from typing import Self

from loomrl.system import events
from loomrl.types import Json


class ProgressReporter:
    """Tells how training goes: a progress bar, and events for whoever started the process.

    Updates are told a few times a second, the last one always; `curves.json` has the whole curve.
    """

    SECONDS = 0.2

    def __init__(self, bar: events.Reporter, engine: str) -> None:
        self._bar = bar
        self._started, self._from_step = time.monotonic(), 0
        self._told = -math.inf
        self._untold: Json | None = None
        self._return = float("nan")
        events.emit("engine", engine=engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tell()

    def resumed(self, step: int) -> None:
        self._from_step = step
        events.emit("resumed", step=step)

    def restored(self, row: Json) -> None:
        """One of several learners goes on from a checkpoint: `learner`, `step`, and the `digest` of its state."""
        events.emit("restored", **row)

    def update(self, row: Json) -> None:
        self._untold = row
        self._return = row.get("episode_return", self._return)
        if time.monotonic() - self._told >= self.SECONDS:
            self._tell()

    def _tell(self) -> None:
        if (row := self._untold) is None:
            return
        self._told, self._untold = time.monotonic(), None
        speed = (row["step"] - self._from_step) / max(self._told - self._started, 1e-9)
        events.emit("metrics", **row, steps_per_second=speed)
        shown = {"return": self._return} if self._return == self._return else {}
        self._bar.update(row["step"], **shown, steps_per_second=speed)

    def validation(self, row: Json) -> None:
        self._tell()
        values = {f"validation_{name}": value for name, value in row.items() if name != "step"}
        events.emit("metrics", step=row["step"], **values)
