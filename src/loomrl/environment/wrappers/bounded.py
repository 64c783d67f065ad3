"""Environments with bounds, for training alone: penalties near a boundary, and episodes that end beyond it or when they
have cost too much (Sun, Xu, Fang et al., Safe exploration by solving early terminated MDP, arXiv:2107.04200).

To an algorithm this is what the environment is, so any of them learns with it. Whatever judges a policy plays in the
environment as it is.
"""

from typing import Any

import gymnasium
import numpy as np

from loomrl.environment.config import EpisodeBounds
from loomrl.environment.quantities import COST, absent_from, component, kind_of
from loomrl.errors import ConfigError


class Bounded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes the penalties of `bounds` off the rewards, and terminates episodes that leave a boundary or cost too much.

    The observations of a reset are not judged. A step that tells no cost costs nothing.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], bounds: EpisodeBounds, name: str) -> None:
        super().__init__(env)
        self._bounds, self._name = bounds, name
        self._cost = 0.0  # of the episode so far

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """What the environment's reset returns; the episode's cost starts at 0."""
        self._cost = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The environment's step: penalties are off the reward, and it is terminated where a bound was broken, too.

        Raises:
            ConfigError: when the info lacks a key that a boundary is on.
        """
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._cost += float(info.get(COST, 0.0))
        limit = self._bounds.max_episode_cost
        left = limit is not None and self._cost > limit
        penalty = 0.0
        for place, boundary in enumerate(self._bounds.boundaries):
            value = self._value(place, boundary.quantity, {"observation": obs, "action": action}, info)
            penalty += boundary.penalty_at(value)
            left = left or (boundary.terminate and boundary.is_left(value))
        return obs, float(reward) - penalty, bool(terminated) or left, truncated, info

    def _value(self, place: int, quantity: str, arrays: dict[str, Any], info: dict[str, Any]) -> float:
        kind = kind_of(quantity)
        if kind in arrays:
            return float(component(quantity, np.asarray(arrays[kind])[None])[0])
        if kind == COST:
            return float(info.get(COST, 0.0))
        key = quantity.removeprefix("info.")
        value = np.asarray(info.get(key))
        if value.shape != () or value.dtype.kind not in "bifu":
            raise ConfigError(
                f"training.boundaries.{place}.quantity: found {quantity!r}, but a step of {self._name!r} told no "
                f"number {key!r} in its info; its keys: {', '.join(sorted(map(str, info))) or 'none'}"
            )
        return float(value)


def check_bounds(bounds: EpisodeBounds, observation_space: Any, action_space: Any) -> None:
    """Find boundaries on components these Gymnasium spaces do not have. Keys of an info are known at the first step.

    Raises:
        ConfigError: naming the config key, the index and the size.
    """
    for place, boundary in enumerate(bounds.boundaries):
        if problem := absent_from(boundary.quantity, observation_space, action_space):
            raise ConfigError(f"training.boundaries.{place}.quantity: {problem}")
