"""Copies of this project for tests that run it as its users do: own folder, own git history, own state."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
SHARED: dict[str, str] = {}  # settings of every command, such as the URL of a Prefect server that tests share


def copy_project(destination: Path) -> Path:
    """A copy of the work tree (what git tracks or would track, and what Python compiled of its code), committed to a
    repository of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, destination / name)
            is_code = name.endswith(".py") and name.startswith(("src/", "flows/", "tasks/"))
            if is_code and (compiled := Path(cache_from_source(str(ROOT / name)))).is_file():
                (destination / name).with_name("__pycache__").mkdir(exist_ok=True)
                shutil.copy2(compiled, (destination / name).with_name("__pycache__"))
    (destination / ".venv").symlink_to(Path(sys.prefix), target_is_directory=True)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "copy"]):
        git(destination, *command)
    return destination


def git(project: Path, *arguments: str) -> str:
    """Run git in a project; returns its output."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    done = subprocess.run(["git", *identity, *arguments], cwd=project, capture_output=True, text=True, check=True)
    return done.stdout


def environment(project: Path, **extra: str) -> dict[str, str]:
    """Environment variables under which a command runs this copy's code on this copy's state."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("LOOMRL_", "MLFLOW_", "PREFECT_"))
    }
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
        "PYTHONPATH": f"{project / 'src'}:{project}",
        "COLUMNS": "160",
        "PREFECT_API_TLS_INSECURE_SKIP_VERIFY": "true",  # else each client reads all roots of trust, which none needs
        **SHARED,
        **extra,
    }


@contextmanager
def prefect_server(folder: Path) -> Iterator[str]:
    """A Prefect server with its state in `folder`; yields the URL of its API."""
    port = free_ports(1)[0]
    settings = {"PREFECT_HOME": str(folder), "DO_NOT_TRACK": "true", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}/api"
        until(lambda: answers(f"{url}/health"), "the Prefect server")
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def answers(url: str) -> bool:
    """Whether a URL answers 200."""
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False


def until(
    condition: Callable[[], bool],
    what: str,
    now: Callable[[], object] = lambda: "",
    seconds: float = 240,
    every: float = 0.2,
) -> None:
    """Wait for a condition; fails with what was waited for and how things stand."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}; now: {now()}"
        time.sleep(every)


def free_ports(number: int) -> list[int]:
    """Ports nobody listens on."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start(project: Path, *command: str, stderr: int = subprocess.STDOUT, **extra: str) -> subprocess.Popen[str]:
    """Start a command in a project copy, in a process group of its own."""
    return subprocess.Popen(
        command,
        cwd=project,
        env=environment(project, **extra),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def run(project: Path, *command: str, expect: int | None = 0, **extra: str) -> str:
    """Run a command in a project copy; returns what it printed, checks its exit code."""
    process = start(project, *command, **extra)
    output, _ = process.communicate()
    if expect is not None:
        assert process.returncode == expect, f"{' '.join(command)}: exit {process.returncode}\n{output[-8000:]}"
    return output


def run_json(project: Path, *command: str, **extra: str) -> Any:
    """Run a reading command with `--json`; returns its document."""
    process = start(project, *command, "--json", stderr=subprocess.PIPE, **extra)
    output, errors = process.communicate()
    assert process.returncode == 0, f"{' '.join(command)}: exit {process.returncode}\n{output}\n{errors}"
    return json.loads(output)


def records(project: Path) -> list[dict[str, Any]]:
    """The records of all life-cycle runs, oldest first."""
    return [json.loads(path.read_text()) for path in sorted((project / ".loomrl" / "runs").glob("*/record.json"))]


def copy_state(project: Path, destination: Path) -> Path:
    """A copy of a project with its state: a run in it finds what the original's runs left."""
    shutil.copytree(project, destination, symlinks=True)
    _move_artifacts(destination / ".loomrl" / "mlflow.db", project, destination)
    return destination


def copy_home(home: Path, destination: Path) -> None:
    """Fill a home with what another one holds."""
    shutil.copytree(home, destination, symlinks=True, dirs_exist_ok=True)
    _move_artifacts(destination / "mlflow.db", home, destination)


def _move_artifacts(database: Path, before: Path, after: Path) -> None:
    """MLflow keeps absolute artifact locations in its database; in a copy they name the copy."""
    columns = (("experiments", "artifact_location"), ("runs", "artifact_uri"))
    columns += (("model_versions", "source"), ("model_versions", "storage_location"))
    with closing(sqlite3.connect(database)) as connection, connection:
        for table, column in columns:
            connection.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (str(before), str(after)))
