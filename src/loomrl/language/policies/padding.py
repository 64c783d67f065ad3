"""Rows of different lengths as one tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from loomrl.language.policies.tokens import PAD


def left_padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows of token ids as one tensor (B, T), padded on the left to the longest, and which columns hold a token, bool
    (B, T). Raises ValueError for no rows."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*[PAD] * (width - len(row)), *row] for row in rows])
    return tokens, torch.arange(width) >= width - torch.tensor([len(row) for row in rows])[:, None]


def right_padded(rows: Sequence[Sequence[float]], padding: float) -> Tensor:
    """Rows of values as one tensor (B, T), filled up with `padding` on the right to the longest. Raises ValueError for
    no rows."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows])
