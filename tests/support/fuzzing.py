"""A server's API fuzzed from its own description by schemathesis, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from loomrl.serving.client import PolicyClient
from loomrl.serving.process import ServerProcess

CONFIG = Path(__file__).with_name("schemathesis.toml")
_PLAIN = {"person": "Ada", "reason": "the fuzzing is over"}


def fuzz(server: ServerProcess, folder: Path, num_examples: int, token: str = "", seed: int | None = None) -> Any:
    """The report of `num_examples` for each operation and phase; without a seed always the same ones.

    Raises:
        AssertionError: with what schemathesis says, when an answer is not as it should be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG)]
    command += ["run", f"{server.url}/openapi.json", "--no-color", "--max-examples", str(num_examples)]
    drawn = ["--seed", str(seed), "--generation-database", "none"]
    command += ["--generation-deterministic"] if seed is None else drawn
    command += ["--header", f"Authorization: Bearer {token}"] if token else []
    command += ["--report", "json", "--report-json-path", str(folder / "report.json")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "report.json").read_bytes())


def num_accepted(report: Any) -> dict[str, int]:
    """Operation -> how many requests it did what it was asked to for."""
    return {
        operation: sum(phase["accepted"] for phase in phases.values())
        for operation, phases in report["valid_rates"].items()
    }


def clear_controls(client: PolicyClient, policy: str) -> None:
    """Undo whatever operators did."""
    client.clear_override()
    client.set_kill_switch(False, **_PLAIN)
    client.set_plan(**_PLAIN)
    client.refresh(policy)
