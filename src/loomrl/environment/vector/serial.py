"""Any environments, stepped one after the other in this process."""

from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from loomrl.environment.vector.episodes import ResumableSyncVectorEnv, SerialVectorEnv
from loomrl.environment.vector.recipe import Recipe

IS_EXACT = True


def create(recipe: Recipe, num_envs: int, mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
    """Gymnasium's own vector of `num_envs` environments, which works for all. Raises what `construct` raises."""
    kind = ResumableSyncVectorEnv if recipe.is_resumable else SerialVectorEnv
    return kind(recipe.definition.name, [recipe.make] * num_envs, mode)
