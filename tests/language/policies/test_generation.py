"""Generation: cached equals uncached, samples follow the probabilities, and seeds give the same answers."""

from collections import Counter

import pytest
import torch

from loomrl.errors import ConfigError, LoomRLError
from loomrl.language.policies.generation import GREEDY, generate
from loomrl.language.policies.sampling import SamplingConfig, TokenCompletion
from loomrl.language.policies.tokens import BOS, EOS
from tests.support.language_models import DIGITS, plain_hidden, plain_log_probs, small_policy

PROMPTS = ["1+2=", "47+38=", "=", "9+9+9+9="]  # of different lengths: padded


def draw(sampling: SamplingConfig, seed: int = 0, num_samples: int = 8) -> list[list[TokenCompletion]]:
    return small_policy(noise=0.3).answer(PROMPTS, num_samples, sampling, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_log_probs_are_those_of_a_pass_without_cache_or_padding(temperature: float) -> None:
    model = small_policy(noise=0.3).model
    completions = draw(SamplingConfig(temperature=temperature, max_tokens=10))
    for prompt, answers in zip(PROMPTS, completions, strict=True):
        before = DIGITS.prompt(prompt)
        for answer in answers:
            expected = plain_log_probs(model, before + answer.token_ids, temperature or 1.0)[len(before) - 1 :]
            torch.testing.assert_close(torch.tensor(answer.log_probs), expected, atol=2e-5, rtol=1e-4)


def test_greedy_takes_the_likeliest_token_each_time() -> None:
    model = small_policy(noise=0.3).model
    for prompt, answers in zip(PROMPTS, draw(GREEDY.model_copy(update={"max_tokens": 6})), strict=True):
        tokens = DIGITS.prompt(prompt)
        for token in answers[0].token_ids:
            assert token == int(model.logits(plain_hidden(model, tokens)[-1]).argmax())
            tokens.append(token)
        assert all(answer == answers[0] for answer in answers)


def test_samples_come_as_often_as_they_are_likely() -> None:
    policy = small_policy(noise=0.3)
    num_samples = 20_000
    generator = torch.Generator().manual_seed(3)
    (answers,) = policy.answer(["1+2="], num_samples, SamplingConfig(max_tokens=2), generator)
    counted = Counter(tuple(answer.token_ids) for answer in answers)
    for tokens, count in counted.most_common(20):
        log_probs = plain_log_probs(policy.model, [*DIGITS.prompt("1+2="), *tokens])[-len(tokens) :]
        likely = log_probs.detach().sum().exp().item()
        assert count / num_samples == pytest.approx(likely, abs=4 * (likely / num_samples) ** 0.5)


def test_the_end_ends_an_answer_and_so_do_stop_tokens() -> None:
    stop = DIGITS.encode("7")[0]
    answers = [
        answer for row in draw(SamplingConfig(max_tokens=12, stop_token_ids=(stop,)), num_samples=50) for answer in row
    ]
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}
    for answer in answers:
        ended = [token in (EOS, stop) for token in answer.token_ids]
        assert not any(ended[:-1])
        assert ended[-1] == (answer.finish_reason == "stop")
        assert answer.finish_reason == "stop" or len(answer.token_ids) == 12
        assert len(answer.log_probs) == len(answer.token_ids)


def test_seeds_decide() -> None:
    assert draw(SamplingConfig(max_tokens=8)) == draw(SamplingConfig(max_tokens=8))
    assert draw(SamplingConfig(max_tokens=8)) != draw(SamplingConfig(max_tokens=8), seed=1)


@pytest.mark.parametrize("sampling", [SamplingConfig(max_tokens=1, top_k=2), SamplingConfig(max_tokens=1, top_p=0.5)])
def test_nothing_is_drawn_that_was_cut_off(sampling: SamplingConfig) -> None:
    policy = small_policy(noise=0.3)
    (answers,) = policy.answer(["1+2="], 500, sampling, torch.Generator().manual_seed(0))
    logits = policy.model.logits(plain_hidden(policy.model, DIGITS.prompt("1+2="))[-1])
    probs, order = torch.softmax(logits, -1).sort(descending=True)
    num_kept = 2 if sampling.top_k else int((probs.cumsum(0) < 0.5).sum()) + 1
    drawn = Counter(answer.token_ids[0] for answer in answers)
    assert set(drawn) == set(order[:num_kept].tolist())
    share = (probs[0] / probs[:num_kept].sum()).item()
    assert drawn[int(order[0])] / 500 == pytest.approx(share, abs=0.1)


def test_prompts_that_leave_no_room_are_refused() -> None:
    policy = small_policy()
    generator = torch.Generator()
    with pytest.raises(ConfigError, match="leaves no room"):
        policy.answer(["1" * 20], 1, SamplingConfig(max_tokens=10), generator)
    with pytest.raises(ConfigError, match="empty"):
        generate(policy.model, [[BOS], []], 1, GREEDY, generator)
    assert generate(policy.model, [], 1, GREEDY, generator) == []


def test_logits_that_are_no_numbers_are_named() -> None:
    policy = small_policy()
    with torch.no_grad():
        policy.model.token_embedding.weight.fill_(3e38)
    with pytest.raises(LoomRLError, match="logits are no numbers: its weights have grown too large"):
        policy.answer(["1+2="], 2, SamplingConfig(max_tokens=3), torch.Generator())
