"""Many answers to many prompts at once, each token with its log-probability.

A prompt is read once however many samples it has, and samples that agree so far are one row of the batch: the more
certain a policy becomes, the less there is to compute. What is drawn follows from the generator alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from loomrl.errors import ConfigError, LoomRLError
from loomrl.language.policies.cache import KeyValueCache
from loomrl.language.policies.model import LanguageModel
from loomrl.language.policies.padding import left_padded
from loomrl.language.policies.sampling import SamplingConfig, TokenCompletion
from loomrl.language.policies.tokens import PAD

GREEDY = SamplingConfig(temperature=0.0)


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    num_samples: int,
    sampling: SamplingConfig,
    generator: torch.Generator,
) -> list[list[TokenCompletion]]:
    """`num_samples` answers to each prompt, given as token ids: a list for each prompt, in their order; empty without
    prompts. Random numbers are drawn from `generator`, which advances.

    Raises:
        ConfigError: for a prompt that is empty, or leaves no room for `max_tokens`.
        LoomRLError: where the model's logits are no numbers.
    """
    if not prompts:
        return []
    _require_room(prompts, model.config.max_tokens - sampling.max_tokens)
    tokens, valid = left_padded(prompts)
    cache = model.empty_cache(len(prompts), tokens.shape[1] + sampling.max_tokens)
    logits = _read(model, tokens, valid, cache)
    row = torch.arange(len(prompts)).repeat_interleave(num_samples)  # of the batch, that a sample goes on from
    sample = torch.arange(len(row))  # those that go on
    answers = _Answers(len(row), sampling.max_tokens)
    ends = torch.zeros(model.config.vocabulary_size, dtype=torch.bool)
    ends[list(model.end_token_ids)] = not sampling.ignore_eos
    ends[list(sampling.stop_token_ids)] = True
    for step in range(sampling.max_tokens):
        token, log_prob = _draw(logits, row, sampling, generator)
        goes_on = ~ends[token]
        answers.record(step, sample, token, log_prob, goes_on)
        if step + 1 == sampling.max_tokens or not goes_on.any():
            break
        sample, row, token = sample[goes_on], row[goes_on], token[goes_on]
        different, row = torch.unique(row * len(ends) + token, return_inverse=True)
        parents = different // len(ends)
        if not torch.equal(parents, torch.arange(len(valid))):
            cache, valid = cache.select(parents), valid[parents]
        valid = torch.cat([valid, torch.ones(len(valid), 1, dtype=torch.bool)], 1)
        logits = _read(model, (different % len(ends))[:, None], valid, cache)
    return answers.of(len(prompts), num_samples)


class _Answers:
    """What was drawn, (N, max_tokens) for N samples."""

    def __init__(self, num_samples: int, max_tokens: int) -> None:
        self._tokens = torch.full((num_samples, max_tokens), PAD)
        self._log_probs = torch.zeros(num_samples, max_tokens)
        self._lengths = torch.zeros(num_samples, dtype=torch.int64)
        self._stopped = torch.zeros(num_samples, dtype=torch.bool)

    def record(self, step: int, sample: Tensor, token: Tensor, log_prob: Tensor, goes_on: Tensor) -> None:
        self._tokens[sample, step], self._log_probs[sample, step] = token, log_prob
        self._lengths[sample] += 1
        self._stopped[sample] = ~goes_on

    def of(self, num_prompts: int, num_samples: int) -> list[list[TokenCompletion]]:
        rows = zip(
            self._tokens.tolist(), self._log_probs.tolist(), self._lengths.tolist(), self._stopped.tolist(), strict=True
        )
        all_of_them = [
            TokenCompletion(tokens[:length], log_probs[:length], "stop" if stopped else "length")
            for tokens, log_probs, length, stopped in rows
        ]
        return [all_of_them[first * num_samples : (first + 1) * num_samples] for first in range(num_prompts)]


def _require_room(prompts: Sequence[Sequence[int]], longest: int) -> None:
    lengths = [len(prompt) for prompt in prompts]
    if min(lengths) < 1:
        raise ConfigError("a prompt is empty; begin it with the tokenizer's `prompt`")
    if max(lengths) > longest:
        raise ConfigError(
            f"a prompt of {max(lengths)} tokens leaves no room for the answer: {longest} tokens would; shorten it, "
            "lower max_tokens of the sampling, or make the model with a higher max_tokens"
        )


def _read(model: LanguageModel, tokens: Tensor, valid: Tensor, cache: KeyValueCache) -> Tensor:
    """Read tokens (B, T); the logits of what follows the last, (B, V)."""
    hidden = model(tokens, valid, cache)
    cache.advance(tokens.shape[1])
    return model.logits(hidden[:, -1])


def _draw(logits: Tensor, row: Tensor, sampling: SamplingConfig, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A token for each of N samples, and its log-probability, (N,) both; `logits` (B, V), `row` (N,)."""
    log_probs = finite_log_softmax(logits / (sampling.temperature or 1.0))
    if sampling.temperature == 0.0:
        token = log_probs.argmax(-1)[row]
    else:
        probs = cut_off(log_probs.exp().double(), [sampling] * len(logits))
        uniform = torch.rand(len(row), generator=generator, dtype=torch.float64)
        token = pick(probs.cumsum(-1)[row], uniform)
    return token, log_probs[row, token]


def finite_log_softmax(logits: Tensor) -> Tensor:
    """The log-softmax of logits over all tokens, (B, V) both.

    Raises:
        LoomRLError: where a logit is no number, as of weights that have grown too large.
    """
    log_probs = torch.log_softmax(logits, -1)
    if torch.isnan(log_probs).any():
        raise LoomRLError(
            "the policy's logits are no numbers: its weights have grown too large; go back to an earlier version, and "
            "lower learning_rate"
        )
    return log_probs


def cut_off(probs: Tensor, samplings: Sequence[SamplingConfig]) -> Tensor:
    """Probabilities (B, V), 0 where a row's `top_k` or `top_p` (Holtzman et al., arXiv 1904.09751) cuts them off, the
    others as they were. There is one sampling for each row."""
    if all(one.top_k is None and one.top_p == 1.0 for one in samplings):
        return probs
    size = probs.shape[1]
    top_p = torch.tensor([one.top_p for one in samplings], dtype=probs.dtype)[:, None]
    top_k = torch.tensor([min(one.top_k or size, size) for one in samplings])[:, None]
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    kept = ((ordered.cumsum(-1) - ordered < top_p) | (top_p == 1.0)) & (torch.arange(size) < top_k)
    return torch.zeros_like(probs).scatter(-1, order, ordered * kept)


def pick(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """A token id for each row, (N,): the one that a number from [0, 1), (N,), falls on among the row's cumulative
    probabilities, (N, V), which need not end at 1."""
    return torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True).squeeze(1)
