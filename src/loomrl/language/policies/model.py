"""What a language policy needs of its network, whoever made it: tokens in, hidden states out, and what is read of them.

Shapes: B sequences, T new tokens, S tokens so far.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from loomrl.errors import ConfigError
from loomrl.language.policies.cache import KeyValueCache, TokenMemory
from loomrl.language.policies.tokens import EOS
from loomrl.system.schema import Section


class ModelConfig(Section):
    """Settings that a model is built from: models with equal configs can take each other's weights. `max_tokens` is
    that of a prompt and its answer together; PPO needs a `value_head`."""

    vocabulary_size: int = Field(ge=4)
    max_tokens: int = Field(ge=2)
    value_head: bool = False


class MemoryShape(NamedTuple):
    """The size of the keys and values that a model keeps of each token: layers, heads, and numbers per head."""

    num_layers: int
    num_heads: int
    head_width: int


class LanguageModel(nn.Module, ABC):
    """A language policy's network: tokens in, hidden states out; `logits` and `values` are read from those. Each of
    `end_token_ids` ends an answer; `value_head` is None where the config asks for none."""

    config: ModelConfig
    value_head: nn.Linear | None
    end_token_ids: tuple[int, ...] = (EOS,)

    @abstractmethod
    def forward(self, tokens: Tensor, valid: Tensor, memory: TokenMemory) -> Tensor:
        """Read T more tokens of each sequence.

        Args:
            tokens: ids (B, T).
            valid: (B, S), which columns hold a token and no padding; the last T are those of `tokens`.
            memory: of the columns before.

        Returns:
            Hidden states (B, T, width); those of padding mean nothing.
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., width) -> logits of the token that follows, (..., vocabulary_size)."""

    @property
    @abstractmethod
    def memory_shape(self) -> MemoryShape:
        """How many layers, heads and numbers per head a model keeps of each token."""

    def values(self, hidden: Tensor) -> Tensor:
        """Hidden states (..., width) -> what the rest of each sequence is expected to earn, (...).

        Raises:
            ConfigError: where the model has no value head.
        """
        if self.value_head is None:
            raise ConfigError("this model has no value head; make it with value_head: true")
        values: Tensor = self.value_head(hidden).squeeze(-1)
        return values

    def empty_cache(self, num_sequences: int, capacity: int) -> KeyValueCache:
        """An empty `KeyValueCache` for so many sequences, with room for `capacity` columns: tokens and padding."""
        num_layers, num_heads, head_width = self.memory_shape
        shape = (num_layers, num_sequences, num_heads, capacity, head_width)
        return KeyValueCache(torch.empty(shape), torch.empty(shape))

    def weights(self) -> dict[str, Tensor]:
        """All weights by the names they have in files. The tensors are the model's own, not copies."""
        return self.state_dict()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy in what `weights` gave of a model with an equal config.

        Raises:
            RuntimeError: where a weight is missing, unknown or of another shape; those that fit may be taken.
        """
        self.load_state_dict(dict(weights))


def positions_of(valid: Tensor, num_new: int) -> Tensor:
    """The positions of the last T = `num_new` tokens of each sequence, (B, T), from 0 on; padding does not count.
    `valid` (B, S) says which columns hold a token."""
    return (valid.to(torch.int64).cumsum(1)[:, -num_new:] - 1).clamp(min=0)


def allowed(valid: Tensor, num_new: int) -> Tensor:
    """The causal attention mask of the last T = `num_new` columns, bool (B, 1, T, S), from which columns hold a token,
    `valid` (B, S): each looks at the tokens before it and at itself, padding at itself, too."""
    num_all = valid.shape[1]
    column = torch.arange(num_all)
    own = column[num_all - num_new :, None]  # (T, 1)
    return (valid[:, None, None] & (column < own)) | (column == own)
