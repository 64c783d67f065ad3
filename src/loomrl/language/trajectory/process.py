"""A server in a process of its own: started on a free port, ready when the block begins, stopped after it.

It ends with the process that started it, also where that one is killed with -9 and never leaves the block.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from loomrl.errors import ServiceError


class ServiceProcess:
    """`with HubProcess() as hub: hub.url`. Options are those of the service's command, with underscores.

    A subclass names its `module`, which is run with `serve`, and what it is called.

    Raises:
        ServiceError: on entering, when the server does not become ready in time; with the end of its log.
    """

    module: ClassVar[str]
    name: ClassVar[str]

    def __init__(
        self, *, ready_seconds: float = 60.0, environment: dict[str, str] | None = None, **options: object
    ) -> None:
        self._options: dict[str, object] = {"port": 0, "die_with_parent": os.getpid(), **options}
        self._ready_seconds = ready_seconds
        self._environment = {**os.environ, **(environment or {})}
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._temporary = tempfile.TemporaryDirectory(prefix=f"loomrl-{self.name}-")
        self.folder = Path(self._temporary.name)  # the server's own, removed after the block
        self._log = self.folder / "log"
        try:
            self.start()
        except ServiceError:
            self._temporary.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._temporary.cleanup()

    def start(self) -> None:
        """Start the server, or start it again at the address it had, and wait until it is ready.

        Raises:
            ServiceError: when it is not ready in time, with the end of its log.
        """
        port_file = self.folder / "port.json"
        port_file.unlink(missing_ok=True)
        chosen = {**self._default_options(), **self._options}
        options = [part for name, value in chosen.items() for part in _argument(name, value)]
        command = [sys.executable, "-m", self.module, "serve", *options, "--port-file", str(port_file)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        deadline = time.monotonic() + self._ready_seconds
        while not port_file.is_file():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ServiceError(f"the {self.name} did not start: {self.log()[-2_000:]}")
            time.sleep(0.01)
        self.url = json.loads(port_file.read_bytes())["url"]
        self._options["port"] = self.url.rpartition(":")[2]

    def kill(self) -> None:
        """Kill the server with SIGKILL and wait until it has ended, as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self, timeout_seconds: float = 20.0) -> int:
        """End it (SIGTERM, then SIGKILL); returns its exit code. Harmless when it has ended."""
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            code = self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process = None
        return code

    def log(self) -> str:
        """The text the server has logged so far."""
        return self._log.read_text(errors="replace")

    def _default_options(self) -> dict[str, object]:
        return {}


class HubProcess(ServiceProcess):
    """A hub; without a `database_url` it keeps nothing beyond the block."""

    module = "loomrl.language.trajectory"
    name = "hub"

    def _default_options(self) -> dict[str, object]:
        return {"database_url": f"sqlite:///{self.folder}/hub.db"}


def _argument(name: str, value: object) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    return [option] if value is True else [option, str(value)]
