"""A champion that got worse is found in its audit log, or taken back by its server, and a real Prefect server hears."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loomrl.errors import ServiceError
from loomrl.promotion.comparison.compare import VersionComparison
from loomrl.serving.guardian.announce import ROLLED_BACK_EVENT, announce
from loomrl.serving.guardian.monitor import Trigger
from loomrl.serving.guardian.quarantine import Quarantined
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import timestamp
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHALLENGER, Registry
from tests.support.live import play
from tests.support.policies import BALANCING
from tests.support.prefect_api import prefect_api
from tests.support.projects import SHARED, copy_state, prefect_server, run, until
from tests.support.simulated_logs import register_linear


@pytest.fixture
def api(shared_prefect: str) -> Iterator[httpx.Client]:
    with prefect_api(shared_prefect) as client:
        yield client


@pytest.fixture
def on_its_own_server(
    finished_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, httpx.Client]]:
    """A copy of the project, and a Prefect server for its commands: with the database of the first run, no new one."""
    project = copy_state(finished_project, tmp_path / "project")
    with prefect_server(project / ".loomrl" / "prefect") as url, prefect_api(url) as client:
        monkeypatch.setitem(SHARED, "PREFECT_API_URL", url)
        yield project, client


def test_a_degraded_champion_triggers_its_retraining_once(
    on_its_own_server: tuple[Path, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    project, api = on_its_own_server
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_version_that_was_taken_back_is_one_event_however_often_it_is_sent(
    shared_prefect: str, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {"e_value": 300.0, "threshold": 50.0, "mean": 1.0, "limit": 0.01, "num_values": 3, "num_decisions": 5}
    trigger = Trigger(version="2", monitor="violations.pole", **numbers)
    entry = Quarantined(policy="taken_back", trigger=trigger, server="server-0", to="1", time=timestamp())
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    announce(entry)  # nobody to tell
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with pytest.raises(ServiceError, match="http://127.0.0.1:9/api did not take the event: .*check PREFECT_API_URL"):
        announce(entry)
    monkeypatch.setenv("PREFECT_API_URL", shared_prefect)
    announce(entry)
    announce(entry)

    def told() -> list[dict[str, Any]]:
        asked = {"filter": {"event": {"name": [ROLLED_BACK_EVENT]}}}
        found: list[dict[str, Any]] = api.post("/events/filter", json=asked).json()["events"]
        return [event for event in found if event["resource"]["prefect.resource.id"] == "loomrl.policy.taken_back"]

    until(lambda: bool(told()), "the event")
    (event,) = told()
    assert event["payload"] == {
        "policy": "taken_back",
        "version": "2",
        "to": "1",
        "server": "server-0",
        "monitor": "violations.pole",
        "reason": "violations.pole: 100.0% of 3 decisions, 1.0% allowed (e-value 300 of 50)",
        "e_value": 300.0,
        "threshold": 50.0,
        "num_decisions": 5,
    }
