"""Acrobot (Sutton, 1996), with the operations in the order of Gymnasium's `AcrobotEnv`.

State (angle 1, angle 2 [rad], velocity 1, velocity 2 [rad/s], whether it is fresh from a reset, the four sines and
cosines then observed). Gymnasium takes those of a fresh state in float32 with numpy's own functions, which no other
library matches to the bit, so they are taken with numpy when the reset is drawn. Squares: see `pendulum.py`.
"""

from math import cos, pi, sin
from typing import Any

import gymnasium
import numpy as np

from loomrl.environment.vector.dynamics import Dynamics, compiled, observe_signature, step_signature
from loomrl.types import FloatArray

_SQUARE = 2.0
_NAMES = (
    "dt",
    "LINK_LENGTH_1",
    "LINK_MASS_1",
    "LINK_MASS_2",
    "LINK_COM_POS_1",
    "LINK_COM_POS_2",
    "LINK_MOI",
    "MAX_VEL_1",
    "MAX_VEL_2",
)


def _parameters(env: gymnasium.Env[Any, Any]) -> FloatArray:
    bare: Any = env.unwrapped
    values = [getattr(bare, name) for name in _NAMES]
    return np.array([*values, bare.book_or_nips == "nips", _SQUARE, *bare.AVAIL_TORQUE], np.float64)


def _reset_states(rng: np.random.Generator, count: int) -> FloatArray:
    states = rng.uniform(-0.1, 0.1, (count, 4)).astype(np.float32)
    first, second = states[:, 0], states[:, 1]
    shown = [np.ones(count), np.cos(first), np.sin(first), np.cos(second), np.sin(second)]
    return np.column_stack([states, *shown]).astype(np.float64)


@compiled("UniTuple(float64, 4)(float64, float64, float64, float64, float64, float64[::1])")
def _derivative(theta1, theta2, dtheta1, dtheta2, torque, parameters):  # type: ignore[no-untyped-def]
    l1, m1, m2, lc1, lc2, moi = parameters[1:7]
    is_nips, square = parameters[9], parameters[10]
    g = 9.8
    sin2, cos2 = sin(theta2), cos(theta2)
    lc2_squared = lc2**square
    d1 = m1 * lc1**square + m2 * (l1**square + lc2_squared + 2.0 * l1 * lc2 * cos2) + moi + moi
    d2 = m2 * (lc2_squared + l1 * lc2 * cos2) + moi
    phi2 = m2 * lc2 * g * cos(theta1 + theta2 - pi / 2.0)
    phi1 = (
        -m2 * l1 * lc2 * dtheta2**square * sin2
        - 2.0 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sin2
        + (m1 * lc1 + m2 * l1) * g * cos(theta1 - pi / 2.0)
        + phi2
    )
    force = torque + d2 / d1 * phi1
    if is_nips == 0.0:
        force = force - m2 * l1 * lc2 * dtheta1**square * sin2
    ddtheta2 = (force - phi2) / (m2 * lc2_squared + moi - d2**square / d1)
    ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
    return dtheta1, dtheta2, ddtheta1, ddtheta2


@compiled("UniTuple(float64, 4)(float64[::1], UniTuple(float64, 4), float64, float64, float64[::1])")
def _probe(state, slope, step_size, torque, parameters):  # type: ignore[no-untyped-def]
    """The derivative one step along a slope."""
    return _derivative(
        state[0] + step_size * slope[0],
        state[1] + step_size * slope[1],
        state[2] + step_size * slope[2],
        state[3] + step_size * slope[3],
        torque,
        parameters,
    )


@compiled("float64(float64)")
def _wrap(angle):  # type: ignore[no-untyped-def]
    while angle > pi:
        angle = angle - 2.0 * pi
    while angle < -pi:
        angle = angle + 2.0 * pi
    return angle


@compiled(step_signature)
def _step(state, action, parameters):  # type: ignore[no-untyped-def]
    dt, max_vel_1, max_vel_2 = parameters[0], parameters[7], parameters[8]
    torque = parameters[11 + int(action[0])]
    still = (0.0, 0.0, 0.0, 0.0)
    k1 = _probe(state, still, 0.0, torque, parameters)
    k2 = _probe(state, k1, dt / 2.0, torque, parameters)
    k3 = _probe(state, k2, dt / 2.0, torque, parameters)
    k4 = _probe(state, k3, dt, torque, parameters)
    for index in range(4):
        slope = k1[index] + 2.0 * k2[index] + 2.0 * k3[index] + k4[index]
        state[index] = state[index] + dt / 6.0 * slope
    state[0], state[1] = _wrap(state[0]), _wrap(state[1])
    state[2] = min(max(state[2], -max_vel_1), max_vel_1)
    state[3] = min(max(state[3], -max_vel_2), max_vel_2)
    state[4] = 0.0
    terminated = -cos(state[0]) - cos(state[1] + state[0]) > 1.0
    return (0.0 if terminated else -1.0), terminated


@compiled(observe_signature)
def _observe(state, obs):  # type: ignore[no-untyped-def]
    if state[4] != 0.0:
        for index in range(4):
            obs[index] = state[5 + index]
    else:
        obs[0], obs[1], obs[2], obs[3] = cos(state[0]), sin(state[0]), cos(state[1]), sin(state[1])
    obs[4], obs[5] = state[2], state[3]


DYNAMICS = Dynamics(
    entry_point="gymnasium.envs.classic_control.acrobot:AcrobotEnv",
    state_dim=9,
    obs_dim=6,
    parameters=_parameters,
    reset_states=_reset_states,
    step=_step,
    observe=_observe,
)
