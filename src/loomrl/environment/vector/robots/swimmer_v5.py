"""Swimmer: swim forward by bending."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.vector.robots.base import (
    Fields,
    Info,
    Robot,
    StepOutcome,
    control_cost,
    plane_distance,
    uniform_reset,
)
from loomrl.types import FloatArray


def _observe(bare: Any, now: Fields) -> FloatArray:
    skipped = 2 * int(bare._exclude_current_positions_from_observation)
    return np.concatenate([now["qpos"][:, skipped:], now["qvel"]], axis=1)


def _outcome(bare: Any, before: Fields, after: Fields, actions: NDArray[Any]) -> StepOutcome:
    xy = after["qpos"][:, :2]
    velocity = (xy - before["qpos"][:, :2]) / bare.dt
    forward = bare._forward_reward_weight * velocity[:, 0]
    cost = control_cost(bare, actions)
    info = _reset_info(bare, after) | {
        "x_velocity": velocity[:, 0],
        "y_velocity": velocity[:, 1],
        "reward_forward": forward,
        "reward_ctrl": -cost,
    }
    return StepOutcome(forward - cost, np.zeros(len(xy), np.bool_), info)


def _reset_info(bare: Any, now: Fields) -> Info:  # noqa: ARG001
    xy = now["qpos"][:, :2]
    return {"x_position": xy[:, 0], "y_position": xy[:, 1], "distance_from_origin": plane_distance(xy)}


ROBOTS = (
    Robot(
        entry_point="gymnasium.envs.mujoco.swimmer_v5:SwimmerEnv",
        reset=uniform_reset,
        observe=_observe,
        outcome=_outcome,
        reset_info=_reset_info,
    ),
)
