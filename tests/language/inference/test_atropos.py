"""Atropos' own clients of inference servers, unmodified, against the built-in engine: all kinds it has for engines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loomrl.language.inference.hf_tokenizer import write_tokenizer
from loomrl.language.inference.process import EngineProcess
from loomrl.language.policies.policy import LanguagePolicy
from tests.support.atropos import ask_reference, need_reference
from tests.support.language_policies import log_probs_of

_ASK = """
import asyncio, json, os, sys
said = os.dup(1)
os.dup2(2, 1)  # what the reference prints is no answer
from atroposlib.envs.server_handling.server_baseline import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager

asked = json.load(sys.stdin)

async def main():
    config = APIServerConfig(
        model_name="any", base_url=asked["url"] + "/v1", api_key="x", server_type=asked["kind"],
        tokenizer_name=asked["tokenizer"], timeout=60,
    )
    manager = ServerManager([config], max_n_completions=3)
    drawn = dict(n=4, max_tokens=6, temperature=1.0, top_p=1.0, stop=["zz"])
    completion = await manager.completion(prompt="1+2=", **drawn)
    chat = await manager.chat_completion(messages=[{"role": "user", "content": "1+2="}], **drawn)
    found = {
        "texts": [choice.text for choice in completion.choices],
        "reasons": [choice.finish_reason for choice in completion.choices],
        "messages": [choice.message.content for choice in chat.choices],
    }
    if asked["kind"] != "openai":
        found["tokens"] = await manager.tokens_and_logprobs_completion(prompt="1+2=", **drawn)
        async with manager.managed_server() as managed:
            await managed.completion(prompt="1+2=", **drawn)
            nodes = managed.get_state()["nodes"]
            found["nodes"] = [[node.tokens, node.masked_tokens, node.logprobs] for node in nodes]
    os.write(said, json.dumps(found).encode())
    os._exit(0)  # its health checks go on for ever

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def byte_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LanguagePolicy, str, Path]]:
    """A policy of bytes, for health checks say "hi"; where it is served, and its tokenizer's folder."""
    need_reference()
    folder = tmp_path_factory.mktemp("policy")
    policy = LanguagePolicy.fresh(0, width=16, num_heads=2)
    policy.save(folder / "policy")
    write_tokenizer(policy.tokenizer, folder / "tokenizer", policy.model.config.max_tokens)
    with EngineProcess(policy=folder / "policy") as engine:
        yield policy, engine.url, folder / "tokenizer"


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang"])
def test_atropos_asks_it_as_any_other(kind: str, byte_engine: tuple[LanguagePolicy, str, Path]) -> None:
    policy, url, tokenizer = byte_engine
    found: dict[str, Any] = ask_reference(_ASK, {"url": url, "kind": kind, "tokenizer": str(tokenizer)})
    assert len(found["texts"]) == len(found["messages"]) == 4
    assert set(found["reasons"]) <= {"length", "stop"}
    if kind == "openai":
        return
    prompt, answers, log_probs, reasons = found["tokens"]
    assert prompt == policy.tokenizer.prompt("1+2=")
    assert len(answers) == len(log_probs) == len(reasons) == 4
    for tokens, told in zip(answers, log_probs, strict=True):
        assert told == pytest.approx(log_probs_of(policy, prompt, tokens, 1.0), abs=1e-4)
    for tokens, mask, told in found["nodes"]:
        answer = tokens[len(prompt) :]
        assert (tokens[: len(prompt)], mask) == (prompt, [-100] * len(prompt) + answer)
        assert told[: len(prompt)] == [1.0] * len(prompt)
        assert told[len(prompt) :] == pytest.approx(log_probs_of(policy, prompt, answer, 1.0), abs=1e-4)
