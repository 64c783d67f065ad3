"""Batches: what is shared is computed once, and nothing of it changes a log-probability or a gradient."""

import pytest
import torch

from loomrl.language.learning.batch import TokenBatch, answer_states, token_log_probs, token_values
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.policies.transformer import Transformer
from tests.support.language_models import DIGITS, plain_hidden, plain_log_probs, small_policy

ANSWERS = {"1+2=": ["3", "3", "12", "3"], "47+38=": ["85", "", "85", "4711"], "=": ["1"]}


def groups() -> list[TokenGroup]:
    made = []
    for prompt, answers in ANSWERS.items():
        before = DIGITS.prompt(prompt)
        tokens = [before + DIGITS.answer(answer) for answer in answers]
        learnt = [[False] * len(before) + [True] * (len(one) - len(before)) for one in tokens]
        made.append(TokenGroup(tokens, learnt, [1.0] * len(tokens)))
    between = TokenGroup([[1, 5, 6, 7, 8, 9, 2]], [[False, True, True, False, False, True, True]], [1.0])  # two turns
    return [*made, between, TokenGroup([[1, 5, 6]], [[False] * 3], [1.0], temperatures=[0.5])]


def tempered(group: TokenGroup) -> TokenGroup:
    return TokenGroup(**{**vars(group), "temperatures": [0.5 + 0.25 * number for number in range(len(group))]})


def plain_rows(model: Transformer, all_groups: list[TokenGroup]) -> list[torch.Tensor]:
    """log p of each sample's learnt tokens, one sample at a time."""
    rows = []
    for group in all_groups:
        for number, (tokens, learnt) in enumerate(zip(group.tokens, group.loss_mask, strict=True)):
            temperature = group.temperatures[number] if group.temperatures else 1.0
            rows.append(plain_log_probs(model, tokens, temperature)[torch.tensor(learnt[1:])])
    return rows


@pytest.mark.parametrize("all_groups", [groups(), [tempered(group) for group in groups()]])
def test_log_probs_are_those_of_one_sample_at_a_time(all_groups: list[TokenGroup]) -> None:
    model = small_policy(noise=0.3).model
    batch = TokenBatch.of_groups(all_groups)
    found = token_log_probs(model, batch, answer_states(model, batch))
    for row, learnt, expected in zip(found, batch.loss_mask, plain_rows(model, all_groups), strict=True):
        torch.testing.assert_close(row[learnt], expected, atol=1e-5, rtol=1e-5)
        assert not row[~learnt].any()


def test_gradients_are_those_of_one_sample_at_a_time() -> None:
    model = small_policy(noise=0.3).model
    all_groups, weights = groups(), torch.linspace(-1.0, 2.0, sum(map(len, groups())))
    batch = TokenBatch.of_groups(all_groups)
    shared = (token_log_probs(model, batch, answer_states(model, batch)).sum(1) * weights).sum()
    alone = sum(row.sum() * weight for row, weight in zip(plain_rows(model, all_groups), weights, strict=True))
    parameters = [parameter for name, parameter in model.named_parameters() if "value" not in name]
    for first, second in zip(
        torch.autograd.grad(shared, parameters), torch.autograd.grad(alone, parameters), strict=True
    ):
        torch.testing.assert_close(first, second, atol=1e-4, rtol=1e-4)


def test_values_belong_to_the_state_before_a_token() -> None:
    model = small_policy(value_head=True).model
    all_groups = groups()
    batch = TokenBatch.of_groups(all_groups)
    found = token_values(model, batch, answer_states(model, batch))
    sequences = [tokens for group in all_groups for tokens in group.tokens]
    masks = [learnt for group in all_groups for learnt in group.loss_mask]
    for row, counted, tokens, learnt in zip(found, batch.loss_mask, sequences, masks, strict=True):
        expected = model.values(plain_hidden(model, tokens))[:-1][torch.tensor(learnt[1:])]
        torch.testing.assert_close(row[counted], expected, atol=1e-5, rtol=1e-5)


def test_what_is_shared_is_held_once() -> None:
    batch = TokenBatch.of_groups(groups())
    assert len(batch.prompts) == 5
    assert (len(batch.answers), len(batch.index)) == (8, 11)
    assert batch.index[:4].tolist() == [0, 0, 1, 0]


def test_values_of_all_tokens_are_aligned_with_the_answers() -> None:
    all_groups = groups()
    batch = TokenBatch.of_groups(all_groups)
    tokens = [[float(token) for token in sequence] for group in all_groups for sequence in group.tokens]
    torch.testing.assert_close(batch.aligned(tokens, all_groups), batch.answers[batch.index].float())
