"""Clients of others, unmodified, and our own, against a real server with a champion and a challenger."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

import loomrl
from loomrl.errors import ServiceError
from loomrl.serving.client import Ask, AsyncPolicyClient, Outcome, PolicyClient, Refused, _refused
from loomrl.serving.process import ServerProcess
from loomrl.storage.registry import Registry
from tests.support.champions import make_champion
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder
from tests.support.template_home import at_home

TOKEN = "correct horse"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
OUTPUTS = ("action", "value", "logits")
LOGITS = OBSERVATIONS @ BALANCING
EXPECTED = {"action": LOGITS.argmax(1), "value": OBSERVATIONS.sum(1) + 1.0, "logits": LOGITS}
SDK = Path(__file__).resolve().parents[2] / ".venv-kserve"


@pytest.fixture(scope="module")
def registered(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Version 1 is the champion, version 2 the challenger, by the registry's aliases."""
    folder = tmp_path_factory.mktemp("registered")
    with at_home(folder / "home", template_home), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOMRL_OPERATOR_TOKEN", TOKEN)
        registry = Registry()
        for version, weights in (("1", BALANCING), ("2", -BALANCING)):
            registry.register("cartpole", discrete_folder(folder / version, weights), f"run-{version}")
        make_champion(registry, "1", challenger="2")
        with ServerProcess("cartpole", refresh_seconds=0.1, rate=1e6, burst=500) as server:
            with server.client() as client:
                client.refresh("cartpole")
            yield server


@pytest.fixture(scope="module")
def address(registered: ServerProcess) -> str:
    """Host and port, as Triton's clients want them."""
    return registered.url.removeprefix("http://")


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address) as found:
        yield found


def observed(as_bytes: bool, module: Any = triton) -> list[Any]:
    tensor = module.InferInput("observation", list(OBSERVATIONS.shape), "FP32")
    return [tensor.set_data_from_numpy(OBSERVATIONS, binary_data=as_bytes)]


def wanted(as_bytes: bool, module: Any = triton) -> list[Any]:
    return [module.InferRequestedOutput(name, binary_data=as_bytes) for name in OUTPUTS]


def check(answer: Any) -> None:
    np.testing.assert_array_equal(answer.as_numpy("action"), EXPECTED["action"])
    for name in ("value", "logits"):
        assert answer.as_numpy(name).dtype == np.float32
        np.testing.assert_allclose(answer.as_numpy(name), EXPECTED[name], rtol=1e-5)


# --- tritonclient -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("answered", [True, False])
def test_triton_infers_with_binary_and_json_tensors(
    client: triton.InferenceServerClient, asked: bool, answered: bool
) -> None:
    answer = client.infer("cartpole", observed(asked), outputs=wanted(answered), request_id="r-7")
    check(answer)
    assert (answer.get_response()["id"], answer.get_response()["model_version"]) == ("r-7", "1")
    assert ("parameters" in answer.get_output("action")) is answered


def test_triton_gets_all_outputs_as_bytes_when_it_names_none(client: triton.InferenceServerClient) -> None:
    answer = client.infer("cartpole", observed(True), model_version="1")
    check(answer)
    assert answer.get_output("value")["parameters"] == {"binary_data_size": 32}


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_triton_compresses_both_ways(client: triton.InferenceServerClient, algorithm: str, as_bytes: bool) -> None:
    rows = np.tile(OBSERVATIONS, (20, 1))
    tensor = triton.InferInput("observation", list(rows.shape), "FP32").set_data_from_numpy(rows, as_bytes)
    compressed = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    answer = client.infer("cartpole", [tensor], outputs=wanted(as_bytes), **compressed)
    np.testing.assert_array_equal(answer.as_numpy("action"), np.tile(EXPECTED["action"], 20))


def test_triton_names_the_agent_by_parameters(client: triton.InferenceServerClient, registered: ServerProcess) -> None:
    parameters = {"agent_id": "triton-1", "episode_id": "e-1"}
    answer = client.infer("cartpole", observed(True), parameters=parameters).get_response()
    with registered.client(token=TOKEN) as operator:
        written = [entry for entry in operator.shadow_records() if entry["agent_id"] == "triton-1"]
    decisions = [entry for entry in written if entry["kind"] == "decision"]
    assert answer["parameters"]["decision_ids"].split(",") == [entry["decision_id"] for entry in decisions]
    assert {entry["episode_id"] for entry in decisions} == {"e-1"}


def test_triton_sees_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("cartpole")
    assert client.is_model_ready("cartpole", "2")
    assert not client.is_model_ready("cartpole", "3")
    assert not client.is_model_ready("other")
    extensions = client.get_server_metadata()["extensions"]
    assert extensions == ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]
    assert client.get_model_metadata("cartpole")["versions"] == ["1", "2"]
    assert client.get_model_metadata("cartpole", "2")["inputs"][0]["shape"] == [-1, 4]


def test_triton_reads_the_configuration(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("cartpole", "1")
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("cartpole", "onnxruntime", 500)
    assert config["input"] == [{"name": "observation", "data_type": "TYPE_FP32", "dims": [4]}]
    dims = {output["name"]: (output["data_type"], output["dims"]) for output in config["output"]}
    assert dims == {"action": ("TYPE_INT64", []), "value": ("TYPE_FP32", []), "logits": ("TYPE_FP32", [2])}
    with pytest.raises(InferenceServerException, match="not loaded"):
        client.get_model_config("cartpole", "3")


def test_triton_reads_statistics(client: triton.InferenceServerClient) -> None:
    (before,) = client.get_inference_statistics("cartpole", "1")["model_stats"]
    client.infer("cartpole", observed(True))
    client.infer("cartpole", observed(True))
    (after,) = client.get_inference_statistics("cartpole", "1")["model_stats"]
    assert after["inference_count"] - before["inference_count"] == 16
    assert after["execution_count"] - before["execution_count"] == 2
    success, infer = (after["inference_stats"][name] for name in ("success", "compute_infer"))
    assert success["ns"] > infer["ns"] > 0
    (batch,) = (batch for batch in after["batch_stats"] if batch["batch_size"] == 8)
    assert batch["compute_infer"]["count"] >= 2
    every = client.get_inference_statistics()["model_stats"]
    assert [(one["name"], one["version"]) for one in every] == [("cartpole", "1"), ("cartpole", "2")]
    with pytest.raises(InferenceServerException, match="never loaded"):
        client.get_inference_statistics("cartpole", "3")


def test_failures_are_counted(client: triton.InferenceServerClient) -> None:
    rows = np.zeros((501, 4), np.float32)  # more than the agent's burst
    tensor = triton.InferInput("observation", [501, 4], "FP32").set_data_from_numpy(rows)
    (before,) = client.get_inference_statistics("cartpole", "1")["model_stats"]
    with pytest.raises(InferenceServerException, match="burst"):
        client.infer("cartpole", [tensor])
    (after,) = client.get_inference_statistics("cartpole", "1")["model_stats"]
    fail = [one["inference_stats"]["fail"] for one in (before, after)]
    assert fail[1]["count"] - fail[0]["count"] == 1
    assert fail[1]["ns"] > fail[0]["ns"]


def test_triton_is_told_what_is_wrong(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="does not act here") as refused:
        client.infer("cartpole", observed(True), model_version="2")
    assert refused.value.status() == "403"
    with pytest.raises(InferenceServerException, match="version '3' is not loaded"):
        client.infer("cartpole", observed(True), model_version="3")
    with pytest.raises(InferenceServerException, match="no model 'other'"):
        client.infer("other", observed(True))
    words = triton.InferInput("observation", [1, 4], "BYTES")
    words.set_data_from_numpy(np.array([["a", "b", "c", "d"]], dtype=object))
    with pytest.raises(InferenceServerException, match="datatype 'BYTES', expected 'FP32'"):
        client.infer("cartpole", [words])
    classes = [triton.InferRequestedOutput("logits", class_count=1)]
    with pytest.raises(InferenceServerException, match="'classification' is not supported"):
        client.infer("cartpole", observed(True), outputs=classes)


def test_triton_loads_and_unloads(client: triton.InferenceServerClient) -> None:
    def index() -> dict[str, str]:
        return {entry["version"]: entry["state"] for entry in client.get_model_repository_index()}

    assert index() == {"1": "READY", "2": "READY"}
    client.unload_model("cartpole/versions/2", headers=dict(BEARER))
    assert index() == {"1": "READY", "2": "UNAVAILABLE"}
    assert not client.is_model_ready("cartpole", "2")
    client.load_model("cartpole", headers=dict(BEARER))
    assert index() == {"1": "READY", "2": "READY"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("cartpole", "champion of cartpole stays"),
        ("cartpole/versions/1", "champion of cartpole stays"),
        ("cartpole/versions/3", "not loaded"),
        ("other", "no model 'other'"),
    ],
)
def test_what_decides_is_not_unloaded(client: triton.InferenceServerClient, model: str, message: str) -> None:
    with pytest.raises(InferenceServerException, match=message):
        client.unload_model(model, headers=dict(BEARER))
    assert client.is_model_ready("cartpole", "1")


def test_a_pinned_version_is_not_unloaded(client: triton.InferenceServerClient, registered: ServerProcess) -> None:
    with registered.client(token=TOKEN) as operator:
        pin = operator.set_override(version="2", agent_id="pinned", person="Ada", reason="test")
        with pytest.raises(InferenceServerException, match=f"pinned by override {pin['id']}"):
            client.unload_model("cartpole/versions/2", headers=dict(BEARER))
        operator.clear_override(pin["id"])


def test_loading_needs_the_token_and_takes_no_files(client: triton.InferenceServerClient) -> None:
    for attempt in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException) as stranger:
            attempt("cartpole")
        assert stranger.value.status() == "401"
    with pytest.raises(InferenceServerException, match="'config' is not read"):
        client.load_model("cartpole", headers=dict(BEARER), config="{}")


def test_the_index_of_what_is_ready(registered: ServerProcess) -> None:
    with registered.client(token=TOKEN) as operator:
        operator._send("POST", "/v2/repository/models/cartpole/versions/2/unload")
        ready = operator._send("POST", "/v2/repository/index", {"ready": True})
        assert [(entry["version"], entry["state"]) for entry in ready] == [("1", "READY")]
        with pytest.raises(Refused, match="`ready` must be true or false"):
            operator._send("POST", "/v2/repository/index", {"ready": 1})
        operator.refresh("cartpole")


def test_triton_for_asyncio(address: str) -> None:
    async def use() -> None:
        async with triton_aio.InferenceServerClient(address) as client:
            assert await client.is_model_ready("cartpole")
            for as_bytes in (True, False):
                inputs, outputs = observed(as_bytes, triton_aio), wanted(as_bytes, triton_aio)
                answers = [client.infer("cartpole", inputs, outputs=outputs) for _ in range(4)]
                for answer in await asyncio.gather(*answers):
                    check(answer)
            packed = await client.infer("cartpole", observed(True, triton_aio), request_compression_algorithm="gzip")
            check(packed)
            assert (await client.get_model_config("cartpole"))["max_batch_size"] == 500
            assert (await client.get_inference_statistics("cartpole", "1"))["model_stats"][0]["inference_count"] > 0
            await client.load_model("cartpole", headers=dict(BEARER))
            assert len(await client.get_model_repository_index()) == 2
            with pytest.raises(InferenceServerException, match="champion of cartpole stays"):
                await client.unload_model("cartpole", headers=dict(BEARER))

    asyncio.run(use())


# --- KServe -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SDK / "installed").is_file(), reason="the KServe SDK is not here: `make kserve`")
def test_the_sdk_of_kserve(registered: ServerProcess) -> None:
    script = Path(__file__).parents[1] / "support" / "kserve_client.py"
    command = [SDK / "bin" / "python", script, registered.url, "cartpole", json.dumps(OBSERVATIONS.tolist())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [found[name] for name in ("live", "ready", "model_ready", "other_ready")] == [True, True, True, False]
    for answer in (found["json"], found["binary"]):
        assert (answer["id"], answer["model"]) == ("r-1", "cartpole")
        assert answer["action"] == EXPECTED["action"].tolist()
        np.testing.assert_allclose(answer["value"], EXPECTED["value"], rtol=1e-5)
        np.testing.assert_allclose(answer["logits"], EXPECTED["logits"], rtol=1e-5)


# --- our own ----------------------------------------------------------------------------------------------------


def test_the_clients_are_public_and_cost_nothing_until_used() -> None:
    assert loomrl.PolicyClient is PolicyClient
    assert loomrl.AsyncPolicyClient is AsyncPolicyClient
    code = "import loomrl, sys; assert not {'httpx', 'numpy', 'loomrl.serving'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_client_for_many_agents_at_once(registered: ServerProcess) -> None:
    async def use() -> None:
        async with AsyncPolicyClient(registered.url) as client:
            assert await client.is_ready()
            asked = [client.decide(f"agent-{index}", row) for index, row in enumerate(OBSERVATIONS)]
            decisions = await asyncio.gather(*asked)
            assert [decision.action for decision in decisions] == EXPECTED["action"].tolist()
            batch = await client.decide_many([Ask("b", row) for row in OBSERVATIONS])
            assert [decision.action for decision in batch] == EXPECTED["action"].tolist()
            await client.feedback(decisions[0].decision_id, 1.0)
            await client.feedback_many([Outcome(decision.decision_id, 1.0) for decision in batch])
            with pytest.raises(Refused, match="has its feedback already"):
                await client.feedback(decisions[0].decision_id, 1.0)
            answer = await client.infer("cartpole", OBSERVATIONS, version="1", agent_id="c")
            assert answer["outputs"][0]["data"] == EXPECTED["action"].tolist()

    asyncio.run(use())


def test_a_server_that_is_gone_is_named() -> None:
    async def use() -> None:
        async with AsyncPolicyClient("http://127.0.0.1:9") as client:
            assert not await client.is_ready()
            with pytest.raises(ServiceError, match=r"127\.0\.0\.1:9 cannot be reached"):
                await client.decide("a", OBSERVATIONS[0])

    asyncio.run(use())


@pytest.mark.parametrize(
    ("status", "exit_code"), [(400, 2), (404, 2), (422, 2), (401, 3), (429, 3), (500, 3), (503, 3)]
)
def test_a_command_whose_order_makes_no_sense_ends_as_one_with_a_wrong_config(status: int, exit_code: int) -> None:
    """And one that may be given again, or by somebody else, as one whose service failed."""
    refused = _refused(httpx.Response(status, json={"error": "why"}))
    assert (refused.exit_code, refused.status, str(refused)) == (exit_code, status, f"{status}: why")
