"""Processes of LoomRL that tests start begin as copies of one that has imported what they need.

Importing is most of what the start of a server costs, and tests start hundreds; beside each runs a guardian's process,
beside some those of workers or a challenger. A copy is a process of its own: a child of the process that asked for it,
with its own arguments, environment, folder, pipes, umask and exit code. It shares with the other copies what an
interpreter decides when it starts, such as the seed of its hashes, and what processes inherit besides (limits,
priority, processors); it is listed under the command of the process it copies. A new interpreter is started where
variables differ that are read at the start; for other commands; and where the imports fail: it says why.
"""

import atexit
import ctypes
import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.support.startup_code import run_startup_code, without_startup_code

_SERVER = (
    "loomrl.serving.command",
    "loomrl.serving.server",
    "loomrl.serving.api.app",
    "loomrl.serving.api.hot",
    "mlflow.store.tracking.sqlalchemy_store",
    "mlflow.store.model_registry.sqlalchemy_store",
    "uvicorn",
)
MODULES = {
    "loomrl.serving": _SERVER,
    "loomrl.serving.supervision.worker": _SERVER,
    "loomrl.serving.guardian.child": ("loomrl.serving.guardian.exchange", "loomrl.serving.guardian.stream"),
    "loomrl.serving.mirror.child": ("loomrl.serving.policy.model", "loomrl.serving.decisions.memory"),
    "loomrl.language.trajectory": ("loomrl.language.trajectory.api.app",),
    "tests.support.interrupted_promotions": ("loomrl.promotion.promote", "pytest"),
}  # what `python -m` runs -> what it imports
_STARTS_OTHERS = ("loomrl.serving", "loomrl.serving.supervision.worker")
_READ_AT_START = (
    *("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "ARROW_", "MALLOC_", "MLFLOW_LOGGING"),
    *("TZ", "LC_", "LANG"),
)  # what the names of such variables begin with
_READ_LATER = {"PYTHONBREAKPOINT"}  # Ray sets it in every process that joins a cluster
_ROOT, _PYTHON = Path(__file__).resolve().parents[2], sys.executable  # a test may patch the latter
_PR_SET_CHILD_SUBREAPER = 36  # of Linux, <sys/prctl.h>
_MOST_BYTES, _MOST_HANDLES = 1 << 17, 32  # of a request
_adopting = threading.Lock()  # whether orphans are adopted is said of the whole process
_Request = tuple[dict[str, Any], list[int]]  # what to run, and the file descriptors it gets
RealPopen = subprocess.Popen


class ForkServer:
    """A process beside this one that forks copies of itself, which become children of this one."""

    def __init__(
        self, begin: Callable[[], socket.socket | None], begun: Mapping[str, str], modules: Sequence[str]
    ) -> None:
        """`begin` starts it, or gives None where it cannot be started again; `begun` are the variables it was started
        with, `modules` what its copies can run."""
        self._begin, self._begun, self._modules, self._asker = begin, begun, modules, os.getpid()
        self._connection: socket.socket | None = None

    def can_run(self, command: Any, environment: Mapping[str, str]) -> bool:
        """Whether a copy in this environment would do what the command does."""
        if not isinstance(command, list) or not all(isinstance(part, str) for part in command):
            return False
        if command[:2] != [_PYTHON, "-m"] or not set(command[2:3]) & set(self._modules):
            return False
        changed = {name for name, _ in without_startup_code(environment).items() ^ self._begun.items()}
        return not any(name.startswith(_READ_AT_START) for name in changed - _READ_LATER)

    def close(self) -> None:
        """Let it end."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def fork(self, request: dict[str, Any], handles: Sequence[int]) -> int:
        """The id of a new child; 0 where none could be made."""
        told = json.dumps(request | {"parent": os.getpid()}).encode()
        if len(told) > _MOST_BYTES or len(handles) > _MOST_HANDLES or os.getpid() != self._asker:
            return 0
        with _adopting:
            connection = self._connection = self._connection or self._begin()
            if connection is None:
                return 0
            _adopt_orphans(True)  # the one that is about to be born
            try:
                socket.send_fds(connection, [told], handles)
                if answer := connection.recv(64):
                    return int(answer)
                self.close()
            except OSError:
                self.close()
            except BaseException:
                self.close()  # what it still answers would be taken for the next one's
                raise
            finally:
                _adopt_orphans(False)
        return 0


class ForkedPopen(RealPopen[Any]):
    """`subprocess.Popen`, but what this process's fork server can run is run by a copy."""

    server: ClassVar[ForkServer | None] = None
    is_copy = False

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: bool,
        pass_fds: Sequence[int],
        cwd: Any,
        env: Mapping[str, str] | None,
        startupinfo: Any,
        creationflags: int,
        shell: bool,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        *privileges: Any,
    ) -> None:
        variables, folder = dict(os.environ if env is None else env), os.path.abspath(os.fsdecode(cwd or "."))
        restore_signals, gid, gids, uid, umask, own_session, group = privileges
        as_this_process = (executable, preexec_fn, gid, gids, uid, umask, group) == (*(None,) * 5, -1, -1)
        is_plain = as_this_process and close_fds and not shell
        if is_plain and os.path.isdir(folder) and self.server is not None and self.server.can_run(args, variables):
            given = [one if one != -1 else own for own, one in enumerate((p2cread, c2pwrite, errwrite))]
            request = {
                "arguments": args[2:],
                "environment": variables,
                "folder": folder,
                "umask": _umask(),
                "handles": [0, 1, 2, *pass_fds],
                "has_own_session": own_session,
            }
            if pid := self.server.fork(request, [*given, *pass_fds]):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # an error, were it no child
                self.pid, self._child_created, self.is_copy = pid, True, True
                self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
                return
        handles = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        told = (args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell)
        super()._execute_child(*told, *handles, *privileges)


class Preforked:
    """Within the block, what can be a copy is one: of a process that is started for the first of them."""

    def __init__(
        self, modules: Mapping[str, Sequence[str]] = MODULES, variables: Mapping[str, str] | None = None
    ) -> None:
        """`variables` are those of the process besides this one's: what starts with the same ones is a copy."""
        self._modules = modules
        self._begun = {**os.environ, **(variables or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._before = subprocess.Popen, ForkedPopen.server
        self._server = ForkedPopen.server = ForkServer(self._begin, self._begun, list(self._modules))
        subprocess.Popen = ForkedPopen  # type: ignore[misc]
        return self

    def __exit__(self, *exception: object) -> None:
        subprocess.Popen, ForkedPopen.server = self._before  # type: ignore[misc]
        self._server.close()
        self._end()

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _begin(self) -> socket.socket:
        """Start the process to copy; it ends at once where it cannot import what it should."""
        self._end()
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        modules = json.dumps({name: list(imported) for name, imported in self._modules.items()})
        command = [sys.executable, "-m", __name__, str(its.fileno()), modules]
        with its:
            self.process = RealPopen(
                command, env=self._begun, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()], cwd=_ROOT
            )
        return ours


def _umask() -> int:
    """This process's; to ask the kernel by setting it would change it for all threads."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def _adopt_orphans(is_wanted: bool) -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_wanted)):
        raise OSError("this process cannot be made the parent of orphans")


def _serve(connection: socket.socket) -> _Request:
    """Answer each request with the id of a new process, in which this returns the request.

    The new process is a child of the one that asked, since the process that forks it ends; it ends too where it is not.
    Where none could be made the answer is 0. This process ends when nobody can ask any more.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is meant for the copies
    while True:
        told, handles, _, _ = socket.recv_fds(connection, _MOST_BYTES, _MOST_HANDLES)
        if not told:
            os._exit(0)
        request: dict[str, Any] = json.loads(told)
        reads, writes = os.pipe()
        if (intermediate := os.fork()) == 0:
            intermediate = os.getpid()
            if (pid := os.fork()) == 0:
                while (parent := os.getppid()) != request["parent"]:
                    if parent != intermediate:
                        os._exit(3)
                    time.sleep(0.001)
                connection.detach()  # closed with all that is not handed over
                return request, handles
            os.write(writes, b"%d" % pid)
            os._exit(0)
        for handle in (writes, *handles):
            os.close(handle)
        os.waitpid(intermediate, 0)
        pid = os.read(reads, 64)
        os.close(reads)
        connection.send(pid or b"0")


def _fork_beside(begun: Mapping[str, str], modules: Sequence[str]) -> _Request | None:
    """Give this process a fork server of its own: a copy of itself. In the copies of that one their requests return."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        its.close()
        once = iter([ours])
        ForkedPopen.server = ForkServer(lambda: next(once, None), begun, modules)
        return None
    nothing = os.open(os.devnull, os.O_RDWR)
    _install([0, 1, 2, 3], [nothing, nothing, nothing, its.detach()])  # what the others were given is not for this one
    ours.detach()
    return _serve(socket.socket(fileno=3))


def _install(numbers: Sequence[int], handles: Sequence[int]) -> None:
    """Have these file descriptors under these numbers, and no others."""
    first = max(*numbers, *map(int, os.listdir("/proc/self/fd"))) + 1  # all that this process has lies below it
    above = [fcntl.fcntl(handle, fcntl.F_DUPFD, first) for handle in handles]
    os.closerange(0, first)
    for handle, number in zip(above, numbers, strict=True):
        os.dup2(handle, number)
    os.closerange(first, max(above) + 1)


def _arrive(request: dict[str, Any], handles: Sequence[int]) -> None:
    """Have what was handed over, before anything else is forked."""
    _install(request["handles"], handles)
    os.umask(request["umask"])
    if request["has_own_session"]:
        os.setsid()


def _become(request: dict[str, Any]) -> None:
    """Turn this process into `python -m ARGUMENTS`."""
    module, *arguments = request["arguments"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [module, *arguments]
    run_startup_code()
    if not hasattr(sys.modules.get(module), "__path__"):  # else runpy warns that it runs for a second time
        sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _run(request: dict[str, Any]) -> None:
    """Do what was asked for and end as Python does, but for taking all apart that was imported: a copy would first have
    to copy it, which cost more than its start."""
    code: Any = 0
    try:
        _become(request)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise  # Python says what it is
        code = ended.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code & 0xFF)


def _main(handle: str, modules: str) -> None:
    """Import what the modules do and serve; then, in each copy, be what was asked for."""
    begun, known = dict(os.environ), json.loads(modules)
    for name in dict.fromkeys(name for imported in known.values() for name in imported):
        import_module(name)
    assert threading.active_count() == 1, "of Python's threads only the one that forks is copied"
    gc.collect()
    gc.freeze()  # else each copy would look at all of it again, and copy its pages
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    request, handles = _serve(socket.socket(fileno=int(handle)))
    _arrive(request, handles)
    while request["arguments"][0] in _STARTS_OTHERS and (asked := _fork_beside(begun, list(known))):
        request, handles = asked
        _arrive(request, handles)
    _run(request)


if __name__ == "__main__":
    _main(*sys.argv[1:])
