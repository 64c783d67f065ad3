"""HalfCheetah: run forward as fast as possible."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.vector.robots.base import (
    Fields,
    Info,
    Robot,
    StepOutcome,
    control_cost,
    joint_state,
    normal_reset,
)


def _outcome(bare: Any, before: Fields, after: Fields, actions: NDArray[Any]) -> StepOutcome:
    x = after["qpos"][:, 0]
    x_velocity = (x - before["qpos"][:, 0]) / bare.dt
    forward = bare._forward_reward_weight * x_velocity
    cost = control_cost(bare, actions)
    info = {"x_position": x, "x_velocity": x_velocity, "reward_forward": forward, "reward_ctrl": -cost}
    return StepOutcome(forward - cost, np.zeros(len(x), np.bool_), info)


def _reset_info(bare: Any, now: Fields) -> Info:  # noqa: ARG001
    return {"x_position": now["qpos"][:, 0]}


ROBOT = Robot(
    entry_point="gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv",
    reset=normal_reset,
    observe=joint_state,
    outcome=_outcome,
    reset_info=_reset_info,
)
