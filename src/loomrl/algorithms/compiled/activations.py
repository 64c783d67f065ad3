"""Activations and their derivatives over whole arrays, written so that LLVM vectorises them."""

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.jit import compiled
from loomrl.algorithms.compiled.names import ACTIVATIONS

Vector = NDArray[np.float32]

TANH, RELU, ELU = ACTIVATIONS["tanh"], ACTIVATIONS["relu"], ACTIVATIONS["elu"]

# A rational approximation x P(x^2) / Q(x^2), that of Eigen's and XLA's vectorised tanh; beyond the bound tanh is 1.
_BOUND = np.float32(7.90531110763549805)
_P = tuple(
    np.float32(c)
    for c in (
        -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
        1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
    )
)  # fmt: skip
_Q = tuple(
    np.float32(c)
    for c in (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
)  # fmt: skip
ONE = np.float32(1.0)
ZERO = np.float32(0.0)


@compiled
def tanh32(x: np.float32) -> np.float32:
    """tanh within 4e-7 of the true value; NaN stays NaN. numba does not vectorise the C library's."""
    x = _BOUND if x > _BOUND else x
    x = -_BOUND if x < -_BOUND else x
    square = x * x
    above = _P[0]
    for coefficient in _P[1:]:
        above = above * square + coefficient
    below = _Q[0]
    for coefficient in _Q[1:]:
        below = below * square + coefficient
    return x * above / below


@compiled
def activate(values: Vector, activation: int) -> None:
    """Replace every value by its activation, in place. `activation` is a number of
    `loomrl.algorithms.compiled.names.ACTIVATIONS`."""
    if activation == TANH:
        for index in range(values.size):
            values[index] = tanh32(values[index])
    elif activation == RELU:
        for index in range(values.size):
            values[index] = ZERO if values[index] < ZERO else values[index]
    else:
        for index in range(values.size):
            value = values[index]
            values[index] = np.float32(np.exp(value)) - ONE if value < ZERO else value


@compiled
def multiply_by_derivative(gradient: Vector, outputs: Vector, activation: int) -> None:
    """Multiply a gradient in place by f'(x) of the activation f, where `outputs` are f(x). `activation` is a number of
    `loomrl.algorithms.compiled.names.ACTIVATIONS`."""
    if activation == TANH:
        for index in range(gradient.size):
            gradient[index] *= ONE - outputs[index] * outputs[index]
    elif activation == RELU:
        for index in range(gradient.size):
            gradient[index] = gradient[index] if outputs[index] > ZERO else ZERO
    else:
        for index in range(gradient.size):
            value = outputs[index]
            gradient[index] *= value + ONE if value < ZERO else ONE
