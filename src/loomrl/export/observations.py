"""The observations parity is proved on: those the policy visited, and random ones around and beyond them."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from loomrl.environment.wrappers.flat import rounded
from loomrl.errors import ArtifactError
from loomrl.evaluation.tables import TRAJECTORIES, read_table, stack_columns

_SEED = 20_261_120
_WIDTH = 5.0  # standard deviations around the visited mean, where the space has no finite bounds
_WIDEST = 1e6  # a wider Box is unbounded in practice


def visited_observations(
    evaluation_folder: Path, space: gymnasium.Space[Any], num_observations: int
) -> NDArray[np.generic]:
    """At most `num_observations` observations (N, *obs) the policy met in evaluation, evenly spread over the steps.

    Raises:
        ArtifactError: when the trajectories are missing or hold no step.
    """
    path = evaluation_folder / TRAJECTORIES
    assert space.shape is not None
    table = read_table(path)
    if not len(table):
        raise ArtifactError(f"{path} holds no step; run the evaluation stage again")
    observations = stack_columns(table, "obs", space.shape, np.dtype(space.dtype))
    rows = np.unique(np.linspace(0, len(observations) - 1, num_observations).astype(np.int64))
    return observations[rows]


def random_observations(
    visited: NDArray[np.generic], space: gymnasium.Space[Any], num_observations: int
) -> NDArray[np.generic]:
    """Observations (N, *obs), always the same: uniform within finite bounds, normal around the visited elsewhere."""
    rng = np.random.default_rng(_SEED)
    shape = (num_observations, *visited.shape[1:])
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(int(space.start), int(space.start) + int(space.n), shape).astype(visited.dtype)
    assert isinstance(space, gymnasium.spaces.Box)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high) & (np.abs(low) < _WIDEST) & (np.abs(high) < _WIDEST)
    uniform = rng.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0), shape)
    seen = visited.astype(np.float64)
    normal = seen.mean(0) + _WIDTH * (seen.std(0) + 1e-3) * rng.standard_normal(shape)
    drawn = rounded(space, np.clip(np.where(bounded, uniform, normal), low, high))
    return (drawn if visited.dtype.kind == "f" else np.rint(drawn)).astype(visited.dtype)
