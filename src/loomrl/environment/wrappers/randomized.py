"""Environments whose parameters are drawn anew for each episode (domain randomisation: Tobin et al., arXiv 1703.06907).

A parameter is an argument of the environment's constructor, so each episode has an environment of its own: it need not
know of this, and nothing is left of the last episode. Values follow from the reset's seed, apart from the environment's
own randomness, so that the same seed meets the same world.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from loomrl.environment.config import RangeConfig
from loomrl.errors import EnvironmentFault
from loomrl.types import Json

_STREAM = zlib.crc32(b"randomize")
_Make = Callable[[Json], gymnasium.Env[Any, Any]]


class Randomized(gymnasium.Env[Any, Any]):
    """Makes an environment for each episode; every info tells its parameters as `parameter.NAME`.

    Raises:
        EnvironmentFault: when a value changes what is observed or which actions there are.
    """

    def __init__(self, make: _Make, ranges: Mapping[str, RangeConfig], name: str) -> None:
        self._make, self._ranges, self._name = make, dict(sorted(ranges.items())), name
        self._values = {key: one.middle for key, one in self._ranges.items()}
        self._env = make(dict(self._values))
        self._draws = np.random.default_rng()
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self.metadata, self.render_mode = self._env.metadata, self._env.render_mode

    @property
    def unwrapped(self) -> gymnasium.Env[Any, Any]:
        """The innermost environment of the current episode; another one after the next reset."""
        return self._env.unwrapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the parameters and begin the episode. Without a seed the draws go on where the last ones ended.

        Raises:
            EnvironmentFault: when the values change a space, or the environment's constructor fails with them.
            ConfigError: when a package it needs is not installed.
        """
        if seed is not None:
            self._draws = np.random.default_rng([seed, _STREAM])
        self._values = {key: one.draw(self._draws) for key, one in self._ranges.items()}
        own_seed = int(self._draws.integers(2**31)) if seed is None else seed
        self._env.close()
        self._env = self._make(dict(self._values))
        if (self._env.observation_space, self._env.action_space) != (self.observation_space, self.action_space):
            raise EnvironmentFault(
                f"environment {self._name!r}: with {self._values} it has other spaces; environment.randomize must not "
                "change what is observed or done"
            )
        obs, info = self._env.reset(seed=own_seed, options=options)
        return obs, info | self._drawn_info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """What the environment's step returns; its info also holds the episode's drawn parameters."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        return obs, reward, terminated, truncated, info | self._drawn_info

    def render(self) -> Any:
        """What the environment's `render` returns: an image (H, W, 3), or what its render mode says."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment of the current episode."""
        self._env.close()

    @property
    def _drawn_info(self) -> dict[str, float]:
        return {f"parameter.{key}": float(value) for key, value in self._values.items()}
