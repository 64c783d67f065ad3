"""The API of a server, hub or engine fuzzed from its own description by schemathesis, in a process of its own."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from loomrl.serving.client import PolicyClient

CONFIG = Path(__file__).with_name("schemathesis.toml")
_PLAIN = {"person": "Ada", "reason": "the fuzzing is over"}


def fuzz(
    url: str,
    folder: Path,
    num_examples: int,
    token: str = "",
    seed: int | None = None,
    *,
    reads_strictly: bool = True,
    is_sample: bool = False,
) -> Any:
    """The report of `num_examples` for each operation and phase; without a seed always the same ones.

    Where the API does not read strictly, as the Trajectory API takes a number from its text, it is not demanded that
    what contradicts the description is refused. `is_sample` leaves out the phase that tries every limit of every field.

    Raises:
        AssertionError: with what schemathesis says, when an answer is not as it should be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG)]
    command += ["run", f"{url}/openapi.json", "--no-color", "--max-examples", str(num_examples)]
    drawn = ["--seed", str(seed), "--generation-database", "none"]
    command += ["--generation-deterministic"] if seed is None else drawn
    command += ["--phases", "examples,fuzzing,stateful"] if is_sample else []
    command += [] if reads_strictly else ["--exclude-checks", "negative_data_rejection"]
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


def roles_that_are_let_in(url: str, tokens: dict[str, str]) -> dict[str, tuple[str, set[str]]]:
    """Operation -> the role that its description names, and whose requests are not refused for want of it. Bodies are
    wrong, so that nothing is done."""
    found: dict[str, tuple[str, set[str]]] = {}
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        for path, operations in client.get("/openapi.json").json()["paths"].items():
            for method, operation in operations.items():
                let_in = set()
                for name, token in {"nobody": "", **tokens}.items():
                    headers = {"Authorization": f"Bearer {token}"} if token else {}
                    filled = re.sub(r"{\w+}", "0", path)
                    content = b"[" if "requestBody" in operation else None
                    answer = client.request(method.upper(), filled, content=content, headers=headers)
                    let_in |= set() if answer.status_code in (401, 403) else {name}
                named = [role for one in operation.get("security", []) for roles in one.values() for role in roles]
                wanted = "open" if "security" not in operation else (*named, "any")[0]
                found[f"{method.upper()} {path}"] = wanted, let_in
    return found


def clear_controls(client: PolicyClient, policy: str) -> None:
    """Undo whatever operators did."""
    client.clear_override()
    client.set_kill_switch(False, **_PLAIN)
    client.set_plan(**_PLAIN)
    client.refresh(policy)


@contextmanager
def kept_going(url: str, token: str = "", every_seconds: float = 0.2) -> Iterator[None]:
    """Have an engine go on again and again: who is told to wait by a pause waits until then."""
    stopping = threading.Event()

    def go_on() -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
            while not stopping.wait(every_seconds):
                client.post("/resume").raise_for_status()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
