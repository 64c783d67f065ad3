"""The Prefect server that a flow starts for itself, and a flow that is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.projects import ROOT, environment, until
from tests.support.template_home import put_server_databases

_FLOW = """
import signal, sys
import flows
from flows.command import check_prefect_server
from prefect.client.orchestration import get_client
from prefect.server.api.server import SubprocessASGIServer

check_prefect_server()
with get_client(sync_client=True) as client:
    assert client.api_healthcheck() is None
print(SubprocessASGIServer().server_process.pid, flush=True)
signal.pause()
"""


_STARTED = """
import signal
import flows
from flows.temporary_server import TemporaryServer

server = TemporaryServer(port=4200)
process = server._run_uvicorn_command()
signal.pause()
"""
_SERVER = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


def test_its_process_ends_with_a_flow_that_is_killed(loomrl_home: Path, tmp_path: Path) -> None:
    """With something in place of the server itself, which needs long to start."""
    (tmp_path / "uvicorn.py").write_text(_SERVER)
    settings = environment(ROOT, LOOMRL_HOME=str(loomrl_home))
    settings["PYTHONPATH"] = f"{tmp_path}:{settings['PYTHONPATH']}"
    with subprocess.Popen([sys.executable, "-c", _STARTED], cwd=ROOT, env=settings, stdout=subprocess.PIPE) as flow:
        assert flow.stdout is not None
        server = int(flow.stdout.readline())
        assert _lives(server)
        flow.kill()
    await_end(server, seconds=10)


@pytest.mark.long
def test_it_ends_with_a_flow_that_is_killed(loomrl_home: Path, template_home: Path, prefect_database: Path) -> None:
    put_server_databases(loomrl_home, template_home, prefect_database)
    patience = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "600"}
    settings = environment(ROOT, LOOMRL_HOME=str(loomrl_home), **patience)
    settings.pop("PREFECT_API_URL", None)
    with subprocess.Popen([sys.executable, "-c", _FLOW], cwd=ROOT, env=settings, stdout=subprocess.PIPE) as flow:
        assert flow.stdout is not None
        server = int(flow.stdout.readline())
        command = Path(f"/proc/{server}/cmdline").read_text().split("\0")
        assert "flows.server:create_app" in command
        url = f"http://127.0.0.1:{command[command.index('--port') + 1]}/api"
        assert httpx.post(f"{url}/flow_runs/filter", json={}).status_code == 401
        assert httpx.post(f"{url}/flow_runs/filter", json={}, headers={"Host": "evil.example"}).status_code == 403
        flow.kill()
    await_end(server, seconds=60)


def await_end(server: int, seconds: float) -> None:
    """Fails where the server still lives then, which it does no longer afterwards."""
    try:
        until(lambda: not _lives(server), "the end of the flow's Prefect server", seconds=seconds)
    finally:
        if _lives(server):
            os.kill(server, signal.SIGKILL)


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
