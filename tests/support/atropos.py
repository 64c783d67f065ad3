"""The reference of the Trajectory API (atroposlib), in a process and an environment of its own, and groups to post."""

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from loomrl.language.trajectory.process import HubProcess

_FOLDER = Path(__file__).parents[2] / ".venv-atropos"
PYTHON = _FOLDER / "bin" / "python"
ENVIRONMENT = _FOLDER / "source/environments/reasoning_gym_environment/reasoning_gym_environment.py"
_SERVE = """
import sys, uvicorn
from atroposlib.api import app
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""


def need_reference() -> None:
    """Skip where the reference is not installed."""
    if not PYTHON.exists():
        pytest.skip("the reference of the Trajectory API is not installed: make atropos")


def need_environments() -> None:
    """Skip where the reference's environments are not installed."""
    if not ENVIRONMENT.exists():
        pytest.skip("the environments of the reference of the Trajectory API are not installed: make atropos")


def site_packages() -> Path:
    """Where the reference's packages are."""
    (found,) = _FOLDER.glob("lib/python*/site-packages")
    return found


def ask_reference(script: str, question: Any) -> Any:
    """What a script prints as JSON that reads a question as JSON, in the reference's environment."""
    need_reference()
    done = subprocess.run(
        [PYTHON, "-c", script], input=json.dumps(question), capture_output=True, text=True, check=True, timeout=300
    )
    return json.loads(done.stdout)


@contextmanager
def reference_server() -> Iterator[tuple[str, int]]:
    """URL and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([PYTHON, "-c", _SERVE, str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if httpx.get(url, trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.05)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def kill_child(hub: HubProcess) -> None:
    """Kill a hub, and not the parent that keeps it up."""
    assert hub.process is not None
    (child,) = map(int, Path(f"/proc/{hub.process.pid}/task/{hub.process.pid}/children").read_text().split())
    os.kill(child, signal.SIGKILL)


def registration(batch_size: int = 4, **others: Any) -> dict[str, Any]:
    """What a trainer posts."""
    return {
        "wandb_group": "group",
        "wandb_project": "project",
        "batch_size": batch_size,
        "max_token_len": 2_048,
        "checkpoint_dir": "checkpoints",
        "save_checkpoint_interval": 100,
        "starting_step": 0,
        "num_steps": 1_000,
        **others,
    }


def environment(group_size: int = 2, **others: Any) -> dict[str, Any]:
    """What an environment posts."""
    return {"max_token_length": 512, "desired_name": "arithmetic", "weight": 1.0, "group_size": group_size, **others}


def group(size: int = 2, mark: int = 0, **others: Any) -> dict[str, Any]:
    """A small group that can be told from others by its mark."""
    return {
        "tokens": [[mark, number] for number in range(size)],
        "masks": [[-100, number] for number in range(size)],
        "scores": [float(number) for number in range(size)],
        **others,
    }


def large_group(rng: random.Random, size: int = 8, length: int = 512) -> dict[str, Any]:
    """A group as language models make them."""
    tokens = [[rng.randrange(32_000) for _ in range(length)] for _ in range(size)]
    return {
        "tokens": tokens,
        "masks": [[-100] * 100 + sequence[100:] for sequence in tokens],
        "scores": [rng.random() for _ in range(size)],
        "inference_logprobs": [[1.0] * 100 + [-3 * rng.random() for _ in range(length - 100)] for _ in range(size)],
    }
