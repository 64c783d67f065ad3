"""Many answers to many prompts at once, each token with its log-probability.

A prompt is read once however many samples it has, and samples that agree so far are one row of the batch: the more
certain a policy becomes, the less there is to compute. What is drawn follows from the generator alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from loomrl.errors import ConfigError
from loomrl.language.cache import KeyValueCache
from loomrl.language.tokens import EOS, PAD
from loomrl.language.transformer import Transformer
from loomrl.schema import Section


class Sampling(Section):
    """How tokens are drawn: at a temperature, 0 being the likeliest token, from the `top_k` likeliest tokens, or from
    the fewest that have a probability of `top_p` together. After one of `stop_tokens`, as after the end, nothing
    follows."""

    temperature: float = Field(default=1.0, ge=0.0)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_tokens: int = Field(default=32, ge=1)  # of an answer
    stop_tokens: tuple[int, ...] = ()


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Completion:
    """One answer. Its last token is the one that ended it, where `finish_reason` is "stop"."""

    tokens: list[int]
    log_probs: list[float]  # at the temperature (greedy: at 1), before top_k and top_p cut anything off
    finish_reason: Literal["stop", "length"]


@torch.inference_mode()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    num_samples: int,
    sampling: Sampling,
    generator: torch.Generator,
) -> list[list[Completion]]:
    """`num_samples` answers to each prompt.

    Raises:
        ConfigError: for a prompt that is empty, or leaves no room for `max_tokens`.
    """
    if not prompts:
        return []
    valid, tokens = _left_padded(prompts, model.config.max_tokens - sampling.max_tokens)
    cache = model.empty_cache(len(prompts), tokens.shape[1] + sampling.max_tokens)
    logits = _read(model, tokens, valid, cache)
    row = torch.arange(len(prompts)).repeat_interleave(num_samples)  # of the batch, that a sample goes on from
    sample = torch.arange(len(row))  # those that go on
    answers = _Answers(len(row), sampling.max_tokens)
    ends = torch.zeros(model.config.vocabulary_size, dtype=torch.bool)
    ends[[EOS, *sampling.stop_tokens]] = True
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

    def of(self, num_prompts: int, num_samples: int) -> list[list[Completion]]:
        rows = zip(
            self._tokens.tolist(), self._log_probs.tolist(), self._lengths.tolist(), self._stopped.tolist(), strict=True
        )
        all_of_them = [
            Completion(tokens[:length], log_probs[:length], "stop" if stopped else "length")
            for tokens, log_probs, length, stopped in rows
        ]
        return [all_of_them[first * num_samples : (first + 1) * num_samples] for first in range(num_prompts)]


def _left_padded(prompts: Sequence[Sequence[int]], longest: int) -> tuple[Tensor, Tensor]:
    """Which columns hold tokens, and the tokens, (P, T) both."""
    lengths = [len(prompt) for prompt in prompts]
    if min(lengths) < 1:
        raise ConfigError("a prompt is empty; begin it with the tokenizer's `prompt`")
    width = max(lengths)
    if width > longest:
        raise ConfigError(
            f"a prompt of {width} tokens leaves no room for the answer: {longest} tokens would; shorten it, lower "
            "max_tokens of the sampling, or make the transformer with a higher max_tokens"
        )
    tokens = torch.tensor([[*[PAD] * (width - len(prompt)), *prompt] for prompt in prompts])
    return torch.arange(width) >= width - torch.tensor(lengths)[:, None], tokens


def _read(model: Transformer, tokens: Tensor, valid: Tensor, cache: KeyValueCache) -> Tensor:
    """Read tokens (B, T); the logits of what follows the last, (B, V)."""
    hidden = model(tokens, valid, cache)
    cache.advance(tokens.shape[1])
    return model.logits(hidden[:, -1])


def _draw(logits: Tensor, row: Tensor, sampling: Sampling, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A token for each of N samples, and its log-probability, (N,) both; `logits` (B, V), `row` (N,)."""
    log_probs = torch.log_softmax(logits / (sampling.temperature or 1.0), -1)
    if sampling.temperature == 0.0:
        token = log_probs.argmax(-1)[row]
    else:
        cumulative = _kept(log_probs.exp().double(), sampling).cumsum(-1)[row]
        uniform = torch.rand(len(row), 1, generator=generator, dtype=torch.float64)
        token = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).squeeze(1)
    return token, log_probs[row, token]


def _kept(probs: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities (B, V), 0 where `top_k` or `top_p` (Holtzman et al., arXiv 1904.09751) cuts them off."""
    if sampling.top_k is None and sampling.top_p == 1.0:
        return probs
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    rank = torch.arange(probs.shape[-1])
    kept = (before < sampling.top_p) & (rank < (sampling.top_k or len(rank)))
    return torch.zeros_like(probs).scatter(-1, order, ordered * kept)
