"""Rows of different lengths as one tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from loomrl.language.policies.tokens import PAD


def left_padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens that all end at the same column, (B, T), and which columns hold one, (B, T)."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*[PAD] * (width - len(row)), *row] for row in rows])
    return tokens, torch.arange(width) >= width - torch.tensor([len(row) for row in rows])[:, None]


def right_padded(rows: Sequence[Sequence[float]], padding: float) -> Tensor:
    """Values that all begin at the same column, (B, T)."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows])
