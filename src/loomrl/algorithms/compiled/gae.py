"""Advantages and the scale of rewards, as in `loomrl.algorithms.advantages`; all (T, B) float64."""

import math

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.jit import compiled
from loomrl.types import FloatArray

Mask = NDArray[np.bool_]


@compiled
def advantages(
    reward: FloatArray, value: FloatArray, last_or_ended_value: FloatArray, terminated: Mask, truncated: Mask,
    gamma: float, gae_lambda: float, advantage: FloatArray,
) -> None:  # fmt: skip
    """Generalised advantage estimation, written into `advantage` (T, B). `reward`, `value`, `terminated` and
    `truncated` are (T, B); `last_or_ended_value` (K,) are the values of the true successors that are not the next row:
    where an episode ended, and after the last step, in the order of (T, B)."""
    num_steps, num_envs = reward.shape
    other = last_or_ended_value.size
    for step in range(num_steps - 1, -1, -1):
        for env in range(num_envs - 1, -1, -1):
            ended = terminated[step, env] or truncated[step, env]
            if ended or step == num_steps - 1:
                other -= 1
                next_value = 0.0 if terminated[step, env] else last_or_ended_value[other]
            else:
                next_value = value[step + 1, env]
            error = reward[step, env] + gamma * next_value - value[step, env]
            carried = 0.0 if ended or step == num_steps - 1 else gamma * gae_lambda * advantage[step + 1, env]
            advantage[step, env] = error + carried


@compiled
def moments(values: FloatArray) -> tuple[float, float]:
    """Mean and variance, (mean, var), of values (N,)."""
    mean = 0.0
    for value in values:
        mean += value
    mean /= values.size
    variance = 0.0
    for value in values:
        variance += (value - mean) * (value - mean)
    return mean, variance / values.size


@compiled
def normalize(values: FloatArray, mean: float, variance: float) -> None:
    """Subtract `mean` from values (N,) and divide them by the square root of `variance`, in place."""
    deviation = math.sqrt(variance) + 1e-8
    for index in range(values.size):
        values[index] = (values[index] - mean) / deviation


@compiled
def explained_variance(value: FloatArray, returns: FloatArray) -> float:
    """1 - Var(returns - value) / Var(returns) of arrays (N,): 1 is perfect; 0 for constant returns."""
    mean, mean_error = 0.0, 0.0
    for index in range(value.size):
        mean += returns[index]
        mean_error += returns[index] - value[index]
    mean, mean_error = mean / value.size, mean_error / value.size
    variance, error_variance = 0.0, 0.0
    for index in range(value.size):
        variance += (returns[index] - mean) ** 2
        error_variance += (returns[index] - value[index] - mean_error) ** 2
    return 0.0 if variance == 0.0 else 1.0 - error_variance / variance


@compiled
def discounted_returns(reward: FloatArray, ended: Mask, running: FloatArray, gamma: float, returns: FloatArray) -> None:
    """Write the discounted return so far at every step into `returns` (T, B), from `reward` and `ended` (T, B).
    `running` (B,) changes in place and is carried from one rollout to the next."""
    for step in range(reward.shape[0]):
        for env in range(reward.shape[1]):
            total = gamma * running[env] + reward[step, env]
            returns[step, env] = total
            running[env] = 0.0 if ended[step, env] else total
