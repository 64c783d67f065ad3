"""LoomDB and the registry locked at once, as by a backup that hangs: decisions, syncs and orders go on."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from loomrl.serving.client import PolicyClient, Refused
from loomrl.serving.controls.controls import Controls
from loomrl.serving.controls.overrides import Override
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.loomdb.engine import BUSY_SECONDS, make_engine
from loomrl.storage.registry import Registry
from tests.support.champions import make_champion
from tests.support.databases import postgresql_server, postgresql_url, tables_locked
from tests.support.inside import wait_for
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.several_workers import connected
from tests.support.steady_load import Load

__all__ = ["postgresql_server", "postgresql_url"]
OBS = OBSERVATIONS[0].tolist()


@contextmanager
def locked(*paths: Path) -> Iterator[None]:
    """No other connection reads or writes these databases meanwhile."""
    holders = [sqlite3.connect(path, isolation_level=None) for path in paths]
    try:
        for holder in holders:
            holder.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        for holder in holders:
            holder.close()


def seen(client: PolicyClient, *names: str) -> Callable[[], Any]:
    """Looks a value of the server's status up."""

    def look() -> Any:
        found: Any = client.status()
        for name in names:
            found = found[name]
        return found

    return look


@pytest.mark.long
def test_with_both_databases_locked_decisions_syncs_and_orders_go_on(ready_home: Path, tmp_path: Path) -> None:
    registry = Registry()
    for number in (1, 2):
        registry.register("cartpole", discrete_folder(tmp_path / f"{number}", value=float(number)), f"run-{number}")
    make_champion(registry, "1")
    uri = f"sqlite:///{ready_home / 'mlflow.db'}?timeout=0.2"  # seconds that SQLite waits for a lock
    options = {"anchor_seconds": 0.2, "refresh_seconds": 0.1, "rate": 1e9, "environment": {"MLFLOW_TRACKING_URI": uri}}
    server = ServerProcess("cartpole", **options)
    with server, server.client() as client, Load(server) as load:
        anchored, synced = seen(client, "audit", "anchored_sequence"), seen(client, "audit", "durable_sequence")
        load.wait_until(lambda: (anchored() or -1) > 0)
        with locked(ready_home / "loom.db", ready_home / "mlflow.db"):
            load.wait_until(lambda: "locked" in (seen(client, "audit", "anchor_error")() or ""))
            load.wait_until(lambda: "locked" in (seen(client, "registry_error")() or ""))
            num_synced, num_decided, num_anchored = synced(), load.num_decisions, anchored()
            Controls("cartpole").set_override(Override(action=1, agent_id="a", person="Ada", reason="test"), "test")
            load.wait_until(lambda: client.decide("a", OBS).override is not None)
            client.clear_override()
            assert client.decide("a", OBS).override is None
            load.wait_until(lambda: load.num_decisions > num_decided + 100 and synced() > num_synced + 100)
            assert anchored() == num_anchored
        make_champion(registry, "2")
        load.wait_until(lambda: anchored() > num_anchored and load.newest == 2)
        load.wait_until(lambda: seen(client, "errors")() == {} and seen(client, "registry_error")() is None)
    assert load.failures == []
    assert verify_chain(ready_home / "audit" / "cartpole" / "server-0").intact


@pytest.mark.parametrize("workers", [1, 2])
def test_an_order_that_names_a_version_waits_for_no_registry(ready_home: Path, tmp_path: Path, workers: int) -> None:
    by = {"person": "Ada", "reason": "test"}
    registry = Registry()
    for number in (1, 2):
        registry.register("cartpole", discrete_folder(tmp_path / f"{number}", value=float(number)), f"run-{number}")
    make_champion(registry, "1")
    with ServerProcess("cartpole", workers=workers) as server, ExitStack() as stack:
        each = [stack.enter_context(connected(server, worker)) for worker in range(workers)]
        with locked(ready_home / "mlflow.db"):
            override = each[0].set_override(version="2", agent_id="b", **by)
            plan = each[-1].set_plan(fallback={"version": "2"}, **by)
            each[0].set_kill_switch(True, **by)
            for client in each:  # neither is what a version would have done that nobody ordered
                for agent_id in ("a", "b"):
                    with pytest.raises(Refused, match="503: .*version 2.* is not loaded"):
                        client.decide(agent_id, OBS)
        for answer in (override, plan):
            assert "could not be looked up: the registry gave no answer for 0.5 s" in answer["not_loaded"]["2"]
        assert "version 2, which is not loaded yet: it could not be looked up" in server.log()
        for client in each:
            wait_for(lambda client=client: decides(client, "a") == "kill_switch 2")
            wait_for(lambda client=client: decides(client, "b") == "override 2")
        with pytest.raises(Refused, match="422: version 3 cannot be pinned: .*3"):
            each[0].set_override(version="3", **by)
        assert "not_loaded" not in each[0].set_override(version="1", **by)


def test_commands_of_people_do_not_wait_for_a_locked_table(
    loomrl_home: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMRL_DATABASE_URL", postgresql_url)
    LoomDB.open().close()
    why = ["--reason", "test"]

    def run(*words: str) -> str:
        command = [sys.executable, "-c", "from loomrl.cli.main import main; main()", *words, "--policy", "cartpole"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert "other hosts do not hear of it yet" in done.stderr
        assert "canceling statement due to lock timeout" in done.stderr
        return done.stdout

    with tables_locked(postgresql_url, "controls"):
        run("kill", "on", *why)
        run("kill", "off", *why)
        run("override", "set", "--action", "1", *why)
        assert "action 1 for all agents" in run("override", "list")
        run("override", "clear")
    controls = Controls("cartpole")
    with LoomDB.open() as database:
        controls.exchange(database)
        assert {one.name: one.document for one in database.controls("cartpole")} == {
            "kill_switch": None,
            "override": None,
        }


def test_a_short_wait_bounds_statements_and_a_long_one_does_not(postgresql_url: str) -> None:
    hurried, patient = make_engine(postgresql_url, 1), make_engine(postgresql_url)
    with hurried.begin() as connection, pytest.raises(OperationalError, match="statement timeout"):
        connection.execute(text("SELECT pg_sleep(300)"))
    with patient.begin() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar() == "0"
        assert connection.execute(text("SHOW lock_timeout")).scalar() == f"{BUSY_SECONDS}s"
    for engine in (hurried, patient):
        engine.dispose()


def decides(client: PolicyClient, agent_id: str) -> str:
    """Who decides, and by which version; the status where nobody does."""
    try:
        decision = client.decide(agent_id, OBS)
    except Refused as refused:
        return str(refused.status)
    return f"{decision.role} {decision.version}"
