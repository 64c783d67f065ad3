"""Locks of files that processes of this machine hold."""

from pathlib import Path

from filelock import FileLock, Timeout

from loomrl.system.home import inside


def named_lock(name: str, timeout_seconds: float) -> FileLock:
    """A lock of this home; whoever enters it waits so long, and gets `filelock.Timeout` where that is not enough."""
    path = inside("locks", f"{name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, timeout=timeout_seconds)


def is_held(path: Path) -> bool:
    """Whether some process holds the lock of a file, which need not be there."""
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
