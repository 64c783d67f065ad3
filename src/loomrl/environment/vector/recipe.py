"""What every back-end makes its environments from, and what a back-end is."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from loomrl.environment.backends import TIMEOUT_SECONDS
from loomrl.environment.construct import construct
from loomrl.environment.resolve import Definition
from loomrl.environment.vector.episodes import SeededEpisodes
from loomrl.environment.wrappers.lasting import LastingEnds


@dataclass(frozen=True)
class Recipe:
    """A definition, and how another process makes the same environment.

    Without `elsewhere` the environment's code must be importable there; that of a snapshot need not be.
    `timeout_seconds` is how long that process may take for being made, a reset, a step or being closed. Those that are
    resumable seed every episode: see `SeededEpisodes`.
    """

    definition: Definition
    elsewhere: Callable[[], gymnasium.Env[Any, Any]] | None = None
    timeout_seconds: float = TIMEOUT_SECONDS
    is_resumable: bool = False

    def make(self) -> gymnasium.Env[Any, Any]:
        """One environment in this process, guarded and with its time limit; raises what `construct` raises."""
        return _for_a_vector(partial(construct, self.definition), self.is_resumable)

    @property
    def make_elsewhere(self) -> Callable[[], gymnasium.Env[Any, Any]]:
        """A function without arguments that makes one environment in another process, which it can be sent to."""
        make = self.elsewhere or partial(construct, self.definition)
        return partial(_for_a_vector, make, self.is_resumable)


def _for_a_vector(make: Callable[[], gymnasium.Env[Any, Any]], is_resumable: bool) -> gymnasium.Env[Any, Any]:
    env = LastingEnds(make())
    return SeededEpisodes(env) if is_resumable else env


class Backend(Protocol):
    """A module of this package that is named like its back-end."""

    IS_EXACT: bool  # whether it has Gymnasium's seeding, hence can give the numbers one environment by itself gives

    def create(self, recipe: Recipe, num_envs: int, mode: AutoresetMode) -> VectorEnv[Any, Any, Any] | None:
        """Make the environments, or return None where the back-end does not have them.

        Raises:
            ImportError: when a package it needs is not installed.
            ConfigError: for what it does not take, such as another `mode`, and as `construct` does.
            EnvironmentFault: when an environment cannot be made.
        """
