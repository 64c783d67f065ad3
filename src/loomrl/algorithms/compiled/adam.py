"""Adam (Kingma and Ba, arXiv 1412.6980, algorithm 1) and clipping by the global norm, on flat vectors."""

import math

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.jit import compiled, compiled_reduction

Vector = NDArray[np.float32]


@compiled_reduction
def sum_of_squares(vector: Vector) -> np.float32:
    """The square of a vector's L2 norm, float32."""
    total = np.float32(0.0)
    for index in range(vector.size):
        total += vector[index] * vector[index]
    return total


@compiled
def norm(vector: Vector) -> float:
    """The L2 norm of a vector (P,)."""
    return math.sqrt(sum_of_squares(vector))


@compiled
def adam_step(
    parameters: Vector, gradient: Vector, first: Vector, second: Vector, step: int,
    learning_rate: float, beta1: float, beta2: float, epsilon: float, scale: float,
) -> None:  # fmt: skip
    """One step of Adam on `parameters` (P,), in place, for `gradient` x `scale`. `first` and `second` (P,) are the
    moments, and change in place; `step` counts from 1."""
    keep1, keep2 = np.float32(beta1), np.float32(beta2)
    new1, new2 = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    rate = np.float32(learning_rate / (1.0 - beta1**step))
    root = np.float32(1.0 / math.sqrt(1.0 - beta2**step))
    small, factor = np.float32(epsilon), np.float32(scale)
    for index in range(parameters.size):
        slope = gradient[index] * factor
        moment1 = keep1 * first[index] + new1 * slope
        moment2 = keep2 * second[index] + new2 * slope * slope
        first[index] = moment1
        second[index] = moment2
        parameters[index] -= rate * moment1 / (np.sqrt(moment2) * root + small)
