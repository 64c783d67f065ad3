"""A hub that was killed goes on as if it had not been, on both kinds of databases."""

import sqlite3
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine, text

from loomrl.errors import ServiceError
from loomrl.language.trajectory.process import HubProcess
from loomrl.language.trajectory.storage.store import Store
from tests.soak import hub_kills
from tests.support.atropos import environment, group, registration


def client_of(hub: HubProcess) -> httpx.Client:
    return httpx.Client(base_url=hub.url, trust_env=False, timeout=30)


def test_a_killed_hub_has_lost_nothing(database_url: str) -> None:
    with HubProcess(database_url=database_url) as hub, client_of(hub) as client:
        client.post("/register", json=registration(4, starting_step=3))
        client.get("/batch")
        for group_size in (2, 4):
            client.post("/register-env", json=environment(group_size, min_batch_allocation=0.5))
        client.post("/disconnect-env", json={"env_id": 1})
        client.post("/policy_version", json={"version": 7})
        for mark in range(5):
            client.post("/scored_data", json=group(2, mark, env_id=0))
        client.get("/batch").json()  # forms two, hands out one
        client.post("/scored_data", json=group(1, 5, env_id=0))  # is buffered
        before = _view(client)
        hub.kill()
        hub.start()
        assert _view(client) == before
        assert client.get("/batch").json()["batch"][0]["tokens"][0][0] == 0  # the other one
        client.post("/scored_data", json=group(1, 6, env_id=0))  # completes what was buffered
        assert client.get("/status").json() == {"current_step": 5, "queue_size": 3}
        assert client.post("/register-env", json=environment()).json()["env_id"] == 2
        assert client.post("/register", json=registration(16)).status_code == 200
        assert client.get("/info").json()["batch_size"] == 4


def test_what_was_buffered_is_in_its_order_after_a_kill(database_url: str) -> None:
    with HubProcess(database_url=database_url) as hub, client_of(hub) as client:
        client.post("/register", json=registration(12))
        client.get("/batch")
        client.post("/register-env", json=environment(12))
        client.post("/scored_data", json=group(4, 0))
        for mark in range(1, 6):
            client.post("/scored_data", json=group(5, mark, env_id=0))
        hub.kill()
        hub.start()
        assert client.get("/latest_example").json()["tokens"][0][0] == 0  # what is buffered is not queued
        client.post("/scored_data", json=group(2, 6, env_id=0))
        assert client.get("/latest_example").json()["tokens"][0][0] == 6
        assert client.request("GET", "/status-env", json={"env_id": 0}).json()["self_queue_size"] == 1
        assert client.get("/status").json()["queue_size"] == 4


def _view(client: httpx.Client) -> list[object]:
    status = client.request("GET", "/status-env", json={"env_id": 0}).json()
    return [status, *(client.get(path).json() for path in ("/info", "/wandb_info", "/status", "/latest_example"))]


def test_a_batch_that_was_handed_out_for_good_does_not_come_again(own_hub: HubProcess) -> None:
    with client_of(own_hub) as client:
        client.post("/register", json=registration(2))
        client.post("/scored_data", json=group(2))
        assert client.get("/batch").json()["batch"]
        own_hub.kill()
        own_hub.start()
        assert client.get("/batch").json() == {"batch": None}


def test_a_reset_outlives_a_kill(own_hub: HubProcess) -> None:
    with client_of(own_hub) as client:
        client.post("/register", json=registration(2))
        client.post("/scored_data", json=group(2))
        client.get("/reset_data")
        own_hub.kill()
        own_hub.start()
        assert client.get("/info").json()["batch_size"] == -1
        assert client.get("/batch").json()["status"] == "error"


def test_what_does_not_fit_into_memory_is_read_from_the_database(tmp_path: Path) -> None:
    with HubProcess(database_url=f"sqlite:///{tmp_path / 'hub.db'}", memory_mib=0) as hub, client_of(hub) as client:
        client.post("/register", json=registration(4))
        for mark in range(4):
            client.post("/scored_data", json=group(2, mark))
        marks = [[one["tokens"][0][0] for one in client.get("/batch").json()["batch"]] for _ in range(2)]
        assert marks == [[2, 3], [0, 1]]
        assert client.get("/latest_example").json()["tokens"][0][0] == 3


@pytest.mark.long
def test_killed_again_and_again_under_load_no_group_is_lost_or_delivered_twice(tmp_path: Path) -> None:
    found = hub_kills.run(tmp_path, num_kills=4, seconds_between_kills=0.5)
    assert found["num_kills"] == 4
    assert found["num_acknowledged"] > 0


def test_a_stopped_hub_ends_well_and_goes_on(own_hub: HubProcess) -> None:
    with client_of(own_hub) as client:
        client.post("/register", json=registration(2))
        client.post("/scored_data", json=group(2))
        assert own_hub.stop() == 0
        own_hub.start()
        assert len(client.get("/batch").json()["batch"]) == 1


def test_a_database_that_cannot_be_written_takes_nothing_and_the_hub_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    with HubProcess(database_url=f"sqlite:///{path}") as hub, client_of(hub) as client:
        client.post("/register", json=registration(2))
        with sqlite3.connect(path) as connection:
            connection.execute("ALTER TABLE hub_groups RENAME TO away")
        answer = client.post("/scored_data", json=group(2, 1))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "nothing was taken" in answer.json()["detail"]
        with sqlite3.connect(path) as connection:
            connection.execute("ALTER TABLE away RENAME TO hub_groups")
        while (answer := client.post("/scored_data", json=group(2, 1))).status_code == 503:
            pass
        assert answer.json() == {"status": "received"}
        assert len(client.get("/batch").json()["batch"]) == 1


def test_tables_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'hub.db'}"
    Store.open(url).close()
    with create_engine(url).begin() as connection:
        connection.execute(text("UPDATE hub_schema SET version = 99"))
    with pytest.raises(ServiceError, match="version 99"):
        Store.open(url)


def test_two_hubs_cannot_have_one_database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loomrl.language.trajectory.storage.alone._WAIT_SECONDS", 0.1)
    first = Store.open(database_url)
    with pytest.raises(ServiceError, match="another hub has the database"):
        Store.open(database_url)
    first.close()
    Store.open(database_url).close()
