"""What every back-end shows of itself, and what it takes in `reset` and `step`, checked in one place."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from loomrl.errors import ConfigError, EnvironmentFault

Seeds = int | Sequence[int | None] | None
Options = dict[str, Any] | None

_CHOICES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def show_like(envs: VectorEnv[Any, Any, Any], env: gymnasium.Env[Any, Any], num_envs: int, mode: AutoresetMode) -> None:
    """Set the spaces of a vector to those of `num_envs` environments like `env`, and how it begins their episodes."""
    envs.num_envs, envs.metadata = num_envs, {"autoreset_mode": mode}
    envs.single_observation_space, envs.single_action_space = env.observation_space, env.action_space
    envs.observation_space = batch_space(env.observation_space, num_envs)
    envs.action_space = batch_space(env.action_space, num_envs)


def reset_arguments(num_envs: int, seed: Seeds, options: Options) -> tuple[list[int | None], NDArray[np.bool_]]:
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
    """A seed for each environment: environment i gets `seed + i`, or the i-th of a sequence; None seeds none.

    Raises:
        ConfigError: for a sequence of another length.
    """
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
    demand_actions(actions, space, num_envs, name)
    return np.asarray(actions).astype(space.dtype, copy=False)


def demand_actions(actions: Any, space: spaces.Space[Any], num_envs: int, name: str) -> None:
    """Raise `EnvironmentFault` for actions that are not (B, *shape), or whose dtype does not fit the space. Those of
    spaces that are no array, such as Dict, are not looked at."""
    if space.shape is None:
        return
    try:
        found = np.asarray(actions)
    except ValueError as error:
        raise EnvironmentFault(f"environment {name!r}: actions are no array: {error}") from error
    shape = (num_envs, *space.shape)
    if found.shape != shape:
        raise EnvironmentFault(f"environment {name!r}: actions have shape {found.shape}; {shape} is needed")
    is_whole = isinstance(space, _CHOICES) or np.dtype(space.dtype).kind == "b"
    if found.dtype.kind not in ("biu" if is_whole else "fiu"):
        raise EnvironmentFault(f"environment {name!r}: actions have dtype {found.dtype}; {space.dtype} is needed")
