"""How many processors there are for this process."""

import math
import os

_share = math.inf


def num_processors() -> int:
    """Those this process may use; where the system does not say (it is Linux that does), all there are. Of them its
    share, where it keeps to one.
    """
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(there, _share)))


def keep_to(share: float) -> None:
    """This process has so many from now on: the rest is for others on this machine. `math.inf`: all there are."""
    global _share  # noqa: PLW0603
    _share = share
