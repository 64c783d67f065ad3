"""Finds a learner that hangs, in an environment or anywhere else, and ends it: a hung call cannot be interrupted."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from loomrl.errors import LoomRLError

_FRAMES = 6  # of the stack that are told, the innermost


class Watchdog:
    """Ends the process when the thread that entered it, in a `with` statement, makes no progress for `timeout_seconds`.
    Before that it calls `tell` with a message that holds the thread's stack."""

    def __init__(self, timeout_seconds: float, tell: Callable[[str], None]) -> None:
        self._timeout, self._tell = timeout_seconds, tell
        self._watched = threading.get_ident()
        self._deadline = float("inf")
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._watched = threading.get_ident()
        self.alive()
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()

    def alive(self) -> None:
        """Report that the watched thread makes progress; the timeout starts again."""
        self._deadline = time.monotonic() + self._timeout

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """While the block lasts the thread waits for others, and the timeout does not count; it starts again
        afterwards."""
        self._deadline = float("inf")
        try:
            yield
        finally:
            self.alive()

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self._timeout / 4)):
            if time.monotonic() > self._deadline:
                try:
                    self._tell(self._message())
                finally:  # whoever is told may be gone, or want no more
                    os._exit(LoomRLError.exit_code)

    def _message(self) -> str:
        stack = traceback.format_stack(sys._current_frames()[self._watched])[-_FRAMES:]
        return f"no sign of life for {self._timeout:g} s (training.distributed.hang_timeout_seconds), in:\n" + "".join(
            stack
        )
