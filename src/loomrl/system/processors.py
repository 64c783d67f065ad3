"""How many processors there are for this process."""

import math
import os

_share = math.inf


def num_processors() -> int:
    """How many processors this process may use, at least 1; where the system does not say (Linux does), all there are.

    No more than the share that `keep_to` set, rounded down.
    """
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(there, _share)))


def keep_to(share: float) -> None:
    """Have `num_processors` say no more than `share` in this process from now on: the rest is for others on this
    machine.

    `math.inf`: all there are.
    """
    global _share  # noqa: PLW0603
    _share = share
