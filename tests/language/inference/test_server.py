"""The served engine, asked as unmodified environments and trainers ask: each in its own shape."""

import asyncio
import base64
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import safetensors.torch
import torch

from loomrl.errors import ArtifactError, ConfigError
from loomrl.language.inference.process import EngineProcess
from loomrl.language.inference.server import serve
from loomrl.language.inference.settings import EngineSettings
from loomrl.system.http.tokens import ROLES, TOKENS
from tests.support.language_policies import language_policy, log_probs_of

DRAWN = {"temperature": 1.0, "top_p": 1.0, "n": 2, "stop": ["zz"], "seed": 7}


def check_log_probs(prompt: list[int], token_ids: list[int], log_probs: list[float], seed: int = 0) -> None:
    expected = log_probs_of(language_policy(seed), prompt, token_ids, 1.0)
    assert log_probs == pytest.approx(expected, abs=1e-4)


def test_vllm_as_atropos_asks_it(server: httpx.Client) -> None:
    prompt = [1, 4, 13, 5, 14]
    asked = {"prompt": {"prompt_token_ids": prompt}, "logprobs": 0, "max_tokens": 6, **DRAWN}
    answer = server.post("/generate", json=asked)
    said = answer.json()
    assert said.keys() >= {"text", "prompt", "finish_reasons", "logprobs", "prompt_token_ids", "token_ids"}
    assert (said["prompt"], said["prompt_token_ids"]) == ("1+2=", prompt)
    assert answer.headers["X-Policy-Version"] == said["weight_version"] == "0"
    for text, token_ids, tokens in zip(said["text"], said["token_ids"], said["logprobs"], strict=True):
        ids = [int(next(iter(one[0].keys()))) for one in tokens]  # as atroposlib reads it
        log_probs = [next(iter(one[0].values())) for one in tokens]
        assert ids == token_ids
        assert text == language_policy().tokenizer.decode(ids)
        check_log_probs(prompt, ids, log_probs)


def test_sglang_as_atropos_asks_it(server: httpx.Client) -> None:
    prompt = [1, 4, 13, 5, 14]
    params = {"max_new_tokens": 6, **DRAWN}
    asked = {"input_ids": prompt, "sampling_params": params, "return_logprob": True, "return_text_in_logprobs": False}
    answers = server.post("/generate", json=asked).json()
    assert len(answers) == 2
    for answer in answers:
        meta_info = answer["meta_info"]
        log_probs = [one[0] for one in meta_info["output_token_logprobs"]]
        token_ids = [one[1] for one in meta_info["output_token_logprobs"]]
        assert token_ids == answer["output_ids"]
        assert meta_info["weight_version"] == "0"
        assert meta_info["finish_reason"]["type"] in ("stop", "length")
        check_log_probs(prompt, token_ids, log_probs)
    alone = {**asked, "sampling_params": {**params, "n": 1}}
    assert isinstance(server.post("/generate", json=alone).json(), dict)
    several = server.post("/generate", json={"text": ["1", "2"], "sampling_params": {"max_new_tokens": 2}}).json()
    assert [one["meta_info"]["prompt_tokens"] for one in several] == [2, 2]
    assert "output_token_logprobs" not in several[0]["meta_info"]


def test_openai_completions(server: httpx.Client) -> None:
    asked = {
        "model": "any",
        "prompt": ["1+2=", "34"],
        "max_tokens": 5,
        "logprobs": 0,
        "return_token_ids": True,
        **DRAWN,
    }
    said = server.post("/v1/completions", json=asked).json()
    assert (said["object"], said["model"], said["metadata"]) == ("text_completion", "any", {"weight_version": "0"})
    assert [choice["index"] for choice in said["choices"]] == [0, 1, 2, 3]
    assert said["usage"]["prompt_tokens"] == 5 + 3
    for choice in said["choices"]:
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
        check_log_probs(choice["prompt_token_ids"], choice["token_ids"], choice["logprobs"]["token_logprobs"])


def test_openai_chat(server: httpx.Client) -> None:
    messages = [{"role": "system", "content": "1+2="}, {"role": "user", "content": [{"type": "text", "text": "3"}]}]
    refused = server.post("/v1/chat/completions", json={"messages": messages})
    assert refused.status_code == 400  # this alphabet has no newline between messages
    asked = {"messages": messages[:1], "max_tokens": 5, "logprobs": True, "return_token_ids": True, **DRAWN}
    said = server.post("/v1/chat/completions", json=asked).json()
    assert said["prompt_token_ids"] == [1, 4, 13, 5, 14]
    for choice in said["choices"]:
        assert choice["message"]["role"] == "assistant"
        log_probs = [one["logprob"] for one in choice["logprobs"]["content"]]
        check_log_probs(said["prompt_token_ids"], choice["token_ids"], log_probs)


def test_the_same_is_drawn_in_every_shape(server: httpx.Client) -> None:
    drawn = {"temperature": 1.0, "seed": 11}
    vllm = server.post("/generate", json={"prompt": "1+2=", "logprobs": 0, "max_tokens": 9, **drawn}).json()
    sglang = server.post("/generate", json={"text": "1+2=", "sampling_params": {"max_new_tokens": 9, **drawn}}).json()
    openai = server.post("/v1/completions", json={"prompt": "<|begin|>1+2=", "max_tokens": 9, **drawn}).json()
    chat = {"messages": [{"role": "user", "content": "1+2="}], "max_completion_tokens": 9, **drawn}
    assert vllm["text"][0] == sglang["text"] == openai["choices"][0]["text"]
    assert server.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"] == sglang["text"]
    assert vllm["token_ids"][0] == sglang["output_ids"]


def test_what_clients_ask_first(server: httpx.Client) -> None:
    assert server.get("/health").content == b""
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 48
    assert server.get("/model_info").json()["weight_version"] == "0"
    assert server.get("/get_world_size").json() == {"world_size": 1}
    assert server.post("/tokenize", json={"prompt": "12"}).json() == {
        "tokens": [1, 4, 5],
        "count": 3,
        "max_model_len": 48,
    }
    metrics = server.get("/metrics").text
    assert "loomrl_engine_policy_version 0.0" in metrics
    assert 'loomrl_engine_updates_total{outcome="served"}' in metrics


def drawn_by(server: httpx.Client) -> tuple[str, int]:
    """The version that is told, and the seed of the policy that it is."""
    asked = {"text": "1+2=", "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}, "return_logprob": True}
    meta_info = server.post("/generate", json=asked).json()["meta_info"]
    token_ids = [one[1] for one in meta_info["output_token_logprobs"]]
    log_probs = [one[0] for one in meta_info["output_token_logprobs"]]
    fits = [
        log_probs == pytest.approx(log_probs_of(language_policy(seed), [1, 4, 13, 5, 14], token_ids, 1.0), abs=1e-4)
        for seed in range(3)
    ]
    return meta_info["weight_version"], fits.index(True)


def test_weights_from_a_folder(server: httpx.Client, policy_folders: list[Path]) -> None:
    said = server.post("/update_weights_from_disk", json={"model_path": str(policy_folders[1]), "weight_version": "5"})
    assert said.json()["success"]
    assert drawn_by(server) == ("5", 1)
    assert server.get("/model_info").json()["weight_version"] == "5"
    server.post("/update_weights_from_disk", json={"model_path": str(policy_folders[2]), "abort_all_requests": True})
    assert drawn_by(server) == ("6", 2)


def packed(seed: int, *left_out: str) -> str:
    tensors = language_policy(seed).model.state_dict()
    kept = {name: value for name, value in tensors.items() if name not in left_out}
    return base64.b64encode(safetensors.torch.save(kept)).decode()


def test_weights_in_the_body(server: httpx.Client) -> None:
    body = {"serialized_named_tensors": [packed(1)], "load_format": "safetensors", "weight_version": "5"}
    assert server.post("/update_weights_from_tensor", json=body).json()["success"]
    assert drawn_by(server) == ("5", 1)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_weights_in_four_phases(server: httpx.Client, policy_folders: list[Path], is_chunked: bool) -> None:
    server.post("/init_weight_transfer_engine", json={"init_info": {}}).raise_for_status()
    server.post("/start_weight_update").raise_for_status()
    names = list(language_policy(1).model.state_dict())
    infos: list[dict[str, str]] = [{"path": str(policy_folders[1])}]
    if is_chunked:
        infos = [{"safetensors": packed(1, *names[:5])}, {"safetensors": packed(1, *names[5:])}]
    for info in infos:
        assert drawn_by(server) == ("0", 0)
        server.post("/update_weights", json={"update_info": info}).raise_for_status()
    assert drawn_by(server) == ("0", 0)
    server.post("/finish_weight_update", json={"weight_version": "9"}).raise_for_status()
    assert server.get("/weight_info").json() == {"weight_version": "9"}
    assert drawn_by(server) == ("9", 1)


def test_weights_by_a_reload(server: httpx.Client, policy_folders: list[Path]) -> None:
    arguments = {"weights_path": str(policy_folders[1])}
    server.post("/collective_rpc", json={"method": "reload_weights", "kwargs": arguments}).raise_for_status()
    server.post("/update_weight_version", json={"new_version": "4"}).raise_for_status()
    assert drawn_by(server) == ("4", 1)


def half_update(server: httpx.Client) -> httpx.Response:
    server.post("/start_weight_update").raise_for_status()
    half = {"safetensors": packed(1, "norm.weight")}
    server.post("/update_weights", json={"update_info": half}).raise_for_status()
    return server.post("/finish_weight_update", json={"weight_version": "9"})


def broken_folder(folder: Path) -> Path:
    language_policy(1).save(folder)
    (folder / "policy.safetensors").write_bytes((folder / "policy.safetensors").read_bytes()[:-9])
    return folder


def test_what_is_wrong_with_weights_leaves_the_old_ones_served(server: httpx.Client, tmp_path: Path) -> None:
    broken = language_policy(1)
    with torch.no_grad():
        broken.model.norm.weight[0] = float("inf")
    broken.save(tmp_path / "infinite")
    language_policy(1, max_tokens=20).save(tmp_path / "other")
    disk, tensor = "/update_weights_from_disk", "/update_weights_from_tensor"
    cases: list[tuple[str, dict[str, Any], str]] = [
        (disk, {"model_path": str(tmp_path / "nowhere")}, "no folder that can be read"),
        (disk, {"model_path": "policies/1"}, "no absolute path"),
        (disk, {"model_path": str(broken_folder(tmp_path / "torn"))}, "does not hold this policy's weights"),
        (disk, {"model_path": str(tmp_path / "infinite")}, "not finite"),
        (disk, {"model_path": str(tmp_path / "other")}, "another model"),
        (tensor, {"serialized_named_tensors": ["gASV"], "load_format": "safetensors"}, "no safetensors"),
        (tensor, {"serialized_named_tensors": [packed(1, "norm.bias")], "load_format": "safetensors"}, "norm.bias"),
    ]
    for path, body, reason in cases:
        answer = server.post(path, json={**body, "weight_version": "9"})
        assert (answer.status_code, answer.json()["success"]) == (400, False)
        assert "version 0 goes on being served" in answer.json()["message"]
        assert reason in answer.json()["message"]
    answer = half_update(server)
    assert (answer.status_code, "norm.weight" in answer.text) == (400, True)
    assert drawn_by(server) == ("0", 0)


@pytest.mark.parametrize("path", ["/update_weights", "/finish_weight_update"])
def test_an_update_that_was_not_started_is_refused(server: httpx.Client, path: str) -> None:
    server.post("/start_weight_update")
    server.post("/finish_weight_update")  # nothing came: refused, and over
    answer = server.post(path, json={"update_info": {"safetensors": packed(1)}})
    assert (answer.status_code, "start_weight_update" in answer.text) == (409, True)


def test_pickles_are_not_taken(server: httpx.Client) -> None:
    answer = server.post("/update_weights_from_tensor", json={"serialized_named_tensors": ["gASV"]})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "load_format"]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/generate", {}, "give either text or input_ids"),
        ("/generate", {"prompt": {}}, "give either prompt_token_ids or prompt"),
        ("/generate", {"prompt": "1", "logprobs": 5}, "less than or equal to 0"),
        ("/generate", {"prompt": "1", "frequency_penalty": 0.5}, "this engine has no frequency_penalty"),
        ("/generate", {"text": "1", "stream": True}, "does not stream"),
        ("/generate", {"text": "1", "sampling_params": {"temperature": -1}}, "greater than or equal to 0"),
        ("/generate", {"text": "1", "sampling_params": {"temperature": 1e-39}}, "0 or at least 0.0001"),
        ("/generate", {"input_ids": [1, 99]}, "99 is no token"),
        ("/generate", {"input_ids": []}, "empty"),
        ("/generate", {"input_ids": [1] * 48}, "leaves no room"),
        ("/v1/completions", {"prompt": "hello"}, "not in the alphabet"),
        ("/v1/completions", {"prompt": "1", "n": 0}, "greater than or equal to 1"),
        ("/v1/completions", {"prompt": "1", "max_tokens": 0}, "greater than or equal to 1"),
        ("/v1/chat/completions", {"messages": []}, "at least 1 item"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "Field required"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}], "tools": [{}]}, "has no tools"),
        ("/pause_generation", {"mode": "never"}, "'abort', 'retract' or 'in_place'"),
        ("/finish_weight_update", {"weight_version": "new"}, "should match pattern"),
        ("/collective_rpc", {"method": "shutdown", "kwargs": {}}, "reload_weights"),
    ],
)
def test_bad_input_is_named(server: httpx.Client, path: str, body: dict[str, Any], reason: str) -> None:
    answer = server.post(path, json=body)
    assert 400 <= answer.status_code < 500
    assert reason in answer.text


def test_a_pause_holds_back_and_a_wrong_mode_is_named(server: httpx.Client) -> None:
    assert server.post("/pause?mode=never").status_code == 400
    for pause, go_on in (("/pause?mode=wait", "/resume"), ("/pause_generation", "/continue_generation")):
        server.post(pause).raise_for_status()
        assert server.get("/is_paused").json() == {"is_paused": True}
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(server.post, "/generate", json={"text": "1"})
            while "loomrl_engine_waiting 1.0" not in server.get("/metrics").text:
                assert not waiting.done()
            server.post(go_on).raise_for_status()
            assert waiting.result().status_code == 200
    assert server.get("/is_paused").json() == {"is_paused": False}


@pytest.fixture(scope="module")
def guarded_url(policy_folders: list[Path]) -> Iterator[str]:
    """An engine with tokens, one for each role, for which two completions may wait."""
    lines = "\n".join(f"{role}:{role}:{sha256((role * 4).encode()).hexdigest()}" for role in ROLES)
    with EngineProcess(policy=policy_folders[0], max_waiting=2, environment={TOKENS: lines}) as engine:
        yield engine.url


def client_as(role: str, url: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {role * 4}"}
    return httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60)


def test_what_waits_has_a_bound(guarded_url: str) -> None:
    with client_as("operate", guarded_url) as client, ThreadPoolExecutor(2) as pool:
        client.post("/pause?mode=wait")
        waiting = [pool.submit(client.post, "/generate", json={"text": "1"}) for _ in range(2)]
        while "loomrl_engine_waiting 2.0" not in client.get("/metrics").text:
            time.sleep(0.01)
        refused = client.post("/generate", json={"text": "1"})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        client.post("/resume")
        assert [one.result().status_code for one in waiting] == [200, 200]
        too_many = client.post("/v1/completions", json={"prompt": "1", "n": 3})
        assert (too_many.status_code, "at most 2 may wait" in too_many.text) == (400, True)


def test_a_sender_that_leaves_is_decoded_for_no_longer(server: httpx.Client) -> None:
    server.post("/pause?mode=wait")
    body = json.dumps({"text": "1"}).encode()
    url = server.base_url
    with socket.create_connection((url.host, url.port or 0)) as connection:
        head = f"POST /generate HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while "loomrl_engine_waiting 1.0" not in server.get("/metrics").text:
            time.sleep(0.01)
    before = tokens_counted(server)
    server.post("/resume")
    while "loomrl_engine_waiting 0.0" not in server.get("/metrics").text:
        time.sleep(0.01)
    assert tokens_counted(server) == before


def tokens_counted(server: httpx.Client) -> str:
    return next(
        line for line in server.get("/metrics").text.splitlines() if line.startswith("loomrl_engine_tokens_total")
    )


@pytest.mark.parametrize(
    ("path", "who"), [("/v1/completions", {"decide", "operate"}), ("/start_weight_update", {"operate"})]
)
def test_who_may_what(path: str, who: set[str], guarded_url: str) -> None:
    for role in ROLES:
        with client_as(role, guarded_url) as client:
            assert client.post(path, json={"prompt": "1"}).status_code == (200 if role in who else 403)
    with client_as("wrong", guarded_url) as client:
        assert client.post(path, json={"prompt": "1"}).status_code == 401
        assert client.get("/health").status_code == 200


def test_it_is_bound_to_loopback_without_tokens(policy_folders: list[Path]) -> None:
    with pytest.raises(ConfigError, match="LOOMRL_TOKENS_FILE"):
        serve(EngineSettings(policy=policy_folders[0], host="0.0.0.0"))


def test_a_policy_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"policy\.json is missing"):
        serve(EngineSettings(policy=tmp_path))


def test_no_web_page_is_answered(server: httpx.Client) -> None:
    answer = server.post("/generate", json={"text": "1"}, headers={"Origin": "http://elsewhere.example"})
    assert answer.status_code == 403


def test_many_that_come_at_once_are_all_answered(server: httpx.Client) -> None:
    async def ask() -> list[int]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=server.base_url, trust_env=False, timeout=120, limits=limits) as client:
            body = {"text": "1+2=", "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}}
            answers = await asyncio.gather(*[client.post("/generate", json=body) for _ in range(200)])
        return [answer.status_code for answer in answers]

    assert asyncio.run(ask()) == [200] * 200
