"""Servers that tests start begin as copies of a process that has imported what they need.

Importing is most of what the start of a server costs, and tests start hundreds. Each is a process of its own all the
same: a child of the process that started it, with its own arguments, environment, folder and log. What depends on the
interpreter's own start is started anew: another Python path, or a preloaded library.
"""

import ctypes
import gc
import json
import os
import runpy
import subprocess
import sys
import threading
import time
from importlib import import_module
from typing import Any, BinaryIO, Self

from loomrl.system.http.process import ServiceProcess

MODULES = (
    "loomrl.serving.command",
    "loomrl.serving.server",
    "loomrl.serving.api.app",
    "loomrl.serving.api.hot",
    "loomrl.language.trajectory.api.app",
    "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.store.model_registry.sqlalchemy_store",
    "uvicorn",
)
_PR_SET_CHILD_SUBREAPER = 36  # of Linux, <sys/prctl.h>
_AT_THE_START = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "NUMBA_")  # what such variables say is read then


class Copy(subprocess.Popen[bytes]):
    """The child of this process with this id, which another process started."""

    def __init__(self, pid: int, arguments: list[str]) -> None:
        self.args, self.pid, self.returncode = arguments, pid, None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self._input, self._communication_started, self._sigint_wait_secs = None, False, 0.25


class Preforked:
    """Launches services as copies of one process, which is started for the first of them and ends with this one."""

    def __init__(self) -> None:
        self._begun = dict(os.environ)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.communicate()  # it ends with its input

    def launch(self, service: ServiceProcess, arguments: list[str], log: BinaryIO) -> "subprocess.Popen[bytes]":
        """As `ServiceProcess._launch`."""
        environment: dict[str, str] = service._environment
        if any(name.startswith(_AT_THE_START) for name, _ in environment.items() ^ self._begun.items()):
            return _LAUNCH(service, arguments, log)
        told = {"arguments": arguments, "environment": environment, "folder": os.getcwd(), "log": log.name}
        with self._lock:
            return Copy(self._ask(told), arguments)

    def _ask(self, told: dict[str, Any]) -> int:
        if self._process is None:
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(
                command, env=self._begun, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        _adopt_orphans(True)  # the one that is about to be born
        try:
            self._process.stdin.write(json.dumps(told | {"parent": os.getpid()}).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())
        finally:
            _adopt_orphans(False)


def _adopt_orphans(is_wanted: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_wanted))


def _serve() -> dict[str, Any]:
    """Answer each line of the standard input with the id of a new process, in which this returns that line's object.

    The new process is a child of `parent`: whoever forks it ends before it goes on.
    """
    for line in sys.stdin.buffer:
        told: dict[str, Any] = json.loads(line)
        reads, writes = os.pipe()
        between = os.fork()
        if between == 0:
            if (pid := os.fork()) == 0:
                while os.getppid() != told["parent"]:
                    time.sleep(0.001)
                return told
            os.write(writes, b"%d\n" % pid)
            os._exit(0)
        os.waitpid(between, 0)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            sys.stdout.buffer.write(pipe.readline())
        sys.stdout.buffer.flush()
    sys.exit()


def _become(told: dict[str, Any]) -> None:
    """Turn this process into `python -m ARGUMENTS` in its folder, which writes to its log."""
    os.chdir(told["folder"])
    sys.path[0] = told["folder"]
    os.environ.clear()
    os.environ.update(told["environment"])
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(told["log"], os.O_WRONLY | os.O_APPEND)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, 1024)
    module, *arguments = told["arguments"]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


_LAUNCH = ServiceProcess._launch
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

if __name__ == "__main__":
    for name in MODULES:
        import_module(name)
    assert threading.active_count() == 1, "only the thread that forks is copied"
    gc.collect()
    gc.freeze()  # else each copy would look at all of it again, and copy its pages
    _become(_serve())
