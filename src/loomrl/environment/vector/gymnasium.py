"""Vector environments that Gymnasium's registry names: an id's own `vector_entry_point`.

They bring seeding of their own, so none is exact. They must restart ended episodes in the same step or leave that to a
reset mask, as their `metadata["autoreset_mode"]` says. Gymnasium's own CartPole does neither: it restarts one step
late, and the step in between is no transition. It is refused; the back-end `batched` has that environment.
"""

from typing import Any

from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from loomrl.environment.resolve import find_gymnasium_spec
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError

IS_EXACT = False


def create(recipe: Recipe, num_envs: int, mode: AutoresetMode) -> VectorEnv[Any, Any, Any] | None:
    """The id's own vector environment, or None without one.

    Raises:
        ConfigError: when it restarts ended episodes in another way than `mode`.
    """
    definition = recipe.definition
    spec = find_gymnasium_spec(definition.name)
    if spec is None or spec.vector_entry_point is None or spec.entry_point != definition.source.entry_point:
        return None
    maker: Any = spec.vector_entry_point
    maker = load_env_creator(maker) if isinstance(maker, str) else maker
    limit = {} if definition.max_episode_steps is None else {"max_episode_steps": definition.max_episode_steps}
    envs: VectorEnv[Any, Any, Any] = maker(num_envs=num_envs, **limit, **definition.kwargs)
    found = (envs.metadata or {}).get("autoreset_mode")
    if found != mode:
        envs.close()
        raise ConfigError(
            f"environment {definition.name!r}: its own vector environment has autoreset {_word(found)}, "
            f'{_word(mode)} is needed; use backend="auto"'
        )
    return envs


def _word(mode: Any) -> str:
    return mode.value if isinstance(mode, AutoresetMode) else repr(mode)
