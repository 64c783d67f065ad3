"""Runs Python that strangers wrote: in namespaces of its own, without network or a place to write, within limits.

bubblewrap makes a world that holds the system's Python and nothing else, read-only; `prlimit` inside it bounds time,
memory, processes and files; a filter leaves of the kernel what such a program needs (`system_calls`); a cgroup, where
one can be had, bounds all its processes together (`cgroup`). As root, `setpriv` becomes nobody first, because limits on
processes do not bind root. Where that cannot be had, running is refused: there is no second way.
"""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from loomrl.errors import ServiceError
from loomrl.gym.domains.code.cgroup import own_group
from loomrl.gym.domains.code.system_calls import is_known, seccomp_filter

_NOBODY = 65_534
_FIX = "install Debian's `bubblewrap` and `python3`, and allow user namespaces"
_OF_THE_SANDBOX = 4  # processes: bubblewrap's two, and what is about to become the program
_SYSTEM_LINKS = ("bin", "lib", "lib32", "lib64", "sbin")


@dataclass(frozen=True)
class SandboxLimits:
    """What a program may use. Memory is that of each process, and where there is a cgroup of all together; time is that
    of each process's processor.
    """

    cpu_seconds: int = 2
    wall_seconds: float = 60.0
    memory_bytes: int = 192 * 2**20
    processes: int = 8
    open_files: int = 32
    output_bytes: int = 2**20


class ProgramOutcome(NamedTuple):
    """What a program wrote to standard output, and whether it ended by itself within its limits."""

    output: bytes
    finished: bool


def run(program: str, data: bytes, limits: SandboxLimits | None = None) -> ProgramOutcome:
    """Run a Python program with `data` as standard input; `limits` None is the default of each limit.

    A program that fails or is ended by a limit raises nothing: it has not `finished`.

    Raises:
        ServiceError: where there is no sandbox; the program was not run then.
    """
    reason = why_unavailable()
    if reason is not None:
        raise ServiceError(f"code cannot be run: {reason}; {_FIX}")
    return _run(program, data, limits or SandboxLimits())


@cache
def why_unavailable() -> str | None:
    """Why there is no sandbox here, found out by running a program in it once; None where there is one.

    Raises:
        ServiceError: where cgroups can be made, and one for that program cannot.
    """
    for tool in ("bwrap", "prlimit", *(("setpriv",) if os.geteuid() == 0 else ())):
        if shutil.which(tool) is None:
            return f"there is no `{tool}` on this machine"
    if not is_known(platform.machine()):
        return f"no filter of system calls is written for machines of the kind {platform.machine()!r}"
    if _python() is None:
        return "there is no system Python under /usr"
    outcome = _run("print(6 * 7)", b"", SandboxLimits())
    return None if outcome.output == b"42\n" else "the sandbox does not start on this machine"


def _run(program: str, data: bytes, limits: SandboxLimits) -> ProgramOutcome:
    """Files in place of pipes: a program that reads nothing or writes without end blocks nobody."""
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as written,
        tempfile.TemporaryFile() as allowed,
        _group(limits) as entering,
    ):
        for file, content in ((given, data), (allowed, seccomp_filter())):
            file.write(content)
            file.seek(0)
        command = [*entering, *_command(program, limits, allowed.fileno())]
        process = subprocess.Popen(
            command,
            stdin=given,
            stdout=written,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            pass_fds=[allowed.fileno()],
        )
        try:
            finished = process.wait(limits.wall_seconds) == 0
        except subprocess.TimeoutExpired:
            finished = False
        finally:
            process.kill()  # its namespace ends with it, and whatever runs there
            process.wait()
        written.seek(0)
        return ProgramOutcome(written.read(limits.output_bytes), finished)


@contextmanager
def _group(limits: SandboxLimits) -> Iterator[list[str]]:
    with ExitStack() as stack:
        try:
            entering = stack.enter_context(own_group(limits.memory_bytes, limits.processes + _OF_THE_SANDBOX))
        except OSError as error:
            raise ServiceError(f"code cannot be run: no cgroup can be made: {error}; free some") from error
        yield entering


def _command(program: str, limits: SandboxLimits, allowed: int) -> list[str]:
    """`allowed` is a file descriptor with the filter of system calls."""
    bounds = {
        "cpu": limits.cpu_seconds,
        "as": limits.memory_bytes,
        "nproc": limits.processes,
        "nofile": limits.open_files,
        "fsize": limits.output_bytes,
        "core": 0,
    }
    limited = [_path("prlimit"), *(f"--{name}={bound}" for name, bound in bounds.items())]
    world = [*_world(), "--seccomp", str(allowed)]
    return [*_as_nobody(), _path("bwrap"), *world, "--", *limited, str(_python()), "-I", "-S", "-c", program]


def _as_nobody() -> list[str]:
    if os.geteuid() != 0:
        return []
    identity = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--no-new-privs"]
    return [_path("setpriv"), *identity]


def _world() -> list[str]:
    """Nothing but /usr and what leads there; no /proc, no /dev but null and random numbers, nothing writable."""
    isolated = ["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    isolated += ["--uid", str(_NOBODY), "--gid", str(_NOBODY)]
    alone = ["--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"]
    shown = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_LINKS:
        link = Path("/", name)
        if link.is_symlink():
            shown += ["--symlink", f"usr/{name}", str(link)]
        elif link.is_dir():
            shown += ["--ro-bind", str(link), str(link)]
    shown += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for device in ("/dev/null", "/dev/urandom"):
        shown += ["--dev-bind", device, device]
    return [*isolated, *alone, *shown, "--remount-ro", "/", "--chdir", "/", "--setenv", "LANG", "C.UTF-8"]


@cache
def _python() -> Path | None:
    """The system's Python: that of a virtual environment lies where nobody may look."""
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    return None if found is None else Path(found)


def _path(tool: str) -> str:
    return shutil.which(tool) or tool
