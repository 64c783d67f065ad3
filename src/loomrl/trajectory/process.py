"""A hub in a process of its own: started on a free port, ready when the block begins, stopped after it.

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
from typing import Self

from loomrl.errors import ServiceError


class HubProcess:
    """`with HubProcess() as hub: hub.url`. Options are those of `loomrl hub serve`, with underscores.

    Without a `database_url` it keeps nothing beyond the block.

    Raises:
        ServiceError: on entering, when the hub does not become ready in time; with the end of its log.
    """

    def __init__(
        self, *, ready_seconds: float = 60.0, environment: dict[str, str] | None = None, **options: object
    ) -> None:
        self._options: dict[str, object] = {"port": 0, "die_with_parent": os.getpid(), **options}
        self._ready_seconds = ready_seconds
        self._environment = {**os.environ, **(environment or {})}
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="loomrl-hub-")
        self._options.setdefault("database_url", f"sqlite:///{self._folder.name}/hub.db")
        self._log = Path(self._folder.name) / "log"
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()

    def start(self) -> None:
        """Start it, or start it again at the address it had."""
        port_file = Path(self._folder.name) / "port.json"
        port_file.unlink(missing_ok=True)
        options = [part for name, value in self._options.items() for part in _argument(name, value)]
        command = [sys.executable, "-m", "loomrl.trajectory", "serve", *options, "--port-file", str(port_file)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        deadline = time.monotonic() + self._ready_seconds
        while not port_file.is_file():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ServiceError(f"the hub did not start: {self.log()[-2_000:]}")
            time.sleep(0.01)
        self.url = json.loads(port_file.read_bytes())["url"]
        self._options["port"] = self.url.rpartition(":")[2]

    def kill(self) -> None:
        """End it with -9."""
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
        """What the hub wrote so far."""
        return self._log.read_text(errors="replace")


def _argument(name: str, value: object) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    return [option] if value is True else [option, str(value)]
