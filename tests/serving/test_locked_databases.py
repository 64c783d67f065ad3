"""LoomDB and the registry locked at once, as by a backup that hangs: decisions, syncs and orders go on."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loomrl.serving.client import PolicyClient
from loomrl.serving.controls.controls import Controls
from loomrl.serving.controls.overrides import Override
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.registry import Registry
from tests.support.champions import make_champion
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.steady_load import Load

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
