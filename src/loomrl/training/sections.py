"""The dictionaries with `policy_config`, `training_config` and `env_config` that trainers are configured with.

{
    "policy_config": {"state_dim": 17, "action_dim": 6, "encoder_dims": [256, 256]},
    "training_config": {"num_workers": 8, "rollout_length": 2048, "learning_rate": 3e-4, "clip_range": 0.2},
    "env_config": {"env_id": "HalfCheetah-v5", "num_envs": 16},
}
"""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
from pydantic import Field

from loomrl.errors import ConfigError
from loomrl.system.schema import Section, read_section


class PolicySection(Section):
    """The section `policy_config`: the policy's sizes. `state_dim` and `action_dim` are the environment's, and only
    compared with it; `encoder_dims` are the widths of the hidden layers, None: the algorithm's own `hidden_sizes`."""

    state_dim: int | None = Field(default=None, ge=1)
    action_dim: int | None = Field(default=None, ge=1)
    encoder_dims: tuple[int, ...] | None = None  # the algorithm's own `hidden_sizes` where it is not given

    def require_dims_of(self, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> None:
        """Check that `state_dim` and `action_dim`, where they are given, are those of an environment with these spaces:
        numbers of a vector, or choices of a Discrete action.

        Raises:
            ConfigError: naming the one that differs, and what the environment has.
        """
        found = {"state_dim": math.prod(observation.shape or (1,)), "action_dim": _action_dim(action)}
        for name, number in found.items():
            given = getattr(self, name)
            if given is not None and given != number:
                raise ConfigError(
                    f"policy_config.{name}: {given}, but the environment has {number}; correct or remove it"
                )


class EnvironmentSection(Section):
    """The section `env_config`: the environment's id, and `num_envs`, how many of them each worker steps."""

    env_id: str
    num_envs: int = Field(default=16, ge=1)  # of each worker


class Sections(Section):
    """The whole dictionary that a trainer is configured with. `training_config` holds `num_workers`, `seed` and the
    algorithm's parameters; without `env_config`, None, no environment is named."""

    policy_config: PolicySection = Field(default_factory=PolicySection)
    training_config: dict[str, Any] = Field(default_factory=dict)
    env_config: EnvironmentSection | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Sections":
        """The dictionary as checked sections.

        Raises:
            ConfigError: naming the key, what was found and what is allowed.
        """
        return read_section(cls, config, "config")

    @property
    def num_workers(self) -> int | None:
        """The number of workers in `training_config`, 1 or more; None where it is not given.

        Raises:
            ConfigError: for what is no whole number from 1.
        """
        found = self.training_config.get("num_workers")
        if found is not None and (isinstance(found, bool) or not isinstance(found, int) or found < 1):
            raise ConfigError(f"training_config.num_workers: {found!r}; give a whole number from 1")
        return found

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters in `training_config`: all but `num_workers`, with `hidden_sizes` from `encoder_dims` where
        these are given. A `seed` is among them.

        Raises:
            ConfigError: where both `encoder_dims` and `hidden_sizes` are given.
        """
        given = {name: value for name, value in self.training_config.items() if name != "num_workers"}
        if self.policy_config.encoder_dims is None:
            return given
        if "hidden_sizes" in given:
            raise ConfigError("policy_config.encoder_dims and training_config.hidden_sizes are one thing; give it once")
        return {**given, "hidden_sizes": self.policy_config.encoder_dims}


def _action_dim(action: gymnasium.Space[Any]) -> int:
    """Numbers of a vector, or choices."""
    return int(action.n) if isinstance(action, gymnasium.spaces.Discrete) else math.prod(action.shape or (1,))
