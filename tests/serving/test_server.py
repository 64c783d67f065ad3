"""The server over HTTP: decisions, feedback, V2, mirroring, limits, overrides."""

import time
from pathlib import Path
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from loomrl.serving.client import Ask, Outcome, PolicyClient, Refused
from loomrl.serving.process import ServerProcess
from tests.support.inside import wait_for
from tests.support.policies import OBSERVATIONS

OBS = OBSERVATIONS[0].tolist()
BEARER = {"Authorization": "Bearer correct horse"}


def records(client: PolicyClient, agent_id: str) -> list[dict]:
    wait_for(lambda: not client.status()["shadow"]["num_pending"])
    found, after = [], {"decision": -1, "shadow": -1}
    while page := client.shadow_records(*after.values()):
        found += [entry for entry in page if entry["agent_id"] == agent_id]
        after |= {entry["kind"]: entry["sequence"] for entry in page}
    return found


def test_a_decision_is_on_record_as_answered(client: PolicyClient) -> None:
    decision = client.decide("agent-1", OBS, "episode-1")
    entry, mirror = records(client, "agent-1")
    assert entry["decision_id"] == decision.decision_id
    assert (entry["action"], entry["value"], entry["propensity"]) == (decision.action, decision.value, 1.0)
    assert entry["q_value"] == decision.value
    assert np.float32(entry["observation"]).tolist() == OBS
    assert (entry["exploration_flag"], entry["reward"], entry["override"]) == (False, None, None)
    assert mirror["kind"] == "shadow"
    assert mirror["decision_id"] == decision.decision_id
    assert mirror["action"] == 1 - decision.action
    assert mirror["value"] == pytest.approx(decision.value + 2.0)


def test_a_batch_answers_each_agent_in_order(client: PolicyClient) -> None:
    asks = [Ask(f"batch-{index}", row) for index, row in enumerate(OBSERVATIONS)]
    decisions = client.decide_many(asks)
    single = [client.decide(f"batch-{index}", row) for index, row in enumerate(OBSERVATIONS)]
    assert [(d.action, d.value) for d in decisions] == [(d.action, d.value) for d in single]
    assert len({d.decision_id for d in decisions + single}) == 2 * len(OBSERVATIONS)


def test_exploration_is_flagged_with_its_propensity(client: PolicyClient) -> None:
    balanced = np.zeros(4)  # equal logits: both actions with probability one half
    decisions = [client.decide("explorer", balanced, explore=True) for _ in range(60)]
    assert {decision.propensity for decision in decisions} == {0.5}
    assert 10 < sum(decision.action for decision in decisions) < 50
    assert all(decision.exploration for decision in decisions)
    written = records(client, "explorer")
    assert all(entry["kind"] == "decision" and entry["exploration_flag"] for entry in written)


def test_feedback_once_and_only_for_known_decisions(client: PolicyClient) -> None:
    decision = client.decide("fed", OBS)
    client.feedback(decision.decision_id, 1.5, terminated=True)
    with pytest.raises(Refused, match="has its feedback already") as duplicate:
        client.feedback(decision.decision_id, 1.5)
    assert duplicate.value.status == 409
    with pytest.raises(Refused, match="unknown") as unknown:
        client.feedback("no-such-decision", 0.0)
    assert unknown.value.status == 404
    other = client.decide("fed", OBS)
    with pytest.raises(Refused):  # all or none
        client.feedback_many([Outcome(other.decision_id, 1.0), Outcome("no-such-decision", 1.0)])
    with pytest.raises(Refused, match="already"):
        client.feedback_many([Outcome(other.decision_id, 1.0), Outcome(other.decision_id, 1.0)])
    client.feedback(other.decision_id, 1.0)


# --- the Open Inference Protocol V2 -----------------------------------------------------------------------------


def test_health_and_metadata(server: ServerProcess) -> None:
    get = lambda path: httpx.get(server.url + path, trust_env=False)  # noqa: E731
    assert get("/v2").json()["name"] == "loomrl"
    assert get("/v2/health/live").json() == {"live": True}
    assert get("/v2/health/ready").json() == {"ready": True}
    assert get("/v2/models/cartpole/ready").json() == {"name": "cartpole", "ready": True}
    model = get("/v2/models/cartpole").json()
    assert model["inputs"] == [{"name": "observation", "datatype": "FP32", "shape": [-1, 4]}]
    assert {output["name"]: output["datatype"] for output in model["outputs"]} == {
        "action": "INT64",
        "value": "FP32",
        "logits": "FP32",
    }
    for version in model["versions"]:
        assert get(f"/v2/models/cartpole/versions/{quote(version, safe='')}/ready").status_code == 200
    assert get("/v2/models/other").status_code == 404
    assert get("/v2/models/cartpole/versions/99").status_code == 404


def test_a_version_that_is_not_there_decides_nothing(server: ServerProcess) -> None:
    tensor = {"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": OBS}
    for name in ("cartpole/versions/99", "other", "other/versions/1"):
        answer = httpx.post(f"{server.url}/v2/models/{name}/infer", json={"inputs": [tensor]}, trust_env=False)
        assert (answer.status_code, "no model" in answer.text or "not loaded" in answer.text) == (404, True), name


def test_infer_answers_and_records_each_row(client: PolicyClient) -> None:
    answer = client.infer("cartpole", OBSERVATIONS, agent_id="inferring")
    outputs = {output["name"]: output for output in answer["outputs"]}
    expected = [client.decide("reference", row) for row in OBSERVATIONS]
    assert outputs["action"]["data"] == [decision.action for decision in expected]
    assert outputs["value"]["data"] == [decision.value for decision in expected]
    assert outputs["logits"]["shape"] == [8, 2]
    written = [entry for entry in records(client, "inferring") if entry["kind"] == "decision"]
    assert answer["parameters"]["decision_ids"].split(",") == [entry["decision_id"] for entry in written]
    assert all(entry["route"] == "infer" for entry in written)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [2, 3]}, "has shape"),
        ({"shape": [True, 4], "data": [0.0] * 4}, "whole numbers"),
        ({"shape": [2**62, 4], "data": []}, "holds 0 numbers"),
        ({"shape": []}, "has shape"),
        ({"shape": [0, 4]}, "has shape"),
        ({"shape": [3, 4]}, "its shape"),
        ({"datatype": "FP64"}, "datatype"),
        ({"name": "obs"}, "no input"),
        ({"datatype": "BYTES"}, "datatype 'BYTES'"),
        ({"data": [["a"] * 4, ["b"] * 4]}, "found text"),
        ({"data": [0.0] * 7 + [True]}, "found booleans"),
        ({"data": [[0.0] * 4, [False, 1, 2, 3]]}, "found booleans"),
        ({"parameters": 3}, "must be an object"),
        ({"data": None}, "holds 1 numbers"),
        ({"data": [[1, 2], [3]]}, "ragged"),
    ],
)
def test_bad_tensors_are_refused(server: ServerProcess, change: dict, message: str) -> None:
    tensor = {"name": "observation", "shape": [2, 4], "datatype": "FP32", "data": [0.0] * 8} | change
    url = f"{server.url}/v2/models/cartpole/infer"
    answer = httpx.post(url, json={"inputs": [tensor]}, trust_env=False)
    assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "JSON object"),
        (b'{"agent_id":"a","observation":[NaN,0,0,0]}', 400, "NaN"),
        (b'{"agent_id":"a","observation":[1e400,0,0,0]}', 400, "infinity"),
        (b'{"agent_id":"a","observation":[1e39,0,0,0]}', 400, "finite in float32"),
        (b'{"agent_id":"a","observation":[0,0,0]}', 400, "shape [3]"),
        (b'{"agent_id":"a","observation":[[0,0,0,0]]}', 400, "shape [1, 4]"),
        (b'{"agent_id":"a","observation":[0,[0],0,0]}', 400, "ragged"),
        (b'{"agent_id":"a","observation":["0",0,0,0]}', 400, "text"),
        (b'{"agent_id":"a","observation":["%b"%b]}' % (b"0" * 9_000, b',""' * 30_000), 400, "text"),  # a GB for numpy
        (b'{"agent_id":"a","observation":[null,0,0,0]}', 400, "null"),
        (b'{"agent_id":"a","observation":[true,true,true,false]}', 400, "booleans"),
        (b'{"agent_id":"a","observation":[1,2,3,true]}', 400, "booleans"),
        (b'{"agent_id":"a","observation":{}}', 400, "shape []"),
        (b'{"agent_id":"a"}', 400, "`observation` is missing"),
        (b'{"observation":[0,0,0,0]}', 400, "`agent_id`"),
        (b'{"agent_id":"a\\nb","observation":[0,0,0,0]}', 400, "printable"),
        (b'{"agent_id":"","observation":[0,0,0,0]}', 400, "`agent_id`"),
        (b'{"agent_id":7,"observation":[0,0,0,0]}', 400, "`agent_id`"),
        (b'{"agent_id":"a","observation":[0,0,0,0],"explore":1}', 400, "`explore`"),
        (b'{"agent_id":"a","observation":[0,0,0,0],"epsilon":1}', 400, "epsilon"),
        (b'{"requests":[]}', 400, "not empty"),
        (b'{"requests":[3]}', 400, "must be an object"),
        (b"\xff\xfe", 400, "not JSON"),
        (b" " * 100_001, 413, "bytes"),
    ],
)
def test_bad_requests_are_refused_with_a_reason(server: ServerProcess, body: bytes, status: int, message: str) -> None:
    answer = httpx.post(f"{server.url}/decide", content=body, trust_env=False)
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"decision_id":"d","reward":NaN}', "NaN"),
        (b'{"decision_id":"d","reward":null}', "`reward`"),
        (b'{"decision_id":"d","reward":true}', "`reward`"),
        (b'{"decision_id":"d","reward":-1e101}', "at most 1e+100 in size"),
        (b'{"decision_id":"d","reward":1,"cost":1e308}', "`cost`"),
        (b'{"decision_id":"d","reward":1,"terminated":"no"}', "`terminated`"),
        (b'{"decision_id":"d","reward":1,"cost":"much"}', "`cost`"),
        (b'{"reward":1}', "`decision_id`"),
    ],
)
def test_bad_feedback_is_refused(server: ServerProcess, body: bytes, message: str) -> None:
    answer = httpx.post(f"{server.url}/feedback", content=body, trust_env=False)
    assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text


def test_a_chunked_body_is_cut_off_at_the_limit(server: ServerProcess) -> None:
    def endless():
        for _ in range(100):
            yield b" " * 10_000

    answer = httpx.post(f"{server.url}/decide", content=endless(), trust_env=False)
    assert answer.status_code == 413


def test_other_methods_and_routes_are_refused(server: ServerProcess) -> None:
    answer = httpx.get(f"{server.url}/decide", trust_env=False)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert httpx.get(f"{server.url}/nowhere", trust_env=False).status_code == 404
    assert httpx.get(f"{server.url}/v2/models/cartpole/infer", trust_env=False).status_code == 405


def test_extreme_but_finite_observations_do_not_crash(client: PolicyClient) -> None:
    try:
        client.decide("extreme", [1e38, -1e38, 3e38, 1e38])
    except Refused as refused:
        assert refused.status == 422  # noqa: PT017 - either outcome is right, a crash is not
    assert client.is_ready()


# --- authority --------------------------------------------------------------------------------------------------


def ask_without_end(client: PolicyClient, agent_id: str) -> None:
    for _ in range(600):
        client.decide_many([Ask(agent_id, OBS)] * 200)


def test_the_rate_limit_is_per_agent_and_says_when(client: PolicyClient) -> None:
    with pytest.raises(Refused, match="200 times a second") as refused:
        ask_without_end(client, "greedy")
    assert refused.value.status == 429
    assert refused.value.retry_after_seconds == 1
    client.decide("modest", OBS)
    with pytest.raises(Refused) as oversized:
        client.decide_many([Ask("burst", OBS)] * 201)
    assert oversized.value.status == 413


def test_an_override_pins_an_action_for_one_agent_until_cleared(client: PolicyClient) -> None:
    normal = client.decide("patient", OBS).action
    override = client.set_override(action=1 - normal, agent_id="patient", person="Ada", reason="test")
    pinned = client.decide("patient", OBS)
    assert (pinned.action, pinned.override["person"]) == (1 - normal, "Ada")
    assert client.decide("bystander", OBS).action == normal
    assert [entry["id"] for entry in client.overrides()] == [override["id"]]
    assert client.clear_override(override["id"]) == [override["id"]]
    assert client.decide("patient", OBS).action == normal
    assert [bool(entry["override"]) for entry in records(client, "patient") if entry["kind"] == "decision"] == [
        False,
        True,
        False,
    ]


def test_a_person_comes_before_the_rate_limit(client: PolicyClient) -> None:
    override = client.set_override(action=0, agent_id="flooded", person="Ada", reason="test")
    for _ in range(20):
        client.decide_many([Ask("flooded", OBS)] * 20)
    client.clear_override(override["id"])


def test_an_override_of_all_agents_expires(client: PolicyClient) -> None:
    normal = client.decide("anyone", OBS).action
    started = time.monotonic()
    client.set_override(action=1 - normal, person="Ada", reason="test", expires_in_seconds=2.0)
    pinned = client.decide("anyone", OBS).action
    assert pinned == 1 - normal or time.monotonic() - started > 2.0  # on a machine that had no time for it
    wait_for(lambda: client.decide("anyone", OBS).action == normal)
    client.clear_override()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"action": 2}, 400),
        ({"action": "left"}, 400),
        ({"action": True}, 400),
        ({}, 400),
        ({"action": 0, "version": "1"}, 400),
        ({"action": 0, "reason": ""}, 400),
        ({"action": 0, "expires_in_seconds": -1}, 400),
        ({"action": 0, "expires_in_seconds": "60"}, 400),
        ({"action": 0, "id": "another's"}, 400),
        ({"action": 0, "created": 0}, 400),
        ({"fallback": "yes"}, 400),
        ({"version": ""}, 400),  # the server's working directory, were it looked for
        ({"version": "1\n2026-01-01 ERROR a line of the log"}, 400),
        ({"version": "/no/such/folder"}, 422),
    ],
)
def test_bad_overrides_are_refused(client: PolicyClient, fields: dict, status: int) -> None:
    with pytest.raises(Refused) as refused:
        client.set_override(**({"person": "Ada", "reason": "test"} | fields))
    assert refused.value.status == status
    assert client.overrides() == []


@pytest.mark.parametrize(
    ("method", "path", "document", "message"),
    [
        ("PUT", "/plan", {"challengers": [""]}, "challengers.0"),
        ("PUT", "/plan", {"split": {"": 0.5}}, "split"),
        ("PUT", "/plan", {"split": {"1": "0.5"}}, "split"),
        ("PUT", "/plan", {"fallback": {"version": "\0"}}, "fallback.version"),
        ("PUT", "/plan", {"revision": "1"}, "revision"),
        ("PUT", "/kill-switch", {"on": "yes"}, "on"),
        ("PUT", "/kill-switch", {}, "on"),
        ("GET", "/shadow/records?limit=0", None, "limit"),
        ("GET", "/shadow/records?limit=", None, "limit"),
        ("GET", "/shadow/records?after=-2", None, "after"),
        ("GET", "/shadow/records?after=one", None, "after"),
        ("GET", "/shadow/records?before=1", None, "before"),
    ],
)
def test_bad_orders_and_questions_of_operators_are_refused(
    server: ServerProcess, method: str, path: str, document: dict | None, message: str
) -> None:
    sent = None if document is None else {"person": "Ada", "reason": "test", **document}
    answer = httpx.request(method, server.url + path, json=sent, headers=BEARER, trust_env=False)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"].startswith(message)


def test_operators_need_the_token(server: ServerProcess) -> None:
    for token in ("wrong", ""):
        with server.client(token=token) as stranger:
            for attempt in (stranger.overrides, stranger.clear_override, stranger.shadow_records):
                with pytest.raises(Refused) as refused:
                    attempt()
                assert refused.value.status == 401
            stranger.decide("public", OBS)


# --- seen from outside ------------------------------------------------------------------------------------------


def test_metrics_and_status(client: PolicyClient, server: ServerProcess, server_home: Path) -> None:
    client.decide("counted", OBS)
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    assert 'loomrl_decisions_total{by="policy"' in text
    assert "loomrl_request_seconds_bucket" in text
    status = client.status()
    assert status["ready"]
    assert status["latency_seconds"]["p50"] < 0.05
    assert (server_home / "audit" / status["audit"]["server"] / f"{status['audit']['segment']}.jsonl").is_file()


def test_the_head_is_anchored_in_loomdb(client: PolicyClient) -> None:
    client.decide("anchored", OBS)
    sequence = client.status()["audit"]["sequence"]
    wait_for(lambda: (client.status()["audit"]["anchored_sequence"] or -1) >= sequence)
    assert client.status()["audit"]["anchor_error"] is None
