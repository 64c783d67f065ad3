"""Which engine learns: the compiled one where it can express the policy, torch for everything else."""

import math
from typing import Any

import gymnasium
import numpy as np

from loomrl.algorithms.base import settle_engine
from loomrl.algorithms.ppo.config import Config
from loomrl.environment.flat import parts_of

ACTIVATIONS = ("tanh", "relu", "elu")  # those whose derivative follows from their value


def choose(config: Config, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> str:
    """`compiled` or `torch`: what `config.engine` asks for, or what the policy allows. Timing plays no part in it.

    Raises:
        ConfigError: for `engine: compiled` where the policy does not allow it, naming why.
    """
    return settle_engine(config.engine, _obstacle(config, observation_space, action_space))


def _obstacle(config: Config, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> str | None:
    if config.activation not in ACTIVATIONS:
        return f"with activation {config.activation} (it has {', '.join(ACTIVATIONS)})"
    if config.squash_actions:
        return "squashed actions"
    if not all(part.kind == "box" for part in parts_of(observation)):
        return f"from observations {observation} (it takes a Box that is no image)"
    if not isinstance(action, gymnasium.spaces.Discrete) and not is_gaussian(action):
        return f"actions {action} (it takes Discrete and Box of floats)"
    return None


def is_gaussian(action: gymnasium.Space[Any]) -> bool:
    """Whether actions are vectors of floats."""
    return isinstance(action, gymnasium.spaces.Box) and np.dtype(action.dtype).kind == "f"


def num_outputs(action: gymnasium.Space[Any]) -> int:
    """Logits, or means, of an action space."""
    if isinstance(action, gymnasium.spaces.Discrete):
        return int(action.n)
    return math.prod(action.shape or ())
