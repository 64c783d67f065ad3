"""A cgroup of a program's own, where this process may make one: it bounds what many processes use together.

Limits on a process know nothing of what its siblings have, nor of memory that is no process's. Both versions of cgroups
are used as they are found: nothing is mounted, and no controller is switched on for others. In a container there mostly
is none to be had; then the limits on each process are what there is.
"""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_NAME = "loomrl-sandbox-"
_CONTROLLERS = ("memory", "pids")
_ENTER = 'while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'
_ENDING_SECONDS = 10.0  # until what was killed is gone
_ABANDONED_SECONDS = 3_600.0  # after which a group without processes is nobody's: who made it was killed


@contextmanager
def own_group(memory_bytes: int, num_processes: int) -> Iterator[list[str]]:
    """A context with what to put before a command so that it runs in a group of its own: a list of arguments.

    It is empty where no group is to be had. The group's processes together have at most `memory_bytes`, and are at most
    `num_processes`. What still runs in the group afterwards is killed.

    Raises:
        OSError: when a group cannot be made although others could.
    """
    folders = _make(_parents(), memory_bytes, num_processes)
    try:
        yield _entering(folders)
    finally:
        _remove(folders)


@cache
def _parents() -> tuple[Path, ...]:
    """Where groups can be made: one folder, or with version 1 one for each controller. Found out by running in one."""
    for parents in _candidates(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()):
        with suppress(OSError, subprocess.SubprocessError):
            folders = _make(parents, 2**26, 8)
            try:
                subprocess.run([*_entering(folders), "/bin/true"], check=True, capture_output=True)
            finally:
                _remove(folders)
            _remove_abandoned(parents)
            return parents
    return ()


def _candidates(memberships: str, mounts: str) -> Iterator[tuple[Path, ...]]:
    """Folders to try, from what the kernel says of this process (cgroups(7)) and of its mounts (proc(5)).

    With version 2 a group that has processes has no groups with controllers below it, so that those above it are tried,
    up to the top. With version 1 this process's own group will do.
    """
    split = [line.split(":", 2) for line in memberships.splitlines()]
    own = {controller: path for _, named, path in split for controller in named.split(",")}
    mounted: dict[str, Path] = {}
    for line in mounts.splitlines():
        place, _, kind = line.partition(" - ")
        root, point = place.split()[3:5]
        system, _, options = kind.split()[:3]
        named = [""] if system == "cgroup2" else options.split(",") if system == "cgroup" else []
        for controller in {*named} & own.keys():
            inside = os.path.relpath(own[controller], root)
            mounted[controller] = Path(point) if inside.startswith("..") else Path(point, inside)
            mounted.setdefault(f"top {controller}", Path(point))
    if all(controller in mounted for controller in _CONTROLLERS):
        yield tuple(mounted[controller] for controller in _CONTROLLERS)
    if "" in mounted:
        top = mounted["top "]
        for folder in (mounted[""], *mounted[""].parents):
            if folder.is_relative_to(top) and {*_CONTROLLERS} <= {*_text(folder / "cgroup.subtree_control").split()}:
                yield (folder,)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _make(parents: Sequence[Path], memory_bytes: int, num_processes: int) -> list[Path]:
    name = f"{_NAME}{os.getpid()}-{secrets.token_hex(4)}"
    folders: list[Path] = []
    try:
        for parent in parents:
            (parent / name).mkdir()
            folders.append(parent / name)
            _bound(parent / name, memory_bytes, num_processes)
    except OSError:
        _remove(folders)
        raise
    return folders


def _bound(folder: Path, memory_bytes: int, num_processes: int) -> None:
    """Set what there is to set: version 2 has all in one folder, and swap may be unknown to the kernel."""
    bounds = {
        "memory.max": memory_bytes,
        "memory.swap.max": 0,
        "memory.oom.group": 1,
        "memory.limit_in_bytes": memory_bytes,
        "memory.memsw.limit_in_bytes": memory_bytes,  # with swap; after the limit without, which it may not fall below
        "pids.max": num_processes,
    }
    for name, bound in bounds.items():
        if (folder / name).exists():
            (folder / name).write_text(str(bound))


def _entering(folders: Sequence[Path]) -> list[str]:
    """A shell enters the groups and becomes the command, which thus never was outside them."""
    return ["/bin/sh", "-c", _ENTER, "sh", *map(str, folders), "--"] if folders else []


def _remove(folders: Sequence[Path]) -> None:
    """Once what runs there has ended; a group that stays is removed by a later process."""
    until = time.monotonic() + _ENDING_SECONDS
    for folder in folders:
        while True:
            for process in _text(folder / "cgroup.procs").split():
                with suppress(OSError):
                    os.kill(int(process), signal.SIGKILL)
            with suppress(OSError):
                folder.rmdir()
            if not folder.exists() or time.monotonic() > until:
                break
            time.sleep(0.002)


def _remove_abandoned(parents: Sequence[Path]) -> None:
    for parent in parents:
        for folder in parent.glob(f"{_NAME}*"):
            with suppress(OSError):
                if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
                    folder.rmdir()  # refused where there are processes
