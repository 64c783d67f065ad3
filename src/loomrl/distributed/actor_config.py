"""The dictionary a `DistributedTrainer` is configured with, checked and translated into PPO's own parameters."""

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium.vector import VectorEnv
from pydantic import Field, ValidationError

from loomrl.algorithms import ppo
from loomrl.algorithms.registry import explain
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.construct import construct
from loomrl.environment.resolve import resolve
from loomrl.environment.vector.choose import Autoreset, choose, make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError
from loomrl.schema import Section
from loomrl.training.seeds import Purpose, derive

if TYPE_CHECKING:
    from loomrl.algorithms.ppo.compiled import CompiledPPO
    from loomrl.algorithms.ppo.learner import PPO

_GONE = re.compile(
    r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|Reacher|Swimmer"
    r"|Walker2d)-v[23]"
)


class _PolicySection(Section):
    state_dim: int | None = None
    action_dim: int | None = None
    encoder_dims: tuple[int, ...] = (64, 64)


class _EnvironmentSection(Section):
    env_id: str
    num_envs: int = Field(default=16, ge=1)  # of each worker


class _Sections(Section):
    policy_config: _PolicySection = Field(default_factory=_PolicySection)
    training_config: dict[str, Any] = Field(default_factory=dict)
    env_config: _EnvironmentSection


@dataclass(frozen=True)
class ActorConfig:
    """What actors learn and from what. `parameters` are the learner's, of all workers' environments together."""

    environment: str
    num_workers: int
    seed: int
    parameters: ppo.Config

    @classmethod
    def read(cls, config: "ActorConfig | Mapping[str, Any]") -> "ActorConfig":
        """From `policy_config`, `training_config` (`num_workers`, `seed` and PPO's parameters) and `env_config`.

        Raises:
            ConfigError: naming the key, what was found and what is allowed; also for a `state_dim` or an `action_dim`
                that the environment does not have.
        """
        if isinstance(config, ActorConfig):
            return config
        sections = _checked(_Sections, dict(config), "config")
        given = dict(sections.training_config)
        num_workers, seed = given.pop("num_workers", 2), given.pop("seed", 0)
        if not isinstance(num_workers, int) or num_workers < 1:
            raise ConfigError(f"training_config.num_workers: {num_workers!r}; give a whole number from 1")
        num_envs = num_workers * sections.env_config.num_envs
        values = {**given, "num_envs": num_envs, "hidden_sizes": sections.policy_config.encoder_dims}
        parameters = _checked(ppo.Config, values, "training_config")
        read = cls(_current(sections.env_config.env_id), num_workers, seed, parameters)
        _demand_dims(sections.policy_config, *read.spaces)
        return read

    @cached_property
    def _recipe(self) -> Recipe:
        return Recipe(resolve(EnvironmentConfig(id=self.environment), Path.cwd()))

    @cached_property
    def spaces(self) -> tuple[Any, Any]:
        """Of observations and actions."""
        env = construct(self._recipe.definition)
        env.close()
        return env.observation_space, env.action_space

    def environments(self, num_envs: int, autoreset: Autoreset) -> VectorEnv[Any, Any, Any]:
        """So many of them."""
        return make_vector(self._recipe, num_envs, autoreset, choose(self._recipe.definition))

    def algorithm(self) -> "PPO | CompiledPPO":
        """PPO for all workers' environments, with the weights that all actors begin with."""
        parameters = self.parameters.model_copy(update={"rollout_length": self.parameters.steps_per_rollout})
        seed = derive(self.seed, Purpose.WEIGHTS)
        algorithm = ppo.build(parameters, *self.spaces, seed=seed, total_env_steps=1)
        algorithm.restart(None)  # schedules that have no end
        return algorithm

    def close(self) -> None:
        """There is nothing to let go of."""


def _checked(section: Any, values: dict[str, Any], place: str) -> Any:
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, section, place)) from error


def _current(env_id: str) -> str:
    """MuJoCo's environments before v4 are no longer part of Gymnasium."""
    if _GONE.fullmatch(env_id) is None:
        return env_id
    current = f"{env_id[:-1]}5"
    warnings.warn(f"env_config.env_id: {env_id} is no longer part of Gymnasium; {current} is used", stacklevel=4)
    return current


def _demand_dims(policy: _PolicySection, observation: Any, action: Any) -> None:
    found = {"state_dim": math.prod(observation.shape or (1,)), "action_dim": _action_dim(action)}
    for name, number in found.items():
        given = getattr(policy, name)
        if given is not None and given != number:
            raise ConfigError(f"policy_config.{name}: {given}, but the environment has {number}; correct or remove it")


def _action_dim(action: Any) -> int:
    """Numbers of a vector, or choices."""
    return int(action.n) if hasattr(action, "n") else math.prod(action.shape)
