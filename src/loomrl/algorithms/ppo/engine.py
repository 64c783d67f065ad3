"""Which engine learns: the compiled one where it can express the policy, torch for everything else, and the one on the
device from environments that are there."""

import math
from typing import Any

import gymnasium
import numpy as np

from loomrl.algorithms.base import settle_engine
from loomrl.algorithms.compiled.names import ACTIVATIONS
from loomrl.algorithms.ppo.config import PPOParameters
from loomrl.environment.wrappers.flat import parts_of
from loomrl.errors import ConfigError

DEVICE = "device"  # the back-end


def choose(config: PPOParameters, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> str:
    """The name of the engine: "compiled", "torch" or "device". It is what `config.engine` asks for, or with "auto" what
    the policy allows. Timing plays no part.

    Raises:
        ConfigError: for `engine: compiled` where the policy does not allow it, naming why; for `num_threads: 2` on
            another engine.
    """
    return settle_engine(config.engine, _obstacle(config, observation_space, action_space), config.num_threads)


def for_backend(config: PPOParameters, backend: str) -> PPOParameters:
    """The config, adapted to environments of a back-end: for "device" with `engine: device`, for others unchanged.

    Raises:
        ConfigError: for `engine: compiled` with environments on the device, or `engine: device` with others.
    """
    if backend != DEVICE and config.engine == "device":
        raise ConfigError(
            f"training.parameters.engine: device learns from environment.backend device, not from {backend!r}; set "
            "environment.backend to device, or the engine to auto"
        )
    if backend == DEVICE and config.engine == "compiled":
        raise ConfigError(
            "training.parameters.engine: compiled runs on the CPU and cannot learn from environment.backend device; "
            "set the engine to auto, or environment.backend to auto"
        )
    return config.model_copy(update={"engine": "device"}) if backend == DEVICE else config


def _obstacle(config: PPOParameters, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> str | None:
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
    """Whether actions of this space are vectors of floats, which a Gaussian draws."""
    return isinstance(action, gymnasium.spaces.Box) and np.dtype(action.dtype).kind == "f"


def num_outputs(action: gymnasium.Space[Any]) -> int:
    """How many logits, or means, the actor has for an action space."""
    if isinstance(action, gymnasium.spaces.Discrete):
        return int(action.n)
    return math.prod(action.shape or ())
