"""A champion that got worse is found in its audit log, and its retraining starts, through a real Prefect server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import play
from policies import BALANCING
from prefect_api import prefect_api
from projects import copy_state, run, until
from simulated_logs import register_linear

from loomrl.comparison.compare import VersionComparison
from loomrl.loomdb.database import LoomDB
from loomrl.registry import CHALLENGER, Registry
from loomrl.serving.audit import AuditLog


@pytest.fixture
def api(shared_prefect: str) -> Iterator[httpx.Client]:
    with prefect_api(shared_prefect) as client:
        yield client


def test_a_degraded_champion_triggers_its_retraining_once(
    finished_project: Path, tmp_path: Path, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = copy_state(finished_project, tmp_path / "project")
    api.post("/work_pools/", json={"name": "loomrl", "type": "process"}).raise_for_status()
    deploy = ("prefect", "--no-prompt", "deploy", "--prefect-file", "deploy/prefect.yaml", "--name", "on-degradation")
    run(project, *deploy, PREFECT_HOME=str(project / ".loomrl" / "prefect"))

    monkeypatch.setenv("LOOMRL_HOME", str(project / ".loomrl"))
    log = AuditLog("cartpole")
    for number in range(20):
        play(log, str(number), [0.0, 0.5 if number < 5 else 0.0])
    log.close()
    output = run(project, "python", "-m", "flows.monitor", "cartpole", expect=1)
    assert "cartpole version 1 is degraded: limits.pole_stays_up: 25.00% of episodes violate, in 20 episodes" in output

    def triggered() -> list[dict[str, Any]]:
        asked = {"deployments": {"name": {"any_": ["on-degradation"]}}}
        found: list[dict[str, Any]] = api.post("/flow_runs/filter", json=asked).json()
        return found

    until(lambda: bool(triggered()), "the retraining to be scheduled")
    assert [one["parameters"] for one in triggered()] == [{"policy": "cartpole", "overrides": {"training.seed": 2}}]
    artifact = api.get("/artifacts/monitoring-cartpole/latest").json()
    assert (artifact["type"], "limits.pole_stays_up" in artifact["data"]) == ("table", True)


def test_a_challenger_is_compared_with_the_champion(
    finished_project: Path, tmp_path: Path, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = copy_state(finished_project, tmp_path / "project")
    monkeypatch.setenv("LOOMRL_HOME", str(project / ".loomrl"))
    registry = Registry()
    challenger = register_linear(tmp_path / "challenger", BALANCING, registry, [500.0])
    registry.set_aliases("cartpole", {CHALLENGER: challenger.version})
    log = AuditLog("cartpole")
    for number in range(20):
        play(log, f"own {number}", [0.0] * 3)
        play(log, f"other {number}", [0.0] * 3, version=challenger.version)
    log.close()
    output = run(project, "python", "-m", "flows.monitor", "cartpole", expect=None)
    assert "cartpole version 2 beside 1: reward undecided, limits.cart_stays_on_track undecided" in output
    assert "fitted Q" in output
    artifact = api.get("/artifacts/comparison-cartpole/latest").json()
    assert (artifact["type"], "limits.pole_stays_up" in artifact["data"]) == ("table", True)
    with LoomDB.open() as db:
        kept = db.latest_event("comparison cartpole")
    assert kept is not None
    assert VersionComparison.model_validate(kept.data).live.of("reward") is not None
