"""Reports the progress of a training."""

import math
import time
from types import TracebackType
from typing import Self

from loomrl.system import events
from loomrl.types import Json


class ProgressReporter:
    """Reports the progress of a training: a progress bar, and events for the process that started it. Use it in a
    `with` statement, which reports the last update when it ends.

    Updates are reported a few times a second, the last one always; `curves.json` has the whole curve. `engine` is the
    name of what computes them.
    """

    SECONDS = 0.2

    def __init__(self, bar: events.Reporter, engine: str) -> None:
        self._bar = bar
        self._started, self._from_step = time.monotonic(), 0
        self._reported_at = -math.inf
        self._pending: Json | None = None
        self._return = float("nan")
        events.emit("engine", engine=engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._report()

    def resumed(self, step: int) -> None:
        """Report that training continues from a checkpoint after `step` environment steps; the speed is measured from
        there."""
        self._from_step = step
        events.emit("resumed", step=step)

    def restored(self, row: Json) -> None:
        """Report that one of several learners continues from a checkpoint. `row` holds its `learner`, the `step`, and
        the `digest` of its state."""
        events.emit("restored", **row)

    def update(self, row: Json) -> None:
        """Take an update's row of the curve, with its `step`; it is reported now, or left out when a newer one comes
        before the next report."""
        self._pending = row
        self._return = row.get("episode_return", self._return)
        if time.monotonic() - self._reported_at >= self.SECONDS:
            self._report()

    def _report(self) -> None:
        if (row := self._pending) is None:
            return
        self._reported_at, self._pending = time.monotonic(), None
        speed = (row["step"] - self._from_step) / max(self._reported_at - self._started, 1e-9)
        events.emit("metrics", **row, steps_per_second=speed)
        shown = {"return": self._return} if self._return == self._return else {}
        self._bar.update(row["step"], **shown, steps_per_second=speed)

    def validation(self, row: Json) -> None:
        """Report a validation's row of the curve, with its `step`, and the last update before it."""
        self._report()
        values = {f"validation_{name}": value for name, value in row.items() if name != "step"}
        events.emit("metrics", step=row["step"], **values)
