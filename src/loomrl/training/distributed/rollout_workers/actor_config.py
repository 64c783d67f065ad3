"""The dictionary a `DistributedTrainer` is configured with, checked and translated into PPO's own parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from loomrl.algorithms import ppo
from loomrl.algorithms.ppo.schedules import ScheduledPPO
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.construct import spaces_of
from loomrl.environment.resolve import resolve
from loomrl.environment.vector.choose import Autoreset, choose, make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError
from loomrl.system.schema import read_section
from loomrl.training.sections import Sections
from loomrl.training.seeds import Purpose, derive
from loomrl.types import Json


@dataclass(frozen=True)
class ActorConfig:
    """What a `DistributedTrainer`'s actors learn, and in which environment. `environment` is its name, `num_workers`
    the number of rollout workers, `seed` the training's. `parameters` are the learner's, for all workers' environments
    together."""

    environment: str
    num_workers: int
    seed: int
    parameters: ppo.Config

    @classmethod
    def read(cls, config: "ActorConfig | Mapping[str, Any]") -> "ActorConfig":
        """The config from a dictionary with `policy_config`, `training_config` (`num_workers`, `seed` and PPO's
        parameters) and `env_config`; one that was read already is returned as it is.

        Raises:
            ConfigError: naming the key, what was found and what is allowed; also for a `state_dim` or an `action_dim`
                that the environment does not have.
        """
        if isinstance(config, ActorConfig):
            return config
        sections = Sections.read(config)
        if sections.env_config is None:
            raise ConfigError("config.env_config is missing; name the environment in its `env_id`")
        given, num_workers = sections.parameters, sections.num_workers or 2
        seed = given.pop("seed", 0)
        values = {**given, "num_envs": num_workers * sections.env_config.num_envs}
        parameters = read_section(ppo.Config, values, "training_config")
        environment = resolve(EnvironmentConfig(id=sections.env_config.env_id), Path.cwd()).name  # of an old id the new
        read = cls(environment, num_workers, seed, parameters)
        sections.policy_config.require_dims_of(*read.spaces)
        return read

    @cached_property
    def _recipe(self) -> Recipe:
        return Recipe(resolve(EnvironmentConfig(id=self.environment), Path.cwd()))

    @cached_property
    def spaces(self) -> tuple[Any, Any]:
        """The observation space and the action space of the environment."""
        return spaces_of(self._recipe.definition)

    def environments(self, num_envs: int, autoreset: Autoreset) -> VectorEnv[Any, Any, Any]:
        """A vector of `num_envs` environments, on the back-end that is chosen for this environment; `autoreset` as
        `loomrl.environment.vector.choose.Autoreset` has it."""
        return make_vector(self._recipe, num_envs, autoreset, choose(self._recipe.definition))

    def algorithm(self) -> ScheduledPPO[Any]:
        """PPO for all workers' environments, with the weights that all actors begin with. Its schedules stay constant.

        Raises:
            ConfigError: for spaces, or an engine, that PPO cannot handle.
        """
        parameters = self.parameters.model_copy(update={"rollout_length": self.parameters.steps_per_rollout})
        seed = derive(self.seed, Purpose.WEIGHTS)
        algorithm = ppo.build(parameters, *self.spaces, seed=seed, total_env_steps=1)
        algorithm.restart(None)  # schedules that have no end
        return algorithm

    def process(self, index: int, algorithm: Any) -> Json:  # noqa: ARG002
        """An empty dictionary: these trainings write no report that would describe processes."""
        return {}

    def close(self) -> None:
        """Do nothing: workers of these trainings keep no files."""
