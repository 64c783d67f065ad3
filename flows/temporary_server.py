"""The Prefect server that a flow starts where none is configured: it ends with the flow, however that ends."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import prefect
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings


class TemporaryServer(SubprocessASGIServer):
    """Prefect's own server, in a process that watches for the end of the flow's: kill -9 lets that end nothing."""

    def _run_uvicorn_command(self) -> "subprocess.Popen[Any]":
        server = ["uvicorn", "--app-dir", str(Path(prefect.__file__).parents[1])]
        server += ["--factory", "prefect.server.api.server:create_app", "--lifespan", "on", "--log-level", "error"]
        server += ["--host", "127.0.0.1", "--port", str(self.port)]
        settings = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        settings |= get_current_settings().to_environment_variables(exclude_unset=True)
        command = [sys.executable, "-m", "loomrl.lifetime", str(os.getpid()), *server]
        return subprocess.Popen(command, env={**os.environ, **settings})


def use_temporary_server() -> None:
    """From now on `SubprocessASGIServer()`, which is what Prefect's clients start, is a `TemporaryServer`."""
    TemporaryServer()  # Prefect keeps one server for each port asked for; this is the one of no port in particular
