"""Pendulum swing-up, with the operations in the order of Gymnasium's `PendulumEnv.step`.

State (angle [rad], angular velocity [rad/s]); the action is a torque. Gymnasium computes what the torque adds in
float32, the rest in float64. Squares are powers with an exponent the compiler does not know: `x ** 2` of a numpy
scalar is the C library's `pow`, and in one case of a thousand not `x * x`.
"""

from math import cos, pi, sin
from typing import Any

import gymnasium
import numpy as np

from loomrl.environment.vector.dynamics import Dynamics, compiled, observe_signature, step_signature
from loomrl.types import FloatArray

_SQUARE = 2.0
_NAMES = ("max_speed", "max_torque", "dt", "g", "m", "l")


def _parameters(env: gymnasium.Env[Any, Any]) -> FloatArray:
    return np.array([*(getattr(env.unwrapped, name) for name in _NAMES), _SQUARE], np.float64)


def _reset_states(rng: np.random.Generator, count: int) -> FloatArray:
    high = np.array([pi, 1.0])
    return rng.uniform(-high, high, (count, 2))


@compiled(step_signature)
def _step(state, action, parameters):  # type: ignore[no-untyped-def]
    max_speed, max_torque, dt, g, m, l, square = parameters  # noqa: E741
    th, thdot = state
    u = np.float32(min(max(action[0], -max_torque), max_torque))
    effort = float(np.float32(0.001) * u ** np.float32(square))
    angle = ((th + pi) % (2.0 * pi)) - pi
    costs = angle**square + 0.1 * thdot**square + effort
    push = float(np.float32(3.0 / (m * (l * l))) * u)
    newthdot = thdot + (3.0 * g / (2.0 * l) * sin(th) + push) * dt
    newthdot = min(max(newthdot, -max_speed), max_speed)
    state[0], state[1] = th + newthdot * dt, newthdot
    return -costs, False


@compiled(observe_signature)
def _observe(state, obs):  # type: ignore[no-untyped-def]
    obs[0], obs[1], obs[2] = cos(state[0]), sin(state[0]), state[1]


DYNAMICS = Dynamics(
    entry_point="gymnasium.envs.classic_control.pendulum:PendulumEnv",
    state_dim=2,
    obs_dim=3,
    parameters=_parameters,
    reset_states=_reset_states,
    step=_step,
    observe=_observe,
)
