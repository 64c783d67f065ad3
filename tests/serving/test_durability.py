"""Strict servers answer when the disk has it, and with 503 where it does not take it."""

import errno
import json
import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from loomrl.serving.client import Ask, Refused
from loomrl.serving.context import SYNC_SECONDS
from loomrl.serving.process import ServerProcess
from loomrl.serving.settings import ServerSettings
from loomrl.storage.audit.history import records
from loomrl.storage.audit.keeper import AuditKeeper
from loomrl.storage.audit.log import AuditLog, AuditUnwritable, NotDurable
from loomrl.storage.audit.records import operation, record
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.loomdb.database import LoomDB
from tests.support.inside import Inside, wait_for
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.startup_code import environment_with

OBS = OBSERVATIONS[0].tolist()

# A disk that keeps count, and refuses while a file says so.
SITE = """
import errno, os, pathlib, time
folder = pathlib.Path(os.environ["DISK"])
synced = os.fdatasync
def fdatasync(handle):
    if (folder / "broken").exists():
        raise OSError(errno.EIO, "Input/output error")
    time.sleep(0.005 if (folder / "slow").exists() else 0)
    synced(handle)
    with (folder / "synced").open("a") as file:
        file.write(f"{os.fstat(handle).st_size}\\n")
os.fdatasync = fdatasync
"""


class Disk:
    """What a server's disk does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**environment_with(SITE, folder / "code"), "DISK": str(folder)}

    def break_down(self) -> None:
        (self.folder / "broken").touch()

    def recover(self) -> None:
        (self.folder / "broken").unlink()

    def slow_down(self) -> None:
        (self.folder / "slow").touch()

    def num_bytes(self) -> int:
        """How much of the segment that is written to is on it."""
        return int((self.folder / "synced").read_text().splitlines()[-1])

    def num_syncs(self) -> int:
        return len((self.folder / "synced").read_text().splitlines())


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "disk").mkdir()
    return Disk(tmp_path / "disk")


def strict(folder: Path, disk: Disk) -> ServerProcess:
    options = {"durability": "strict", "rate": 1e6, "anchor_seconds": 1e6, "environment": disk.environment}
    return ServerProcess("cartpole", champion_folder=folder, **options)


def segment(server_home: Path) -> Path:
    return server_home / "audit" / "cartpole" / "server-0" / "000001.jsonl"


def test_an_answer_leaves_when_its_record_is_on_the_disk(loomrl_home: Path, tmp_path: Path, disk: Disk) -> None:
    with strict(discrete_folder(tmp_path / "policy"), disk) as server, server.client() as client:
        for _ in range(20):
            decision = client.decide("a", OBS)
            durable = segment(loomrl_home).read_bytes()[: disk.num_bytes()]
            assert decision.decision_id.encode() in durable
        client.feedback(decision.decision_id, 1.0)
        assert b'"kind":"feedback"' in segment(loomrl_home).read_bytes()[: disk.num_bytes()]
        assert client.status()["audit"]["durability"] == "strict"


def test_a_safety_critical_version_answers_when_its_record_is_on_the_disk(
    loomrl_home: Path, tmp_path: Path, disk: Disk
) -> None:
    """Whatever the server was told: its config says so, and the manifest carries it."""
    folder = discrete_folder(tmp_path / "policy")
    manifest = json.loads((folder / "manifest.json").read_text())
    options = {"rate": 1e6, "anchor_seconds": 1e6, "environment": disk.environment}
    with ServerProcess("cartpole", champion_folder=folder, **options) as server, server.client() as client:
        shown = client.status()["audit"]
        assert (shown["durability"], shown["sync_every_seconds"], shown["anchor_every_seconds"]) == (
            "background", 0.02, 1e6
        )  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest | {"safety_critical": True}))
    with ServerProcess("cartpole", champion_folder=folder, **options) as server, server.client() as client:
        for _ in range(20):
            decision = client.decide("a", OBS)
            durable = segment(loomrl_home).with_stem("000002").read_bytes()[: disk.num_bytes()]
            assert decision.decision_id.encode() in durable
        shown = client.status()["audit"]
        assert (shown["durability"], shown["sync_every_seconds"], shown["unsynced_seconds"]) == ("strict", 0.0, 0.0)
        disk.break_down()
        with pytest.raises(Refused, match="may not outlive a power failure"):
            client.decide("a", OBS)


def test_answers_under_way_when_a_safety_critical_version_comes_are_synced(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read before the swap, decided after it: their answers leave the event loop's turn only with the records."""
    folder = discrete_folder(tmp_path / "policy")
    scope = {"method": "POST", "path": "/decide", "headers": [(b"host", b"127.0.0.1")]}
    body = json.dumps({"agent_id": "a", "observation": OBS}).encode()
    with Inside(ServerSettings("cartpole", folders={"champion": folder})) as server:
        application, audit = server.application, server.context.audit
        handler = application.hot_handler("/decide")
        request = application.read_at_once(handler, scope, body)
        (answer,) = application._answer_hot([request])
        assert (answer.status, audit.is_durable) == (200, False)
        champion = server.context.roles.current.champion
        monkeypatch.setattr(champion, "manifest", champion.manifest.model_copy(update={"safety_critical": True}))
        server.context.roles.current = replace(server.context.roles.current)
        (answer,) = application._answer_hot([request])
        assert (answer.status, audit.is_durable) == (200, True)
        assert application.hot_handler("/decide") is None


def test_many_share_a_sync(loomrl_home: Path, tmp_path: Path, disk: Disk) -> None:
    with strict(discrete_folder(tmp_path / "policy"), disk) as server:
        clients = [server.client() for _ in range(8)]
        start = threading.Barrier(8)

        def work(number: int) -> list[str]:
            start.wait()
            return [clients[number].decide(f"agent-{number}", OBS).decision_id for _ in range(15)]

        disk.slow_down()  # so that others come while one goes on
        before = disk.num_syncs()
        with ThreadPoolExecutor(8) as pool:
            answered = [decision for found in pool.map(work, range(8)) for decision in found]
        assert disk.num_syncs() - before < len(answered) / 2
        for client in clients:
            client.close()
    assert {entry["decision_id"] for entry in records() if entry["kind"] == "decision"} == set(answered)


def test_answers_on_one_connection_keep_their_order(loomrl_home: Path, tmp_path: Path, disk: Disk) -> None:
    with strict(discrete_folder(tmp_path / "policy"), disk) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            for number in range(5):  # pipelined: all are sent before the first answer is read
                body = b'{"agent_id":"p%d","observation":[0,0,0,0],"request_id":"%d"}' % (number, number)
                head = b"POST /decide HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
                connection.sendall(head + body)
            received = b""
            connection.settimeout(20)
            while received.count(b'"decision_id"') < 5:
                received += connection.recv(65536)
    written = [entry["decision_id"] for entry in records() if entry["kind"] == "decision"]
    places = [received.index(decision.encode()) for decision in written]
    assert places == sorted(places)


def test_where_the_disk_does_not_take_it_nothing_is_answered(loomrl_home: Path, tmp_path: Path, disk: Disk) -> None:
    with strict(discrete_folder(tmp_path / "policy"), disk) as server, server.client() as client:
        good = client.decide("a", OBS)
        disk.break_down()
        with pytest.raises(Refused, match="may not outlive a power failure") as refused:
            client.decide_many([Ask("a", OBS), Ask("b", OBS)])
        assert refused.value.status == 503
        with pytest.raises(Refused, match="503"):
            client.feedback(good.decision_id, 1.0)
        lost = {"agent_id": "c", "observation": OBS, "request_id": "lost"}
        assert httpx.post(f"{server.url}/decide", json=lost, trust_env=False).status_code == 503
        assert client.is_ready()  # who only looks is answered
        assert "Input/output error" in client.status()["audit"]["sync_error"]
        disk.recover()
        again = httpx.post(f"{server.url}/decide", json=lost, trust_env=False).json()
        assert client.decide("a", OBS).decision_id
        assert client.status()["audit"]["sync_error"] is None
    written = [(entry["kind"], entry) for entry in records()]
    kinds = [kind for kind, _ in written]
    start, end = kinds.index("not durable"), kinds.index("durable again")
    between = [entry["decision_id"] for kind, entry in written[:end] if kind == "decision"]
    assert start < end
    assert again["decision_id"] in between  # it was written then, and is answered now
    assert "Input/output error" in written[start][1]["reason"]
    assert verify_chain(segment(loomrl_home).parent).intact


def test_in_the_background_decisions_go_on_and_it_is_said(loomrl_home: Path, tmp_path: Path, disk: Disk) -> None:
    folder = discrete_folder(tmp_path / "policy")
    with (
        ServerProcess("cartpole", champion_folder=folder, environment=disk.environment) as server,
        server.client() as client,
    ):
        disk.break_down()
        client.decide("a", OBS)
        wait_for(lambda: client.status()["audit"]["sync_error"] is not None)
        client.decide("a", OBS)
        first, second = (client.status()["audit"]["unsynced_seconds"] for _ in range(2))
        assert 0.0 < first < second
        disk.recover()
        wait_for(lambda: client.status()["audit"]["sync_error"] is None)
        assert server.log().count("not durable after record") == 1
    kinds = [entry["kind"] for entry in records()]
    assert (kinds.count("not durable"), kinds.count("durable again")) == (1, 1)


def test_the_window_without_a_sync_is_told_and_grows_until_the_disk_has_it(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog("cartpole")
    keeper = AuditKeeper(log)
    keeper.sync()
    assert keeper.unsynced_seconds == 0.0
    log.append([record("decision", decision_id=None)])
    first = keeper.unsynced_seconds
    time.sleep(0.02)
    assert keeper.unsynced_seconds >= first + 0.02 > 0.02
    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", fail)
        with pytest.raises(NotDurable):
            keeper.sync()
        second = keeper.unsynced_seconds
        time.sleep(0.02)
        assert keeper.unsynced_seconds >= second + 0.02 > 0.04
    keeper.sync()
    keeper.sync()  # what the first one put on record
    assert keeper.unsynced_seconds == 0.0
    log.close()


def test_the_window_that_documentation_and_options_name_is_the_servers() -> None:
    root = Path(__file__).resolve().parents[2]
    pages = ["docs/serving.md", "docs/adr/0006-policy-server.md", "src/loomrl/serving/settings.py"]
    texts = [(root / page).read_text() for page in pages]
    named = [figure for text in texts for figure in re.findall(r"sync(?:s|ed) (?:every|within) (\d+) ms", text)]
    assert len(named) >= 4
    assert {int(figure) for figure in named} == {round(1_000 * SYNC_SECONDS)}


def test_what_a_failed_sync_dropped_is_written_again(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux takes what it could not write for written: without new writes the next sync has nothing to do."""
    log = AuditLog("cartpole")
    log.append([record("decision", decision_id=None)])
    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", fail)
        with pytest.raises(NotDurable, match="Input/output error"):
            log.sync()
    assert not log.is_durable
    path = segment(loomrl_home)
    before, written = path.read_bytes(), path.stat().st_mtime_ns
    log.sync()
    assert path.stat().st_mtime_ns > written
    assert path.read_bytes() == before
    assert log.is_durable
    log.close()


def fail(handle: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_segment_is_left_only_when_it_is_on_the_disk(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog("cartpole", segment_bytes=10)
    sizes: list[int] = []
    synced = os.fdatasync
    monkeypatch.setattr("os.fdatasync", lambda handle: (sizes.append(os.fstat(handle).st_size), synced(handle)))
    for _ in range(3):
        log.append([record("decision", decision_id=None)])
    assert sizes[0] == segment(loomrl_home).stat().st_size

    head = log.head
    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", fail)
        with pytest.raises(NotDurable):
            log.append([record("decision", decision_id=None)])
    assert log.head == head
    log.append([record("decision", decision_id=None)])
    log.close()
    assert verify_chain(log.folder).intact


def test_what_lies_in_memory_alone_is_not_durable_and_not_anchored(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog("cartpole", reserves=True)
    write, keeper = os.write, AuditKeeper(log)

    def full(handle: int, data: bytes) -> int:
        if data.startswith(b'{"kind"'):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data)

    with monkeypatch.context() as failing:
        failing.setattr(os, "write", full)
        failing.setattr("loomrl.storage.audit.reserve.SLOT_BYTES", 100)
        log.append_order([operation("cartpole", "kill switch", "Ada", "test")])
        for work in (log.sync, lambda: keeper.anchor(LoomDB.open)):
            with pytest.raises(AuditUnwritable):
                work()
        assert log.durable_sequence == 0
        assert not log.is_durable
    with LoomDB.open() as db:
        assert db.newest_audit_anchor() is None
        log.append_order([operation("cartpole", "kill switch", "Ada", "test")])
        keeper.anchor(lambda: db)
    log.close()
    assert log.is_durable
    kinds = [entry["kind"] for entry in records("cartpole")]
    assert kinds == ["open", "operation", "operation", "durable again"]
    assert verify_chain(log.folder).intact
