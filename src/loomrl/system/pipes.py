"""Waiting for what another process writes."""

import os
import select
from typing import IO, Any

_PIPE_BYTES = 65_536


def is_readable(pipe: int | IO[Any], seconds: float | None) -> bool:
    """Whether a pipe has something to read, or its end, within so many seconds; waits without a limit for None.

    `select.select` knows no file descriptor from 1,024 on, and a server with many connections has those.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1_000.0 * seconds))


class LineReader:
    """The lines that another process writes to a pipe, given as its file descriptor, as they come."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._begun = pipe, b""  # of a line that is not whole
        self.has_ended = False  # whether there will be no other

    def read(self, seconds: float | None) -> list[bytes]:
        """The lines that are whole now, without their line breaks; it waits up to so many seconds for something to
        read.

        None: without a limit. Empty where nothing came in time, a line is not whole yet, or the pipe has ended
        (`has_ended`). Half a line at the end is lost.
        """
        if self.has_ended or not is_readable(self._pipe, seconds):
            return []
        data = os.read(self._pipe, _PIPE_BYTES)
        self.has_ended = not data
        *lines, self._begun = (self._begun + data).split(b"\n")
        return lines
