"""MountainCar (Moore, 1990), with the operations in the order of Gymnasium's `MountainCarEnv.step`.

State (position, velocity); action 0 accelerates to the left, 1 not at all, 2 to the right.
"""

from math import cos

import numpy as np

from loomrl.environment.vector.dynamics import Dynamics, attributes, compiled, observe_signature, step_signature
from loomrl.types import FloatArray

_parameters = attributes(
    "min_position", "max_position", "max_speed", "goal_position", "goal_velocity", "force", "gravity"
)


def _reset_states(rng: np.random.Generator, count: int) -> FloatArray:
    position = rng.uniform(-0.6, -0.4, count)
    return np.stack([position, np.zeros(count)], axis=1)


@compiled(step_signature)
def _step(state, action, parameters):  # type: ignore[no-untyped-def]
    min_position, max_position, max_speed, goal_position, goal_velocity, force, gravity = parameters
    position, velocity = state
    velocity += (action[0] - 1.0) * force + cos(3.0 * position) * (-gravity)
    velocity = min(max(velocity, -max_speed), max_speed)
    position += velocity
    position = min(max(position, min_position), max_position)
    if position == min_position and velocity < 0.0:
        velocity = 0.0
    state[0], state[1] = position, velocity
    return -1.0, position >= goal_position and velocity >= goal_velocity


@compiled(observe_signature)
def _observe(state, obs):  # type: ignore[no-untyped-def]
    obs[0], obs[1] = state[0], state[1]


DYNAMICS = Dynamics(
    entry_point="gymnasium.envs.classic_control.mountain_car:MountainCarEnv",
    state_dim=2,
    obs_dim=2,
    parameters=_parameters,
    reset_states=_reset_states,
    step=_step,
    observe=_observe,
)
