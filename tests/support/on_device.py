"""PPO and environments on the device, as its tests make them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loomrl.algorithms import ppo
from loomrl.algorithms.ppo.device import DevicePPO
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.resolve import resolve
from loomrl.environment.vector.choose import make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.training.loop import TrainingLoop

SMALL = {"num_envs": 4, "rollout_length": 16, "batch_size": 32, "n_epochs": 2, "hidden_sizes": (16,)}


def environments(name: str, num_envs: int, backend: str = "device") -> Any:
    return make_vector(Recipe(resolve(EnvironmentConfig(id=name), Path("."))), num_envs, "same_step", backend)


def build_for(name: str, seed: int = 1, **values: Any) -> DevicePPO:
    envs = environments(name, 1)
    config = ppo.Config(**{**SMALL, "num_envs": 8, **values, "engine": "device"})
    spaces = envs.single_observation_space, envs.single_action_space
    algorithm = ppo.build(config, *spaces, seed=seed, total_env_steps=10_000)
    assert isinstance(algorithm, DevicePPO)
    return algorithm


def loop(algorithm: DevicePPO, envs: Callable[..., Any] | None = None, updates: int = 4, **values: Any) -> TrainingLoop:
    """Segments of two updates."""
    size = algorithm.num_envs * algorithm.rollout_length
    settings = {"seed": 5, "total_env_steps": updates * size, "segment_env_steps": 2 * size, "validation": None}
    make_some = envs or (lambda num_envs, mode: environments("CartPole-v1", num_envs))
    return TrainingLoop(algorithm, make_some, **settings | values)
