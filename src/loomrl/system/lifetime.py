"""A process that must not outlive the one it works for, and how soon it is started again where it fails.

`python -m loomrl.system.lifetime PARENT MODULE ARGUMENTS` is `python -m MODULE ARGUMENTS` that ends when process
PARENT does.
"""

import ctypes
import logging
import os
import runpy
import signal
import sys
import threading
import time

from loomrl.errors import LoomRLError

_PR_SET_PDEATHSIG = 1  # of Linux, <sys/prctl.h>


def die_with_parent(poll_seconds: float = 0.1, parent: int | None = None, grace_seconds: float = 0.0) -> None:
    """End this process when the one that started it is gone; a parent killed with -9 can end nobody itself.

    Returns at once; a thread looks every `poll_seconds`. `parent` is the process id of who started this one; left out,
    whoever is its parent now. With a grace the process gets SIGTERM first, and that long to end well. Its exit code is
    3.
    """
    watched = os.getppid() if parent is None else parent

    def watch() -> None:
        while os.getppid() == watched:
            time.sleep(poll_seconds)
        if grace_seconds:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace_seconds)
        os._exit(LoomRLError.exit_code)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def be_killed_with_parent(parent: int) -> None:
    """Have the kernel kill this process, even a stopped one, as soon as the thread that started it is gone.

    `parent` is the process id of who started this one; where it is gone already, this process ends now, with exit code
    3. Linux only.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(LoomRLError.exit_code)


def follow_parent(parent: int) -> None:
    """Called first in a process that works beside a server: it logs to stderr and is killed when the server is gone.

    `parent` is the server's process id. SIGINT and SIGTERM are ignored: a terminal sends them to both, and they are
    meant for the server, which ends this process in order.
    """
    be_killed_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)


def pause_seconds(num_failures: int, first: float, longest: float) -> float:
    """Seconds to wait after `num_failures` failures, one after the other: `first`, doubled with each, at most
    `longest`."""
    return min(longest, first * 2.0 ** min(num_failures - 1, 64))  # more would pass the largest float


if __name__ == "__main__":
    die_with_parent(parent=int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
