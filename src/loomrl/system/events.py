"""Progress of a stage, told to whoever started its process.

A stage that runs under a Prefect task finds `LOOMRL_EVENTS` in its environment: a file, outside every
stage's outputs, to which it appends one JSON object a line. Run by hand, it draws a progress bar instead.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

VARIABLE = "LOOMRL_EVENTS"


def somebody_listens() -> bool:
    """Whether whoever started this process follows its events: whether `LOOMRL_EVENTS` is set."""
    return VARIABLE in os.environ


def emit(event: str, **data: Any) -> None:
    """Append one event, its name, the time and `data`, as a line of JSON to the file that `LOOMRL_EVENTS` names.

    Does nothing where that is not set.

    Raises:
        OSError: when the file cannot be written.
        TypeError: for data that JSON cannot hold.
    """
    if path := os.environ.get(VARIABLE):
        line = json.dumps({"event": event, "time": time.time(), **data}) + "\n"
        with Path(path).open("a") as file:
            file.write(line)


class Reporter:
    """Reports how far a piece of work has come, at most ten times a second: as an event, and on the bar if there is
    one."""

    def __init__(self, label: str, total: int, bar: "Progress | None") -> None:
        self._label, self._total, self._bar = label, total, bar
        self._task = bar.add_task(label, total=total) if bar else None
        self._last = 0.0

    def update(self, completed: int, **metrics: float) -> None:
        """Say that `completed` of the total is done; `metrics` are shown beside it. Whatever the pace, the last one is
        told.

        Raises:
            OSError: when the file of events cannot be written.
        """
        now = time.monotonic()
        if now - self._last < 0.1 and completed < self._total:
            return
        self._last = now
        emit("progress", label=self._label, completed=completed, total=self._total, metrics=metrics)
        if self._bar is not None and self._task is not None:
            shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            self._bar.update(self._task, completed=completed, description=f"{self._label}  {shown}")


@contextmanager
def progress(label: str, total: int) -> Iterator[Reporter]:
    """A `Reporter` of `total` units of work under a label, for the block.

    Where nobody follows the events and stderr is a terminal, a progress bar is drawn there, and removed after the
    block.
    """
    if somebody_listens() or not sys.stderr.isatty():
        yield Reporter(label, total, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Reporter(label, total, bar)
