"""Whatever is sent to whichever endpoint: an answer that is no failure of the engine, and it goes on answering."""

import json
import string
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loomrl.language.inference.process import EngineProcess
from loomrl.system.http.tokens import ROLES, TOKENS_FILE, add
from tests.support.fuzzing import fuzz, kept_going, num_accepted, roles_that_are_let_in

SAMPLING = {
    "n": 2, "temperature": 1.0, "top_p": 0.9, "top_k": -1, "stop": ["1", "2"], "stop_token_ids": [3], "seed": 1,
    "max_tokens": 4, "max_new_tokens": 4, "ignore_eos": True, "stream": False, "logprobs": 0, "frequency_penalty": 0.0,
}  # fmt: skip
BODIES = {
    "/generate": [
        {"prompt": {"prompt_token_ids": [1, 4]}, **SAMPLING},
        {"input_ids": [[1, 4], [1]], "sampling_params": SAMPLING, "return_logprob": True},
        {"text": "1+2=", "sampling_params": SAMPLING},
    ],
    "/v1/completions": [{"prompt": ["1+2=", "3"], "model": "m", "return_token_ids": True, **SAMPLING}],
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "1"}], "return_token_ids": True, **SAMPLING, "logprobs": True}
    ],
    "/tokenize": [{"prompt": "12"}],
    "/update_weights_from_disk": [{"model_path": "/nowhere", "weight_version": "5", "abort_all_requests": True}],
    "/update_weights_from_tensor": [{"serialized_named_tensors": ["gASV"], "load_format": "safetensors"}],
    "/update_weights": [{"update_info": {"path": "/nowhere"}}, {"update_info": {"safetensors": "AAAA"}}],
    "/init_weight_transfer_engine": [{"init_info": {}}],
    "/finish_weight_update": [{"weight_version": "5"}],
    "/collective_rpc": [{"method": "reload_weights", "kwargs": {"weights_path": "/nowhere"}}],
    "/update_weight_version": [{"new_version": "5"}],
    "/pause_generation": [{"mode": "abort"}],
}
OTHER_PATHS = [
    "/health", "/v1/models", "/model_info", "/weight_info", "/is_paused", "/get_world_size", "/flush_cache",
    "/start_weight_update", "/pause?mode=keep", "/pause?mode=", "/metrics", "/nothing",
]  # fmt: skip

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, object]:
    """A path, and a good body of it with one field exchanged, or anything at all."""
    path = draw(st.sampled_from([*BODIES, *OTHER_PATHS]))
    if path not in BODIES or draw(st.integers(0, 4)) == 0:
        return path, draw(values | st.binary(max_size=40))
    body = dict(draw(st.sampled_from(BODIES[path])))
    params = body.get("sampling_params")
    if isinstance(params, dict) and draw(st.booleans()):
        return path, {**body, "sampling_params": {**params, draw(st.sampled_from(list(SAMPLING))): draw(values)}}
    return path, {**body, draw(st.sampled_from([*body, *SAMPLING])): draw(values)}


@given(
    st.sampled_from(["POST", "POST", "POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS"]),
    asked(),
    st.dictionaries(
        st.sampled_from(["Content-Encoding", "Content-Type", "Range", "Accept-Encoding"]),
        st.text(string.ascii_letters + string.digits + "=/;,-", max_size=12) | st.just("gzip"),
        max_size=1,
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=150)
def test_nothing_that_is_sent_makes_the_engine_fail(
    server: httpx.Client, method: str, question: tuple[str, object], headers: dict[str, str]
) -> None:
    server.post("/resume")  # who pauses must go on, or everyone waits
    path, body = question
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = server.request(method, path, content=content, headers={"Content-Type": "application/json", **headers})
    assert answer.status_code < 500, (answer.status_code, answer.text)
    if answer.status_code >= 400 and method != "HEAD":
        said = answer.text
        assert said == "Invalid gzip payload" or answer.json().get("detail") or answer.json()["message"], said


def test_and_it_answers_afterwards_as_before(server: httpx.Client) -> None:
    said = server.post("/generate", json={"text": "1+2=", "sampling_params": {"max_new_tokens": 3}}).json()
    assert said["meta_info"]["weight_version"] == "0"


def test_it_is_a_valid_description(server: httpx.Client) -> None:
    document = server.get("/openapi.json").json()
    schemathesis.openapi.from_dict(document).validate()
    known = {*BODIES, *(path.partition("?")[0] for path in OTHER_PATHS)} - {"/nothing"}
    assert known <= document["paths"].keys()


@pytest.mark.parametrize("num_examples", [2, 4])
@pytest.mark.long_cases("4")
def test_every_answer_is_one_that_is_described(policy_folders: list[Path], tmp_path: Path, num_examples: int) -> None:
    with EngineProcess(policy=policy_folders[0], max_waiting=256) as engine, kept_going(engine.url):
        report = fuzz(engine.url, tmp_path, num_examples, reads_strictly=False, is_sample=True)
        assert "Traceback" not in engine.log()
    accepted = num_accepted(report)
    assert report["operations"]["tested"] == report["operations"]["total"] > 20
    assert all(accepted[f"POST {path}"] for path in ("/generate", "/v1/completions", "/v1/chat/completions", "/pause"))


def test_each_route_wants_the_right_that_its_description_names(policy_folders: list[Path], tmp_path: Path) -> None:
    tokens = {role: add(tmp_path / "tokens", role, [role]) for role in ROLES}
    environment = {TOKENS_FILE: str(tmp_path / "tokens")}
    with EngineProcess(policy=policy_folders[0], environment=environment) as engine:
        for operation, (named, let_in) in roles_that_are_let_in(engine.url, tokens).items():
            expected = {"operate", *(set(tokens) if named == "any" else [named])}
            assert let_in == ({"nobody", *tokens} if named == "open" else expected), operation
