"""What every back-end takes in `reset` and `step`, checked in one place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.errors import ConfigError, EnvironmentFault

Seeds = int | Sequence[int | None] | None


def reset_arguments(
    num_envs: int, seed: Seeds, options: dict[str, Any] | None
) -> tuple[list[int | None], NDArray[np.bool_]]:
    """One seed for each environment, and the mask (B,) of those to reset.

    Raises:
        ConfigError: for a list of seeds or a mask that does not fit, or options only the environments' own `reset`
            could understand.
    """
    mask = np.ones(num_envs, np.bool_)
    for name, value in (options or {}).items():
        if name != "reset_mask":
            raise ConfigError(f'reset option {name!r}: this back-end knows `reset_mask` only; use backend="serial"')
        mask = value
    if not isinstance(mask, np.ndarray) or mask.shape != (num_envs,) or mask.dtype != np.bool_ or not mask.any():
        raise ConfigError(f"reset_mask must be a boolean array of shape ({num_envs},) with at least one True")
    return seed_list(num_envs, seed), mask


def seed_list(num_envs: int, seed: Seeds) -> list[int | None]:
    """Environment i gets `seed + i`, or the i-th of a sequence."""
    if isinstance(seed, int | np.integer):
        return [int(seed) + index for index in range(num_envs)]
    given: Sequence[int | None] = [None] * num_envs if seed is None else seed
    seeds = [None if one is None else int(one) for one in given]
    if len(seeds) != num_envs:
        raise ConfigError(f"{len(seeds)} seeds for {num_envs} environments; pass one for each, or one number")
    return seeds


def check_actions(actions: Any, space: spaces.Space[Any], num_envs: int, name: str) -> NDArray[Any]:
    """Actions (B, *shape) for a space as an array of its dtype; their values are not looked at.

    Raises:
        EnvironmentFault: naming the shape or dtype that is wrong.
    """
    found = np.asarray(actions)
    shape = (num_envs, *(space.shape or ()))
    if found.shape != shape:
        raise EnvironmentFault(f"environment {name!r}: actions have shape {found.shape}; {shape} is needed")
    kinds = "iu" if isinstance(space, spaces.Discrete) else "fiu"
    if found.dtype.kind not in kinds:
        raise EnvironmentFault(f"environment {name!r}: actions have dtype {found.dtype}; {space.dtype} is needed")
    return found.astype(space.dtype, copy=False)
