"""Kill -9 again and again under load: nothing acknowledged is lost, nothing is decided or rewarded twice.

Clients name each of their requests and send it again, unchanged, until it is acknowledged, however often the server
dies meanwhile. After each restart every chain must verify, with the heads anchored in LoomDB; at the end the log is
held against what the clients were told.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.heads import anchors
from loomrl.storage.audit.history import chains, records
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.loomdb.database import LoomDB
from tests.support.persistent_clients import Clients, Told
from tests.support.policies import discrete_folder

NUM_KILLS, NUM_DECISIONS = 200, 1_000_000
_MOST_SECONDS = 0.2  # that a kill comes after its share of the decisions was acknowledged
_COMMAND_EVERY = 20  # restarts after which `loomrl audit verify` itself is run


def run(
    folder: Path, num_kills: int = NUM_KILLS, num_decisions: int = NUM_DECISIONS, seed: int = 5, **options: Any
) -> dict[str, Any]:
    """Kill the server at moments drawn from the seed; `options` are the server's.

    Raises:
        AssertionError: when anything acknowledged is lost or stands twice, or a chain does not verify.
    """
    policy, rng = discrete_folder(folder / "policy"), np.random.default_rng(seed)
    options = {"champion_folder": policy, "rate": 1e9, "anchor_seconds": 0.5, **options}
    seconds: list[float] = []
    with Clients() as clients:
        for number in range(num_kills):
            with _restarted(seconds, by_command=number % _COMMAND_EVERY == 0, **options) as server:
                clients.go_on(server.url)
                clients.wait_for(num_decisions * (number + 1) // (num_kills + 1))
                time.sleep(rng.uniform(0.0, _MOST_SECONDS))
                _kill(server)
                clients.pause()
        with _restarted(seconds, by_command=True, **options) as server:
            clients.go_on(server.url)
            clients.wait_for(num_decisions)
            clients.finish()
    _verify(by_command=True)
    return {
        "num_kills": num_kills,
        "num_segments": sum(len(list(chain.glob("[0-9]*.jsonl"))) for chain in chains("cartpole")),
        **held_against_the_log(clients.told),
        "num_answers_lost": clients.num_lost,
        "restart_seconds": {name: round(float(np.quantile(seconds, q)), 2) for name, q in (("p50", 0.5), ("max", 1))},
        "seed": seed,
    }


@contextmanager
def _restarted(seconds: list[float], by_command: bool, **options: Any) -> Iterator[ServerProcess]:
    """A server that is ready, its predecessor's chain verified; how long it took is appended."""
    started = time.monotonic()
    with ServerProcess("cartpole", **options) as server:
        seconds.append(time.monotonic() - started)
        _verify(by_command)
        yield server


def _kill(server: ServerProcess) -> None:
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()


def held_against_the_log(told: Told) -> dict[str, int]:
    """Counts of what was acknowledged, each found in the log once and as it was told.

    Raises:
        AssertionError: naming the first that is missing, stands twice or differs.
    """
    decided: dict[str, str] = {}  # by request id
    unnamed: dict[str, Any] = {}  # by decision id
    rewarded: dict[str, float] = {}  # by decision id
    for entry in records("cartpole"):
        if entry["kind"] == "decision" and entry["request_id"] is None:
            unnamed[entry["decision_id"]] = entry["action"]
        elif entry["kind"] == "decision":
            request, decision = entry["request_id"], entry["decision_id"]
            assert request not in decided, f"request {request} was decided twice: {decided[request]} and {decision}"
            decided[request] = decision
            found = told.decisions.get(request)
            assert found in (None, (decision, entry["action"])), f"request {request} was told {found}, not {decision}"
        elif entry["kind"] == "feedback":
            decision = entry["decision_id"]
            assert decision not in rewarded, f"decision {decision} was rewarded twice"
            rewarded[decision] = entry["reward"]
    lost = told.decisions.keys() - decided.keys()
    assert not lost, f"{len(lost)} acknowledged decisions are lost, such as that of request {min(lost)}"
    for decision, action in told.unnamed.items():
        assert unnamed.get(decision) == action, f"decision {decision} is lost: told {action}, {unnamed.get(decision)}"
    for decision, reward in told.rewards.items():
        assert rewarded.get(decision) == reward, f"the feedback on {decision} is lost: {rewarded.get(decision)}"
    return {
        "num_decisions": told.num_decisions,
        "num_feedback": len(told.rewards),
        "num_lost": 0,
        "num_twice": 0,
        "num_never_told": len(decided) + len(unnamed) - told.num_decisions,
    }


def _verify(by_command: bool) -> None:
    """Every chain, as a restart left it."""
    with LoomDB.open() as database:
        for chain in chains("cartpole"):
            report = verify_chain(chain, anchors(database, f"cartpole/{chain.name}"))
            assert report.intact, report.findings[0]
    if by_command:
        command = ["loomrl", "audit", "verify", "--policy", "cartpole"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
