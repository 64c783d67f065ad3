"""Locks of files that processes of this machine hold."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from loomrl.errors import ServiceError
from loomrl.system.home import inside


@contextmanager
def held(path: Path, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock of a lock file, which is made where it is not there, while the block lasts.

    Raises:
        ServiceError: when another process holds it for longer than so many seconds.
    """
    lock = FileLock(path, timeout=timeout_seconds)
    try:
        lock.acquire()
    except Timeout as error:
        raise ServiceError(
            f"another process holds {path} for more than {timeout_seconds:g} s; wait for its end, or end it if it hangs"
        ) from error
    try:
        yield
    finally:
        lock.release()


def lock_file(name: str) -> Path:
    """The lock file of that name between the processes of this home, in a folder that is made.

    Raises:
        ConfigError: for what is no name, such as `../x`.
    """
    path = inside("locks", f"{name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def is_held(path: Path) -> bool:
    """Whether some process holds the lock of a lock file now; False where there is no such file."""
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
