"""The servers of the comparison, each in a process of its own and with the same graph: LoomRL's, with everything on and
with nothing, the bare handler, MLflow's and MLServer's."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import mlflow
import onnx

from loomrl.serving.policy.model import GRAPH
from loomrl.serving.process import ServerProcess
from served.load import Served
from served.policies import NAME

PROJECT = Path(__file__).resolve().parents[2]
MLSERVER = PROJECT / ".venv-mlserver" / "bin" / "mlserver"
TOKEN = "benchmark"  # of one who may ask for decisions and nothing else


@contextmanager
def loomrl(
    folder: Path,
    home: Path,
    challenger: Path | None = None,
    environment: Mapping[str, str] | None = None,
    **options: str,
) -> Iterator[Served]:
    """The policy server; with a challenger it is mirrored, too."""
    holder = f"decide:benchmark:{hashlib.sha256(TOKEN.encode()).hexdigest()}"
    environment = {"LOOMRL_HOME": str(home), "LOOMRL_TOKENS": holder, **(environment or {})}
    with ServerProcess(
        NAME, champion_folder=folder, challenger_folder=challenger, rate=1e9, environment=environment, **options
    ) as server:
        assert server.process is not None
        host, port = server.url.removeprefix("http://").split(":")
        yield Served("loomrl", host, int(port), server.process.pid)


@contextmanager
def bare(folder: Path) -> Iterator[Served]:
    """The bare handler under uvicorn, as fast as it goes."""
    port = _free_port()
    command = [sys.executable, "-m", "uvicorn", "served.bare:app", "--port", str(port), "--loop", "uvloop"]
    command += ["--http", "httptools", "--no-access-log", "--log-level", "warning"]
    settings = {"GRAPH": str(folder / GRAPH), "PYTHONPATH": str(PROJECT / "benchmarks")}
    with _running("bare", command, port, "/", settings) as served:
        yield served


@contextmanager
def mlflow_server(folder: Path, work: Path) -> Iterator[Served]:
    """`mlflow models serve` on the same ONNX file."""
    model = work / "mlflow-model"
    mlflow.onnx.save_model(onnx.load(folder / GRAPH), model)
    port = _free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(model), "--port", str(port)]
    with _running("mlflow", [*command, "--env-manager", "local"], port, "/ping", {}) as served:
        yield served


@contextmanager
def mlserver(folder: Path, work: Path) -> Iterator[Served]:
    """MLServer, in this process model of its own: one worker in the server's process."""
    settings = work / "mlserver"
    settings.mkdir()
    port = _free_port()
    server = {"http_port": port, "grpc_port": _free_port(), "metrics_port": _free_port(), "host": "127.0.0.1"}
    (settings / "settings.json").write_text(json.dumps({**server, "parallel_workers": 0, "debug": False}))
    implementation = "served.mlserver_runtime.OnnxRuntime"
    model = {"name": NAME, "implementation": implementation, "parameters": {"uri": str(folder / GRAPH)}}
    (settings / "model-settings.json").write_text(json.dumps(model))
    settings_of = {"PYTHONPATH": str(PROJECT / "benchmarks")}
    with _running("mlserver", [str(MLSERVER), "start", str(settings)], port, "/v2/health/ready", settings_of) as served:
        yield served


@contextmanager
def _running(name: str, command: list[str], port: int, ready: str, settings: Mapping[str, str]) -> Iterator[Served]:
    environment = {**os.environ, **settings}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while not _answers(f"http://127.0.0.1:{port}{ready}"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start: {' '.join(command)}")
            time.sleep(0.1)
        yield Served(name, "127.0.0.1", port, process.pid)
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code < 500 or url.endswith("/")
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
