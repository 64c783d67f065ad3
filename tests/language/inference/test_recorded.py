"""vLLM and SGLang as their documentation and source describe them: what is asked, in which order, and how it fails.

vLLM: docs/training/weight_transfer and entrypoints/serve/dev/rlhf, entrypoints/openai/completion of its repository.
SGLang: docs/advanced_features/sglang_for_rl and srt/entrypoints/http_server.
"""

from pathlib import Path
from typing import Any

import pytest

from loomrl.errors import ServiceError
from loomrl.language.inference import Completion, Sampling
from loomrl.language.inference.sglang import SGLangEngine
from loomrl.language.inference.vllm import VLLMEngine
from tests.support.language_policies import language_policy
from tests.support.recorded_engine import Answer, recorded

PHASES = ["/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"]
PAUSE = "/pause?mode=wait"


def weight_info(*versions: str) -> dict[str, list[Answer]]:
    return {"/weight_info": [(200, {"weight_version": version}) for version in versions]}


def vllm(*versions: str, **others: Answer) -> dict[str, list[Answer]]:
    """A vLLM server in development mode; `others` replace the first answer of a phase."""
    said = {
        PAUSE: (200, {"status": "paused"}),
        "/resume": (200, {"status": "resumed"}),
        "/init_weight_transfer_engine": (200, {"message": "Weight transfer initialized"}),
        "/start_weight_update": (200, {"message": "Weight update started"}),
        "/update_weights": (200, {"message": "Weights updated"}),
        "/finish_weight_update": (200, {"message": "Weight update finished"}),
        "/collective_rpc": (200, {"results": [None]}),
        "/update_weight_version": (200, {"success": True, "new_version": "4"}),
    }
    answers = {path: [good] for path, good in said.items()}
    for name, bad in others.items():
        answers[f"/{name}"].insert(0, bad)
    return {**answers, **weight_info(*versions)}


def vllm_completion(text: str, token_ids: list[int]) -> Answer:
    choice = {
        "index": 0,
        "text": text,
        "logprobs": {
            "text_offset": [0] * len(token_ids),
            "token_logprobs": [-0.5] * len(token_ids),
            "tokens": ["x"] * len(token_ids),
            "top_logprobs": [{"x": -0.5}] * len(token_ids),
        },
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": token_ids,
        "prompt_logprobs": None,
        "prompt_token_ids": [1, 9],
    }
    usage = {"prompt_tokens": 2, "total_tokens": 4, "completion_tokens": 2}
    return 200, {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice], "usage": usage}


def test_vllm_completes_and_its_version_is_read_beside_it() -> None:
    with (
        recorded({"/v1/completions": [vllm_completion("hi", [7, 8])], **weight_info("3")}) as engine,
        VLLMEngine(engine.url) as client,
    ):
        [answer] = client.complete([[1, 9]], sampling=Sampling(max_tokens=5, stop=("!",), seed=2))
    assert answer.prompt_token_ids == [1, 9]
    assert answer.completions == [Completion([7, 8], [-0.5, -0.5], "stop", "hi", 3)]
    [body] = [body for path, body in engine.asked if path == "/v1/completions"]
    assert body == {
        "prompt": [1, 9], "n": 1, "max_tokens": 5, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "stop": ["!"],
        "stop_token_ids": [], "ignore_eos": False, "logprobs": 0, "return_token_ids": True, "seed": 2,
    }  # fmt: skip


def test_a_completion_that_an_update_overtook_is_asked_for_again() -> None:
    said = [vllm_completion("old", [7]), vllm_completion("new", [8])]
    with (
        recorded({"/v1/completions": said, **weight_info("3", "4", "4", "4")}) as engine,
        VLLMEngine(engine.url) as client,
    ):
        [answer] = client.complete(["1"])
    assert [(one.text, one.version) for one in answer.completions] == [("new", 4)]


def test_vllm_takes_weights_in_four_phases_while_it_is_paused(tmp_path: Path) -> None:
    with recorded(vllm("3", "4")) as engine, VLLMEngine(engine.url, weights_folder=tmp_path) as client:
        client.update(language_policy(), 4)
    assert engine.paths == [PAUSE, *PHASES, "/resume"]
    bodies = dict(engine.asked)
    assert bodies["/init_weight_transfer_engine"] == {"init_info": {}}
    assert bodies["/update_weights"] == {"update_info": {"path": str(tmp_path / "version-4")}}
    assert bodies["/finish_weight_update"] == {"weight_version": "4"}
    assert (tmp_path / "version-4" / "policy.safetensors").is_file()


def test_vllm_takes_weights_by_a_reload(tmp_path: Path) -> None:
    with (
        recorded(vllm("3", "4")) as engine,
        VLLMEngine(engine.url, transfer="reload", weights_folder=tmp_path) as client,
    ):
        client.update(language_policy(), 4)
    assert engine.paths == [PAUSE, "/collective_rpc", "/update_weight_version", "/resume"]
    arguments = {"weights_path": str(tmp_path / "version-4")}
    assert dict(engine.asked)["/collective_rpc"] == {"method": "reload_weights", "kwargs": arguments}


@pytest.mark.parametrize(
    ("versions", "failure", "reason"),
    [
        (("3", "3"), {"update_weights": (500, {"error": "out of memory"})}, "out of memory"),
        (("3", "3"), {"finish_weight_update": (500, {"error": "no checkpoint"})}, "no checkpoint"),
        (("3", "3"), {"finish_weight_update": (0, None)}, "timed out"),
        (("3", "7", "3"), {}, "serves version 7 after it was given version 4"),
    ],
)
def test_after_half_an_update_vllm_gets_the_version_before_again(
    versions: tuple[str, ...], failure: dict[str, Answer], reason: str, tmp_path: Path
) -> None:
    with (
        recorded(vllm(*versions, **failure)) as engine,
        VLLMEngine(
            engine.url, weights_folder=tmp_path, first_weights=tmp_path / "first", timeout_seconds=0.5
        ) as client,
        pytest.raises(ServiceError, match="version 3 goes on being served") as raised,
    ):
        client.update(language_policy(), 4)
    assert reason in str(raised.value)
    assert engine.paths[-5:] == [*PHASES, "/resume"]
    last = [body for path, body in engine.asked if path in ("/update_weights", "/finish_weight_update")][-2:]
    assert last == [{"update_info": {"path": str(tmp_path / "first")}}, {"weight_version": "3"}]


@pytest.mark.parametrize("goes_back", [False, True])
def test_what_holds_nobody_knows_what_stays_paused(goes_back: bool, tmp_path: Path) -> None:
    answers = vllm("3")
    answers["/update_weights"] = [(500, {"error": "out of memory"})]
    first = tmp_path / "first" if goes_back else None
    with (
        recorded(answers) as engine,
        VLLMEngine(engine.url, weights_folder=tmp_path, first_weights=first) as client,
        pytest.raises(ServiceError, match="it stays paused") as raised,
    ):
        client.update(language_policy(), 4)
    assert "/resume" not in engine.paths
    assert ("going back failed, too" in str(raised.value)) is goes_back


def test_what_vllm_refuses_at_once_changes_nothing(tmp_path: Path) -> None:
    refusal = {"start_weight_update": (400, {"error": "no backend"})}
    with (
        recorded(vllm("3", **refusal)) as engine,
        VLLMEngine(engine.url, weights_folder=tmp_path) as client,
        pytest.raises(ServiceError, match="version 3 goes on being served.*no backend"),
    ):
        client.update(language_policy(), 4)
    assert engine.paths == [PAUSE, *PHASES[:2], "/resume"]


def test_a_pause_that_fails_begins_no_update(tmp_path: Path) -> None:
    answers = {**vllm("3"), PAUSE: [(500, {"error": "Failed to pause generation"})]}
    with (
        recorded(answers) as engine,
        VLLMEngine(engine.url, weights_folder=tmp_path) as client,
        pytest.raises(ServiceError, match="Failed to pause"),
    ):
        client.update(language_policy(), 4)
    assert engine.paths == [PAUSE, "/resume"]


def test_vllm_without_development_mode_is_named() -> None:
    with (
        recorded({}) as engine,
        VLLMEngine(engine.url) as client,
        pytest.raises(ServiceError, match="VLLM_SERVER_DEV_MODE=1"),
    ):
        _ = client.version


def test_what_is_busy_is_asked_again() -> None:
    said: list[Answer] = [(503, {"error": "busy"}), vllm_completion("hi", [7])]
    with recorded({"/v1/completions": said, **weight_info("3")}) as engine, VLLMEngine(engine.url) as client:
        assert client.complete(["1"])[0].completions[0].text == "hi"


def test_another_server_is_named() -> None:
    said: dict[str, list[Answer]] = {"/v1/completions": [(200, {"message": "AtroposLib API"})], **weight_info("3")}
    with (
        recorded(said) as engine,
        VLLMEngine(engine.url) as client,
        pytest.raises(ServiceError, match="the engine's answer has no choices"),
    ):
        client.complete(["1"])


def sglang(version: str, **others: list[Answer]) -> dict[str, list[Answer]]:
    """An SGLang server; `others` replace its answers."""
    taken = {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
    answers: dict[str, list[Answer]] = {
        "/model_info": [(200, {"model_path": "m", "is_generation": True, "weight_version": version})],
        "/pause_generation": [(200, {"message": "Generation paused successfully.", "status": "ok"})],
        "/continue_generation": [(200, {"message": "Generation continued successfully.", "status": "ok"})],
        "/update_weights_from_disk": [(200, taken)],
        "/tokenize": [(200, {"tokens": [1, 9], "count": 2, "max_model_len": 4_096})],
    }
    return {**answers, **{f"/{path}": said for path, said in others.items()}}


def sglang_completion(text: str, reason: dict[str, Any], version: str) -> dict[str, Any]:
    meta_info = {
        "id": "a", "finish_reason": reason, "prompt_tokens": 2, "weight_version": version, "completion_tokens": 1,
        "cached_tokens": 1, "e2e_latency": 0.1, "input_token_logprobs": [], "output_token_logprobs": [[-0.5, 7, None]],
    }  # fmt: skip
    return {"text": text, "output_ids": [7], "meta_info": meta_info}


def test_sglang_completes_and_tells_the_version() -> None:
    said = [sglang_completion(text, {"type": "stop", "matched": 2}, "3") for text in ("a", "b")]
    with recorded(sglang("3", generate=[(200, said)])) as engine, SGLangEngine(engine.url) as client:
        [answer] = client.complete(["1"], n=2, sampling=Sampling(max_tokens=5, seed=2))
    assert answer.prompt_token_ids == [1, 9]
    assert answer.completions == [Completion([7], [-0.5], "stop", text, 3, 2) for text in ("a", "b")]
    body = dict(engine.asked)["/generate"]
    assert (body["input_ids"], body["return_logprob"]) == ([1, 9], True)
    assert body["sampling_params"] == {
        "n": 2, "max_new_tokens": 5, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "stop": [], "stop_token_ids": [],
        "ignore_eos": False, "sampling_seed": 2,
    }  # fmt: skip


def test_what_an_update_of_sglang_cut_short_is_asked_for_again() -> None:
    cut = sglang_completion("ol", {"type": "abort", "message": "Abort before prefill"}, "3")
    whole = sglang_completion("new", {"type": "length", "length": 1}, "4")
    with recorded(sglang("4", generate=[(200, cut), (200, whole)])) as engine, SGLangEngine(engine.url) as client:
        [answer] = client.complete([[1, 9]])
    assert [(one.text, one.version, one.finish_reason) for one in answer.completions] == [("new", 4, "length")]


def test_weights_that_were_given_no_version_are_version_0() -> None:
    with recorded(sglang("default")) as engine, SGLangEngine(engine.url) as client:
        assert client.version == 0


def test_sglang_takes_weights_from_a_folder_while_it_is_paused(tmp_path: Path) -> None:
    answers = sglang("4")
    answers["/model_info"].insert(0, (200, {"weight_version": "3"}))
    with recorded(answers) as engine, SGLangEngine(engine.url, weights_folder=tmp_path) as client:
        client.update(language_policy(), 4)
    assert engine.paths == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
    assert dict(engine.asked)["/pause_generation"] == {"mode": "abort"}
    assert dict(engine.asked)["/update_weights_from_disk"] == {
        "model_path": str(tmp_path / "version-4"), "weight_version": "4", "flush_cache": True,
    }  # fmt: skip


@pytest.mark.parametrize("status", [200, 400])
def test_weights_that_sglang_refuses_leave_the_version_before(status: int, tmp_path: Path) -> None:
    refused = (status, {"success": False, "message": "Failed to get weights iterator", "num_paused_requests": 0})
    answers = sglang("3", update_weights_from_disk=[refused])
    with (
        recorded(answers) as engine,
        SGLangEngine(engine.url, weights_folder=tmp_path) as client,
        pytest.raises(ServiceError, match="version 3 goes on being served.*Failed to get weights iterator"),
    ):
        client.update(language_policy(), 4)
    assert engine.paths[-1] == "/continue_generation"
