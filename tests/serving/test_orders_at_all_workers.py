"""A person's order is in force at all workers, also where nothing can be written."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from loomrl.cli.main import app
from loomrl.serving.api.worker_group import WorkerGroup
from loomrl.serving.client import PolicyClient, Refused
from loomrl.serving.controls.controls import Controls
from loomrl.serving.process import ServerProcess
from loomrl.serving.workers.address import WorkerAddress
from loomrl.storage.audit.chain import unseal
from loomrl.storage.audit.history import records
from loomrl.storage.audit.segments import lines, segments
from loomrl.storage.audit.verification import verify_chain
from loomrl.system.files import canonical_json, sha256
from loomrl.system.http.asgi import Response, Scope
from tests.serving.test_locked_databases import locked
from tests.support.inside import wait_for
from tests.support.loop_disk import loop_disk
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.several_workers import connected, pids

OBS = OBSERVATIONS[0].tolist()
BY = {"person": "Ada", "reason": "a fault"}
NUM_WAITING = 40  # more than asyncio's pool has threads, on any machine
PATIENCE = 60.0  # seconds


@contextmanager
def two_workers(home: Path, folder: Path) -> Iterator[tuple[ServerProcess, list[PolicyClient]]]:
    """A server with a fallback, and a client at each of its workers; both decide."""
    options = {"workers": 2, "rate": 1e6, "environment": {"LOOMRL_HOME": str(home)}}
    with ServerProcess("cartpole", champion_folder=folder, **options) as server, ExitStack() as stack:
        each = [stack.enter_context(connected(server, worker)) for worker in range(2)]
        each[0].set_plan(fallback={"action": 0}, **BY)
        wait_for(lambda: [role(client) for client in each] == ["champion"] * 2)
        yield server, each


@contextmanager
def nothing_can_be_written(home: Path) -> Iterator[None]:
    """Another process holds the file of orders, and LoomDB is locked."""
    with FileLock(home / "controls" / "cartpole.json.lock"), locked(home / "loom.db"):
        yield


def role(client: PolicyClient, agent_id: str = "a") -> str:
    """Who decides; the status where nothing is decided."""
    try:
        return client.decide(agent_id, OBS).role
    except Refused as refused:
        return str(refused.status)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return discrete_folder(tmp_path / "champion")


def test_where_no_file_and_no_database_can_be_written(loomrl_home: Path, folder: Path) -> None:
    """A worker that is started again knows it, too; and what could not be written is, when it can be."""
    with two_workers(loomrl_home, folder) as (server, each):
        with nothing_can_be_written(loomrl_home):
            each[0].set_kill_switch(True, **BY)
            wait_for(lambda: [role(client) for client in each] == ["kill_switch"] * 2)
            each[1].set_override(action=1, agent_id="b", expires_in_seconds=3_600, **BY)
            wait_for(lambda: [role(client, "b") for client in each] == ["override"] * 2)
            wait_for(lambda: [client.status()["orders"]["unconfirmed"] for client in each] == [[], []])
            assert each[1].status()["orders"]["unsaved"] is not None
            killed = pids(server)[1]
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda: pids(server)[1] != killed)
            with connected(server, 1) as another:
                wait_for(lambda: [role(another), role(another, "b")] == ["kill_switch", "override"])
        wait_for(lambda: each[0].status()["orders"]["unsaved"] is None)
        server.stop()
        server.start()
        with server.client() as client:
            wait_for(lambda: [role(client), role(client, "b")] == ["kill_switch", "override"])
    for chain in (loomrl_home / "audit" / "cartpole").iterdir():
        assert verify_chain(chain).intact
        written = [unseal(line) for path in segments(chain) for line in lines(path)]
        assert {"kill_switch", "override"} <= {entry["operation"] for entry in written if entry["kind"] == "operation"}


def test_a_worker_that_does_not_answer_is_named_and_told_when_it_does(loomrl_home: Path, folder: Path) -> None:
    with two_workers(loomrl_home, folder) as (server, each), nothing_can_be_written(loomrl_home):
        stopped = pids(server)[1]
        os.kill(stopped, signal.SIGSTOP)
        try:
            each[0].set_kill_switch(True, **BY)
            assert role(each[0]) == "kill_switch"
            assert each[0].status()["orders"]["unconfirmed"] == [1]
        finally:
            os.kill(stopped, signal.SIGCONT)
        wait_for(lambda: each[0].status()["orders"]["unconfirmed"] == [])
        assert role(each[1]) == "kill_switch"


def test_a_version_is_not_waited_for_at_a_worker_that_does_not_answer(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that answers at all may take as long as loading takes."""
    monkeypatch.setattr("loomrl.serving.api.worker_group._ENSURE_SECONDS", 1e6)
    shared = (tmp_path / name for name in ("agreement", "limits", "asking"))
    address = WorkerAddress(0, 2, "w", tmp_path, 0, 0, 0, *shared)

    async def own(scope: Scope, body: bytes) -> Response:
        raise AssertionError("the other one is asked")

    async def not_loaded() -> dict[str, str]:
        group = WorkerGroup(SimpleNamespace(controls=Controls("cartpole")), address, own)  # type: ignore[arg-type]
        return await asyncio.wait_for(group.ensure({"3"}), PATIENCE)

    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(tmp_path / "1.sock"))
        stopped.listen()  # and takes no connection
        told = asyncio.run(not_loaded())
    assert "does not answer" in told["3"]


def test_while_all_threads_wait_for_the_registry(loomrl_home: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(200)
        environment = {
            "LOOMRL_HOME": str(loomrl_home),
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        with ServerProcess("cartpole", wait_ready=False, environment=environment) as server, ExitStack() as stack:
            host, port = server.url.removeprefix("http://").split(":")
            for _ in range(NUM_WAITING):
                asked = stack.enter_context(closing(HTTPConnection(host, int(port), timeout=PATIENCE)))
                wait_for(lambda one=asked: connects(one))
                asked.request("POST", "/v2/repository/models/cartpole/load")
            wait_for(lambda: num_recorded("load") == NUM_WAITING)
            with server.client(timeout_seconds=PATIENCE) as client:
                client.set_kill_switch(True, **BY)
                assert client.plan()["kill_switch"] is not None


def connects(asked: HTTPConnection) -> bool:
    """Whether the server takes the connection already."""
    try:
        asked.connect()
    except ConnectionRefusedError:
        return False
    return True


def num_recorded(name: str) -> int:
    return sum(entry["kind"] == "operation" and entry["operation"] == name for entry in records("cartpole"))


def test_where_reading_the_file_of_orders_hangs(loomrl_home: Path, folder: Path) -> None:
    """As on NFS whose server is away; here a pipe that nobody writes lies in its place."""
    path = loomrl_home / "controls" / "cartpole.json"
    with two_workers(loomrl_home, folder) as (_, each):
        wait_for(lambda: all(client.status()["orders"]["unsaved"] is None for client in each))
        os.mkfifo(path.with_suffix(".pipe"))
        path.with_suffix(".pipe").replace(path)
        order = threading.Thread(target=each[0].set_kill_switch, args=(True,), kwargs=BY)
        order.start()
        wait_for(lambda: each[1].plan()["kill_switch"] is not None, PATIENCE)
        order.join(PATIENCE)
        assert not order.is_alive()
        assert role(each[0]) != "champion"
        assert role(each[1]) != "champion"


def test_an_override_lapses_while_the_file_is_held(loomrl_home: Path, folder: Path) -> None:
    with two_workers(loomrl_home, folder) as (_, each), nothing_can_be_written(loomrl_home):
        each[0].set_override(action=1, agent_id="t", expires_in_seconds=1.0, **BY)
        wait_for(lambda: [client.overrides() for client in each] == [[], []])


def test_on_a_disk_that_turned_read_only(tmp_path: Path, folder: Path) -> None:
    """Nothing is decided there, for it could not be recorded; what is in force is shown."""
    with loop_disk(tmp_path / "disk") as disk, two_workers(disk.folder / "home", folder) as (_, each):
        disk.fail()
        each[0].set_kill_switch(True, **BY)
        each[1].set_override(action=1, agent_id="b", **BY)
        wait_for(lambda: all(client.plan()["kill_switch"] is not None for client in each))
        wait_for(lambda: [[one["agent_id"] for one in client.overrides()] for client in each] == [["b"], ["b"]])


def test_on_a_disk_that_hangs(tmp_path: Path, folder: Path) -> None:
    """Who was asked after the order is not decided for by the champion; the order is kept when the disk goes on."""
    with loop_disk(tmp_path / "disk") as disk, two_workers(disk.folder / "home", folder) as (server, each):
        disk.hang()
        try:
            each[0].set_kill_switch(True, **BY)
            wait_for(lambda: all(client.plan()["kill_switch"] is not None for client in each))
            decided: list[str] = []
            asked = [threading.Thread(target=lambda c=client: decided.append(role(c))) for client in each]
            for one in asked:
                one.start()
        finally:
            disk.go_on()
        for one in asked:
            one.join()
        assert set(decided) <= {"kill_switch", "503"}
        wait_for(lambda: [role(client) for client in each] == ["kill_switch"] * 2)
        wait_for(lambda: each[0].status()["orders"]["unsaved"] is None)
        server.stop()
        server.start()
        with server.client() as client:
            wait_for(lambda: role(client) == "kill_switch")


@pytest.mark.parametrize("damage", [b"", b"\x00garbage{"])
def test_where_the_file_of_orders_is_damaged(loomrl_home: Path, folder: Path, damage: bytes) -> None:
    path = loomrl_home / "controls" / "cartpole.json"
    with two_workers(loomrl_home, folder) as (server, each):
        each[0].set_override(action=1, agent_id="t", expires_in_seconds=1.0, **BY)
        path.write_bytes(damage)
        each[0].set_kill_switch(True, **BY)
        wait_for(lambda: [role(client) for client in each] == ["kill_switch"] * 2)
        wait_for(lambda: [client.overrides() for client in each] == [[], []])  # its time is over
        wait_for(lambda: any(one["orders"]["damaged"] for one in each[0].status()["workers"]))
        each[0].set_kill_switch(False, **BY)
        path.write_bytes(damage)
        done = CliRunner().invoke(app, ["kill", "on", "--policy", "cartpole", "--reason", "a fault"])
        assert done.exit_code == 0, done.output
        wait_for(lambda: [role(client) for client in each] == ["kill_switch"] * 2)
        server.stop()
        path.write_bytes(damage)
        server.start()
        with server.client() as client:
            wait_for(lambda: role(client) == "kill_switch")  # LoomDB knows
    assert len(list(path.parent.glob("cartpole.json.damaged-*"))) >= 2
    assert any(entry["kind"] == "damaged" for entry in records("cartpole"))


def unreadable(path: Path) -> None:
    """A loop of links in its place: as where the disk fails."""
    path.unlink()
    path.symlink_to(path.name)


def test_where_files_cannot_be_read_people_decide_and_servers_start(loomrl_home: Path, folder: Path) -> None:
    """With the copy every order is known; without it the champion does not decide where something was announced."""
    path = loomrl_home / "controls" / "cartpole.json"
    quarantine = loomrl_home / "quarantine" / "cartpole" / "0123456789abcdef.json"
    with two_workers(loomrl_home, folder) as (server, each):
        quarantine.parent.mkdir(parents=True, exist_ok=True)
        quarantine.write_bytes(b"\0{")
        unreadable(path)
        each[0].set_kill_switch(True, **BY)
        wait_for(lambda: [role(client) for client in each] == ["kill_switch"] * 2)
        each[0].set_kill_switch(False, **BY)
        wait_for(lambda: [role(client) for client in each] == ["champion"] * 2)
        unreadable(path.with_suffix(".copy"))
        each[0].set_kill_switch(True, **BY)
        each[0].set_override(action=1, agent_id="b", **BY)
        wait_for(lambda: [role(client) for client in each] == ["kill_switch"] * 2)
        wait_for(lambda: [role(client, "b") for client in each] == ["override"] * 2)
        each[0].set_kill_switch(False, **BY)
        wait_for(lambda: [role(client) for client in each] == ["503"] * 2)
        assert role(each[1], "b") == "override"
        each[0].set_kill_switch(True, **BY)
        wait_for(lambda: "orders may be missing here" in each[0].status()["orders"]["missing"])
        server.stop()
        server.start()
        with server.client() as client:
            wait_for(lambda: [role(client), role(client, "b")] == ["kill_switch", "override"])


def test_a_file_of_orders_by_a_newer_version_stops_nothing(loomrl_home: Path, folder: Path) -> None:
    path = loomrl_home / "controls" / "cartpole.json"
    with two_workers(loomrl_home, folder) as (server, each):
        newer = canonical_json({"format": 99, "ranks": []})
        path.write_bytes(canonical_json({"format": 99, "ranks": [], "digest": sha256(newer)}))
        each[0].set_kill_switch(True, **BY)
        wait_for(lambda: [role(client) for client in each] == ["kill_switch"] * 2)
        each[0].set_kill_switch(False, **BY)
        wait_for(lambda: [role(client) for client in each] == ["champion"] * 2)
        each[0].set_kill_switch(True, **BY)
        server.stop()
        server.start()
        with server.client() as client:
            wait_for(lambda: role(client) == "kill_switch")
    assert b"ranks" in path.read_bytes()


def test_the_kill_switch_survives_a_damaged_file_without_loomdb(loomrl_home: Path, folder: Path) -> None:
    path = loomrl_home / "controls" / "cartpole.json"
    with two_workers(loomrl_home, folder) as (server, each):
        each[0].set_kill_switch(True, **BY)
        server.stop()
        path.write_bytes(b"")
        for file in loomrl_home.glob("loom.db*"):
            file.rename(file.with_name(f"away-{file.name}"))
        (loomrl_home / "loom.db").mkdir()
        server.start()
        with server.client() as client:
            assert role(client) == "kill_switch"
