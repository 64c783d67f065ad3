"""Environments that are stepped together, with the four values of a `step` that much code expects.

    envs = VectorizedEnv({"env_id": "HalfCheetah-v5", "num_envs": 16})
    states = envs.reset(seed=0)
    states, rewards, dones, infos = envs.step(actions)

A façade: inside the library `terminated` and `truncated` are kept apart. `infos` tells which it was.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.resolve import resolve
from loomrl.environment.vector.choose import make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.system.schema import Section, first_problem


class VectorizedEnvConfig(Section):
    """The environment and the number of copies that a `VectorizedEnv` steps."""

    env_id: str  # a Gymnasium id, or a name registered in LoomDB
    num_envs: int = Field(default=1, ge=1)


class VectorizedEnv:
    """`num_envs` copies of an environment, on the fastest back-end that steps it as Gymnasium does.

    One that has ended begins anew within the same step: its state is then the first of the next episode.

    Raises:
        ConfigError: for a key or value that `VectorizedEnvConfig` does not take, or an unknown environment.
        EnvironmentFault: when the environment's constructor fails.
        ServiceError: when LoomDB, which is asked for names that Gymnasium does not have, cannot be reached.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        if not isinstance(config, Mapping):
            raise ConfigError(f"VectorizedEnv takes a mapping such as {{'env_id': 'CartPole-v1'}}; found {config!r}")
        try:
            self.config = VectorizedEnvConfig.model_validate(dict(config))
        except ValidationError as error:
            known = ", ".join(VectorizedEnvConfig.model_fields)
            raise ConfigError(f"VectorizedEnv: {first_problem(error)}; the config takes: {known}") from error
        recipe = Recipe(resolve(EnvironmentConfig(id=self.config.env_id), Path.cwd()))
        self._envs = make_vector(recipe, self.config.num_envs, "same_step", "auto")
        self.num_envs = self.config.num_envs
        self.observation_space = self._envs.single_observation_space  # of one environment
        self.action_space = self._envs.single_action_space
        self._has_begun = False

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Begin episodes, of `seed`, `seed + 1` and so on where one is given; states (N, *obs).

        Raises:
            EnvironmentFault: when the environment breaks its API.
        """
        states, _ = self._envs.reset(seed=seed)
        self._has_begun = True
        return np.array(states)

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], list[dict[str, Any]]]:
        """Take a step in each environment with `actions` (N, *action).

        Returns:
            States (N, *obs); rewards (N,); `dones` (N,), whether an episode is over; and for each environment what it
            told, with `terminated`, `truncated` and, where it is over, `final_observation`, the true successor.

        Raises:
            EnvironmentFault: before the first `reset`, and when the environment breaks its API.
        """
        if not self._has_begun:
            raise EnvironmentFault(f"VectorizedEnv {self.config.env_id}: no episode has begun; call reset first")
        states, rewards, terminated, truncated, info = self._envs.step(actions)
        dones = np.asarray(terminated | truncated)
        infos = [self._info(info, index, bool(dones[index])) for index in range(self.num_envs)]
        for told, ended, cut in zip(infos, terminated, truncated, strict=True):
            told.update(terminated=bool(ended), truncated=bool(cut))
        return np.array(states), np.asarray(rewards, np.float64), dones, infos

    def close(self) -> None:
        """Close the environments: their processes, windows and files."""
        self._envs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _info(self, info: Mapping[str, Any], index: int, is_over: bool) -> dict[str, Any]:
        """What one environment told of the step, not of the reset that followed where its episode is over."""
        if not is_over:
            return _of(info, index)
        return {**_of(info.get("final_info", {}), index), "final_observation": info["final_obs"][index]}


def _of(info: Mapping[str, Any], index: int) -> dict[str, Any]:
    """What one environment told, from arrays over all of them with masks of who told it (Gymnasium's vector API)."""
    return {
        name: _of(values, index) if isinstance(values, Mapping) else values[index]
        for name, values in info.items()
        if not name.startswith("_") and name not in ("final_obs", "final_info") and info[f"_{name}"][index]
    }
