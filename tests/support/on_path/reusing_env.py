"""Environments that write all they show and tell into the same arrays, importable by worker processes."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Reusing(gymnasium.Env[Any, int]):
    """Shows (steps so far, a number drawn for the episode); `place` in its info is the same."""

    observation_space: spaces.Space[Any] = spaces.Box(0.0, 1e6, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.place, self.info = np.zeros(2), {"place": np.zeros(2)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place[:] = 0.0, self.np_random.integers(1_000_000)
        return self._look(), self.info

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place[0] += 1
        return self._look(), 1.0, False, False, self.info

    def _look(self) -> Any:
        self.info["place"][:] = self.place
        return self.place


class ReusingPair(Reusing):
    """Shows the same array in a dict that it keeps, beside a tuple."""

    observation_space = spaces.Dict(place=Reusing.observation_space, pair=spaces.Tuple([Reusing.observation_space]))

    def __init__(self) -> None:
        super().__init__()
        self.shown = {"place": self.place, "pair": (self.place,)}

    def _look(self) -> Any:
        super()._look()
        return self.shown
