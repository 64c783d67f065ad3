"""Waiting for what another process writes."""

import select
from typing import IO, Any


def is_readable(pipe: int | IO[Any], seconds: float | None) -> bool:
    """Whether there is something to read, or an end, within so long; waits without a limit for None.

    `select.select` knows no file descriptor from 1,024 on, and a server with many connections has those.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1_000.0 * seconds))
