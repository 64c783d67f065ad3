"""Episodes as a language policy plays them: what it reads, what it wrote, and how an episode ends."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from loomrl.errors import EnvironmentFault
from loomrl.gym.domains import get_domain
from loomrl.gym.tasks import Task
from loomrl.language.policies.tokens import BOS, EOS, ByteTokenizer
from loomrl.training.integrated.config import SHORT_KINDS
from loomrl.training.integrated.dialogue import PolicyMessage, TaskAttempt, demonstration, play

TOKENIZER = ByteTokenizer()
MASKED, NO_LOG_PROB = -100, 1.0  # of the wire


def drawn(domain: str, kind: str, seed: int = 0, level: int = 0) -> Task:
    return get_domain(domain).generate(np.random.default_rng(seed), level, [kind])


def said(text: str, version: int = 0) -> PolicyMessage:
    tokens = TOKENIZER.answer(text)
    return PolicyMessage(tokens, [-0.5] * len(tokens), version)


def attempt(task: Task, max_turns: int = 8, max_prompt_tokens: int = 200) -> TaskAttempt:
    return TaskAttempt(task, TOKENIZER, max_turns, max_prompt_tokens)


def test_a_policy_reads_all_that_was_said_before_its_turn() -> None:
    task = drawn("tool_call", "product")
    call, answer = task.right.split("\n")
    product = json.loads(answer)["answer"]
    played = attempt(task)
    assert played.dialogue.tokens == [BOS, *TOKENIZER.encode(task.prompt)]
    played.step(said(call, version=4))
    reply = [BOS, *TOKENIZER.encode(json.dumps({"result": product}))]
    before = [BOS, *TOKENIZER.encode(task.prompt), *TOKENIZER.encode(call), EOS, *reply]
    assert played.dialogue.tokens == before
    played.step(said(answer, version=3))
    assert played.is_over
    assert played.has_succeeded
    assert played.dialogue.tokens == before + TOKENIZER.answer(answer)
    assert played.dialogue.version == 3


def test_only_what_the_policy_wrote_is_learnt() -> None:
    task = drawn("tool_call", "product")
    call, answer = task.right.split("\n")
    played = attempt(task)
    played.step(said(call))
    played.step(said(answer))
    dialogue = played.dialogue
    own = [token for token, mask in zip(dialogue.tokens, dialogue.masks, strict=True) if mask != MASKED]
    assert own == TOKENIZER.answer(call) + TOKENIZER.answer(answer)
    for token, mask, log_prob in zip(dialogue.tokens, dialogue.masks, dialogue.log_probs, strict=True):
        assert (mask, log_prob) in ((MASKED, NO_LOG_PROB), (token, -0.5))


@pytest.mark.parametrize("domain", sorted(SHORT_KINDS))
def test_a_demonstration_solves_its_task(domain: str) -> None:
    for seed, level in enumerate((0, 1, 2, 5)):
        task = drawn(domain, SHORT_KINDS[domain][0], seed, level)
        dialogue = demonstration(task, TOKENIZER, max_prompt_tokens=200, max_message_tokens=72)
        assert TOKENIZER.decode(dialogue.tokens).startswith(task.prompt)


def test_a_demonstration_needs_room() -> None:
    with pytest.raises(EnvironmentFault, match="tool_call: a task of kind product .* raise max_sequence_tokens"):
        demonstration(drawn("tool_call", "product"), TOKENIZER, max_prompt_tokens=30, max_message_tokens=72)
    with pytest.raises(EnvironmentFault, match="product is solved by a message of .* max_message_tokens is 8"):
        demonstration(drawn("tool_call", "product"), TOKENIZER, max_prompt_tokens=200, max_message_tokens=8)


def test_an_episode_ends_after_so_many_messages() -> None:
    played = attempt(drawn("tool_call", "product"), max_turns=2)
    for _ in range(2):
        assert not played.is_over
        played.step(said("nonsense"))
    assert played.is_over
    assert played.score == 0.0
    assert played.fault is None


def test_an_episode_ends_where_a_reply_does_not_fit() -> None:
    task = drawn("tool_call", "product")
    call = task.right.split("\n")[0]
    room = 1 + len(task.prompt) + len(TOKENIZER.answer(call)) + 3
    played = attempt(task, max_prompt_tokens=room)
    played.step(said(call))
    assert played.is_over
    assert played.fault is None
    assert len(played.dialogue.tokens) == room - 3


def test_a_prompt_that_is_too_long_is_a_fault() -> None:
    played = attempt(drawn("math", "linear"), max_prompt_tokens=20)
    assert played.is_over
    assert "math: a task of kind linear is a prompt of more than 20 tokens" in str(played.fault)


def broken(*_: Any) -> Any:
    raise RuntimeError("the board fell off the table")


def test_what_a_domain_breaks_is_told_with_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    domain, task = get_domain("math"), drawn("math", "addition")
    monkeypatch.setattr(domain, "verify", broken)
    played = attempt(task)
    played.step(said("4"))
    assert played.is_over
    assert "math: a task of kind addition broke: RuntimeError('the board fell off the table')" in str(played.fault)
    monkeypatch.setattr(domain, "begin", broken)
    assert "broke" in str(attempt(task).fault)


def test_an_episode_that_cannot_be_closed_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    task = drawn("math", "addition")
    monkeypatch.setattr(type(get_domain("math").begin(task)), "close", broken)
    played = attempt(task)
    played.step(said("4"))
    assert played.is_over
    assert "broke: RuntimeError('the board fell off the table')" in str(played.fault)


def test_a_score_that_is_no_number_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = get_domain("math")
    monkeypatch.setattr(domain, "verify", lambda *_: dict.fromkeys(domain.weights, float("nan")))
    played = attempt(drawn("math", "addition"))
    played.step(said("4"))
    assert "was scored nan" in str(played.fault)


def test_episodes_are_played_together_until_all_are_over() -> None:
    tasks = [drawn("math", "addition"), drawn("tool_call", "product")]
    episodes = [attempt(task) for task in tasks]
    asked: list[int] = []

    def answer(prompts: Sequence[Sequence[int]]) -> list[PolicyMessage]:
        asked.append(len(prompts))
        texts = [TOKENIZER.decode(prompt) for prompt in prompts]
        rights = [task.right.split("\n") for text in texts for task in tasks if text.startswith(task.prompt)]
        return [said(right["result" in text]) for right, text in zip(rights, texts, strict=True)]

    play(episodes, answer)
    assert asked == [2, 1]
    assert [episode.score for episode in episodes] == pytest.approx([1.0, 1.0])
