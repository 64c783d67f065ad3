"""Each endpoint of the wire, by hand."""

import gzip
import json
import random

import httpx
import pytest

from tests.support.atropos import environment, group, registration

KEYS = {
    "tokens", "masks", "scores", "advantages", "ref_logprobs", "messages", "generation_params", "inference_logprobs",
    "overrides", "group_overrides", "images", "env_id", "distill_token_ids", "distill_logprobs",
}  # fmt: skip


def start(hub: httpx.Client, batch_size: int = 4, **others: object) -> None:
    """A trainer registers and asks once: environments may come."""
    hub.post("/register", json=registration(batch_size, **others)).raise_for_status()
    assert hub.get("/batch").json() == {"batch": None}


def join(hub: httpx.Client, group_size: int = 2, **others: object) -> int:
    answer = hub.post("/register-env", json=environment(group_size, **others)).json()
    assert answer["status"] == "success"
    return int(answer["env_id"])


def status_of(hub: httpx.Client, env_id: int) -> dict:
    return hub.request("GET", "/status-env", json={"env_id": env_id}).json()


def test_root(hub: httpx.Client) -> None:
    assert hub.get("/").json() == {"message": "AtroposLib API"}


def test_a_hub_that_nobody_registered_at(hub: httpx.Client) -> None:
    assert hub.get("/info").json()["batch_size"] == -1
    assert hub.get("/wandb_info").json() == {"group": None, "project": None}
    assert hub.get("/status").json() == {"current_step": 0, "queue_size": 0}
    message = "Trainer not registered. Call /register first."
    assert hub.get("/batch").json() == {"status": "error", "message": message, "batch": []}
    assert hub.post("/register-env", json=environment()).json() == {"status": "wait for trainer to start"}


def test_the_first_registration_counts(hub: httpx.Client) -> None:
    first = hub.post("/register", json=registration(8, starting_step=5)).json()
    second = hub.post("/register", json=registration(16, wandb_group="other", starting_step=9)).json()
    assert first["uuid"] != second["uuid"]
    assert 0 < first["uuid"] < 2**128
    assert hub.get("/info").json() == {"batch_size": 8, "max_token_len": 2_048}
    assert hub.get("/wandb_info").json() == {"group": "group", "project": "project"}
    assert hub.get("/status").json() == {"current_step": 5, "queue_size": 0}


def test_environments_wait_for_the_first_batch_request(hub: httpx.Client) -> None:
    hub.post("/register", json=registration())
    assert hub.post("/register-env", json=environment()).json() == {"status": "wait for trainer to start"}
    hub.get("/batch")
    expected = {
        "status": "success",
        "env_id": 0,
        "wandb_name": "arithmetic_0",
        "checkpoint_dir": "checkpoints",
        "starting_step": 0,
        "checkpoint_interval": 100,
        "num_steps": 1_000,
    }
    assert hub.post("/register-env", json=environment()).json() == expected
    assert hub.post("/register-env", json=environment()).json()["wandb_name"] == "arithmetic_1"
    assert hub.post("/register-env", json=environment(desired_name="chess")).json()["wandb_name"] == "chess_0"


def test_a_group_comes_out_as_it_went_in_with_all_keys(hub: httpx.Client) -> None:
    start(hub, 2)
    posted = group(
        2,
        7,
        advantages=[[0.5, 1.0]] * 2,
        messages=[[{"role": "user", "content": ["any"], "reward": None, "extra": {"deep": [1]}}]],
        generation_params={"temperature": 0.7},
        overrides=[{"set_advantage_to_zero": True}, {}],
        images=["picture", None, 3],
        distill_token_ids=[[[1, 2], [3]]],
        distill_logprobs=[[[-0.5, -1.0], [-2.0]]],
    )
    assert hub.post("/scored_data", json={**posted, "unknown": 1}).json() == {"status": "received"}
    assert hub.get("/status").json() == {"current_step": 0, "queue_size": 1}
    (found,) = hub.get("/batch").json()["batch"]
    assert found.keys() == KEYS
    assert {key: value for key, value in found.items() if value is not None} == posted
    assert hub.get("/status").json() == {"current_step": 1, "queue_size": 0}
    assert hub.get("/batch").json() == {"batch": None}
    assert hub.get("/latest_example").json() == found


def test_numbers_are_read_as_leniently_as_the_wire_is(hub: httpx.Client) -> None:
    start(hub, 1)
    body = {"tokens": [["5", 1.0, True]], "masks": [[-100, 1, 2]], "scores": ["1.5"]}
    assert hub.post("/scored_data", json=body).json() == {"status": "received"}
    (found,) = hub.get("/batch").json()["batch"]
    assert (found["tokens"], found["scores"]) == ([[5, 1, 1]], [1.5])


def test_the_newest_batch_is_handed_out_first_and_all_are_counted(hub: httpx.Client) -> None:
    start(hub, 2)
    for mark in range(3):
        hub.post("/scored_data", json=group(2, mark))
    taken = [hub.get("/batch").json()["batch"][0]["tokens"][0][0] for _ in range(3)]
    assert taken == [2, 1, 0]
    assert hub.get("/status").json()["current_step"] == 3


def test_groups_of_other_sizes_are_buffered_until_they_add_up(hub: httpx.Client) -> None:
    start(hub, 4)
    env_id = join(hub, 4)
    assert hub.post("/scored_data", json=group(3, env_id=env_id)).json() == {"status": "buffered", "buffer_size": 3}
    assert hub.post("/scored_data", json=group(2, env_id=env_id)).json() == {"status": "buffered", "buffer_size": 5}
    assert hub.get("/status").json()["queue_size"] == 0
    assert hub.post("/scored_data", json=group(1, env_id=env_id)).json() == {"status": "buffered", "buffer_size": 2}
    assert hub.get("/status").json()["queue_size"] == 2
    assert [len(one["tokens"]) for one in hub.get("/batch").json()["batch"] or []] == []  # 3 + 1 are no packs of 3


def test_a_list_of_groups(hub: httpx.Client) -> None:
    start(hub, 4)
    env_id = join(hub, 2)
    answer = hub.post("/scored_data_list", json=[group(2), group(2, env_id=env_id)]).json()
    assert answer == {"status": "received", "groups_processed": 2}
    answer = hub.post("/scored_data_list", json=[group(1, env_id=env_id), group(2, env_id=env_id)]).json()
    assert answer == {"status": "received", "groups_processed": 2, "buffered": 1, "last_buffer_size": 1}
    assert hub.post("/scored_data_list", json=[]).json() == {"status": "received", "groups_processed": 0}


def test_an_environment_asks_for_its_status(hub: httpx.Client) -> None:
    start(hub, 8)
    first = join(hub, 2, min_batch_allocation=0.25)
    second = join(hub, 2, weight=3.0, min_batch_allocation=0.5)
    for env_id, size in ((first, 2), (first, 2), (second, 4)):
        hub.post("/scored_data_list", json=[group(size, env_id=env_id)])
    hub.post("/scored_data", json=group(4))
    assert status_of(hub, first) == {
        "current_step": 0,
        "queue_size": (4 + 4) // 2,  # own 4; the group of no environment; the other's 4 are still buffered
        "unallocated_fraction": 0.25,
        "self_queue_size": 2,
        "max_group_size": 4,
        "env_weight": 0.25,
    }
    hub.post("/disconnect-env", json={"env_id": second})
    assert status_of(hub, first)["env_weight"] == 1.0
    assert status_of(hub, first)["unallocated_fraction"] == 0.75


def test_leaving(hub: httpx.Client) -> None:
    start(hub, 2)
    env_id = join(hub, 2, min_batch_allocation=1.0)
    hub.post("/scored_data", json=group(2, env_id=env_id))
    assert hub.post("/disconnect-env", json={"env_id": env_id}).json() == {"status": "success"}
    assert len(hub.get("/batch").json()["batch"]) == 1
    failed = hub.post("/disconnect-env", json={"env_id": 5}).json()
    assert failed["status"] == "failure"
    assert "5" in failed["error"]


def test_a_minimum_that_is_given_up_lets_a_batch_be_formed_at_once(hub: httpx.Client) -> None:
    start(hub, 2)
    env_id = join(hub, 2, min_batch_allocation=1.0)
    hub.post("/scored_data", json=group(2))
    assert hub.get("/batch").json() == {"batch": None}
    hub.post("/disconnect-env", json={"env_id": env_id})
    assert len(hub.get("/batch").json()["batch"]) == 1


def test_there_is_no_example_before_the_first_group(own_hub: object) -> None:
    answer = httpx.get(f"{own_hub.url}/latest_example", trust_env=False).json()
    expected = KEYS - {"overrides", "group_overrides", "env_id", "distill_token_ids", "distill_logprobs"}
    assert answer == {key: [] for key in expected}


def test_reset(hub: httpx.Client) -> None:
    start(hub, 2)
    hub.post("/scored_data", json=group(2))
    answer = hub.get("/reset_data")
    assert (answer.text, answer.headers["content-type"]) == ("Reset successful", "text/plain; charset=utf-8")
    assert hub.get("/info").json()["batch_size"] == -1
    assert hub.get("/status").json() == {"current_step": 0, "queue_size": 0}


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_bodies_may_be_compressed(hub: httpx.Client, encoding: str) -> None:
    start(hub, 2)
    text = random.Random(0).randbytes(3_000).hex()  # stays long however well it is compressed
    body = json.dumps(group(2, messages=[[{"role": "user", "content": text}]])).encode()
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert hub.post("/scored_data", content=gzip.compress(body), headers=headers).json() == {"status": "received"}
    answer = hub.get("/batch", headers={"Accept-Encoding": encoding})
    assert answer.headers.get("content-encoding", "identity") == encoding
    assert answer.json()["batch"][0]["messages"][0][0]["content"] == text


def test_short_answers_are_not_compressed(hub: httpx.Client) -> None:
    assert "content-encoding" not in hub.get("/info", headers={"Accept-Encoding": "gzip"}).headers


def test_what_is_no_gzip_is_refused(hub: httpx.Client) -> None:
    for body in (b"junk", gzip.compress(b"{}")[:-4]):
        answer = hub.post("/scored_data", content=body, headers={"Content-Encoding": "gzip"})
        assert (answer.status_code, answer.text) == (400, "Invalid gzip payload")


def test_unknown_paths_and_methods(hub: httpx.Client) -> None:
    assert (hub.get("/nothing").status_code, "detail" in hub.get("/nothing").json()) == (404, True)
    answer = hub.get("/register")
    assert (answer.status_code, answer.headers["allow"], "detail" in answer.json()) == (405, "POST", True)


def test_after_a_reset_batches_are_formed_as_before(hub: httpx.Client) -> None:
    for _ in range(3):
        start(hub, 2)
        hub.post("/scored_data", json=group(2))
        assert len(hub.get("/batch").json()["batch"]) == 1
        assert hub.get("/batch").json() == {"batch": None}
        hub.get("/reset_data")
