"""Swimmer: swim forward by bending."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.vector.robots.base import (
    Fields,
    Robot,
    StepOutcome,
    control_cost,
    joint_state,
    plane_info,
    uniform_reset,
)


def _outcome(bare: Any, before: Fields, after: Fields, actions: NDArray[Any]) -> StepOutcome:
    xy = after["qpos"][:, :2]
    velocity = (xy - before["qpos"][:, :2]) / bare.dt
    forward = bare._forward_reward_weight * velocity[:, 0]
    cost = control_cost(bare, actions)
    info = plane_info(bare, after) | {
        "x_velocity": velocity[:, 0],
        "y_velocity": velocity[:, 1],
        "reward_forward": forward,
        "reward_ctrl": -cost,
    }
    return StepOutcome(forward - cost, np.zeros(len(xy), np.bool_), info)


ROBOT = Robot(
    entry_point="gymnasium.envs.mujoco.swimmer_v5:SwimmerEnv",
    reset=uniform_reset,
    observe=partial(joint_state, num_excluded=2),
    outcome=_outcome,
    reset_info=plane_info,
)
