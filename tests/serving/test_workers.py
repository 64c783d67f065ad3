"""Several workers on one port answer as one server, also while one of them is killed."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loomrl.errors import ServiceError
from loomrl.serving.client import Ask, Outcome, PolicyClient, Refused
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.process import ServerProcess
from loomrl.serving.recomputation import LogRecomputation
from loomrl.serving.settings import ServerSettings
from loomrl.serving.supervision import supervisor
from loomrl.serving.workers.agreement import Agreement
from loomrl.storage.audit.history import records
from loomrl.storage.audit.verification import verify_chain
from loomrl.system.http.listening import bind
from tests.support.inside import wait_for
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder
from tests.support.remembering import played, recurrent_folder
from tests.support.several_workers import connected, pids, worker_of

OBS = OBSERVATIONS[0].tolist()
BY = {"person": "Ada", "reason": "test"}
SLOW = {"rate": 0.001, "burst": 40.0}  # an agent has forty decisions, and no more


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("policies")
    return [discrete_folder(folder / "champion"), discrete_folder(folder / "other", -BALANCING)]


@pytest.fixture(scope="module")
def server(home: Path, folders: list[Path]) -> Iterator[ServerProcess]:
    environment = {"LOOMRL_HOME": str(home)}
    options = {"champion_folder": folders[0], "workers": 2, "anchor_seconds": 0.2, "environment": environment}
    with ServerProcess("cartpole", **options, **SLOW) as started:
        yield started


@pytest.fixture(scope="module")
def each(server: ServerProcess) -> Iterator[list[PolicyClient]]:
    """A client at each worker."""
    with ExitStack() as stack:
        yield [stack.enter_context(connected(server, worker)) for worker in range(2)]


def test_feedback_reaches_the_worker_that_decided(each: list[PolicyClient]) -> None:
    decided = [client.decide("feedback", OBS).decision_id for client in each * 3]
    assert {worker_of(one) for one in decided} == {0, 1}
    for client, decision_id in zip(each, decided[:2][::-1], strict=True):
        client.feedback(decision_id, 1.0)
        with pytest.raises(Refused, match="already"):
            client.feedback(decision_id, 1.0)
    each[0].feedback_many([Outcome(one, 1.0) for one in decided[2:4]])
    with pytest.raises(Refused, match="unknown") as refused:
        each[1].feedback("01ffffffffff-1", 1.0)
    assert refused.value.status == 404


def test_a_batch_of_feedback_says_what_is_not_on_record(each: list[PolicyClient]) -> None:
    first, second = (client.decide("feedback", OBS).decision_id for client in each)
    each[0].feedback(second, 1.0)
    batch = {"feedback": [{"decision_id": first, "reward": 1.0}, {"decision_id": second, "reward": 1.0}]}
    answer = httpx.post(f"{each[0].url}/feedback", json=batch, trust_env=False)
    assert (answer.status_code, answer.json()["recorded"], answer.json()["not_recorded"]) == (409, 1, [1])
    with pytest.raises(Refused, match="already"):
        each[1].feedback(first, 1.0)
    first, second = (client.decide("feedback", OBS).decision_id for client in each)
    each[1].feedback(first, 1.0)
    with pytest.raises(Refused, match="already") as refused:
        each[1].feedback_many([Outcome(second, 1.0), Outcome(first, 1.0)])
    assert refused.value.not_recorded == [1]


def test_what_is_shown_is_of_all_workers(each: list[PolicyClient]) -> None:
    for client in each:
        client.decide("shown", OBS)
    states = each[0].status()["workers"]
    assert [state["worker"] for state in states] == [0, 1]
    assert [state["audit"]["server"] for state in states] == ["cartpole/workers-0", "cartpole/workers-1"]
    wait_for(lambda: all(state["audit"]["anchored_sequence"] for state in each[1].status()["workers"]))
    text = httpx.get(f"{each[0].url}/metrics", trust_env=False).text
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert {sample.labels["worker"]: sample.value for sample in found["loomrl_worker_up"]} == {"0": 1.0, "1": 1.0}
    decided = {sample.labels["worker"]: sample.value for sample in found["loomrl_decisions"] if "_total" in sample.name}
    assert decided.keys() == {"0", "1"}
    (statistics,) = httpx.get(f"{each[1].url}/v2/models/stats", trust_env=False).json()["model_stats"]
    assert statistics["inference_count"] == sum(decided.values())


def test_the_page_shows_what_all_workers_counted(each: list[PolicyClient]) -> None:
    for client in each * 3:
        client.decide("page", OBS)
    (statistics,) = httpx.get(f"{each[0].url}/v2/models/stats", trust_env=False).json()["model_stats"]
    for client in each:
        shown = httpx.get(f"{client.url}/dashboard/data", trust_env=False).json()
        assert shown["totals"]["requests"] >= statistics["execution_count"]
        wait_for(lambda client=client: num_counted(client) >= statistics["execution_count"])


def num_counted(client: PolicyClient) -> int:
    points = httpx.get(f"{client.url}/dashboard/data", trust_env=False).json()["history"]
    assert [point["time"] for point in points] == sorted({point["time"] for point in points})
    return sum(point.get("requests", 0) for point in points)


def test_monitors_watch_what_all_workers_decide(each: list[PolicyClient], folders: list[Path]) -> None:
    def num_watched(client: PolicyClient) -> int:
        versions = httpx.get(f"{client.url}/monitors", trust_env=False).json()["versions"]
        return versions.get(str(folders[0]), {"num_decisions": 0})["num_decisions"]

    num_decided = sum(client.decide("watched", OBS).role == "champion" for client in each * 5)
    wait_for(lambda: min(map(num_watched, each)) >= num_decided)


def test_an_override_is_in_force_at_all_workers_when_it_is_answered(
    each: list[PolicyClient], folders: list[Path]
) -> None:
    normal = each[0].decide("pinned", OBS).action
    for setter, other in (each, each[::-1]) * 5:
        override = setter.set_override(action=1 - normal, **BY)
        assert other.decide("pinned", OBS).role == "override"
        other.clear_override(override["id"])
        assert setter.decide("pinned", OBS).role == "champion"
    each[0].set_override(version=str(folders[1]), **BY)
    assert {client.decide("pinned", OBS).version for client in each} == {str(folders[1])}  # loaded by both before
    each[1].clear_override()
    each[0].set_kill_switch(True, **BY)
    for client in each:
        with pytest.raises(Refused, match="the kill switch is on"):
            client.decide("pinned", OBS)
    each[1].set_kill_switch(False, **BY)
    assert each[0].decide("pinned", OBS).role == "champion"


def test_a_version_that_cannot_be_loaded_is_pinned_at_no_worker(each: list[PolicyClient], tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be pinned"):
        each[0].set_override(version=str(tmp_path), **BY)
    assert [client.overrides() for client in each] == [[], []]


def test_the_rate_limit_holds_for_all_workers_together(each: list[PolicyClient]) -> None:
    num_decided, statuses = 0, set()
    for client in each * 30:
        try:
            num_decided += len(client.decide_many([Ask("limited", OBS)] * 2))
        except Refused as refused:
            statuses.add(refused.status)
    assert (num_decided, statuses) == (SLOW["burst"], {429})


def test_a_request_sent_again_to_another_worker_is_decided_once(each: list[PolicyClient]) -> None:
    for agent in ("again-1", "again-2", "again-3"):  # of different owners, likely
        first, second = (client.decide(agent, OBS, request_id="once") for client in each)
        assert first == second
    batch = {"requests": [{"agent_id": f"again-{number}", "observation": OBS} for number in range(12)]}
    answers = [
        httpx.post(f"{client.url}/decide", json=batch, headers={"X-Request-Id": "batch"}, trust_env=False).json()
        for client in each
    ]
    assert answers[0] == answers[1]
    assert {worker_of(one["decision_id"]) for one in answers[0]["decisions"]} == {0, 1}
    batch["requests"][3]["observation"] = OBSERVATIONS[1].tolist()
    refused = httpx.post(f"{each[0].url}/decide", json=batch, headers={"X-Request-Id": "batch"}, trust_env=False)
    assert (refused.status_code, "another question" in refused.json()["error"]) == (409, True)


def test_what_workers_ask_each_other_is_open_to_nobody_else(each: list[PolicyClient]) -> None:
    asked = httpx.post(f"{each[0].url}/workers/versions", json={"versions": []}, trust_env=False)
    assert asked.status_code == 404
    described = httpx.get(f"{each[0].url}/openapi.json", trust_env=False).json()["paths"]
    assert "/decide" in described
    assert "/workers/versions" not in described


def test_a_worker_that_does_not_answer_is_shown_and_not_waited_for_without_end(
    server: ServerProcess, each: list[PolicyClient]
) -> None:
    decided, stopped = each[1].decide("waiting", OBS).decision_id, pids(server)[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with server.client() as client:
            with pytest.raises(Refused, match="worker 1 of this server does not answer") as refused:
                client.feedback(decided, 1.0)
            assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1.0)
            assert client.status()["workers"][1] == {"worker": 1, "error": "it does not answer"}
            assert client.decide("waiting", OBS).decision_id.startswith("00")
        assert 'loomrl_worker_up{worker="1"} 0.0' in httpx.get(f"{server.url}/metrics", trust_env=False).text
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_bad_requests_are_refused_as_by_one_worker(server: ServerProcess) -> None:
    for path, body in (("/feedback", b"{"), ("/decide", b'{"request_id": 1}'), ("/feedback", b'{"decision_id": "x"}')):
        assert httpx.post(server.url + path, content=body, trust_env=False).status_code == 400
    unknown = httpx.post(f"{server.url}/feedback", json={"decision_id": "zz-1", "reward": 1.0}, trust_env=False)
    assert unknown.status_code == 404


def test_a_second_supervisor_needs_another_name(server: ServerProcess, home: Path, folders: list[Path]) -> None:
    options = {"champion_folder": folders[0], "workers": 2, "environment": {"LOOMRL_HOME": str(home)}}
    with pytest.raises(ServiceError, match="belongs to running workers"), ServerProcess("cartpole", **options):
        pass


# --- episodes ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_an_episode_goes_on_over_all_connections(loomrl_home: Path, tmp_path: Path) -> None:
    folder = recurrent_folder(tmp_path / "recurrent")
    policy = ServedPolicy.load(folder)
    observed = [[0.1 * step, -0.2, 0.3] for step in range(6)]
    with ServerProcess("p", champion_folder=folder, workers=2) as server, ExitStack() as stack:
        each = [stack.enter_context(connected(server, worker)) for worker in range(2)]
        for agent in ("a", "b", "c"):
            found = [each[step % 2].decide(agent, one, "one") for step, one in enumerate(observed)]
            assert [(one.action, one.value) for one in found] == played(policy, observed)
        together = [Ask(agent, observed[0], "two") for agent in ("a", "b", "c", "d", "e", "f")]
        assert {(one.action, one.value) for one in each[0].decide_many(together)} == {played(policy, observed)[0]}
        (last,) = each[1].infer("p", [observed[1]], agent_id="a", episode_id="two")["outputs"][:1]
        assert last["data"] == [played(policy, observed)[1][0]]
        each[0].feedback(found[-1].decision_id, 1.0, terminated=True)
    assert LogRecomputation().run("p").equal


# --- ends -------------------------------------------------------------------------------------------------------


class Load:
    """Four agents that decide without pause, two at each worker; one whose connection breaks takes another."""

    def __init__(self, server: ServerProcess) -> None:
        self._stop, self._connections = threading.Event(), ExitStack()
        self.decision_ids: list[str] = []
        self._num_decided = [0] * 4
        self.num_broken = 0
        self.refused: list[str] = []
        clients = [self._connections.enter_context(connected(server, number % 2)) for number in range(4)]
        self._threads = [threading.Thread(target=self._run, args=given) for given in enumerate(clients)]

    def _run(self, number: int, client: PolicyClient) -> None:
        while not self._stop.is_set():
            try:
                self.decision_ids.append(client.decide(f"agent-{number}", OBS).decision_id)
                self._num_decided[number] += 1
            except Refused as refused:
                self.refused.append(str(refused))
            except ServiceError:
                self.num_broken += 1

    def wait_for_all(self) -> None:
        """Until each of the agents has asked once more and been answered."""
        before = list(self._num_decided)
        wait_for(lambda: all(now > then + 1 for now, then in zip(self._num_decided, before, strict=True)))

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._connections.close()


def test_a_killed_worker_is_replaced_and_loses_no_acknowledged_decision(loomrl_home: Path, folders: list[Path]) -> None:
    options = {"champion_folder": folders[0], "workers": 2, "rate": 1e9}
    with ServerProcess("cartpole", **options) as server, Load(server) as load:
        wait_for(lambda: {0, 1} <= set(map(worker_of, load.decision_ids)))
        num_broken = 0
        for worker in (0, 1):
            before = pids(server)
            with connected(server, worker) as client:
                own = client.decide("kept", OBS).decision_id
            assert load.num_broken == num_broken  # nothing broke but by a kill
            os.kill(before[worker], signal.SIGKILL)
            num_decided = len(load.decision_ids)
            wait_for(lambda n=num_decided: len(load.decision_ids) > n + 50)  # the other one answers
            with server.client() as client:
                wait_for(lambda c=client, o=own: is_told(c, o))  # until its worker is there again
            wait_for(lambda b=before, w=worker: pids(server)[w] != b[w])
            load.wait_for_all()
            num_broken = load.num_broken
            load.wait_for_all()
            assert load.num_broken == num_broken
    assert load.refused == []
    on_record = {entry["decision_id"] for entry in records("cartpole") if entry["kind"] == "decision"}
    assert set(load.decision_ids) <= on_record
    for worker in range(2):
        assert verify_chain(loomrl_home / "audit" / "cartpole" / f"workers-{worker}").intact


def is_told(client: PolicyClient, decision_id: str) -> bool:
    """What came of a decision, unless its worker takes longer to be started again than a request waits; it may have
    recorded what nobody waited for any more."""
    try:
        client.feedback(decision_id, 1.0)
    except Refused as refused:
        if refused.status not in (409, 503):
            raise
        return refused.status == 409
    return True


def test_sigterm_ends_all_workers_well(loomrl_home: Path, folders: list[Path]) -> None:
    server = ServerProcess("cartpole", champion_folder=folders[0], workers=2, rate=1e9)
    with server, Load(server) as load:
        wait_for(lambda: {0, 1} <= set(map(worker_of, load.decision_ids)))
        own = pids(server)
        assert server.stop() == 0
        assert not any(lives(pid) for pid in own)
    assert load.refused == []
    on_record = {entry["decision_id"] for entry in records("cartpole") if entry["kind"] == "decision"}
    assert set(load.decision_ids) <= on_record


def test_workers_end_with_their_supervisor(loomrl_home: Path, folders: list[Path]) -> None:
    with ServerProcess("cartpole", champion_folder=folders[0], workers=2) as server:
        own = pids(server)
        os.kill(server.process.pid, signal.SIGKILL)
        wait_for(lambda: not any(lives(pid) for pid in own))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_that_cannot_start_ends_all_and_says_why(loomrl_home: Path, folders: list[Path]) -> None:
    for worker in range(2):
        chain = loomrl_home / "audit" / "cartpole" / f"workers-{worker}"
        chain.mkdir(parents=True)
        (chain / "000001.jsonl").write_bytes(b"no record\n")
    server = ServerProcess("cartpole", champion_folder=folders[0], workers=2)
    with pytest.raises(ServiceError, match=r"000001\.jsonl:1.* worker . ended with exit code 3"), server:
        pass


@pytest.mark.long
def test_a_worker_that_keeps_the_others_from_a_champion_is_ended(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_HINDERED_SECONDS", 0.0)
    supervised = supervisor.Supervisor(ServerSettings("cartpole", workers=2), bind("127.0.0.1", 0))
    agreement = Agreement(supervised.workers[0].address.agreement, 2)
    with supervised:
        wait_for(lambda: agreement.has_vote(0) and agreement.has_vote(1))
        before = [worker.process.pid for worker in supervised.workers]
        supervised.look()
        assert [worker.process.pid for worker in supervised.workers] == before  # nobody hinders anybody

        def is_ended() -> bool:
            agreement.vote(0, "2", {"2"})  # as if the first had loaded it
            supervised.look()
            return supervised.workers[1].process is None

        wait_for(is_ended)
        assert supervised.workers[0].process.pid == before[0]


@pytest.mark.long
def test_a_worker_that_hangs_is_ended_and_started_again(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_SILENT_SECONDS", 2.0)
    supervised = supervisor.Supervisor(ServerSettings("cartpole", workers=2), bind("127.0.0.1", 0))
    agreement = Agreement(supervised.workers[0].address.agreement, 2)
    with supervised:
        wait_for(lambda: agreement.silent_seconds(0) > 0)  # its event loop turns
        hung, other = (worker.process for worker in supervised.workers)
        os.kill(hung.pid, signal.SIGSTOP)

        def is_ended() -> bool:
            supervised.look()
            return supervised.workers[0].process is not hung

        wait_for(is_ended, seconds=30)
        assert not agreement.has_vote(0)  # the others do not wait for it
        wait_for(lambda: supervised.look() or agreement.has_vote(0), seconds=30)
        assert other.poll() is None


@pytest.mark.long
def test_a_worker_that_cannot_be_started_again_is_tried_again_and_ends_nobody(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = supervisor.Supervisor(ServerSettings("cartpole", workers=2), bind("127.0.0.1", 0))
    agreement = Agreement(supervised.workers[0].address.agreement, 2)
    with supervised:
        wait_for(lambda: agreement.has_vote(0) and agreement.has_vote(1))
        supervised.look()
        killed, other = (worker.process for worker in supervised.workers)
        killed.kill()
        killed.wait()

        def looked() -> bool:
            supervised.look()
            return "worker 0 cannot be started" in caplog.text

        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(loomrl_home / "nowhere"))  # stands for a machine that is full
            wait_for(looked)
        assert other.poll() is None
        wait_for(lambda: supervised.look() or agreement.has_vote(0))


def test_the_number_of_workers_is_checked(loomrl_home: Path, folders: list[Path]) -> None:
    with (
        pytest.raises(ServiceError, match="--workers 257: from 1 to 256"),
        ServerProcess("cartpole", champion_folder=folders[0], workers=257),
    ):
        pass


@pytest.mark.long
def test_the_page_counts_for_all_workers(server: ServerProcess, each: list[PolicyClient], folders: list[Path]) -> None:
    def shown(worker: int) -> dict[str, Any]:
        return orjson.loads(each[worker]._request("GET", "/dashboard/data", None).content)

    def counted(found: dict[str, Any]) -> int:
        return sum(found.get("decisions", {}).get(str(folders[0]), {}).values())

    before = counted(shown(0)["totals"])
    for number in range(7):
        each[number % 2].decide(f"page-{number}", OBS)
    assert [counted(shown(worker)["totals"]) for worker in (0, 1)] == [before + 7] * 2
    wait_for(lambda: sum(counted(point) for point in shown(1)["history"]) == before + 7)
    found = shown(1)
    assert str(folders[0]) in found["monitors"]["versions"]
    times = [point["time"] for point in found["history"]]
    assert times == sorted(set(times))
