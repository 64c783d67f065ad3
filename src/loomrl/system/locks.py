"""Locks of files that processes of this machine hold."""

from pathlib import Path

from filelock import FileLock, Timeout

from loomrl.system.home import inside


def named_lock(name: str, timeout_seconds: float) -> FileLock:
    """A lock between the processes of this home, not held yet. Whoever enters it waits `timeout_seconds` at most.

    Raises:
        ConfigError: for what is no name, such as `../x`.
        filelock.Timeout: on entering, when another process holds it for longer; it is a `TimeoutError`.
    """
    path = inside("locks", f"{name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, timeout=timeout_seconds)


def is_held(path: Path) -> bool:
    """Whether some process holds the lock of a lock file now; False where there is no such file."""
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
