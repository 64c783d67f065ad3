"""The clients of vLLM and SGLang against a server that speaks both: the built-in engine's."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import httpx
import pytest

from loomrl.errors import ServiceError
from loomrl.language.inference import Completions, Sampling
from loomrl.language.inference.process import EngineProcess
from loomrl.language.inference.remote import RemoteEngine
from loomrl.language.inference.sglang import SGLangEngine
from loomrl.language.inference.vllm import VLLMEngine
from tests.support.language_policies import check_made_by, language_policy

WAYS = ["vllm", "vllm-reload", "vllm-body", "sglang", "sglang-body"]


@pytest.fixture(params=WAYS)
def engine(
    request: pytest.FixtureRequest, engine_process: EngineProcess, server: httpx.Client, tmp_path: Path
) -> Iterator[RemoteEngine]:
    """Each client, and each way to hand weights over."""
    kind, _, way = request.param.partition("-")
    folder = None if way == "body" else tmp_path / "weights"
    if kind == "sglang":
        made: RemoteEngine = SGLangEngine(engine_process.url, weights_folder=folder)
    else:
        transfer = "reload" if way == "reload" else "update"
        made = VLLMEngine(f"{engine_process.url}/v1", transfer=transfer, weights_folder=folder)
    with made:
        yield made


def test_completions(engine: RemoteEngine) -> None:
    sampling = Sampling(max_tokens=12, temperature=0.7, top_p=0.9, top_k=9, stop=("+",), seed=4)
    answers = engine.complete(["1+2=", [1, 4, 5], ""], n=3, sampling=sampling)
    assert [answer.prompt_token_ids for answer in answers] == [[1, 4, 13, 5, 14], [1, 4, 5], [1]]
    policy = language_policy()
    for answer in answers:
        assert len(answer.completions) == 3
        for one in answer.completions:
            check_made_by(policy, answer, one, 0.7)
            assert one.version == 0
            assert policy.tokenizer.decode(one.token_ids).removesuffix("+") == one.text
            assert (one.finish_reason, one.stopped_by) in [("length", None), ("stop", "+"), ("stop", 2)]


def test_a_seed_repeats_a_call_and_not_its_answers(engine: RemoteEngine) -> None:
    def tokens() -> list[list[int]]:
        answers = engine.complete(["1+2="] * 4, n=2, sampling=Sampling(max_tokens=12, temperature=2.0, seed=4))
        return [one.token_ids for answer in answers for one in answer.completions]

    first = tokens()
    assert tokens() == first
    assert len(set(map(tuple, first))) == 8


def test_an_update_is_served_and_read_back(engine: RemoteEngine) -> None:
    for version in (1, 2):
        assert engine.load_policy(language_policy(version)) == version
        assert engine.version == version
        [answer] = engine.complete(["1+2="], n=2, sampling=Sampling(max_tokens=8, seed=1))
        for one in answer.completions:
            assert one.version == version
            check_made_by(language_policy(version), answer, one, 1.0)


def test_updates_under_load_leave_every_completion_of_one_version(engine: RemoteEngine) -> None:
    policies = [language_policy(seed) for seed in range(3)]
    answers: list[Completions] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            answers.extend(engine.complete(["1+2=", "3"], n=2, sampling=Sampling(max_tokens=30, ignore_eos=True)))

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        for version in (1, 2):
            wait_for_more(answers)
            engine.update(policies[version], version)
        wait_for_more(answers)
        done.set()
        for one in asking:
            one.result()
    assert {one.version for answer in answers for one in answer.completions} >= {0, 2}
    for answer in answers[:: max(1, len(answers) // 30)]:
        assert len({one.version for one in answer.completions}) == 1
        for one in answer.completions:
            assert one.finish_reason == "length"
            check_made_by(policies[one.version], answer, one, 1.0)


def wait_for_more(answers: list[Completions]) -> None:
    seen = len(answers) + 8
    while len(answers) < seen:
        time.sleep(0.005)


def test_a_refused_update_leaves_the_version_before_served(engine: RemoteEngine) -> None:
    with pytest.raises(ServiceError, match="version 0 goes on being served") as raised:
        engine.update(language_policy(1, max_tokens=20), 1)
    assert "max_tokens" in str(raised.value) or "position_embedding" in str(raised.value)
    assert engine.version == 0
    [answer] = engine.complete(["1+2="], sampling=Sampling(max_tokens=8))
    check_made_by(language_policy(), answer, answer.completions[0], 1.0)


@pytest.mark.parametrize("transfer", ["update", "reload"])
def test_weights_that_came_without_their_version_are_taken_back(
    transfer: Literal["update", "reload"],
    engine_process: EngineProcess,
    server: httpx.Client,
    policy_folders: list[Path],
    tmp_path: Path,
) -> None:
    with VLLMEngine(
        engine_process.url, transfer=transfer, weights_folder=tmp_path, first_weights=policy_folders[0]
    ) as engine:
        with pytest.raises(ServiceError, match="version 0 goes on being served"):
            engine.update(language_policy(1), 10**18)  # a version that the server refuses when the weights have come
        assert engine.version == 0
        [answer] = engine.complete(["1+2="], sampling=Sampling(max_tokens=8))
        check_made_by(language_policy(), answer, answer.completions[0], 1.0)


def test_a_prompt_that_cannot_be_read_is_an_error_that_says_so(engine: RemoteEngine) -> None:
    with pytest.raises(ServiceError, match="leaves no room"):
        engine.complete(["1" * 60])


def test_only_one_folder_of_weights_is_kept(
    engine_process: EngineProcess, server: httpx.Client, tmp_path: Path
) -> None:
    with SGLangEngine(engine_process.url, weights_folder=tmp_path) as engine:
        for version in (1, 2):
            engine.update(language_policy(version), version)
        assert [folder.name for folder in tmp_path.iterdir()] == ["version-2"]


def test_rollouts_of_states_of_the_gym(engine_process: EngineProcess, server: httpx.Client) -> None:
    with VLLMEngine(engine_process.url) as engine:
        rollouts = engine.generate_rollouts(["1+2=", "3-1="], n=2, sampling=Sampling(max_tokens=5))
    assert [one.state for one in rollouts] == ["1+2=", "1+2=", "3-1=", "3-1="]
    assert all(one.version == 0 and one.mask[:5] == [-100] * 5 for one in rollouts)


@pytest.mark.parametrize("kind", [VLLMEngine, SGLangEngine])
def test_an_engine_that_is_not_there_is_named(kind: type[RemoteEngine]) -> None:
    with (
        kind("http://127.0.0.1:9", patience_seconds=0.0) as engine,
        pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:9.*is the engine running"),
    ):
        engine.complete(["1"])
