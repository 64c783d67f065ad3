"""Models of Hugging Face's: the same log-probabilities as their own, learning, files, and what is refused."""

import json
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `huggingface` is not installed")

import transformers

from loomrl.errors import ArtifactError, ConfigError
from loomrl.language.learning.batch import TokenBatch, answer_states, token_log_probs
from loomrl.language.learning.examples import example, supervised_loss
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.grpo import GRPO
from loomrl.language.learning.learner import LearnerConfig
from loomrl.language.learning.ppo import LanguagePPO, LanguagePPOConfig
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.pretrained import PretrainedPolicy
from loomrl.language.policies.sampling import SamplingConfig
from loomrl.language.policies.tokens import BOS
from tests.support.pretrained_models import CONFIGS, ENDS, MAX_POSITIONS, own_log_probs, write_model

PROMPTS = ["1+2=", "a much longer prompt: ", "7"]


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_model(tmp_path / request.param, CONFIGS[request.param])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.long_cases("gpt2-0.6", "llama-1.0")
def test_drawn_tokens_have_the_log_probabilities_of_the_model_s_own_pass(folder: Path, temperature: float) -> None:
    policy = LanguagePolicy.load(folder)
    sampling = SamplingConfig(temperature=temperature, max_tokens=12)
    answers = policy.answer(PROMPTS, 3, sampling, torch.Generator().manual_seed(0))
    for prompt, group in zip(PROMPTS, answers, strict=True):
        for one in group:
            expected = own_log_probs(folder, policy.tokenizer.prompt(prompt), one.token_ids, temperature)
            torch.testing.assert_close(torch.tensor(one.log_probs), expected, atol=1e-4, rtol=1e-4)


def test_greedy_answers_are_those_of_transformers(folder: Path) -> None:
    policy = LanguagePolicy.load(folder)
    greedy = SamplingConfig(temperature=0.0, max_tokens=10, ignore_eos=True)
    causal = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for prompt, (answer,) in zip(PROMPTS, policy.answer(PROMPTS, 1, greedy, torch.Generator()), strict=True):
        tokens = torch.tensor([policy.tokenizer.prompt(prompt)])
        found = causal.generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=10, eos_token_id=None
        )
        assert answer.token_ids == found[0, tokens.shape[1] :].tolist()


def test_learning_reads_the_log_probabilities_that_were_drawn(folder: Path) -> None:
    policy = LanguagePolicy.load(folder)
    groups = answered(policy, seed=1)
    batch = TokenBatch.of_groups(groups)
    found = token_log_probs(policy.model, batch, answer_states(policy.model, batch))
    drawn = batch.aligned([row for group in groups for row in group.log_probs or []], groups)
    torch.testing.assert_close(found, drawn * batch.loss_mask, atol=1e-4, rtol=1e-4)


def test_gradients_are_those_of_transformers_own_loss(folder: Path) -> None:
    policy = PretrainedPolicy.open(folder)
    prompt, right = "1+2=", "3"
    torch.autograd.backward(supervised_loss(policy, [example(policy.tokenizer, prompt, right)]))
    causal = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    before, answer = policy.tokenizer.prompt(prompt), policy.tokenizer.answer(right)
    labels = torch.tensor([[-100] * len(before) + answer])
    torch.autograd.backward(causal(input_ids=torch.tensor([before + answer]), labels=labels).loss)
    own = dict(policy.model.causal.named_parameters())
    for name, expected in causal.named_parameters():
        torch.testing.assert_close(own[name].grad, expected.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.long_cases("gpt2-ppo", "llama-grpo")
def test_it_learns_what_is_rewarded(folder: Path, algorithm: str) -> None:
    policy = PretrainedPolicy.open(folder, value_head=algorithm == "ppo")
    learning = {"learning_rate": 1e-2, "warmup_updates": 0, "kl_coef": 0.01}
    learner = (
        LanguagePPO(LanguagePPOConfig(**learning), policy)
        if algorithm == "ppo"
        else GRPO(LearnerConfig(**learning), policy)
    )
    scores = [learner.update(answered(policy, seed, learner.version))["mean_score"] for seed in range(20)]
    assert scores[0] < 0.6
    assert scores[-1] > 0.9
    assert learner.version == 20


def test_a_saved_policy_is_the_same_and_transformers_reads_it(folder: Path, tmp_path: Path) -> None:
    policy = PretrainedPolicy.open(folder, max_tokens=40, value_head=True)
    LanguagePPO(LanguagePPOConfig(learning_rate=1e-2), policy).update(answered(policy, seed=0))
    policy.save(tmp_path / "saved")
    again = LanguagePolicy.load(tmp_path / "saved")
    assert again.model.config == policy.model.config
    for name, weight in policy.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], weight, atol=0, rtol=0)
    sampling = SamplingConfig(max_tokens=8)
    first, second = (one.answer(PROMPTS, 2, sampling, torch.Generator().manual_seed(3)) for one in (policy, again))
    assert first == second
    prompt = policy.tokenizer.prompt(PROMPTS[0])
    expected = own_log_probs(tmp_path / "saved", prompt, first[0][0].token_ids)
    torch.testing.assert_close(torch.tensor(first[0][0].log_probs), expected, atol=1e-4, rtol=1e-4)


def test_a_learner_goes_on_to_the_bit(folder: Path) -> None:
    config = LearnerConfig(kl_coef=0.1)
    policy = LanguagePolicy.load(folder)
    learner = GRPO(config, policy)
    groups = answered(policy, seed=0)
    learner.update(groups)
    again = GRPO(config, LanguagePolicy.load(folder))
    again.load_state_dict(learner.state_dict())
    assert learner.update(groups) == again.update(groups)


def test_prompts_and_answers_have_bounds(folder: Path) -> None:
    policy = LanguagePolicy.load(folder)
    assert policy.model.config.max_tokens == MAX_POSITIONS
    assert policy.tokenizer.prompt("1")[0] == BOS
    assert policy.tokenizer.decode(policy.tokenizer.answer("gr\u00fcn")) == "gr\u00fcn"
    with pytest.raises(ConfigError, match="leaves no room for the answer"):
        policy.answer(["1" * MAX_POSITIONS], 1, SamplingConfig(max_tokens=1), torch.Generator())


def test_a_chat_template_is_the_tokenizer_s_own(folder: Path) -> None:
    said = json.loads((folder / "tokenizer_config.json").read_text())
    said["chat_template"] = "{% for one in messages %}[{{ one.role }}] {{ one.content }}\n{% endfor %}>"
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    messages = [{"role": "system", "content": "add"}, {"role": "user", "content": "1+2"}]
    assert LanguagePolicy.load(folder).tokenizer.chat(messages) == "[system] add\n[user] 1+2\n>"
    said["chat_template"] = "{{ raise_exception('no system') }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match="refuses these messages: no system"):
        LanguagePolicy.load(folder).tokenizer.chat(messages)


def test_what_is_missing_is_said(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArtifactError, match="never downloaded"):
        PretrainedPolicy.open(tmp_path / "gpt2-from-somewhere")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match="holds no model and tokenizer"):
        LanguagePolicy.load(folder)
    weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"what a pickle could be")
    with pytest.raises(ArtifactError, match="holds no model and tokenizer"):
        LanguagePolicy.load(folder)
    monkeypatch.delitem(sys.modules, "loomrl.language.policies.pretrained")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"transformers is not installed; pip install 'loomrl\[huggingface\]'"):
        LanguagePolicy.load(folder)


def test_weights_that_a_file_lacks_are_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "llama", CONFIGS["llama"])
    torch.manual_seed(0)
    fewer = transformers.LlamaConfig(**{**CONFIGS["llama"].to_dict(), "num_hidden_layers": 1})
    transformers.LlamaForCausalLM(fewer).save_pretrained(tmp_path / "fewer")
    (folder / "model.safetensors").write_bytes((tmp_path / "fewer" / "model.safetensors").read_bytes())
    with pytest.raises(ArtifactError, match=r"missing or do not fit: model\.layers\.1\."):
        LanguagePolicy.load(folder)


def test_an_architecture_with_logits_of_its_own_is_refused(tmp_path: Path) -> None:
    scaled = transformers.CohereConfig(
        vocab_size=259, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, initializer_range=0.3, logit_scale=0.2, **ENDS,
    )  # fmt: skip
    folder = write_model(tmp_path / "cohere", scaled)
    with pytest.raises(ArtifactError, match="architecture cohere computes log-probabilities in a way of its own"):
        LanguagePolicy.load(folder)


def answered(policy: LanguagePolicy, seed: int, version: int = 0) -> list[TokenGroup]:
    """Groups of answers; a token is the better the lower its id."""
    sampling = SamplingConfig(max_tokens=3, ignore_eos=True)
    prompts = [policy.tokenizer.prompt(text) for text in PROMPTS]
    answers = policy.answer(PROMPTS, 16, sampling, torch.Generator().manual_seed(seed))
    return [
        TokenGroup.of_completions(
            prompt, group, [sum(token < 130 for token in one.token_ids) / len(one.token_ids) for one in group], version
        )
        for prompt, group in zip(prompts, answers, strict=True)
    ]
