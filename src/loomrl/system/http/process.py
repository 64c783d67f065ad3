"""A server in a process of its own: started on a free port, ready when the block begins, stopped after it.

It ends with the process that started it, also where that one is killed with -9 and never leaves the block.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

from loomrl.errors import ServiceError


class ServiceProcess:
    """A server in a process of its own: `with HubProcess() as hub: hub.url`. It is ready when the block begins, and
    ended after it, or with this process.

    A subclass names the `arguments` that Python runs it with, and what it is called. `options` are those of the
    service's command, with underscores.

    Raises:
        ServiceError: on entering, when the server ends or does not become ready within `ready_seconds`; with the end of
            its log. No process is left then.
    """

    arguments: ClassVar[tuple[str, ...]]
    name: ClassVar[str]

    def __init__(
        self, *, ready_seconds: float = 60.0, environment: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self._options = {"port": 0, "die_with_parent": os.getpid(), **options}
        self._ready_seconds = ready_seconds
        self._environment = {**os.environ, **(environment or {})}
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._temporary = tempfile.TemporaryDirectory(prefix="loomrl-server-")
        self.folder = Path(self._temporary.name)  # the server's own, removed after the block
        self._log = self.folder / "log"
        try:
            self.start()
        except BaseException:
            self._temporary.cleanup()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self._temporary.cleanup()

    def start(self) -> None:
        """Start the server, or start it again at the address it had, and wait until it is ready.

        Raises:
            ServiceError: when it ends or is not ready in time, with the end of its log; no process is left then.
        """
        port_file = self.folder / "port.json"
        port_file.unlink(missing_ok=True)
        chosen = {**self._default_options(), **self._options, "port_file": port_file}
        options = [part for name, value in chosen.items() if value is not None for part in _argument(name, value)]
        with self._log.open("ab") as log:
            self.process = self._launch([*self.arguments, *options], log)
        try:
            self._wait(self.process, port_file)
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """Kill the server, which must be running, with SIGKILL, as a crash would, and wait until it has ended."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self, timeout_seconds: float = 20.0) -> int:
        """End the server with SIGTERM, after `timeout_seconds` with SIGKILL; returns its exit code, 0 when it was not
        running.

        The code is -N where signal N ended it.
        """
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
        """All text the server has logged so far, over all its starts; raises `OSError` after the block."""
        return self._log.read_text(errors="replace")

    def _launch(self, arguments: list[str], log: BinaryIO) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", *arguments]
        return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def _default_options(self) -> dict[str, Any]:
        return {}

    def _answers(self) -> bool:
        """Whether the server, whose URL is known, is ready; not before its port is bound."""
        return True

    def _why_not_ready(self) -> str:
        return self._end_of_log()

    def _end_of_log(self) -> str:
        return " / ".join(self.log().splitlines()[-5:]) or "it wrote nothing"

    def _wait(self, process: "subprocess.Popen[bytes]", port_file: Path) -> None:
        deadline = time.monotonic() + self._ready_seconds
        while not port_file.is_file() or not self._is_ready(port_file):
            if (code := process.poll()) is not None:
                raise ServiceError(f"the {self.name} ended with exit code {code}: {self._end_of_log()}")
            if time.monotonic() > deadline:
                why = self._why_not_ready()
                raise ServiceError(f"the {self.name} was not ready after {self._ready_seconds:g} s: {why}")
            time.sleep(0.02)

    def _is_ready(self, port_file: Path) -> bool:
        self.url = json.loads(port_file.read_bytes())["url"]
        self._options["port"] = self.url.rpartition(":")[2]
        return self._answers()


def _argument(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", str(value)]
