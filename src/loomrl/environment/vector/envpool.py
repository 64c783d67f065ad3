"""EnvPool's environments, stepped by its own threads (Weng et al., 2022, arXiv 2206.10558). Opt-in.

Their seeding is EnvPool's, so episodes differ from Gymnasium's, and so may dynamics in the last bits. Seeds belong to
a pool and not to an episode: `reset(seed=...)` makes a new pool, and only "same_step" is offered.
"""

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from loomrl.environment.vector.arguments import Options, Seeds, check_actions, reset_arguments, show_like
from loomrl.environment.vector.recipe import Recipe
from loomrl.environment.vector.results import StepResult, check_finite
from loomrl.errors import ConfigError

IS_EXACT = False


def create(recipe: Recipe, num_envs: int, mode: AutoresetMode) -> "EnvPoolVectorEnv | None":
    """EnvPool's environments of the same id, or None without them.

    Raises:
        ConfigError: for parameters of the environment, which EnvPool's may lack, or another autoreset.
        ImportError: when EnvPool is not installed.
    """
    import envpool

    definition = recipe.definition
    if definition.name not in envpool.list_all_envs():
        return None
    if definition.kwargs:
        named = ", ".join(definition.kwargs)
        raise ConfigError(f"environment.kwargs ({named}) do not reach EnvPool's {definition.name!r}; remove them")
    if mode is not AutoresetMode.SAME_STEP:
        raise ConfigError('EnvPool cannot seed single episodes; backend "envpool" has autoreset="same_step" only')
    return EnvPoolVectorEnv(recipe.make(), num_envs, definition.max_episode_steps, definition.name)


class EnvPoolVectorEnv(VectorEnv[NDArray[Any], NDArray[Any], NDArray[Any]]):
    """B environments of one pool, brought to the spaces and dtypes of the Gymnasium environment `env`."""

    def __init__(self, env: gymnasium.Env[Any, Any], num_envs: int, max_episode_steps: int | None, name: str) -> None:
        show_like(self, env, num_envs, AutoresetMode.SAME_STEP)
        self._name = name
        env.close()
        self._limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
        self._elapsed = np.zeros(num_envs, np.int64)
        self._pool = self._make_pool(0)

    def _make_pool(self, seed: int) -> Any:
        import envpool

        with warnings.catch_warnings():
            # Bounds given in float64 for a float32 space; the spaces used here are the environment's own.
            warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
            pool: Any = envpool.make(self._name, "gymnasium", num_envs=self.num_envs, seed=seed, **self._limit)
            self._action_dtype = pool.action_space.dtype
            assert pool.observation_space is not None  # made, and warned about, on the first use
        return pool

    def reset(self, *, seed: Seeds = None, options: Options = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin new episodes everywhere; with a seed, in a new pool. Returns observations (B, *obs) and an empty info.

        Raises:
            ConfigError: for a list of seeds or a mask of some environments.
        """
        seeds, mask = reset_arguments(self.num_envs, seed, options)
        if not mask.all() or not (seed is None or isinstance(seed, int)):
            raise ConfigError('backend "envpool" resets all environments at once, with one seed or none')
        if seeds[0] is not None:
            self._pool.close()
            self._pool = self._make_pool(seeds[0] % 2**31)  # the range EnvPool takes
        self._elapsed[:] = 0
        obs, _ = self._pool.reset()
        return self._converted(obs), {}

    def step(self, actions: NDArray[Any]) -> StepResult:
        """Step all environments: observations (B, *obs), rewards, terminated, truncated (B,), and the info.

        Where an episode ended, the info has `final_obs`, the true successors of all environments; else it is empty.

        Raises:
            EnvironmentFault: for actions of a wrong shape, a value that is not finite.
        """
        given = check_actions(actions, self.single_action_space, self.num_envs, self._name)
        final_obs, reward, terminated, truncated, _ = self._pool.step(given.astype(self._action_dtype))
        final_obs, reward = self._converted(final_obs), np.asarray(reward, np.float64)
        self._elapsed += 1
        check_finite(final_obs, reward, self.single_observation_space, self._name, self._elapsed)
        ended = terminated | truncated
        if not ended.any():
            return final_obs, reward, terminated, truncated, {}
        obs = final_obs.copy()
        begun, _ = self._pool.reset(np.flatnonzero(ended).astype(np.int32))
        obs[ended] = self._converted(begun)
        self._elapsed[ended] = 0
        info = {"final_obs": final_obs, "_final_obs": ended, "final_info": {}, "_final_info": ended}
        return obs, reward, terminated, truncated, info

    def _converted(self, obs: Any) -> NDArray[Any]:
        return np.array(obs, self.single_observation_space.dtype)  # a copy: the pool writes into its own again

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002
        """Close the EnvPool pool, which ends its threads."""
        self._pool.close()
