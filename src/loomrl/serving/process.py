"""A policy server in a process of its own: started on a free port, ready when the block begins, stopped after it.

It ends with the process that started it, also where that one is killed with -9 and never leaves the block.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from loomrl.errors import ServiceError
from loomrl.serving.client import PolicyClient


class ServerProcess:
    """`with ServerProcess("cartpole", champion="3") as server: server.url`.

    Options are those of `python -m loomrl.serving`, with underscores.

    Raises:
        ServiceError: on entering, when the server does not become ready in time; with the end of its log.
    """

    def __init__(
        self,
        policy: str,
        *,
        ready_seconds: float = 300.0,
        wait_ready: bool = True,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        options = {"policy": policy, "die_with_parent": os.getpid(), **options}
        self._command = [sys.executable, "-m", "loomrl.serving", *_arguments(options)]
        self._ready_seconds, self._wait_ready = ready_seconds, wait_ready
        self._environment = {**os.environ, **(environment or {})}
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="loomrl-server-")
        self._log = Path(self._folder.name) / "log"
        port_file = Path(self._folder.name) / "port.json"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._command, "--port-file", str(port_file)], env=self._environment, stdout=log, stderr=log
            )
        try:
            self._wait(port_file)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def client(self, **options: Any) -> PolicyClient:
        """A new client of this server."""
        return PolicyClient(self.url, **options)

    def log(self) -> str:
        """Everything that the server has written to its log so far."""
        return self._log.read_text(errors="replace")

    def stop(self, timeout_seconds: float = 20.0) -> int:
        """End the server (SIGTERM, then SIGKILL); returns its exit code. Harmless when it has ended."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process = None
        self._last_log = self.log()
        self._folder.cleanup()
        return code

    def _wait(self, port_file: Path) -> None:
        deadline = time.monotonic() + self._ready_seconds
        while time.monotonic() < deadline:
            assert self.process is not None
            if (code := self.process.poll()) is not None:
                raise ServiceError(f"the policy server ended with exit code {code}: {self._tail()}")
            if self._is_ready(port_file):
                return
            time.sleep(0.02)
        raise ServiceError(f"the policy server was not ready after {self._ready_seconds:g} s: {self._reason()}")

    def _is_ready(self, port_file: Path) -> bool:
        if not self.url:
            if not port_file.is_file():
                return False
            self.url = json.loads(port_file.read_bytes())["url"]
        try:
            path = "/v2/health/ready" if self._wait_ready else "/v2/health/live"
            return httpx.get(self.url + path, timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _reason(self) -> str:
        if self.url:
            try:
                answer = httpx.get(self.url + "/status", timeout=5, trust_env=False)
                if answer.status_code == 200:  # else it wants a token
                    status = answer.json()
                    return f"roles {status['roles']}, refused {status['refused']}, registry {status['registry_error']}"
            except httpx.TransportError:
                pass
        return self._tail()

    def _tail(self) -> str:
        return " / ".join(self.log().splitlines()[-5:]) or "it wrote nothing"


def _arguments(options: Mapping[str, Any]) -> list[str]:
    given = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    return [part for name, value in given.items() for part in _argument(name, value)]


def _argument(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]
