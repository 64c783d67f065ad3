"""What an environment is as tensors: functions over B states at once, none of which waits for the device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorDynamics:
    """The dynamics of the Gymnasium class at `entry_point`, in float32.

    `step` takes states (B, S), actions as the space has them, (B,) int64 or (B, A) float32, and gives new states,
    rewards (B,) and terminated (B,). `draw` makes B states of new episodes.
    """

    entry_point: str
    parameters: Callable[[Any], dict[str, float]]  # read off a constructed environment
    draw: Callable[[int, torch.device, torch.Generator], Tensor]
    step: Callable[[Tensor, Tensor, dict[str, float]], tuple[Tensor, Tensor, Tensor]]
    observe: Callable[[Tensor], Tensor]  # (B, O)


def uniform(low: float, high: float, shape: tuple[int, ...], device: torch.device, rng: torch.Generator) -> Tensor:
    """Uniform numbers in [low, high) of a shape, drawn on the device."""
    return torch.rand(shape, device=device, generator=rng) * (high - low) + low
