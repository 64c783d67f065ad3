"""What a transformer remembers of the tokens it has read: keys and values of every layer.

Columns are shared by all sequences of a batch: prompts stand left of one column, padded on their left, and what follows
stands right of it. Shapes: L layers, B sequences, H heads, C columns, D values of a head.
"""

from typing import Protocol

import torch
from torch import Tensor


class TokenMemory(Protocol):
    """Takes the keys and values of new tokens, and gives those of all tokens so far."""

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's keys and values of T new tokens, (B, H, T, D); returns those of all S tokens so far,
        (B, H, S, D)."""
        ...


class KeyValueCache:
    """A `TokenMemory` for generation: room for C columns from the beginning, written in place. `keys` and `values` are
    that room, (L, B, H, C, D)."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values = keys, values  # (L, B, H, C, D)
        self._length = 0

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values of T new tokens, (B, H, T, D), behind the columns in use; returns views of
        all so far, (B, H, S, D). The columns are in use after `advance`.

        Raises:
            RuntimeError: when there is no room for T more columns.
        """
        end = self._length + keys.shape[2]
        self._keys[layer, :, :, self._length : end] = keys
        self._values[layer, :, :, self._length : end] = values
        return self._keys[layer, :, :, :end], self._values[layer, :, :, :end]

    def advance(self, num_columns: int) -> None:
        """Count this many columns as in use, once all layers have written them."""
        self._length += num_columns

    def select(self, sequences: Tensor) -> "KeyValueCache":
        """A copy of the cache with the sequences of these indices (B',), in their order, each as often as it is
        named."""
        selected = KeyValueCache(*(self._selected(tensor, sequences) for tensor in (self._keys, self._values)))
        selected._length = self._length
        return selected

    def _selected(self, tensor: Tensor, sequences: Tensor) -> Tensor:
        chosen = tensor.new_empty(tensor.shape[0], len(sequences), *tensor.shape[2:])
        chosen[:, :, :, : self._length] = tensor[:, :, :, : self._length].index_select(1, sequences)
        return chosen


class SharedPrefix:
    """A `TokenMemory` of prompts that were read once, and of the sequences that go on from each of them.

    The first pass reads the prompts; `continued_by` then gives what their continuations remember. Gradients flow
    through both.
    """

    def __init__(self, prompts: list[tuple[Tensor, Tensor]] | None = None, index: Tensor | None = None) -> None:
        self._prompts, self._index = prompts, index
        self.read: list[tuple[Tensor, Tensor]] = []  # keys and values (B, H, T, D) of this pass, by layer

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep a layer's keys and values of T new tokens, (B, H, T, D), in `read`; returns them behind those of each
        sequence's prompt, where there is one, (B, H, S, D). To be called once for each layer, in their order."""
        self.read.append((keys, values))
        if self._prompts is None or self._index is None:
            return keys, values
        prompt_keys, prompt_values = (tensor.index_select(0, self._index) for tensor in self._prompts[layer])
        return torch.cat([prompt_keys, keys], 2), torch.cat([prompt_values, values], 2)

    def continued_by(self, index: Tensor) -> "SharedPrefix":
        """The memory of other sequences: number i goes on from prompt `index[i]` of those read here. `index` (B',)."""
        return SharedPrefix(self.read, index)
