"""A model of Hugging Face's behind the built-in engine: in this process and over HTTP."""

from pathlib import Path

import httpx
import pytest
import torch

pytest.importorskip("transformers", reason="the extra `huggingface` is not installed")

from loomrl.errors import ConfigError
from loomrl.language.inference import Completions, Sampling
from loomrl.language.inference.builtin import BuiltinEngine
from loomrl.language.inference.hf_tokenizer import write_tokenizer
from loomrl.language.inference.process import EngineProcess
from loomrl.language.inference.sglang import SGLangEngine
from loomrl.language.inference.vllm import VLLMEngine
from loomrl.language.learning.examples import ExampleLearner, example
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.pretrained import PretrainedPolicy
from tests.support.pretrained_models import CONFIGS, own_log_probs, write_model

PROMPTS = ["1+2=", "a longer prompt than that: "]
SAMPLING = Sampling(max_tokens=9, temperature=0.8, seed=4)


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_model(tmp_path / request.param, CONFIGS[request.param])


def check_made_by(folder: Path, answers: list[Completions]) -> None:
    for answer in answers:
        for one in answer.completions:
            expected = own_log_probs(folder, answer.prompt_token_ids, one.token_ids, SAMPLING.temperature)
            torch.testing.assert_close(torch.tensor(one.log_probs), expected, atol=1e-4, rtol=1e-4)


def taught(folder: Path, to: Path) -> PretrainedPolicy:
    """The policy of a folder after a lesson, and its files."""
    policy = PretrainedPolicy.open(folder)
    ExampleLearner(policy, 1e-2, 1.0).step([example(policy.tokenizer, "1+2=", "3")])
    policy.save(to)
    return policy


def test_completions_have_the_log_probabilities_of_the_model_s_own_pass(folder: Path) -> None:
    with BuiltinEngine(LanguagePolicy.load(folder), max_running=3) as engine:
        check_made_by(folder, engine.complete(PROMPTS, n=4, sampling=SAMPLING))


@pytest.mark.long  # `test_builtin.py` and `test_clients.py` take weights into servers of the small transformer
@pytest.mark.parametrize(("name", "kind"), [("gpt2", SGLangEngine), ("llama", VLLMEngine)])
def test_a_served_model_takes_the_trainer_s_weights(
    tmp_path: Path, name: str, kind: type[SGLangEngine | VLLMEngine]
) -> None:
    folder = write_model(tmp_path / name, CONFIGS[name])
    policy = taught(folder, tmp_path / "taught")
    with EngineProcess(policy=folder) as served, kind(served.url) as engine:
        check_made_by(folder, engine.complete(PROMPTS, n=2, sampling=SAMPLING))
        engine.update(policy, 1)
        answers = engine.complete(PROMPTS, n=2, sampling=SAMPLING)
        assert {one.version for answer in answers for one in answer.completions} == {1}
        check_made_by(tmp_path / "taught", answers)
        refused = httpx.post(f"{served.url}/update_weights_from_disk", json={"model_path": "/nowhere"})
        assert refused.status_code == 400
        said = {"messages": [{"role": "user", "content": "1+2="}], "max_tokens": 3, "return_token_ids": True}
        told = httpx.post(f"{served.url}/v1/chat/completions", json=said).json()
        assert told["prompt_token_ids"] == policy.tokenizer.prompt("1+2=")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    gpt2, llama = (LanguagePolicy.load(write_model(tmp_path / name, CONFIGS[name])) for name in ("gpt2", "llama"))
    with BuiltinEngine(gpt2) as engine, pytest.raises(ConfigError, match="is another model"):
        engine.update(llama, 1)


def test_its_tokenizer_needs_no_other_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Hugging Face's own already: pass the policy's folder"):
        write_tokenizer(LanguagePolicy.load(folder).tokenizer, tmp_path / "other", 64)
    assert not (tmp_path / "other").exists()
