"""Waiting for what another process writes."""

import os
import select
from typing import IO, Any

_PIPE_BYTES = 65_536


def is_readable(pipe: int | IO[Any], seconds: float | None) -> bool:
    """Whether there is something to read, or an end, within so long; waits without a limit for None.

    `select.select` knows no file descriptor from 1,024 on, and a server with many connections has those.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1_000.0 * seconds))


class LineReader:
    """The lines that another process writes to a pipe, as they come."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._begun = pipe, b""  # of a line that is not whole
        self.has_ended = False  # whether there will be no other

    def read(self, seconds: float | None) -> list[bytes]:
        """Those that are whole, after waiting for something to read, or an end, as `is_readable` does."""
        if self.has_ended or not is_readable(self._pipe, seconds):
            return []
        data = os.read(self._pipe, _PIPE_BYTES)
        self.has_ended = not data
        *lines, self._begun = (self._begun + data).split(b"\n")
        return lines
