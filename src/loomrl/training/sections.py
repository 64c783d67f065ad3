"""The dictionaries with `policy_config`, `training_config` and `env_config` that trainers are configured with.

{
    "policy_config": {"state_dim": 17, "action_dim": 6, "encoder_dims": [256, 256]},
    "training_config": {"num_workers": 8, "rollout_length": 2048, "learning_rate": 3e-4, "clip_range": 0.2},
    "env_config": {"env_id": "HalfCheetah-v5", "num_envs": 16},
}
"""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import gymnasium
from pydantic import Field, ValidationError

from loomrl.errors import ConfigError
from loomrl.system.schema import Section, explain

_Read = TypeVar("_Read", bound=Section)


class PolicySection(Section):
    """The policy's sizes; those of states and actions are the environment's, and are compared with it."""

    state_dim: int | None = Field(default=None, ge=1)
    action_dim: int | None = Field(default=None, ge=1)
    encoder_dims: tuple[int, ...] | None = None  # the algorithm's own `hidden_sizes` where it is not given

    def require_dims_of(self, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> None:
        """Raise ConfigError for a `state_dim` or an `action_dim` that an environment does not have."""
        found = {"state_dim": math.prod(observation.shape or (1,)), "action_dim": _action_dim(action)}
        for name, number in found.items():
            given = getattr(self, name)
            if given is not None and given != number:
                raise ConfigError(
                    f"policy_config.{name}: {given}, but the environment has {number}; correct or remove it"
                )


class EnvironmentSection(Section):
    """The section `env_config`: which environment is learnt in, and how many each worker steps."""

    env_id: str
    num_envs: int = Field(default=16, ge=1)  # of each worker


class Sections(Section):
    """The whole dictionary. `training_config` holds `num_workers`, `seed` and the algorithm's parameters."""

    policy_config: PolicySection = Field(default_factory=PolicySection)
    training_config: dict[str, Any] = Field(default_factory=dict)
    env_config: EnvironmentSection | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Sections":
        """The dictionary as checked sections.

        Raises:
            ConfigError: naming the key, what was found and what is allowed.
        """
        return read_section(cls, dict(config), "config")

    @property
    def num_workers(self) -> int | None:
        """The number of workers in `training_config`, or None where it is not given.

        Raises:
            ConfigError: for what is no whole number from 1.
        """
        found = self.training_config.get("num_workers")
        if found is not None and (isinstance(found, bool) or not isinstance(found, int) or found < 1):
            raise ConfigError(f"training_config.num_workers: {found!r}; give a whole number from 1")
        return found

    @property
    def parameters(self) -> dict[str, Any]:
        """The algorithm's parameters: `training_config` without `num_workers`, with `hidden_sizes` from `encoder_dims`.

        Raises:
            ConfigError: where both `encoder_dims` and `hidden_sizes` are given.
        """
        given = {name: value for name, value in self.training_config.items() if name != "num_workers"}
        if self.policy_config.encoder_dims is None:
            return given
        if "hidden_sizes" in given:
            raise ConfigError("policy_config.encoder_dims and training_config.hidden_sizes are one thing; give it once")
        return {**given, "hidden_sizes": self.policy_config.encoder_dims}


def read_section(section: type[_Read], values: dict[str, Any], place: str) -> _Read:
    """Values as a section.

    Raises:
        ConfigError: naming `place`, the key, what was found and what is allowed.
    """
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, section, f"{place}.")) from error


def _action_dim(action: gymnasium.Space[Any]) -> int:
    """Numbers of a vector, or choices."""
    return int(action.n) if isinstance(action, gymnasium.spaces.Discrete) else math.prod(action.shape or (1,))
