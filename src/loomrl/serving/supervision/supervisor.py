"""Keeps several workers answering on one port: starts them, starts those again that end, and ends them all in order.

It holds the listening sockets. Connections wait in them, not in a worker: one that is killed takes with it what it was
answering, and no more.
"""

import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Self

from loomrl.errors import ArtifactError, ServiceError
from loomrl.serving.settings import ServerSettings
from loomrl.serving.supervision.worker import TASK, WorkerTask
from loomrl.serving.uvicorn_server import GRACE_SECONDS
from loomrl.serving.workers.address import WorkerAddress, chain_of, socket_folder, socket_path
from loomrl.serving.workers.agreement import Agreement, begin_anew
from loomrl.serving.workers.shared_limits import LIMITS_BYTES
from loomrl.storage.audit.log import default_name
from loomrl.system.home import inside
from loomrl.system.lifetime import pause_seconds

log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.05
_LEAST_WAIT_SECONDS, _MOST_WAIT_SECONDS = 0.1, 10.0  # before a worker is started again, doubled with each failure
_WELL_SECONDS = 30.0  # a worker that ran so long has not failed to start
_SILENT_SECONDS = 15.0  # that a worker's event loop may stand still: what only it can answer waits for it
_HINDERED_SECONDS = 60.0  # that workers wait for one that does not get the champion they have


@dataclass
class _Worker:
    settings: ServerSettings
    address: WorkerAddress
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0  # time.monotonic() seconds
    due: float = 0.0  # when it is to be started again
    num_failures: int = 0
    was_ready: bool = False


class Supervisor:
    """Keeps the workers of one server at work: `with Supervisor(settings, listener) as supervisor: supervisor.run()`,
    in the main thread. At the end of the block all workers have answered what they had begun, and ended; one that
    takes more than 20 s is killed.

    Raises:
        ArtifactError: when another supervisor has the same name, or there is no room for the files that workers share.
    """

    def __init__(self, settings: ServerSettings, listener: socket.socket) -> None:
        name = settings.server or default_name("workers")
        self._listener, self._stopping = listener, threading.Event()
        folder, self._owner = _claim(inside("run", settings.policy, name))
        self._peer_listeners = _listen(folder, settings.workers)
        self.workers = [
            _Worker(
                replace(
                    settings,
                    server=chain_of(name, index),
                    seed=None if settings.seed is None else settings.seed + index,
                ),
                WorkerAddress(
                    index, settings.workers, name, folder, os.getpid(), listener.fileno(), peer_listener.fileno()
                ),
            )
            for index, peer_listener in enumerate(self._peer_listeners)
        ]
        address = self.workers[0].address
        begin_anew(address.limits, LIMITS_BYTES)
        begin_anew(address.asking, 0)
        self._agreement = Agreement(address.agreement, address.count, is_new=True)
        self._hindered: float | None = None  # since when, time.monotonic() seconds

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        for worker in self.workers:
            self._start(worker)
        return self

    def __exit__(self, *exception: object) -> None:
        """Have all workers answer what they have begun, and end."""
        for listener in (self._listener, *self._peer_listeners):
            listener.close()
        running = [worker.process for worker in self.workers if worker.process is not None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in running:
            _end(process, deadline)
        address = self.workers[0].address
        with suppress(OSError):  # they name memory of this process
            for path in (address.agreement, address.limits, address.asking):
                path.unlink(missing_ok=True)
        os.close(self._owner)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def run(self) -> None:
        """Watch the workers until SIGTERM or SIGINT.

        Raises:
            ServiceError: when one ends before it was ready for the first time; it has said why.
        """
        while not self._stopping.wait(_LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Look at all workers once, and start those again that are due; raises as `run` does."""
        for worker in self.workers:
            self._look_at(worker)
        self._help()

    def _look_at(self, worker: _Worker) -> None:
        index, now = worker.address.index, time.monotonic()
        if worker.process is None:
            if now >= worker.due:
                self._start_again(worker)
            return
        worker.was_ready = worker.was_ready or self._agreement.has_vote(index)
        if (code := worker.process.poll()) is None:
            if (silent := self._agreement.silent_seconds(index)) > _SILENT_SECONDS:
                log.error("worker %d hangs, for %.0f s now: it is ended", index, silent)
                worker.process.kill()
            return
        self._agreement.withdraw(index)
        if not worker.was_ready:
            raise ServiceError(f"worker {index} ended with exit code {code} before it was ready; it has said why")
        worker.process = None
        if now - worker.started > _WELL_SECONDS:
            worker.num_failures = 0
        self._put_off(worker, f"ended with exit code {code}")

    def _help(self) -> None:
        """End a worker that keeps the others from a champion that they have; started again, it has to follow."""
        hindering, now = self._agreement.hindering(), time.monotonic()
        self._hindered = None if not hindering else self._hindered or now
        if self._hindered is None or now - self._hindered < _HINDERED_SECONDS:
            return
        for index in hindering:
            log.error("worker %d does not take the champion that others have loaded: it is ended", index)
            if (process := self.workers[index].process) is not None:
                process.kill()
        self._hindered = None

    def _start_again(self, worker: _Worker) -> None:
        """Where the machine has no room for another process now, the others go on."""
        try:
            self._start(worker)
        except OSError as error:
            self._put_off(worker, f"cannot be started: {error}")

    def _put_off(self, worker: _Worker, why: str) -> None:
        worker.num_failures += 1
        wait = pause_seconds(worker.num_failures, _LEAST_WAIT_SECONDS, _MOST_WAIT_SECONDS)
        worker.due = time.monotonic() + wait
        log.error("worker %d %s; it is started again in %.1f s", worker.address.index, why, wait)

    def _start(self, worker: _Worker) -> None:
        address = worker.address
        worker.started = time.monotonic()
        worker.process = subprocess.Popen(
            [sys.executable, "-m", "loomrl.serving.supervision.worker"],
            stdin=subprocess.PIPE,
            pass_fds=(address.port, address.peer_listener),
        )
        assert worker.process.stdin is not None
        with suppress(BrokenPipeError), worker.process.stdin as task:  # one that has ended already is seen to have
            task.write(TASK.dump_json(WorkerTask(worker.settings, address)) + b"\n")

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping.set()


def _claim(folder: Path) -> tuple[Path, int]:
    """The folder that the workers share, locked for this supervisor."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    owner = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(owner)
        raise ArtifactError(f"{folder} belongs to running workers; stop them, or name others with --server") from error
    return folder, owner


def _listen(folder: Path, count: int) -> list[socket.socket]:
    """The sockets on which workers ask each other; only this user can open them."""
    found, names = [], socket_folder(folder)
    for index in range(count):
        (folder / f"{index}.sock").unlink(missing_ok=True)
        peer_listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer_listener.bind(socket_path(names, index))
        peer_listener.listen()
        found.append(peer_listener)
    return found


def _end(process: "subprocess.Popen[bytes]", deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        log.error("process %d did not end in time: it is killed", process.pid)
        process.kill()
        process.wait()
