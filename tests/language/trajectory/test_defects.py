"""What is wrong with the reference, one test each: a hub does not have it."""

import gzip
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from loomrl.errors import ConfigError
from loomrl.language.trajectory.process import HubProcess
from loomrl.language.trajectory.server import serve
from loomrl.language.trajectory.settings import MIB, HubSettings
from loomrl.language.trajectory.state.environments import Environments
from loomrl.language.trajectory.state.groups import GroupIntake
from loomrl.language.trajectory.state.hub import Hub
from loomrl.language.trajectory.wire import EnvironmentRegistration, Invalid
from tests.support.atropos import environment, group, kill_child, registration

NOT_FINITE = '{"tokens": [[1], [2]], "masks": [[1], [2]], "scores": [1.0, %s]}'


def start(hub: httpx.Client, batch_size: int = 4) -> None:
    hub.post("/register", json=registration(batch_size)).raise_for_status()
    hub.get("/batch")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", '"nan"', "1e999"])
def test_a_score_that_is_no_number_is_refused_and_costs_nothing_else(hub: httpx.Client, number: str) -> None:
    start(hub, 2)
    answer = hub.post("/scored_data", content=NOT_FINITE % number, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "scores", 1]
    hub.post("/scored_data", json=group(2, 1))
    assert len(hub.get("/batch").json()["batch"]) == 1


@pytest.mark.parametrize("field", ["generation_params", "images", "group_overrides"])
def test_nor_are_such_numbers_taken_anywhere_else(hub: httpx.Client, field: str) -> None:
    body = json.dumps(group(2, **{field: {"deep": [float("nan")]}}))
    answer = hub.post("/scored_data", content=body, headers={"Content-Type": "application/json"})
    assert answer.json()["detail"] == [{"type": "value_error", "loc": ["body", field], "msg": "not a finite number"}]


def test_one_bad_group_of_a_list_does_not_cost_the_good_ones(hub: httpx.Client) -> None:
    start(hub, 4)
    body = f"[{json.dumps(group(2, 1))}, {NOT_FINITE % 'NaN'}, {json.dumps(group(2, 2))}, {json.dumps(group(8))}]"
    answer = hub.post("/scored_data_list", content=body, headers={"Content-Type": "application/json"}).json()
    assert (answer["status"], answer["groups_processed"]) == ("received", 2)
    assert [one["index"] for one in answer["rejected"]] == [1, 3]
    assert [one["tokens"][0][0] for one in hub.get("/batch").json()["batch"]] == [1, 2]


def test_a_lenient_sender_keeps_its_good_groups_whatever_is_wrong_with_others(hub: httpx.Client) -> None:
    bodies = [group(2, 1), {"tokens": [[1]]}, "nothing"]
    assert hub.post("/scored_data_list", json=bodies).status_code == 422
    answer = hub.post("/scored_data_list", json=bodies, headers={"Prefer": "handling=lenient"}).json()
    assert (answer["groups_processed"], [one["index"] for one in answer["rejected"]]) == (1, [1, 2])


def test_a_group_larger_than_a_batch_is_refused(hub: httpx.Client) -> None:
    start(hub, 2)
    answer = hub.post("/scored_data", json=group(4))
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["body", "tokens"])
    hub.post("/scored_data", json=group(2))
    assert len(hub.get("/batch").json()["batch"]) == 1


def test_one_that_came_before_the_registration_does_not_wedge_the_queue(hub: httpx.Client) -> None:
    for size in (4, 0, 2):
        assert hub.post("/scored_data", json=group(size)).json() == {"status": "received"}
    start(hub, 2)
    assert hub.get("/status").json() == {"current_step": 1, "queue_size": 0}
    assert hub.get("/hub").json()["dropped"] == {"size": 2, "stale": 0}


def test_nor_does_one_whose_size_divides_no_batch_when_it_has_waited_long() -> None:
    hub = Hub(HubSettings(stuck_seconds=60.0))
    hub.state.registration, now = registration(8), 1_000.0
    _add(hub, 5, now)
    for _ in range(2):
        _add(hub, 4, now)
    assert hub.next_batch(now) is None  # as the wire has it: packs of five
    batch = hub.next_batch(now + 61)
    assert batch is not None
    assert [one.size for one in batch.groups] == [4, 4]


def test_a_silent_environment_with_a_minimum_does_not_stall_the_trainer() -> None:
    hub, now = Hub(HubSettings(silent_seconds=60.0)), 1_000.0
    hub.state.registration, hub.state.started = registration(4), True
    talks, silent = (_join(hub, now) for _ in range(2))
    for _ in range(4):
        _add(hub, 2, now, env_id=talks)
    assert hub.next_batch(now + 30) is None
    hub.environment_status(hub.environments.get(talks), now + 61)
    batch = hub.next_batch(now + 61)
    assert batch is not None
    assert hub.environments.get(silent).quarantine == "silent for 60 s"
    hub.environment_status(hub.environments.get(silent), now + 62)
    assert hub.environments.update_quarantine(now + 62) == [hub.environments.get(silent)]
    assert hub.environments.minima() == {talks: 0.5, silent: 0.5}


def _join(hub: Hub, now: float) -> int:
    said = EnvironmentRegistration(**environment(2, min_batch_allocation=0.5))
    return hub.register_environment(said, now).env_id


def _add(hub: Hub, size: int, now: float, **others: object) -> None:
    kept, fragment, _ = GroupIntake(HubSettings()).prepare(group(size, **others), None)
    hub.add(kept, fragment, now)


def test_nor_does_one_that_talks_but_posts_nothing_or_only_bad_groups() -> None:
    environments = Environments(settings := HubSettings(starved_seconds=600.0, max_rejections=3))
    one = environments.add(EnvironmentRegistration(**environment()), 0.0)
    one.last_seen = 601.0
    assert one.fault(settings, 601.0) == "no group for 600 s"
    one.record_accepted(1.0, 602.0)
    assert one.fault(settings, 602.0) is None
    for _ in range(3):
        one.record_rejected(603.0)
    assert one.fault(settings, 603.0) == "3 groups in a row were rejected"
    one.record_accepted(1.0, 604.0)
    assert one.fault(settings, 604.0) is None


def test_a_group_before_the_registration_leaves_the_batch_size_as_registered(hub: httpx.Client) -> None:
    hub.post("/scored_data", json=group(2))
    hub.post("/register", json=registration(2))
    assert hub.get("/info").json()["batch_size"] == 2
    assert len(hub.get("/batch").json()["batch"]) == 1


def test_batches_after_a_reset_and_a_second_reset_are_answered(hub: httpx.Client) -> None:
    start(hub)
    assert [hub.get("/reset_data").status_code for _ in range(2)] == [200, 200]
    assert hub.get("/batch").json()["status"] == "error"


def test_the_status_of_an_unknown_environment_is_a_clear_error(hub: httpx.Client) -> None:
    start(hub)
    for env_id in (0, 7, -1):
        answer = hub.request("GET", "/status-env", json={"env_id": env_id})
        assert (answer.status_code, str(env_id) in answer.json()["detail"]) == (404, True)


def test_the_status_with_no_environment_connected_is_answered(hub: httpx.Client) -> None:
    start(hub)
    hub.post("/register-env", json=environment())
    hub.post("/disconnect-env", json={"env_id": 0})
    answer = hub.request("GET", "/status-env", json={"env_id": 0})
    assert (answer.status_code, answer.json()["env_weight"]) == (200, 0.01)


@pytest.mark.parametrize("field", ["batch_size", "group_size"])
def test_sizes_that_no_batch_or_group_can_have_are_refused(hub: httpx.Client, field: str) -> None:
    start(hub)
    path, body = ("/register", registration()) if field == "batch_size" else ("/register-env", environment())
    for wrong in (0, -1):
        answer = hub.post(path, json={**body, field: wrong})
        assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["body", field])


def test_groups_that_never_add_up_are_buffered_within_a_limit() -> None:
    settings = HubSettings(max_buffered_groups=3)
    hub, intake = Hub(settings), GroupIntake(settings)
    env_id = hub.register_environment(EnvironmentRegistration(**environment(4)), 0.0).env_id
    for _ in range(3):
        kept, fragment, _ = intake.prepare(group(3, env_id=env_id), None)
        intake.check(hub, group(3), kept)
        hub.add(kept, fragment, 0.0)
    with pytest.raises(Invalid, match="3 groups of environment 0 are buffered"):
        intake.check(hub, group(3), intake.prepare(group(3, env_id=env_id), None)[0])
    intake.check(hub, group(1), intake.prepare(group(1, env_id=env_id), None)[0])  # this one completes a group


def test_only_loopback_is_bound_unless_there_are_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOMRL_TOKENS", "LOOMRL_TOKENS_FILE", "LOOMRL_OPERATOR_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert HubSettings().host == "127.0.0.1"
    with pytest.raises(ConfigError, match="LOOMRL_TOKENS_FILE"):
        serve(HubSettings(host="0.0.0.0"))


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "rebound.example"}],
)
def test_web_pages_are_refused_and_no_origin_is_reflected(hub: httpx.Client, headers: dict[str, str]) -> None:
    start(hub)
    answer = hub.get("/reset_data", headers=headers)
    assert answer.status_code in (403, 421)
    assert not any(name.startswith("access-control") for name in answer.headers)
    assert hub.get("/info").json()["batch_size"] == 4


def test_a_killed_hub_that_is_kept_up_refuses_no_connection(tmp_path: Path) -> None:
    with HubProcess(database_url=f"sqlite:///{tmp_path / 'hub.db'}", keep_up=True) as hub:
        with httpx.Client(base_url=hub.url, trust_env=False, timeout=60) as client:
            start(client)
        for mark in range(2):
            kill_child(hub)
            answer = httpx.post(f"{hub.url}/scored_data", json=group(2, mark), trust_env=False, timeout=60)
            assert answer.json() == {"status": "received"}
        found = httpx.get(f"{hub.url}/batch", trust_env=False, timeout=60).json()["batch"]
        assert [one["tokens"][0][0] for one in found] == [0, 1]
        assert hub.stop() == 0


def test_a_gzip_bomb_takes_no_more_memory_than_a_body_may(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(300 * MIB), 9)
    with HubProcess(database_url=f"sqlite:///{tmp_path / 'hub.db'}", max_body_mib=8) as hub:
        before = _memory_bytes(hub)
        answer = httpx.post(
            f"{hub.url}/scored_data", content=bomb, headers={"Content-Encoding": "gzip"}, trust_env=False, timeout=60
        )
        assert (answer.status_code, str(8 * MIB) in answer.json()["detail"]) == (413, True)
        assert _memory_bytes(hub) - before < 64 * MIB


def _memory_bytes(hub: HubProcess) -> int:
    """Resident memory at its highest."""
    assert hub.process is not None
    return int(Path(f"/proc/{hub.process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1_024


def test_the_queue_has_an_end_and_senders_are_told_to_come_again(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'hub.db'}"
    with (
        HubProcess(database_url=database, max_waiting_groups=4) as hub,
        httpx.Client(base_url=hub.url, trust_env=False) as client,
    ):
        client.post("/register", json=registration(4))
        answers = [client.post("/scored_data", json=group(2, mark)) for mark in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 4 + [503]
        assert answers[-1].headers["retry-after"] == "5"
        assert client.get("/batch").json()["batch"]
        assert client.post("/scored_data", json=group(2, 5)).status_code == 200


def test_a_post_whose_sender_left_before_the_answer_is_taken_once(own_hub: HubProcess) -> None:
    with httpx.Client(base_url=own_hub.url, trust_env=False) as client:
        client.post("/register", json=registration(4))
        body = json.dumps(group(2, 1)).encode()
        _post_and_leave(own_hub, body)
        _until(lambda: client.get("/status").json()["queue_size"] == 1)
        headers = {"Content-Type": "application/json"}
        answers = [client.post("/scored_data", content=body, headers=headers).json() for _ in range(2)]
        assert answers == [{"status": "received"}] * 2
        assert client.get("/status").json()["queue_size"] == 2  # the first repeated the one before, the second was new


def _post_and_leave(hub: HubProcess, body: bytes) -> None:
    """Send a request, and break the connection while the hub is stopped and can have answered nothing."""
    assert hub.process is not None
    port = int(hub.url.rpartition(":")[2])
    head = (
        b"POST /scored_data HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as connection:
        os.kill(hub.process.pid, signal.SIGSTOP)
        connection.sendall(head % len(body) + body)
    os.kill(hub.process.pid, signal.SIGCONT)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_post_that_was_answered_may_come_again_and_is_another(hub: httpx.Client) -> None:
    start(hub)
    for _ in range(2):
        hub.post("/scored_data", json=group(2, 1))
    assert hub.get("/status").json()["queue_size"] == 2


def test_where_that_is_wanted_equal_posts_count_once() -> None:
    with (
        HubProcess(equal_once=True) as process,
        httpx.Client(base_url=process.url, trust_env=False) as hub,
    ):
        start(hub)
        for mark in (1, 1, 2, 1):
            assert hub.post("/scored_data", json=group(2, mark)).json() == {"status": "received"}
        assert hub.get("/batch").json()["batch"]
        assert hub.get("/status").json() == {"current_step": 1, "queue_size": 0}


def test_a_post_with_a_key_is_taken_once_over_restarts_too(own_hub: HubProcess) -> None:
    with httpx.Client(base_url=own_hub.url, trust_env=False) as client:
        client.post("/register", json=registration(4))
        headers = {"Idempotency-Key": "group-1"}
        for _ in range(2):
            assert client.post("/scored_data", json=group(2), headers=headers).json() == {"status": "received"}
        own_hub.stop()
        own_hub.start()
        assert client.post("/scored_data", json=group(2), headers=headers).json() == {"status": "received"}
        assert client.get("/status").json()["queue_size"] == 1
        answer = client.post("/scored_data", json=group(2, 9), headers=headers)
        assert (answer.status_code, "group-1" in answer.json()["detail"]) == (422, True)
