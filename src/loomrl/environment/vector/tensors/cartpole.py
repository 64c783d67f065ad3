"""CartPole as tensors. State (x, x velocity, angle, angular velocity)."""

from typing import Any

import torch
from torch import Tensor

from loomrl.environment.vector.tensors.base import TensorDynamics, uniform

_NAMES = (
    "gravity", "masspole", "total_mass", "length", "polemass_length", "force_mag", "tau", "theta_threshold_radians",
    "x_threshold",
)  # fmt: skip


def _parameters(bare: Any) -> dict[str, float]:
    values = {name: float(getattr(bare, name)) for name in _NAMES}
    return values | {"sutton_barto": float(bare._sutton_barto_reward)}


def _draw(count: int, device: torch.device, rng: torch.Generator) -> Tensor:
    return uniform(-0.05, 0.05, (count, 4), device, rng)


def _step(state: Tensor, action: Tensor, p: dict[str, float]) -> tuple[Tensor, Tensor, Tensor]:
    x, x_dot, theta, theta_dot = state.unbind(1)
    force = (2.0 * action - 1.0) * p["force_mag"]
    costheta, sintheta = theta.cos(), theta.sin()
    temp = (force + p["polemass_length"] * theta_dot.square() * sintheta) / p["total_mass"]
    inertia = p["length"] * (4.0 / 3.0 - p["masspole"] * costheta.square() / p["total_mass"])
    thetaacc = (p["gravity"] * sintheta - costheta * temp) / inertia
    xacc = temp - p["polemass_length"] * thetaacc * costheta / p["total_mass"]
    tau = p["tau"]
    x, theta = x + tau * x_dot, theta + tau * theta_dot
    after = torch.stack([x, x_dot + tau * xacc, theta, theta_dot + tau * thetaacc], 1)
    terminated = (x.abs() > p["x_threshold"]) | (theta.abs() > p["theta_threshold_radians"])
    fallen = terminated.to(torch.float32)
    reward = -fallen if p["sutton_barto"] else torch.ones_like(fallen)
    return after, reward, terminated


DYNAMICS = TensorDynamics(
    entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    parameters=_parameters,
    draw=_draw,
    step=_step,
    observe=torch.clone,
)
