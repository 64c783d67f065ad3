"""Pendulum as tensors. State (angle, angular velocity)."""

from math import pi
from typing import Any

import torch
from torch import Tensor

from loomrl.environment.vector.tensors.base import TensorDynamics, uniform


def _parameters(bare: Any) -> dict[str, float]:
    return {name: float(getattr(bare, name)) for name in ("max_speed", "max_torque", "dt", "g", "m", "l")}


def _draw(count: int, device: torch.device, rng: torch.Generator) -> Tensor:
    state = uniform(-1.0, 1.0, (count, 2), device, rng)
    return torch.stack([state[:, 0] * pi, state[:, 1]], 1)


def _step(state: Tensor, action: Tensor, p: dict[str, float]) -> tuple[Tensor, Tensor, Tensor]:
    angle, velocity = state.unbind(1)
    torque = action[:, 0].clamp(-p["max_torque"], p["max_torque"])
    off = torch.remainder(angle + pi, 2.0 * pi) - pi
    cost = off.square() + 0.1 * velocity.square() + 0.001 * torque.square()
    pull = 3.0 * p["g"] / (2.0 * p["l"]) * angle.sin()
    push = 3.0 / (p["m"] * p["l"] ** 2) * torque
    velocity = (velocity + (pull + push) * p["dt"]).clamp(-p["max_speed"], p["max_speed"])
    after = torch.stack([angle + velocity * p["dt"], velocity], 1)
    return after, -cost, torch.zeros_like(cost, dtype=torch.bool)


def _observe(state: Tensor) -> Tensor:
    return torch.stack([state[:, 0].cos(), state[:, 0].sin(), state[:, 1]], 1)


DYNAMICS = TensorDynamics(
    entry_point="gymnasium.envs.classic_control.pendulum:PendulumEnv",
    parameters=_parameters,
    draw=_draw,
    step=_step,
    observe=_observe,
)
