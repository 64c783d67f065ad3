"""Walker2d: walk forward on two legs without falling. Hopper shares its observation and reward."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.vector.robots.base import (
    Fields,
    Info,
    Robot,
    StepOutcome,
    control_cost,
    inside,
    uniform_reset,
)
from loomrl.types import FloatArray


def observe(bare: Any, now: Fields) -> FloatArray:
    """Observations (B, O): positions, without the first one where that is excluded, and velocities in [-10, 10]."""
    skipped = int(bare._exclude_current_positions_from_observation)
    return np.concatenate([now["qpos"][:, skipped:], np.clip(now["qvel"], -10, 10)], axis=1)


def forward_outcome(
    healthy: Callable[[Any, Fields], NDArray[np.bool_]],
) -> Callable[[Any, Fields, Fields, NDArray[Any]], StepOutcome]:
    """A `Robot.outcome`: reward for going forward and for being `healthy`, costs for control. The unhealthy end the
    episode, where the environment is so set. `healthy` gives a mask (B,)."""

    def outcome(bare: Any, before: Fields, after: Fields, actions: NDArray[Any]) -> StepOutcome:
        x = after["qpos"][:, 0]
        x_velocity = (x - before["qpos"][:, 0]) / bare.dt
        is_healthy = healthy(bare, after)
        forward = bare._forward_reward_weight * x_velocity
        survive = is_healthy * bare._healthy_reward
        cost = control_cost(bare, actions)
        info = {
            "x_position": x,
            "z_distance_from_origin": after["qpos"][:, 1] - bare.init_qpos[1],
            "x_velocity": x_velocity,
            "reward_forward": forward,
            "reward_ctrl": -cost,
            "reward_survive": survive,
        }
        return StepOutcome(forward + survive - cost, ~is_healthy & bool(bare._terminate_when_unhealthy), info)

    return outcome


def reset_info(bare: Any, now: Fields) -> Info:
    """The info of a reset: `x_position` and `z_distance_from_origin` of B robots, (B,) each, in metres."""
    qpos = now["qpos"]
    return {"x_position": qpos[:, 0], "z_distance_from_origin": qpos[:, 1] - bare.init_qpos[1]}


def _healthy(bare: Any, now: Fields) -> NDArray[np.bool_]:
    z, angle = now["qpos"][:, 1], now["qpos"][:, 2]
    return np.asarray(inside(z, bare._healthy_z_range) & inside(angle, bare._healthy_angle_range))


ROBOT = Robot(
    entry_point="gymnasium.envs.mujoco.walker2d_v5:Walker2dEnv",
    reset=uniform_reset,
    observe=observe,
    outcome=forward_outcome(_healthy),
    reset_info=reset_info,
)
