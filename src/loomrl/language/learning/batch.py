"""Groups as tensors, and what a policy says of their tokens now.

Prompts are read once for all samples that share them, and samples that are equal are computed once: losses and
gradients are the same, for less. Shapes: P prompts, U different samples, N samples, T tokens of an answer. What comes
before a sample's first learnt token is its prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from loomrl.language.learning.groups import TokenGroup
from loomrl.language.policies.cache import SharedPrefix
from loomrl.language.policies.model import LanguageModel
from loomrl.language.policies.padding import left_padded, right_padded
from loomrl.language.policies.tokens import PAD

_Sample = tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...], float]  # prompt, answer, learnt, temperature


@dataclass(frozen=True)
class TokenBatch:
    """N samples of several groups as tensors, of P different prompts and U different samples. `index` says which of the
    U each of the N is. `valid` is false for padding, `loss_mask` true for tokens that are learnt."""

    prompts: Tensor  # (P, T'), ids padded on the left
    prompt_valid: Tensor  # (P, T')
    prompt_index: Tensor  # (U,), the prompt of each
    answers: Tensor  # (U, T), ids padded on the right
    answer_valid: Tensor  # (U, T)
    answer_loss_mask: Tensor  # (U, T)
    temperature: Tensor  # (U,), at which its tokens were drawn
    index: Tensor  # (N,)
    loss_mask: Tensor  # (N, T)

    @classmethod
    def of_groups(cls, groups: Sequence[TokenGroup]) -> "TokenBatch":
        """A batch of all samples of the groups, in their order. Raises ValueError where there is none."""
        samples = [_parts(group, number) for group in groups for number in range(len(group))]
        different = {sample: number for number, sample in enumerate(dict.fromkeys(samples))}
        prompts = {prompt: number for number, prompt in enumerate(dict.fromkeys(sample[0] for sample in different))}
        answer_loss_mask = right_padded([loss_mask for _, _, loss_mask, _ in different], False)
        index = torch.tensor([different[sample] for sample in samples])
        prompt_tokens, prompt_valid = left_padded(list(prompts))
        return cls(
            prompts=prompt_tokens,
            prompt_valid=prompt_valid,
            prompt_index=torch.tensor([prompts[prompt] for prompt, _, _, _ in different]),
            answers=right_padded([answer for _, answer, _, _ in different], PAD),
            answer_valid=right_padded([[True] * len(answer) for _, answer, _, _ in different], False),
            answer_loss_mask=answer_loss_mask,
            temperature=torch.tensor([temperature for _, _, _, temperature in different]),
            index=index,
            loss_mask=answer_loss_mask[index],
        )

    def aligned(self, rows: Sequence[Sequence[float]], groups: Sequence[TokenGroup]) -> Tensor:
        """Rows of numbers, one for each token of the N samples of these groups -> those of their answers' tokens alone,
        (N, T) as `loss_mask` has them, 0 beyond their ends. `groups` are those that the batch was made of."""
        starts = [_start(loss_mask) for group in groups for loss_mask in group.loss_mask]
        padded = right_padded([row[start:] for row, start in zip(rows, starts, strict=True)], 0.0)
        return padded.float()


def answer_states(model: LanguageModel, batch: TokenBatch) -> Tensor:
    """The hidden states from which each token of the U different answers follows, (U, T, width), by the model as it is
    now. Gradients flow through them."""
    memory = SharedPrefix()
    last: Tensor = model(batch.prompts, batch.prompt_valid, memory)[:, -1]  # (P, width)
    first = last[batch.prompt_index, None]
    if batch.answers.shape[1] == 1:
        return first
    valid = torch.cat([batch.prompt_valid[batch.prompt_index], batch.answer_valid[:, :-1]], 1)
    rest = model(batch.answers[:, :-1], valid, memory.continued_by(batch.prompt_index))
    return torch.cat([first, rest], 1)


def token_log_probs(model: LanguageModel, batch: TokenBatch, states: Tensor) -> Tensor:
    """The log-probability of each token of the N answers, at its sample's temperature, (N, T), 0 where nothing is
    learnt. `states` are what `answer_states` gave of this model and batch."""
    loss_mask = batch.answer_loss_mask
    logits = model.logits(states[loss_mask]) / batch.temperature[:, None].expand_as(loss_mask)[loss_mask, None]
    found = -functional.cross_entropy(logits, batch.answers[loss_mask], reduction="none")
    return states.new_zeros(loss_mask.shape).masked_scatter(loss_mask, found)[batch.index]


def token_values(model: LanguageModel, batch: TokenBatch, states: Tensor) -> Tensor:
    """The value head's estimates before each token of the N answers, (N, T). `states` are what `answer_states` gave of
    this model and batch.

    Raises:
        ConfigError: where the model has no value head.
    """
    return model.values(states)[batch.index]


def _parts(group: TokenGroup, number: int) -> _Sample:
    tokens, loss_mask = group.tokens[number], group.loss_mask[number]
    start, temperature = _start(loss_mask), group.temperatures[number] if group.temperatures else 1.0
    return tuple(tokens[:start]), tuple(tokens[start:]), tuple(loss_mask[start:]), temperature


def _start(loss_mask: Sequence[bool]) -> int:
    """Where an answer begins: at the first learnt token, after one at least, and one token before the end at most."""
    return min(max(loss_mask.index(True), 1), len(loss_mask) - 1) if True in loss_mask else len(loss_mask) - 1
