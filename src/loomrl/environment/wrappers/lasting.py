"""Ends of episodes that last: an environment may write its next observation into the same array.

Gymnasium's vectors keep what the last step gave by reference while they reset the environment, so that the true
successor, which algorithms bootstrap from at a time limit, would become the next episode's first observation.
"""

from typing import Any

import gymnasium
import numpy as np


class LastingEnds(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copies the arrays of an episode's last step. It is outermost, where all that ends episodes is known, around an
    environment that observes one array."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """What the environment's step returns; where the episode ends, a copy of it."""
        result = self.env.step(action)
        if not (result[2] or result[3]):
            return result
        obs, reward, terminated, truncated, info = result
        return _copied(obs), reward, terminated, truncated, _copied(info)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value
