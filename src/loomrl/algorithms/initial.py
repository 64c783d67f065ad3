"""First weights in NumPy, so that every engine begins alike: orthogonal (Saxe et al., arXiv 1312.6120), zero biases."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def orthogonal(rng: np.random.Generator, rows: int, columns: int, gain: float) -> NDArray[np.float32]:
    """A random (rows, columns) matrix whose shorter side is orthonormal, times `gain`.

    Gram-Schmidt, twice over, in float64 and without the linear-algebra library, whose sums depend on its threads.
    """
    short, long = min(rows, columns), max(rows, columns)
    basis = rng.standard_normal((short, long))
    for index in range(short):
        vector, before = basis[index], basis[:index]
        for _ in range(2):
            vector -= np.einsum("ij,i->j", before, np.einsum("ij,j->i", before, vector))
        vector /= math.sqrt(np.einsum("i,i->", vector, vector))
    matrix = basis if rows <= columns else basis.T
    return (gain * matrix).astype(np.float32)


def dense_actor_critic(
    rng: np.random.Generator,
    num_features: int,
    hidden_sizes: Sequence[int],
    num_outputs: int,
    log_std: float | None,
) -> Arrays:
    """First weights, float32, of an actor and a critic with an encoder each, by their names in `ActorCriticPolicy`'s
    state.

    Gains: sqrt(2) in the encoders, 0.01 for the actor's outputs (early actions are centred), 1 for the value. `log_std`
    is the first log standard deviation of a Gaussian over `num_outputs` values; None: the outputs are logits.
    """
    arrays: Arrays = {}
    head = "head.logits" if log_std is None else "head.mean"
    for encoder, last, width, gain in (("actor", head, num_outputs, 0.01), ("critic", "value_head.value", 1, 1.0)):
        size = num_features
        for index, hidden in enumerate(hidden_sizes):
            _dense(arrays, f"{encoder}.layers.{2 * index}", rng, hidden, size, math.sqrt(2))
            size = hidden
        _dense(arrays, last, rng, width, size, gain)
    if log_std is not None:
        arrays["head.log_std"] = np.full(num_outputs, log_std, np.float32)
    return arrays


def _dense(arrays: Arrays, name: str, rng: np.random.Generator, rows: int, columns: int, gain: float) -> None:
    arrays[f"{name}.weight"] = orthogonal(rng, rows, columns, gain)
    arrays[f"{name}.bias"] = np.zeros(rows, np.float32)
