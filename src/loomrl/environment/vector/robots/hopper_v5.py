"""Hopper: hop forward on one leg without falling."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.vector.robots.base import Fields, Robot, inside, uniform_reset
from loomrl.environment.vector.robots.walker2d_v5 import forward_outcome, observe, reset_info


def _healthy(bare: Any, now: Fields) -> NDArray[np.bool_]:
    z, angle = now["qpos"][:, 1], now["qpos"][:, 2]
    state = np.concatenate([now["qpos"][:, 2:], now["qvel"]], axis=1)
    steady = inside(state, bare._healthy_state_range).all(axis=1)
    return np.asarray(steady & inside(z, bare._healthy_z_range) & inside(angle, bare._healthy_angle_range))


ROBOT = Robot(
    entry_point="gymnasium.envs.mujoco.hopper_v5:HopperEnv",
    reset=uniform_reset,
    observe=observe,
    outcome=forward_outcome(_healthy),
    reset_info=reset_info,
)
