"""Bodies of megabytes that are no request: they cost what parsing them costs, and who sends them pays for it."""

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from loomrl.errors import ConfigError
from loomrl.serving.decisions.requests import flat, leading_shape, shown
from loomrl.serving.settings import MAX_ROWS, ServerSettings
from loomrl.storage.audit.history import records
from loomrl.storage.audit.records import DECISION, FULL_BATCH
from tests.support.inside import Inside
from tests.support.policies import OBSERVATIONS, discrete_folder

SIZE = 4 * 2**20
DECIDE, FEEDBACK, INFER = "/decide", "/feedback", "/v2/models/cartpole/infer"
ROW = b'{"agent_id":"a","observation":[0,0,0,0]}'
TENSOR = b'{"inputs":[{"name":"observation","datatype":"FP32","shape":[1,4],"data":['


def filled(head: bytes, unit: bytes, tail: bytes) -> bytes:
    """As many units as the largest body holds."""
    return head + b",".join([unit] * ((SIZE - len(head) - len(tail)) // (len(unit) + 1))) + tail


OBSERVATION = b'{"agent_id":"a","observation":['
HOSTILE = {  # where it goes, and what it is filled with
    "empty lists": (DECIDE, (OBSERVATION, b"[]", b"]}")),
    "ragged lists": (DECIDE, (OBSERVATION, b"[1,[2]]", b"]}")),
    "deep lists": (DECIDE, (OBSERVATION, b"[" * 500 + b"]" * 500, b"]}")),
    "numbers": (DECIDE, (OBSERVATION, b"1", b"]}")),
    "ragged lists under an id": (
        DECIDE,
        (b'{"agent_id":"a","request_id":"r","observation":[', b"[1,[2]]", b"]}"),
    ),
    "rows, the last one wrong": (DECIDE, (b'{"requests":[', ROW, b',{"agent_id":"a","observation":[0]}]}')),
    "a list for a flag": (DECIDE, (b'{"agent_id":"a","observation":[0,0,0,0],"explore":[', b"[]", b"]}")),
    "a list for an id": (DECIDE, (b'{"observation":[0,0,0,0],"agent_id":[', b"[]", b"]}")),
    "feedback": (FEEDBACK, (b'{"feedback":[', b'{"decision_id":"x","reward":1}', b"]}")),
    "a ragged tensor": (INFER, (TENSOR, b"[1,[2]]", b"]}]}")),
    "a tensor of empty lists": (INFER, (TENSOR, b"[]", b"]}]}")),
    "a shape": (
        INFER,
        (b'{"inputs":[{"name":"observation","datatype":"FP32","data":[0],"shape":[', b"1", b"]}]}"),
    ),
    "outputs": (INFER, (TENSOR + b'0,0,0,0]}],"outputs":[', b'{"name":"action"}', b"]}")),
}


@pytest.fixture(scope="module")
def champion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return discrete_folder(tmp_path_factory.mktemp("policy") / "champion")


@pytest.fixture
def server(loomrl_home: Path, champion: Path) -> Iterator[Inside]:
    settings = ServerSettings("cartpole", folders={"champion": champion}, rate=1e9, body_bytes_per_second=1.0)
    with Inside(settings) as inside:
        yield inside


def post(server: Inside, path: str, body: bytes, client: str = "127.0.0.1") -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=server.application, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8100") as made:
            return await made.post(path, content=body, headers={"Content-Type": "application/json"})

    return asyncio.run(asked())


def parsing_seconds(body: bytes) -> float:
    """The processor's time that orjson takes, and no collection of garbage."""
    gc.disable()
    try:
        started = time.thread_time()
        orjson.loads(body)
        return time.thread_time() - started
    finally:
        gc.enable()


@pytest.mark.parametrize("name", HOSTILE)
def test_it_costs_about_what_parsing_it_costs(server: Inside, name: str) -> None:
    path, parts = HOSTILE[name]
    body = filled(*parts)
    least = parsing_seconds(body)
    started = time.thread_time()
    answer = post(server, path, body)
    assert time.thread_time() - started < 4 * least + 0.3
    assert answer.status_code in (400, 413), answer.text[:500]
    assert len(answer.content) < 1_000  # it is not sent back
    assert server.decide("b", OBSERVATIONS[0].tolist()).status_code == 200


def test_it_is_paid_for_by_its_sender_alone(loomrl_home: Path, champion: Path) -> None:
    settings = ServerSettings("cartpole", folders={"champion": champion}, body_bytes_per_second=1_000.0)
    body = filled(OBSERVATION, b"1", b"]}")
    with Inside(settings) as server:
        assert post(server, DECIDE, body).status_code == 400
        refused = post(server, DECIDE, body)
        assert (refused.status_code, int(refused.headers["retry-after"]) > 1_000) == (429, True)
        assert "1000 bytes of them a second" in refused.json()["error"]
        assert post(server, DECIDE, body, client="10.0.0.7").status_code == 400
        assert post(server, DECIDE, ROW).status_code == 200  # what is small costs nothing


def test_what_is_well_formed_costs_decisions_and_nothing_else(server: Inside) -> None:
    asks = [{"agent_id": f"{n}-{'x' * 100}", "observation": OBSERVATIONS[0].tolist()} for n in range(MAX_ROWS)]
    body = orjson.dumps({"requests": asks})
    assert len(body) > 2**20
    for _ in range(6):
        assert post(server, DECIDE, body).status_code == 200


def test_a_record_says_how_many_were_decided_together_where_that_takes_longer(
    loomrl_home: Path, champion: Path
) -> None:
    with Inside(ServerSettings("cartpole", folders={"champion": champion})) as server:
        for count in (1, FULL_BATCH, FULL_BATCH + 1):
            rows = [{"agent_id": f"a{n}", "observation": OBSERVATIONS[0].tolist()} for n in range(count)]
            assert post(server, DECIDE, orjson.dumps({"requests": rows})).status_code == 200
    said = [entry.get("num_together") for entry in records("cartpole") if entry["kind"] == DECISION]
    assert said == [None] * (1 + FULL_BATCH) + [FULL_BATCH + 1] * (FULL_BATCH + 1)


def test_more_rows_than_are_decided_at_once_are_refused(loomrl_home: Path, champion: Path) -> None:
    with Inside(ServerSettings("cartpole", folders={"champion": champion}, max_rows=3)) as server:
        tensor = {"name": "observation", "datatype": "FP32"}
        for count, status in ((3, 200), (4, 413)):
            rows = [{"agent_id": "a", "observation": [0.0] * 4}] * count
            several = {"inputs": [{**tensor, "shape": [count, 4], "data": [0.0] * 4 * count}]}
            for path, document in ((DECIDE, {"requests": rows}), (INFER, several)):
                answer = server.ask("POST", path, document)
                assert answer.status_code == status, answer.text
                assert status == 200 or "at most 3" in answer.text
        entries = [{"decision_id": str(n), "reward": 0.0} for n in range(4)]
        assert server.ask("POST", FEEDBACK, {"feedback": entries}).status_code == 413
        assert server.ask("GET", "/v2/models/cartpole/config").json()["max_batch_size"] == 3


def test_json_around_a_tensor_has_the_length_that_its_rows_need(server: Inside) -> None:
    tensor = {"name": "observation", "datatype": "FP32", "shape": [1, 4], "data": [0.0] * 4}
    for size, status in ((2**15, 200), (2**18, 413)):
        document = {"inputs": [tensor], "parameters": {"note": "x" * size}}
        assert server.ask("POST", INFER, document).status_code == status


@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [
        (5, (), [5]),
        ([1, 2], (2,), [1, 2]),
        ([[1, 2], [3, 4]], (2, 2), [1, 2, 3, 4]),
        ([[1, 2], [3]], (2, 2), None),
        ([[1], [2, 3]], (2, 2), None),
        ([[1, 2], 3], (2, 2), None),
        ([1, 2], (3,), None),
        ("ab", (2,), None),
        ({}, (0,), None),
        ([[[1]], [[2]]], (2, 1, 1), [1, 2]),
        ([[1], [2]], (2,), [[1], [2]]),  # whether these are numbers is another question
    ],
)
def test_lists_are_measured_before_they_are_taken_apart(value: Any, shape: tuple[int, ...], expected: Any) -> None:
    assert flat(value, shape) == expected


def test_the_leading_shape_is_that_of_first_entries() -> None:
    assert leading_shape([[1, 2], [3]], 5) == ((2, 2), 1)
    assert leading_shape([[["x"]]], 2) == ((1, 1), None)
    assert leading_shape("x", 2) == ((), "x")


def test_what_was_sent_is_shown_in_a_few_words() -> None:
    assert (shown("a"), shown(["value"]), shown(None), shown(1.5)) == ("'a'", "['value']", "None", "1.5")
    for value in ("x" * SIZE, [[[1] * 10**6]] * 9, {str(n): n for n in range(10**5)}, 10**4000):
        assert len(shown(value)) < 200


def test_settings_that_bound_nothing_are_refused() -> None:
    for name in ("max_rows", "max_body_bytes", "body_bytes_per_second"):
        with pytest.raises(ConfigError, match=name.replace("_", "-")):
            ServerSettings("p", **{name: 0})
