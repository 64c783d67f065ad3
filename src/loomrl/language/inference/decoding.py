"""Continuous batching: sequences of one policy version decoded together, which others may join at any step.

Shapes: L layers, B rows of the batch, H heads, C columns, D values of a head, V tokens of the vocabulary. All rows end
at the same column; what stands left of a row's tokens is padding. A row whose sequence has ended is filled by the next
one, so that little is ever copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from loomrl.language.inference.engine import Sampling
from loomrl.language.policies.cache import SharedPrefix
from loomrl.language.policies.generation import cut_off, finite_log_softmax, pick
from loomrl.language.policies.model import LanguageModel
from loomrl.language.policies.padding import left_padded
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import FinishReason
from loomrl.language.policies.tokens import PAD

_BYTES_OF_CHARACTER = 4  # at most, in UTF-8: so many tokens can one character have


@dataclass(eq=False)
class DecodedAnswer:
    """One completion that is being decoded: prompt, sampling, and its tokens so far with their log-probabilities.

    `max_tokens` is how many it may get, as the sampling says and the transformer has room for. `finish_reason` is None
    while it goes on; `stopped_by` is the stop text or token, None where neither ended it.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    rng: np.random.Generator
    max_tokens: int
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None


class Decoder:
    """Decodes by one policy, a token of every sequence at each step. For one thread at a time."""

    def __init__(self, policy: LanguagePolicy) -> None:
        self.policy = policy
        self._model = policy.model
        self._rows: list[DecodedAnswer | None] = []
        self._columns = _Columns(self._model)
        self._logits = torch.empty(0, self._model.config.vocabulary_size)  # (B, V), of each row's next token

    @property
    def sequences(self) -> list[DecodedAnswer]:
        """The answers that are still being decoded, in the order of their rows in the batch."""
        return [row for row in self._rows if row is not None]

    @torch.inference_mode()
    def add(self, sequences: Sequence[DecodedAnswer]) -> None:
        """Add sequences, at least one, to the batch and read their prompts, equal prompts once. A prompt has a token at
        least, and no more than the policy has room for: nothing is checked here."""
        prompts = list(dict.fromkeys(one.prompt for one in sequences))
        read, logits = _read_prompts(self._model, prompts)
        rows = self._free_rows(len(sequences))
        source = torch.tensor([prompts.index(one.prompt) for one in sequences])
        self._columns.put(torch.tensor(rows), read, source)
        self._logits[rows] = logits[source]
        for row, sequence in zip(rows, sequences, strict=True):
            self._rows[row] = sequence

    @torch.inference_mode()
    def step(self) -> list[DecodedAnswer]:
        """Sample a token for each sequence, of which there must be one; returns the sequences that ended with it, with
        their `finish_reason`. They are no longer among `sequences`.

        Raises:
            LoomRLError: where the policy's logits are no numbers; no token was added.
        """
        live = [index for index, row in enumerate(self._rows) if row is not None]
        sequences = self.sequences
        token_ids, log_probs = _draw(self._logits[live], sequences)
        for sequence, token_id, log_prob in zip(sequences, token_ids, log_probs, strict=True):
            sequence.token_ids.append(token_id)
            sequence.log_probs.append(log_prob)
            _end(sequence, self.policy)
        self._free_finished()
        if self.sequences:
            last = [PAD if row is None else row.token_ids[-1] for row in self._rows]
            goes_on = torch.tensor([row is not None for row in self._rows])
            self._logits = self._columns.read(torch.tensor(last)[:, None], goes_on)
        return [one for one in sequences if one.finish_reason is not None]

    def drop(self, sequence: DecodedAnswer) -> None:
        """Stop decoding an answer and free its row.

        Raises:
            ValueError: when it is not being decoded.
        """
        self._rows[self._rows.index(sequence)] = None

    def _free_finished(self) -> None:
        """Free the rows of what has ended; where half of them are free, go on with the others alone."""
        self._rows = [None if row is None or row.finish_reason is not None else row for row in self._rows]
        live = [index for index, row in enumerate(self._rows) if row is not None]
        if 2 * len(live) <= len(self._rows):
            self._rows = [self._rows[index] for index in live]
            self._columns.keep(torch.tensor(live, dtype=torch.int64))
            self._logits = self._logits[live]

    def _free_rows(self, count: int) -> list[int]:
        """Numbers of so many rows, made where there are too few."""
        free = [index for index, row in enumerate(self._rows) if row is None][:count]
        num_new = count - len(free)
        free += range(len(self._rows), len(self._rows) + num_new)
        self._rows += [None] * num_new
        self._columns.grow(num_new)
        self._logits = torch.cat([self._logits, self._logits.new_zeros(num_new, self._logits.shape[1])])
        return free


class _Columns:
    """What the transformer remembers of all rows: a `Memory`, see `loomrl.language.policies.cache`."""

    def __init__(self, model: LanguageModel) -> None:
        config = model.config
        self._model = model
        self._longest = config.max_tokens
        num_layers, num_heads, head_width = model.memory_shape
        shape = (num_layers, 0, num_heads, 2 * config.max_tokens, head_width)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)  # (L, B, H, C, D); 0: padding must be finite
        self._valid = torch.zeros(0, 2 * config.max_tokens, dtype=torch.bool)  # (B, C)
        self._length = 0  # columns in use

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of one new token of each row, (B, H, 1, D); returns those of all columns so far."""
        end = self._length + 1
        self._keys[layer, :, :, self._length : end] = keys
        self._values[layer, :, :, self._length : end] = values
        return self._keys[layer, :, :, :end], self._values[layer, :, :, :end]

    def read(self, token_ids: Tensor, goes_on: Tensor) -> Tensor:
        """Read a token (B, 1) of each row that goes on (B,); the logits of the next, (B, V)."""
        if self._length == self._keys.shape[3]:
            self._align(int(self._valid.sum(1).max()))
        self._valid[:, self._length] = goes_on
        hidden = self._model(token_ids, self._valid[:, : self._length + 1], self)
        self._length += 1
        return self._model.logits(hidden[:, -1])

    def put(self, rows: Tensor, read: "_Prompts", source: Tensor) -> None:
        """Put prompts into rows (N,), of which number i gets prompt `source[i]`."""
        width = read.valid.shape[1]
        if width > self._length:
            self._align(width)
        begin, end = self._length - width, self._length
        self._keys[:, rows, :, begin:end] = read.keys[:, source]
        self._values[:, rows, :, begin:end] = read.values[:, source]
        self._valid[rows] = False
        self._valid[rows, begin:end] = read.valid[source]

    def grow(self, num_rows: int) -> None:
        """Make room for more rows."""
        if num_rows:
            self._keys, self._values = (_with_rows(tensor, num_rows) for tensor in (self._keys, self._values))
            self._valid = torch.cat([self._valid, self._valid.new_zeros(num_rows, self._valid.shape[1])])

    def keep(self, rows: Tensor) -> None:
        """Forget all rows but these."""
        self._keys, self._values = self._keys[:, rows], self._values[:, rows]
        self._valid = self._valid[rows]
        if not len(rows):
            self._length = 0

    def _align(self, length: int) -> None:
        """Move what is in use so that it ends at column `length`; what stands left of it is forgotten."""
        kept = min(length, self._length)
        begin, end = self._length - kept, self._length
        for tensor in (self._keys, self._values):
            moved = tensor[:, :, :, begin:end].clone()
            tensor.zero_()
            tensor[:, :, :, length - kept : length] = moved
        moved_valid = self._valid[:, begin:end].clone()
        self._valid.zero_()
        self._valid[:, length - kept : length] = moved_valid
        self._length = length


@dataclass
class _Prompts:
    """P prompts that were read, padded on their left: keys and values (L, P, H, T, D), `valid` (P, T)."""

    keys: Tensor
    values: Tensor
    valid: Tensor


def _read_prompts(model: LanguageModel, prompts: Sequence[tuple[int, ...]]) -> tuple[_Prompts, Tensor]:
    """What the transformer remembers of prompts, and the logits of what follows each, (P, V)."""
    tokens, valid = left_padded(prompts)
    memory = SharedPrefix()
    logits = model.logits(model(tokens, valid, memory)[:, -1])
    keys, values = (torch.stack([layer[index] for layer in memory.read]) for index in (0, 1))
    return _Prompts(keys, values, valid), logits


def _with_rows(tensor: Tensor, num_rows: int) -> Tensor:
    shape = (tensor.shape[0], num_rows, *tensor.shape[2:])
    return torch.cat([tensor, tensor.new_zeros(shape)], 1)


def _draw(logits: Tensor, sequences: Sequence[DecodedAnswer]) -> tuple[list[int], list[float]]:
    """A token for each of N sequences, and its log-probability; `logits` (N, V). Each has a generator of its own."""
    temperature = torch.tensor([one.sampling.temperature for one in sequences])
    log_probs = finite_log_softmax(logits / torch.where(temperature > 0, temperature, 1.0)[:, None])
    probs = cut_off(log_probs.exp().double(), [one.sampling for one in sequences])
    uniform = torch.tensor([one.rng.random() for one in sequences], dtype=torch.float64)
    token_ids = torch.where(temperature > 0, pick(probs.cumsum(-1), uniform), log_probs.argmax(-1))
    return token_ids.tolist(), log_probs.gather(1, token_ids[:, None]).squeeze(1).tolist()


def _end(sequence: DecodedAnswer, policy: LanguagePolicy) -> None:
    """Say why a sequence ends with its last token, where it does."""
    sampling, last = sequence.sampling, sequence.token_ids[-1]
    if (last in policy.model.end_token_ids and not sampling.ignore_eos) or last in sampling.stop_token_ids:
        sequence.finish_reason, sequence.stopped_by = "stop", last
    elif (stop := _stop_reached(sequence, policy)) is not None:
        sequence.finish_reason, sequence.stopped_by = "stop", stop
    elif len(sequence.token_ids) >= sequence.max_tokens:
        sequence.finish_reason = "length"


def _stop_reached(sequence: DecodedAnswer, policy: LanguagePolicy) -> str | None:
    """The stop text that the last token completed."""
    stops = sequence.sampling.stop
    if not stops:
        return None
    tail = policy.tokenizer.decode(sequence.token_ids[-_BYTES_OF_CHARACTER * max(map(len, stops)) :])
    if not any(stop in tail for stop in stops):
        return None
    text = policy.tokenizer.decode(sequence.token_ids)  # the tail may begin within a character
    return next((stop for stop in stops if stop in text), None)
