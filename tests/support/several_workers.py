"""A server with several workers, and connections to the one or the other."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loomrl.serving.client import PolicyClient
from loomrl.serving.process import ServerProcess
from tests.support.inside import wait_for


def pids(server: ServerProcess, token: str = "") -> list[int]:
    """The workers' processes, by worker, once all of them answer; where there is but one, the server's."""
    states: list[dict[str, Any]] = []

    def is_whole() -> bool:
        with server.client(token=token) as client:
            status = client.status()
        states[:] = status.get("workers", [status])
        return all("pid" in state for state in states)

    wait_for(is_whole)
    return [state["pid"] for state in states]


@contextmanager
def connected(server: ServerProcess, worker: int, token: str = "", looks: str = "") -> Iterator[PolicyClient]:
    """A client with a token whose connection one worker has taken: the others are stopped meanwhile. `looks` is a token
    that may look at the server's state."""
    others = [pid for index, pid in enumerate(pids(server, looks)) if index != worker]
    with server.client(token=token) as client:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert client.is_ready()
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)
        yield client


def worker_of(decision_id: str) -> int:
    """Which worker made a decision."""
    return int(decision_id[:2], 16)
