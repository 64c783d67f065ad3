"""MountainCar with a continuous force, with the operations in the order of Gymnasium's.

State (position, velocity, whether it is fresh from a reset). Gymnasium's class keeps float64 after a reset and float32
after a step, and what it computes from either differs in the last bits; so does this.
"""

from math import cos

import numpy as np

from loomrl.environment.vector.dynamics import Dynamics, attributes, compiled, observe_signature, step_signature
from loomrl.types import FloatArray

_parameters = attributes(
    "min_action", "max_action", "min_position", "max_position", "max_speed", "goal_position", "goal_velocity", "power"
)


def _reset_states(rng: np.random.Generator, count: int) -> FloatArray:
    position = rng.uniform(-0.6, -0.4, count)
    return np.stack([position, np.zeros(count), np.ones(count)], axis=1)


@compiled("float64(float64, float64, float64)")
def _add(value, change, fresh):  # type: ignore[no-untyped-def]
    if fresh != 0.0:
        return value + change
    return float(np.float32(value) + np.float32(change))


@compiled(step_signature)
def _step(state, action, parameters):  # type: ignore[no-untyped-def]
    min_action, max_action, min_position, max_position, max_speed, goal_position, goal_velocity, power = parameters
    position, velocity, fresh = state
    # An action within the bounds is a float32 and what is added to it too; a clipped one is a Python float.
    angle = 3.0 * position if fresh != 0.0 else float(np.float32(3.0) * np.float32(position))
    pull = 0.0025 * cos(angle)
    if action[0] < min_action or action[0] > max_action:
        force = min(max(action[0], min_action), max_action)
        change = force * power - pull
    else:
        change = float(np.float32(action[0]) * np.float32(power) - np.float32(pull))
    velocity = _add(velocity, change, fresh)
    velocity = min(max(velocity, -max_speed), max_speed)
    position = _add(position, velocity, fresh)
    position = min(max(position, min_position), max_position)
    if position == min_position and velocity < 0.0:
        velocity = 0.0
    terminated = position >= goal_position and velocity >= goal_velocity
    reward = (100.0 if terminated else 0.0) - action[0] * action[0] * 0.1
    state[0], state[1], state[2] = np.float32(position), np.float32(velocity), 0.0
    return reward, terminated


@compiled(observe_signature)
def _observe(state, obs):  # type: ignore[no-untyped-def]
    obs[0], obs[1] = state[0], state[1]


DYNAMICS = Dynamics(
    entry_point="gymnasium.envs.classic_control.continuous_mountain_car:Continuous_MountainCarEnv",
    state_dim=3,
    obs_dim=2,
    parameters=_parameters,
    reset_states=_reset_states,
    step=_step,
    observe=_observe,
)
