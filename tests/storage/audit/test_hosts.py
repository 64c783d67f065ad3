"""Servers of several hosts agree on what people set; a database or a registry that hangs keeps no order waiting."""

import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.orders import kill_app, override_app, plan_app
from loomrl.serving.client import Ask, PolicyClient, Refused
from loomrl.serving.controls.controls import Controls
from loomrl.serving.controls.overrides import Override
from loomrl.serving.policy.sources import FolderSource
from loomrl.serving.process import ServerProcess
from loomrl.serving.settings import ServerSettings
from loomrl.storage.audit.history import records
from loomrl.storage.registry import Registry
from loomrl.system.home import tracking_uri
from loomrl.system.security.signing_keys import TRUSTED_VARIABLE
from tests.support.champions import make_champion
from tests.support.inside import Inside, wait_for
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder
from tests.support.steady_load import Load as SteadyLoad

OBS = OBSERVATIONS[0].tolist()
BY = {"person": "Ada", "reason": "test"}
AGENTS = [f"agent-{number}" for number in range(200)]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {
        "champion": discrete_folder(tmp_path / "policies" / "champion"),
        "other": discrete_folder(tmp_path / "policies" / "other", -BALANCING),
    }


@contextmanager
def two_hosts(tmp_path: Path, folders: dict[str, Path]) -> Iterator[list[PolicyClient]]:
    """Each with a LOOMRL_HOME of its own; they share LoomDB."""
    database = f"sqlite:///{tmp_path / 'shared.db'}"
    with ExitStack() as stack:
        clients = []
        for name in ("one", "two"):
            environment = {"LOOMRL_HOME": str(tmp_path / name), "LOOMRL_DATABASE_URL": database}
            options = {"champion_folder": folders["champion"], "rate": 1e6, "environment": environment}
            server = stack.enter_context(ServerProcess("cartpole", **options))
            clients.append(stack.enter_context(server.client()))
        yield clients


def dealt(client: PolicyClient) -> list[str]:
    return [decision.version for decision in client.decide_many([Ask(agent, OBS) for agent in AGENTS])]


def run(app, *arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.long
def test_two_hosts_agree(tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    other = str(folders["other"])
    with two_hosts(tmp_path, folders) as (one, two):
        normal = one.decide("a", OBS).action
        override = one.set_override(action=1 - normal, agent_id="a", **BY)
        wait_for(lambda: two.decide("a", OBS).action == 1 - normal)
        two.clear_override(override["id"])
        wait_for(lambda: one.decide("a", OBS).action == normal)
        one.set_plan(split={other: 0.3}, fallback={"action": 1 - normal}, **BY)
        wait_for(lambda: dealt(two) == dealt(one))
        before = dealt(one)
        assert 0 < before.count(other) < len(AGENTS)
        monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "third"))  # of an operator's machine, where no server runs
        monkeypatch.setenv("LOOMRL_DATABASE_URL", f"sqlite:///{tmp_path / 'shared.db'}")
        run(kill_app, "on", "--policy", "cartpole", "--reason", "test", "--person", "Ada")
        wait_for(lambda: {client.decide("b", OBS).role for client in (one, two)} == {"kill_switch"})
    with two_hosts(tmp_path, folders) as (one, two):  # both were stopped: what was set still holds
        assert {client.decide("b", OBS).role for client in (one, two)} == {"kill_switch"}
        assert "ON, by Ada: test" in run(plan_app, "show", "--policy", "cartpole")
        run(kill_app, "off", "--policy", "cartpole", "--reason", "test")
        wait_for(lambda: {client.decide("b", OBS).role for client in (one, two)} <= {"champion", "split"})
        wait_for(lambda: dealt(one) == dealt(two) == before)  # each once it has loaded the other version


@pytest.mark.long
def test_a_host_that_starts_knows_what_was_set_before_it_decides(tmp_path: Path, folders: dict[str, Path]) -> None:
    with two_hosts(tmp_path, folders) as (one, _):
        normal = one.decide("a", OBS).action
        one.set_override(action=1 - normal, **BY)
        wait_for(lambda: "override" in {control.name for control in shared(tmp_path)})
        home = {"LOOMRL_HOME": str(tmp_path / "new"), "LOOMRL_DATABASE_URL": f"sqlite:///{tmp_path / 'shared.db'}"}
        newcomer = ServerProcess("cartpole", champion_folder=folders["champion"], environment=home)
        with newcomer, newcomer.client() as client:
            assert client.decide("a", OBS).role == "override"


def shared(tmp_path: Path):
    from loomrl.storage.loomdb.database import LoomDB

    with LoomDB.open(f"sqlite:///{tmp_path / 'shared.db'}") as database:
        return database.controls("cartpole")


def test_commands_change_what_servers_do(loomrl_home: Path, folders: dict[str, Path]) -> None:
    given = ("--policy", "cartpole", "--person", "Ada", "--reason", "test")
    other = str(folders["other"])
    with ServerProcess("cartpole", champion_folder=folders["champion"]) as server, server.client() as client:
        normal = client.decide("a", OBS).action
        run(plan_app, "split", *given, "--version", other, "--fraction", "1")
        wait_for(lambda: client.decide("a", OBS).role == "split")
        run(plan_app, "split", *given, "--version", other, "--fraction", "0", "--server", client.url)
        assert client.decide("a", OBS).role == "champion"
        run(plan_app, "fallback", *given, "--action", str(1 - normal), "--server", client.url)
        run(plan_app, "challengers", *given, other, "--server", client.url)
        run(override_app, "set", *given, "--fallback", "--agent", "a", "--server", client.url)
        assert client.decide("a", OBS).action == 1 - normal
        run(kill_app, "on", *given, "--server", client.url)
        assert client.decide("b", OBS).role == "kill_switch"
        shown = run(plan_app, "show", "--policy", "cartpole", "--server", client.url)
        assert f"action {1 - normal}" in shown
        assert "ON, by Ada: test" in shown
        with pytest.raises(Refused, match="changed meanwhile"):
            client.set_plan(revision=1, **BY)
    done = [entry for entry in records("cartpole") if entry["kind"] == "operation"]
    assert [entry["operation"] for entry in done] == ["plan"] * 4 + ["override", "kill_switch"]
    assert [entry["agent_id"] for entry in done] == [None] * 4 + ["a", None]
    assert {entry["actor"].partition(" ")[0] for entry in done} == {"command", "loopback"}


# --- what hangs -------------------------------------------------------------------------------------------------


class Load:
    """Decides without pause in a thread; keeps the statuses and who decided last."""

    def __init__(self, server: Inside) -> None:
        self._server, self._stop = server, threading.Event()
        self.statuses: set[int] = set()
        self.num_decided, self.role = 0, ""
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            answer = self._server.decide("load", OBS)
            self.statuses.add(answer.status_code)
            self.num_decided, self.role = self.num_decided + 1, answer.json().get("role", "")

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every sync of a file."""
    calls: list[int] = []
    sync = os.fdatasync

    def counted(handle: int) -> None:
        sync(handle)
        calls.append(handle)

    monkeypatch.setattr(os, "fdatasync", counted)
    return calls


def test_a_locked_database_stops_neither_decisions_nor_syncing_nor_people(
    loomrl_home: Path, folders: dict[str, Path], synced: list[int]
) -> None:
    settings = ServerSettings(
        "cartpole", folders={"champion": folders["champion"]}, rate=1e9, anchor_seconds=0.2, refresh_seconds=0.1
    )
    with Inside(settings, threads=True) as server, Load(server) as load:
        anchored = lambda: server.ask("GET", "/status").json()["audit"]["anchored_sequence"] or 0  # noqa: E731
        wait_for(lambda: anchored() > 0 and load.num_decided > 20)
        database = sqlite3.connect(loomrl_home / "loom.db", isolation_level=None)
        database.execute("BEGIN EXCLUSIVE")
        wait_for(lambda: "locked" in (server.ask("GET", "/status").json()["audit"]["anchor_error"] or ""))
        stuck, num_synced, num_decided = anchored(), len(synced), load.num_decided
        Controls("cartpole").set_override(Override(action=1, **BY), "command test")
        wait_for(lambda: load.role == "override")
        wait_for(lambda: "agree" in server.context.errors)  # other hosts do not know of the override yet
        wait_for(lambda: len(synced) > num_synced + 20 and load.num_decided > num_decided + 100)
        assert anchored() == stuck
        database.execute("ROLLBACK")
        wait_for(lambda: anchored() > stuck and not server.context.errors)
    assert load.statuses == {200}


class Slow(FolderSource):
    """A source of folders. What it names champion second hangs while it is downloaded, until it is let go on."""

    def __init__(self, champion: Path) -> None:
        super().__init__("cartpole", {"champion": champion})
        self.champion = self.first = str(champion)
        self.slow = ""
        self.hangs, self.go_on = threading.Event(), threading.Event()

    def roles(self) -> dict[str, str]:
        return {"champion": self.champion}

    def fetch(self, version: str) -> Path:
        self.slow = self.slow or version.removeprefix(self.first)
        if version == self.slow:
            self.hangs.set()
            self.go_on.wait(60)
        return super().fetch(version)


def test_an_override_does_not_wait_for_a_swap(
    loomrl_home: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Slow(folders["champion"])
    monkeypatch.setattr("loomrl.serving.context.source_of", lambda _: source)
    with Inside(ServerSettings("cartpole", rate=1e9), threads=True) as server, Load(server) as load:
        wait_for(lambda: load.role == "champion")
        source.champion = str(folders["other"])
        assert source.hangs.wait(30)
        Controls("cartpole").set_override(Override(action=1, **BY), "command test")
        wait_for(lambda: load.role == "override")
        assert server.ask("DELETE", "/override").is_success
        wait_for(lambda: load.role == "champion")
        assert not source.go_on.is_set()  # all this while the download hung
        source.go_on.set()
        wait_for(lambda: server.decide("a", OBS).json()["version"] == str(folders["other"]))
    assert load.statuses == {200}


def test_a_swap_during_a_swap_ends_with_the_newest(
    loomrl_home: Path, tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, third = Slow(folders["champion"]), str(discrete_folder(tmp_path / "third", value=3.0))
    monkeypatch.setattr("loomrl.serving.context.source_of", lambda _: source)
    settings = ServerSettings("cartpole", rate=1e9, refresh_seconds=0.05)
    with Inside(settings, threads=True) as server, Load(server) as load:
        wait_for(lambda: load.role == "champion")
        source.champion = str(folders["other"])
        assert source.hangs.wait(30)
        source.champion = third
        wait_for(lambda: server.decide("a", OBS).json()["version"] == third)
        assert server.context.roles.loading == [str(folders["other"])]
        source.go_on.set()
        wait_for(lambda: server.context.roles.loading == [])
        roles = server.context.roles
        assert (server.decide("a", OBS).json()["version"], roles.refused, roles.num_swaps) == (third, {}, 2)
        assert roles.current.by_version(str(folders["other"])) is None
    assert load.statuses == {200}


@pytest.mark.long
def test_hosts_with_workers_follow_the_registry_they_share(
    ready_home: Path, tmp_path: Path, folders: dict[str, Path]
) -> None:
    registry = Registry()
    versions = [registry.register("cartpole", folder, name).version for name, folder in folders.items()]
    make_champion(registry, versions[0])
    shared = {"MLFLOW_TRACKING_URI": tracking_uri(), "LOOMRL_DATABASE_URL": f"sqlite:///{tmp_path / 'shared.db'}"}
    with ExitStack() as stack:
        loads = []
        for name, workers in (("one", 2), ("two", 1)):
            environment = {**shared, "LOOMRL_HOME": str(tmp_path / name), TRUSTED_VARIABLE: str(ready_home / "keys")}
            server = ServerProcess("cartpole", workers=workers, environment=environment, rate=1e9)
            loads.append(stack.enter_context(SteadyLoad(stack.enter_context(server))))
        for load in loads:
            load.wait_until(lambda load=load: load.newest == 1)
        make_champion(registry, versions[1])
        for load in loads:
            load.wait_until(lambda load=load: load.newest == 2)
    for load in loads:
        load.check()  # each host went from the one to the other, and never back
    chains = {folder.name for name in ("one", "two") for folder in (tmp_path / name / "audit" / "cartpole").iterdir()}
    host = socket.gethostname()
    assert chains >= {f"{host}-workers-0", f"{host}-workers-1", f"{host}-server-0"}
