"""Locks of files, between the processes of this machine and the threads of each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from loomrl.errors import LoomRLError, ServiceError
from loomrl.system.home import inside


@contextmanager
def hold_lock(path: Path, timeout_seconds: float, refused: Callable[[], LoomRLError] | None = None) -> Iterator[None]:
    """Hold the lock of a lock file, which is made where it is not there, while the block lasts. Only one thread of one
    process has it.

    `refused` makes the error for who has waited in vain; by default it is a `ServiceError` that names the file.

    Raises:
        ServiceError: when somebody else holds it for longer than so many seconds, or what `refused` makes.
    """
    lock = FileLock(path, timeout=timeout_seconds)
    try:
        lock.acquire()
    except Timeout as error:
        raise (refused() if refused is not None else _refused(path, timeout_seconds)) from error
    try:
        yield
    finally:
        lock.release()


def _refused(path: Path, timeout_seconds: float) -> ServiceError:
    return ServiceError(
        f"another process, or thread, holds {path} for more than {timeout_seconds:g} s; wait for its end, or end it if "
        "it hangs"
    )


def lock_file(name: str) -> Path:
    """The lock file of that name of this home; its folder is made.

    Raises:
        ConfigError: for what is no name, such as `../x`.
    """
    path = inside("locks", f"{name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock of a lock file now; False where there is no such file."""
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
