"""A server that is killed, restarted, swapped under load, handed bad versions, or out of space."""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loomrl.errors import ServiceError
from loomrl.serving.client import PolicyClient, Refused
from loomrl.serving.controls.controls import Controls
from loomrl.serving.controls.overrides import Override
from loomrl.serving.policy.model import GRAPH
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import find_decision, join, records
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.registry import CHALLENGER, CHAMPION, PolicyVersion, Registry
from loomrl.system.home import home
from tests.support.champions import make_champion
from tests.support.inside import wait_for
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder
from tests.support.template_home import at_home

OBS = OBSERVATIONS[0].tolist()


class Load:
    """Decides without pause in a thread; keeps every answer and every failure."""

    def __init__(self, server: ServerProcess) -> None:
        self._server, self._stop = server, threading.Event()
        self.decision_ids: list[str] = []
        self.versions: list[str] = []
        self.failures: list[Exception] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._server.client() as client:
            while not self._stop.is_set():
                try:
                    decision = client.decide("load", OBS)
                except ServiceError as error:
                    self.failures.append(error)
                    return
                self.decision_ids.append(decision.decision_id)
                self.versions.append(decision.version)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def test_no_acknowledged_decision_is_lost_by_kill_minus_nine(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    acknowledged: list[str] = []
    for _ in range(3):
        with ServerProcess("cartpole", champion_folder=folder, rate=1e6) as server:
            with Load(server) as load:
                wait_for(lambda load=load: len(load.decision_ids) > 100)
                os.kill(server.process.pid, signal.SIGKILL)
                wait_for(lambda load=load: bool(load.failures))
            acknowledged += load.decision_ids
    on_record = {entry["decision_id"] for entry in records("cartpole") if entry["kind"] == "decision"}
    assert set(acknowledged) <= on_record
    assert verify_chain(loomrl_home / "audit" / "cartpole" / "server-0").intact


def test_feedback_joins_a_decision_from_before_a_crash(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    with ServerProcess("cartpole", champion_folder=folder) as server, server.client() as client:
        first, second = client.decide("a", OBS, "e"), client.decide("a", OBS, "e")
        client.feedback(first.decision_id, 1.0)
        os.kill(server.process.pid, signal.SIGKILL)
    with ServerProcess("cartpole", champion_folder=folder) as server, server.client() as client:
        client.feedback(second.decision_id, 2.5, truncated=True)
        with pytest.raises(Refused, match="already"):
            client.feedback(first.decision_id, 1.0)
    joined = {entry["decision_id"]: entry for entry in join(records("cartpole"))}
    assert joined[first.decision_id]["reward"] == 1.0
    assert (joined[second.decision_id]["reward"], joined[second.decision_id]["truncated"]) == (2.5, True)
    assert find_decision(first.decision_id)["agent_id"] == "a"


def test_requests_in_flight_are_answered_on_sigterm(loomrl_home: Path, tmp_path: Path) -> None:
    server = ServerProcess("cartpole", champion_folder=discrete_folder(tmp_path / "policy"), rate=1e6)
    with server, Load(server) as load:
        wait_for(lambda: len(load.decision_ids) > 50)
        assert server.stop() == 0
        wait_for(lambda: bool(load.failures))
    # What a client is told is on record, and nothing was refused half-way: only the connection ended.
    assert not isinstance(load.failures[0], Refused)
    on_record = {entry["decision_id"] for entry in records("cartpole") if entry["kind"] == "decision"}
    assert set(load.decision_ids) <= on_record


@pytest.mark.long
def test_a_full_disk_stops_decisions_and_says_so(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    with ServerProcess("cartpole", champion_folder=folder, anchor_seconds=1e6) as server, server.client() as client:
        client.decide("a", OBS)
        status = client.status()["audit"]
        size = (loomrl_home / "audit" / status["server"] / f"{status['segment']}.jsonl").stat().st_size
        hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size + 100, hard))
        for _ in range(2):  # a short write, then none
            with pytest.raises(Refused, match="nothing was decided, for it could not be recorded") as refused:
                client.decide("a", OBS)
            assert refused.value.status == 507
        assert client.status()["audit"]["last_error"]
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        client.decide("a", OBS)
    assert verify_chain(loomrl_home / "audit" / "cartpole" / "server-0").intact


@pytest.mark.long
def test_an_override_survives_a_restart(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    with ServerProcess("cartpole", champion_folder=folder) as server, server.client() as client:
        normal = client.decide("a", OBS).action
        client.set_override(action=1 - normal, person="Ada", reason="test")
        os.kill(server.process.pid, signal.SIGKILL)
    with ServerProcess("cartpole", champion_folder=folder) as server, server.client() as client:
        assert client.decide("a", OBS).action == 1 - normal
        Controls("cartpole").clear_overrides(None, "test", "test")  # by the command line, say
        wait_for(lambda: client.decide("a", OBS).action == normal)
        controls = Controls("cartpole")
        controls.set_override(Override(action=1 - normal, agent_id="b", person="Bob", reason="test"), "test")
        wait_for(lambda: client.decide("b", OBS).action == 1 - normal)
        assert client.decide("a", OBS).action == normal
        controls.set_override(Override(action=7, agent_id="c", person="Bob", reason="a slip"), "test")
        wait_for(lambda: "c" in [entry["agent_id"] for entry in client.overrides()])
        with pytest.raises(Refused, match="not one of 0 to 1; clear the override") as refused:
            client.decide("c", OBS)
        assert refused.value.status == 503


@pytest.mark.long
def test_a_pinned_version_that_cannot_be_loaded_decides_nothing(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    with ServerProcess("cartpole", champion_folder=folder) as server, server.client() as client:
        good = str(discrete_folder(tmp_path / "other", -BALANCING))
        normal = client.decide("a", OBS).action
        client.set_override(version=good, agent_id="a", person="Ada", reason="test")
        assert (client.decide("a", OBS).action, client.decide("b", OBS).action) == (1 - normal, normal)
        (tmp_path / "other" / GRAPH).write_bytes(b"not a graph")
    server = ServerProcess("cartpole", champion_folder=folder)
    with server, server.client() as client, pytest.raises(Refused, match="not loaded") as refused:
        client.decide("a", OBS)
    assert refused.value.status == 503


def test_a_bad_pin_in_the_file_does_not_keep_an_emergency_action_out(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    with ServerProcess("cartpole", champion_folder=folder, refresh_seconds=0.1) as server, server.client() as client:
        normal = client.decide("b", OBS).action
        controls = Controls("cartpole")
        controls.set_override(Override(version="99", agent_id="a", person="Ada", reason="a slip"), "test")
        wait_for(lambda: bool(client.overrides()))
        controls.set_override(Override(action=1 - normal, person="Ada", reason="emergency"), "test")
        wait_for(lambda: client.decide("b", OBS).action == 1 - normal)
        with pytest.raises(Refused, match="99.*not loaded") as refused:
            client.decide("a", OBS)
        assert refused.value.status == 503


def refused_on_record() -> int:
    return sum(entry["num_refused"] for entry in records("cartpole") if entry["kind"] == "limited")


def test_every_refusal_is_on_record_also_the_last_ones(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    with ServerProcess("cartpole", champion_folder=folder, rate=0.001) as server, server.client() as client:
        client.decide("a", OBS)
        for _ in range(5):
            with pytest.raises(Refused):
                client.decide("a", OBS)
        wait_for(lambda: refused_on_record() == 5)  # while it runs, with no further request
        for _ in range(3):
            with pytest.raises(Refused):
                client.decide("a", OBS)
    assert refused_on_record() == 8
    assert verify_chain(loomrl_home / "audit" / "cartpole" / "server-0").intact


# --- the registry ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def versions(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PolicyVersion]]:
    """Four registered versions in a LOOMRL_HOME that the tests below share."""
    folder = tmp_path_factory.mktemp("registry")
    with at_home(folder / "home", template_home):
        registry = Registry()
        yield [
            registry.register("cartpole", discrete_folder(folder / f"v{value}", value=float(value)), f"run-{value}")
            for value in range(4)
        ]


def at_first(versions: list[PolicyVersion]) -> Registry:
    """The registry, its aliases back where every test starts."""
    registry = Registry()
    make_champion(registry, versions[0].version, challenger=None)
    return registry


def test_the_server_follows_aliases_without_a_lost_request(versions: list[PolicyVersion]) -> None:
    registry = at_first(versions)
    server = ServerProcess("cartpole", refresh_seconds=0.1, rate=1e6)
    with server, server.client() as client, Load(server) as load:
        for version in [*versions[1:3], versions[0]]:
            make_champion(registry, version.version)
            wait_for(lambda version=version: client.decide("a", OBS).version == version.version)
            assert client.is_ready()
        registry.set_aliases("cartpole", {CHALLENGER: versions[2].version})
        roles = client.refresh("cartpole")["roles"]
        assert (roles[CHAMPION]["version"], roles[CHALLENGER]["version"]) == ("1", "3")
        with pytest.raises(Refused, match="does not act here") as refused:
            client.infer("cartpole", OBSERVATIONS, version="3")
        assert refused.value.status == 403
    assert load.failures == []
    assert set(load.versions) == {"1", "2", "3"}


def test_a_corrupt_version_is_refused_and_the_old_one_kept(versions: list[PolicyVersion]) -> None:
    registry = at_first(versions)
    server = ServerProcess("cartpole", refresh_seconds=0.1, rate=1e6)
    with server, server.client() as client, Load(server) as load:
        path = Path(versions[3].source.removeprefix("file://")) / GRAPH
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        make_champion(registry, versions[3].version)
        wait_for(lambda: bool(client.status()["refused"]))
        assert client.status()["roles"][CHAMPION]["version"] == versions[0].version
        assert "changed" in client.status()["refused"][0]["reason"]
        with pytest.raises(Refused, match="what was loaded goes on") as refused:
            client.refresh("cartpole")
        assert refused.value.status == 409
        index = httpx.post(f"{server.url}/v2/repository/index", trust_env=False).json()
        assert {entry["version"]: entry["state"] for entry in index} == {"1": "READY", "4": "UNAVAILABLE"}
        (why,) = (entry["reason"] for entry in index if entry["version"] == "4")
        assert "policy.onnx" in why
        assert str(path.parent) in str(client.status()["refused"]), "the index alone is for anybody"
        assert str(path.parent) not in why
        assert str(home()) not in why
        make_champion(registry, versions[2].version)
        wait_for(lambda: client.decide("a", OBS).version == versions[2].version)
        assert client.status()["refused"] == []
    assert load.failures == []


def test_not_ready_until_there_is_a_champion(versions: list[PolicyVersion], tmp_path: Path) -> None:
    with ServerProcess("newcomer", wait_ready=False, refresh_seconds=0.1) as server, server.client() as client:
        assert not client.is_ready()
        with pytest.raises(Refused, match="no champion yet") as refused:
            client.decide("a", OBS)
        assert refused.value.status == 503
        version = Registry().register("newcomer", discrete_folder(tmp_path / "v", name="newcomer"), "run")
        make_champion(Registry(), version.version, policy="newcomer")
        wait_for(client.is_ready)
        client.decide("a", OBS)


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.long_cases("False")
def test_a_damaged_log_stops_the_start_until_another_chain_is_named(
    loomrl_home: Path, tmp_path: Path, torn: bool
) -> None:
    folder = discrete_folder(tmp_path / "policy")
    with ServerProcess("cartpole", champion_folder=folder) as server, server.client() as client:
        for _ in range(3):
            client.decide("a", OBS)
    chain = loomrl_home / "audit" / "cartpole" / "server-0"
    path = chain / "000001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:40] + b"\n" if torn else lines[2].replace(b'"agent_id":"a"', b'"agent_id":"b"')
    path.write_bytes(b"".join(lines))
    again = ServerProcess("cartpole", champion_folder=folder)
    with (
        pytest.raises(ServiceError, match=r"exit code 3: .*000001\.jsonl:3: .*loomrl audit verify.*--server NAME"),
        again,
    ):
        pass
    with ServerProcess("cartpole", champion_folder=folder, server="new") as server, server.client() as client:
        client.decide("a", OBS)
    assert path.read_bytes() == b"".join(lines)
    assert "000001.jsonl:3" in verify_chain(chain).findings[0]
    assert verify_chain(loomrl_home / "audit" / "cartpole" / "new").intact


PARENT = """
import sys, time
from pathlib import Path
from loomrl.serving.process import ServerProcess
with ServerProcess("cartpole", champion_folder=Path(sys.argv[1])) as server:
    print(server.process.pid, flush=True)
    time.sleep(60)
"""


def test_a_server_ends_with_the_process_that_started_it(loomrl_home: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(discrete_folder(tmp_path / "policy"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: not lives(pid), seconds=30)
    report = verify_chain(loomrl_home / "audit" / "cartpole" / "server-0")
    assert report.intact
    assert AuditLog("cartpole").folder.name == "server-0"  # given back


def lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_server_that_cannot_start_says_why(loomrl_home: Path) -> None:
    with pytest.raises(ServiceError, match="LOOMRL_OPERATOR_TOKEN"), ServerProcess("cartpole", host="0.0.0.0"):
        pass


def test_an_unreachable_server_is_named() -> None:
    with PolicyClient("http://127.0.0.1:9") as client, pytest.raises(ServiceError, match="cannot be reached"):
        client.decide("a", OBS)
