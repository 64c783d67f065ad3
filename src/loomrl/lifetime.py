"""A process that must not outlive the one it works for."""

import os
import signal
import threading
import time

from loomrl.errors import LoomRLError


def die_with_parent(poll_seconds: float = 0.1, parent: int | None = None, grace_seconds: float = 0.0) -> None:
    """End this process when the one that started it is gone; a parent killed with -9 can end nobody itself.

    `parent` is the process id of who started this one; left out, whoever is its parent now. With a grace the process
    gets SIGTERM first, and that long to end well.
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
