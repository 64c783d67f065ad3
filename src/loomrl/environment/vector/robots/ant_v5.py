"""Ant: walk forward on four legs without falling or jumping."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.vector.robots.base import (
    Fields,
    Robot,
    StepOutcome,
    control_cost,
    joint_state,
    normal_reset,
    plane_info,
)
from loomrl.types import FloatArray


def _contact_forces(bare: Any, now: Fields) -> FloatArray:
    low, high = bare._contact_force_range
    return np.clip(now["cfrc_ext"], low, high)  # (B, bodies, 6)


def _observe(bare: Any, now: Fields) -> FloatArray:
    state = joint_state(bare, now, num_excluded=2)
    if not bare._include_cfrc_ext_in_observation:
        return state
    return np.concatenate([state, _contact_forces(bare, now)[:, 1:].reshape(len(state), -1)], axis=1)


def _outcome(bare: Any, before: Fields, after: Fields, actions: NDArray[Any]) -> StepOutcome:
    body = bare.model.body(bare._main_body).id
    velocity = (after["xpos"][:, body, :2] - before["xpos"][:, body, :2]) / bare.dt
    forward = velocity[:, 0] * bare._forward_reward_weight
    is_healthy = _healthy(bare, after)
    survive = is_healthy * bare._healthy_reward
    control = control_cost(bare, actions)
    squares = np.square(_contact_forces(bare, after)).reshape(len(actions), -1)
    contact = bare._contact_cost_weight * np.sum(squares, axis=1)
    info = plane_info(bare, after) | {
        "x_velocity": velocity[:, 0],
        "y_velocity": velocity[:, 1],
        "reward_forward": forward,
        "reward_ctrl": -control,
        "reward_contact": -contact,
        "reward_survive": survive,
    }
    terminated = ~is_healthy & bool(bare._terminate_when_unhealthy)
    return StepOutcome(forward + survive - (control + contact), terminated, info)


def _healthy(bare: Any, now: Fields) -> NDArray[np.bool_]:
    low, high = bare._healthy_z_range
    finite = np.isfinite(now["qpos"]).all(axis=1) & np.isfinite(now["qvel"]).all(axis=1)
    return np.asarray(finite & (low <= now["qpos"][:, 2]) & (now["qpos"][:, 2] <= high))


ROBOT = Robot(
    entry_point="gymnasium.envs.mujoco.ant_v5:AntEnv",
    reset=normal_reset,
    observe=_observe,
    outcome=_outcome,
    reset_info=plane_info,
    fields=("qpos", "qvel", "xpos", "cfrc_ext"),
)
