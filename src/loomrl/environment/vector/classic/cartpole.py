"""CartPole (Barto, Sutton and Anderson, 1983), with the operations in the order of Gymnasium's `CartPoleEnv.step`.

State (x [m], x velocity [m/s], angle [rad], angular velocity [rad/s]); action 0 pushes left, 1 right.
"""

from math import cos, sin
from typing import Any

import gymnasium
import numpy as np

from loomrl.environment.vector.dynamics import Dynamics, compiled, observe_signature, step_signature
from loomrl.types import FloatArray

_NAMES = (
    "gravity",
    "masspole",
    "total_mass",
    "length",
    "polemass_length",
    "force_mag",
    "tau",
    "theta_threshold_radians",
    "x_threshold",
)


def _parameters(env: gymnasium.Env[Any, Any]) -> FloatArray:
    bare: Any = env.unwrapped
    explicit = bare.kinematics_integrator == "euler"
    return np.array([*(getattr(bare, name) for name in _NAMES), bare._sutton_barto_reward, explicit], np.float64)


def _reset_states(rng: np.random.Generator, count: int) -> FloatArray:
    return rng.uniform(-0.05, 0.05, (count, 4))


@compiled(step_signature)
def _step(state, action, parameters):  # type: ignore[no-untyped-def]
    gravity, masspole, total_mass, length, polemass_length = parameters[:5]
    force_mag, tau, theta_threshold, x_threshold, sutton_barto, explicit = parameters[5:]
    x, x_dot, theta, theta_dot = state
    force = force_mag if action[0] == 1.0 else -force_mag
    costheta = cos(theta)
    sintheta = sin(theta)
    temp = (force + polemass_length * (theta_dot * theta_dot) * sintheta) / total_mass
    thetaacc = (gravity * sintheta - costheta * temp) / (
        length * (4.0 / 3.0 - masspole * (costheta * costheta) / total_mass)
    )
    xacc = temp - polemass_length * thetaacc * costheta / total_mass
    if explicit != 0.0:
        x = x + tau * x_dot
        x_dot = x_dot + tau * xacc
        theta = theta + tau * theta_dot
        theta_dot = theta_dot + tau * thetaacc
    else:
        x_dot = x_dot + tau * xacc
        x = x + tau * x_dot
        theta_dot = theta_dot + tau * thetaacc
        theta = theta + tau * theta_dot
    state[0], state[1], state[2], state[3] = x, x_dot, theta, theta_dot
    terminated = x < -x_threshold or x > x_threshold or theta < -theta_threshold or theta > theta_threshold
    if sutton_barto != 0.0:
        return (-1.0 if terminated else 0.0), terminated
    return 1.0, terminated


@compiled(observe_signature)
def _observe(state, obs):  # type: ignore[no-untyped-def]
    for index in range(4):
        obs[index] = state[index]


DYNAMICS = Dynamics(
    entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    state_dim=4,
    obs_dim=4,
    parameters=_parameters,
    reset_states=_reset_states,
    step=_step,
    observe=_observe,
)
