"""What comes out of a batch of environments, checked once for all of them."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.wrappers.guard import explain
from loomrl.errors import EnvironmentFault
from loomrl.types import FloatArray

# Of B environments: observations (B, *obs), rewards, terminated and truncated (B,), and the info.
StepResult = tuple[NDArray[Any], FloatArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


def check_finite(
    obs: NDArray[Any], reward: FloatArray, space: spaces.Space[Any], name: str, elapsed: NDArray[np.int64]
) -> None:
    """Check observations (B, *obs) and rewards (B,) of step `elapsed` (B,) of their episodes.

    Raises:
        EnvironmentFault: naming environment, step and key of the first value that is not finite.
    """
    if np.isfinite(reward).all() and np.isfinite(obs).all():
        return
    bad = ~(np.isfinite(reward) & np.isfinite(obs).reshape(len(reward), -1).all(axis=1))
    raise not_finite(int(np.flatnonzero(bad)[0]), obs, reward, space, name, elapsed)


def not_finite(
    index: int, obs: NDArray[Any], reward: FloatArray, space: spaces.Space[Any], name: str, elapsed: NDArray[np.int64]
) -> EnvironmentFault:
    """The fault of environment `index`, whose observation or reward is not finite; for the caller to raise."""
    if np.isfinite(reward[index]):
        what = explain("observation", obs[index], space)
    else:
        what = f"reward is {reward[index]}; it must be finite"
    return EnvironmentFault(f"{place(name, index, elapsed)}: {what}")


def place(name: str, index: int, elapsed: NDArray[np.int64]) -> str:
    """Words for a message: which environment of a batch, in which step of its episode. `elapsed` is (B,)."""
    return f"environment {name!r} (number {index} of {len(elapsed)}), step {int(elapsed[index])}"
