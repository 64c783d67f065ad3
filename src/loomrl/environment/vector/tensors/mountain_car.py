"""MountainCar as tensors. State (position, velocity)."""

from typing import Any

import torch
from torch import Tensor

from loomrl.environment.vector.tensors.base import TensorDynamics, uniform

_NAMES = ("min_position", "max_position", "max_speed", "goal_position", "goal_velocity", "force", "gravity")


def _parameters(bare: Any) -> dict[str, float]:
    return {name: float(getattr(bare, name)) for name in _NAMES}


def _draw(count: int, device: torch.device, rng: torch.Generator) -> Tensor:
    position = uniform(-0.6, -0.4, (count,), device, rng)
    return torch.stack([position, torch.zeros_like(position)], 1)


def _step(state: Tensor, action: Tensor, p: dict[str, float]) -> tuple[Tensor, Tensor, Tensor]:
    position, velocity = state.unbind(1)
    velocity = velocity + (action - 1) * p["force"] - (3.0 * position).cos() * p["gravity"]
    velocity = velocity.clamp(-p["max_speed"], p["max_speed"])
    position = (position + velocity).clamp(p["min_position"], p["max_position"])
    hit = (position <= p["min_position"]) & (velocity < 0)
    velocity = torch.where(hit, torch.zeros_like(velocity), velocity)
    terminated = (position >= p["goal_position"]) & (velocity >= p["goal_velocity"])
    return torch.stack([position, velocity], 1), torch.full_like(position, -1.0), terminated


DYNAMICS = TensorDynamics(
    entry_point="gymnasium.envs.classic_control.mountain_car:MountainCarEnv",
    parameters=_parameters,
    draw=_draw,
    step=_step,
    observe=torch.clone,
)
