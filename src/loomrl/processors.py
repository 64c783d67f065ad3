"""How many processors there are for this process."""

import os


def num_processors() -> int:
    """Those this process may use; where the system does not say (it is Linux that does), all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
