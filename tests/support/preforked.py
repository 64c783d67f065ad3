"""Servers that tests start begin as copies of a process that has imported what they need.

Importing is most of what the start of a server costs, and tests start hundreds. A copy is a process of its own: a child
of the process that asked for it, with its own arguments, environment, folder and log. It shares with the other copies
what an interpreter decides when it starts, such as the seed of its hashes, and is listed under the command of the
process it copies. A new interpreter is started where variables differ that are read at the start; for another service;
and where the imports fail: it says why.
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
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Self

from loomrl.system.http.process import ServiceProcess

SERVICES = {
    "loomrl.serving": (
        "loomrl.serving.command",
        "loomrl.serving.server",
        "loomrl.serving.api.app",
        "loomrl.serving.api.hot",
        "mlflow.store.tracking.sqlalchemy_store",
        "mlflow.store.model_registry.sqlalchemy_store",
        "uvicorn",
    ),
    "loomrl.language.trajectory": ("loomrl.language.trajectory.api.app",),
}  # what `python -m` runs -> what it imports
_READ_AT_START = (
    *("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "ARROW_", "MALLOC_", "MLFLOW_LOGGING"),
    *("TZ", "LC_", "LANG"),
)  # what the names of such variables begin with
_ROOT = Path(__file__).resolve().parents[2]
_PR_SET_CHILD_SUBREAPER = 36  # of Linux, <sys/prctl.h>
real_launch = ServiceProcess._launch


class Copy(subprocess.Popen[bytes]):
    """The child of this process with this id, which another process forked.

    Raises:
        ChildProcessError: when this process has no such child.
    """

    def __init__(self, pid: int, arguments: list[str]) -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.args, self.pid, self.returncode = arguments, pid, None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self._input, self._communication_started, self._sigint_wait_secs = None, False, 0.25


class Preforked:
    """Launches services as copies of one process, which is started for the first of them and ends with this one."""

    def __init__(self, services: Mapping[str, Sequence[str]] = SERVICES) -> None:
        self._services = services
        self._begun = dict(os.environ)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: BinaryIO

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def launch(self, service: ServiceProcess, arguments: list[str], log: BinaryIO) -> "subprocess.Popen[bytes]":
        """Run `python -m ARGUMENTS` in the service's environment and this folder; output goes to the end of `log`."""
        environment: dict[str, str] = service._environment
        pid = 0
        changed = {name for name, _ in environment.items() ^ self._begun.items()}
        if arguments[0] in self._services and not any(name.startswith(_READ_AT_START) for name in changed):
            request = {"arguments": arguments, "environment": environment, "folder": os.getcwd(), "log": log.name}
            with self._lock:
                pid = self._ask(request)
        return Copy(pid, arguments) if pid else real_launch(service, arguments, log)

    def _ask(self, request: dict[str, Any]) -> int:
        """The id of the new process; 0 where none could be made."""
        process = self._process or self._begin()
        if process.poll() is not None:
            return 0
        assert process.stdin is not None
        _adopt_orphans(True)  # the one that is about to be born
        try:
            process.stdin.write(json.dumps(request | {"parent": os.getpid()}).encode() + b"\n")
            process.stdin.flush()
            return int(self._answers.readline() or 0)
        except BaseException:
            self._end()  # what it still answers would be taken for the next one's
            raise
        finally:
            _adopt_orphans(False)

    def _begin(self) -> "subprocess.Popen[bytes]":
        """Start the process to copy; it has ended where it could not import what it should."""
        reads, writes = os.pipe()
        modules = [module for imported in self._services.values() for module in imported]
        command = [sys.executable, "-m", __name__, str(writes), *modules]
        self._process = subprocess.Popen(
            command, env=self._begun, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[writes], cwd=_ROOT
        )
        os.close(writes)
        self._answers = os.fdopen(reads, "rb")
        if not self._answers.readline():
            self._process.wait()
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._answers.close()
            self._process = None


def _adopt_orphans(is_wanted: bool) -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_wanted)):
        raise OSError("this process cannot be made the parent of orphans")


def _serve(answers: BinaryIO) -> dict[str, Any]:
    """Answer each line of the standard input with the id of a new process, in which this returns that line's object.

    The new process is a child of `parent`, since the process that forks it ends; it ends too where it is not. Where
    none could be made the answer is 0.
    """
    for line in sys.stdin.buffer:
        request: dict[str, Any] = json.loads(line)
        reads, writes = os.pipe()
        if (intermediate := os.fork()) == 0:
            intermediate = os.getpid()
            if (pid := os.fork()) == 0:
                while (parent := os.getppid()) != request["parent"]:
                    if parent != intermediate:
                        os._exit(3)
                    time.sleep(0.001)
                return request
            os.write(writes, b"%d\n" % pid)
            os._exit(0)
        os.close(writes)
        os.waitpid(intermediate, 0)
        with os.fdopen(reads, "rb") as pipe:
            answers.write(pipe.readline() or b"0\n")
        answers.flush()
    sys.exit()


def _become(request: dict[str, Any]) -> None:
    """Turn this process into `python -m ARGUMENTS`, with its output at the end of its log."""
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, 1024)
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]
    os.environ.clear()
    os.environ.update(request["environment"])
    module, *arguments = request["arguments"]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        import_module(name)
    assert threading.active_count() == 1, "of Python's threads only the one that forks is copied"
    gc.collect()
    gc.freeze()  # else each copy would look at all of it again, and copy its pages
    answers = os.fdopen(int(sys.argv[1]), "wb", closefd=False)
    answers.write(b"ready\n")
    answers.flush()
    _become(_serve(answers))
