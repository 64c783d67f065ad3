"""The Prefect server that a flow starts where none is configured: it ends with the flow, however that ends.

It listens on loopback, where other users' programs and pages in browsers could reach it, so it has a login that only
the flow's own processes know.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from prefect.context import refresh_global_settings_context
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings

from flows.server import SERVER_LOGIN, server_environment
from loomrl.system.security.credentials import PREFECT_LOGIN, generate


class TemporaryServer(SubprocessASGIServer):
    """Prefect's own server, in a process that watches for the end of the flow's: kill -9 lets that end nothing."""

    def _run_uvicorn_command(self) -> "subprocess.Popen[Any]":
        assert self.port is not None, "`start` sets it"
        server = ["uvicorn", "--app-dir", str(Path(__file__).resolve().parents[1])]
        server += ["--factory", "flows.server:create_app", "--lifespan", "on", "--log-level", "error"]
        server += ["--host", "127.0.0.1", "--port", str(self.port)]
        settings = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        settings |= get_current_settings().to_environment_variables(exclude_unset=True)
        settings |= server_environment(self.port)
        command = [sys.executable, "-m", "loomrl.system.lifetime", str(os.getpid()), *server]
        return subprocess.Popen(command, env={**os.environ, **settings})


def use_temporary_server() -> None:
    """From now on `SubprocessASGIServer()`, which is what Prefect's clients start, is a `TemporaryServer`.

    Its login is in the environment of this process and of those it starts, and nowhere else.
    """
    login = generate()[PREFECT_LOGIN]
    os.environ |= {PREFECT_LOGIN: login, SERVER_LOGIN: login}
    refresh_global_settings_context()
    TemporaryServer()  # Prefect keeps one server for each port asked for; this is the one of no port in particular
