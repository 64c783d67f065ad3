"""What every algorithm that is found must hold to, third-party ones included."""

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from loomrl.algorithms.base import Algorithm, AlgorithmPlugin
from loomrl.algorithms.registry import find_algorithms
from loomrl.environment.collector import Collector
from loomrl.errors import ConfigError

ALGORITHMS = find_algorithms()
ENVIRONMENTS = ["CartPole-v1", "Pendulum-v1"]


def accepts(plugin: AlgorithmPlugin, environment: str) -> bool:
    """Whether an algorithm can handle an environment's spaces; where not, it must name the space."""
    try:
        build(plugin, environment)
    except ConfigError as error:
        if "space" not in str(error):
            raise
        return False
    return True


def pairs() -> list[Any]:
    """Every algorithm with every environment it accepts, of which there must be one."""
    found = [(name, [one for one in ENVIRONMENTS if accepts(plugin, one)]) for name, plugin in ALGORITHMS.items()]
    assert all(environments for _, environments in found)
    return [
        pytest.param((name, one), id=f"{name}-{one}") for name, environments in sorted(found) for one in environments
    ]


@pytest.fixture
def plugin(pair: tuple[str, str]) -> AlgorithmPlugin:
    return ALGORITHMS[pair[0]]


@pytest.fixture
def environment(pair: tuple[str, str]) -> str:
    return pair[1]


def build(plugin: AlgorithmPlugin, environment: str) -> Algorithm:
    """With the defaults, but learning from the first step on."""
    env = gymnasium.make(environment)
    config = plugin.Config(**({"learning_starts": 0} if "learning_starts" in plugin.Config.model_fields else {}))
    return plugin.build(config, env.observation_space, env.action_space, seed=1, total_env_steps=100_000)


every_pair = pytest.mark.parametrize("pair", pairs())


@pytest.fixture
def trajectories(plugin: AlgorithmPlugin, environment: str) -> Iterator[list[Any]]:
    algorithm = build(plugin, environment)
    makers = [lambda: gymnasium.make(environment)] * algorithm.num_envs
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    collector, rng = Collector(envs, 1), np.random.default_rng(0)
    yield [collector.collect(algorithm.act, algorithm.rollout_length, rng) for _ in range(2)]
    envs.close()


def weights(algorithm: Algorithm) -> list[bytes]:
    return [value.tobytes() for value in algorithm.policy.arrays().values()]


@every_pair
def test_update_changes_the_policy_and_returns_finite_metrics(
    plugin: AlgorithmPlugin, environment: str, trajectories: list[Any]
) -> None:
    algorithm = build(plugin, environment)
    policy, before = algorithm.policy, weights(algorithm)
    metrics = algorithm.update(trajectories[0], np.random.default_rng(0))
    assert metrics
    assert all(isinstance(value, float) and math.isfinite(value) for value in metrics.values())
    assert algorithm.policy is policy
    assert weights(algorithm) != before


@every_pair
def test_equal_inputs_give_equal_policies(plugin: AlgorithmPlugin, environment: str, trajectories: list[Any]) -> None:
    one, other = build(plugin, environment), build(plugin, environment)
    for algorithm in (one, other):
        algorithm.update(trajectories[0], np.random.default_rng(0))
    assert weights(one) == weights(other)


@every_pair
def test_state_is_complete_and_in_safe_types(
    plugin: AlgorithmPlugin, environment: str, trajectories: list[Any]
) -> None:
    undisturbed, resumed = build(plugin, environment), build(plugin, environment)
    undisturbed.update(trajectories[0], np.random.default_rng(0))
    state = undisturbed.state_dict()
    for value in state.values():
        assert isinstance(value, int | float | str) or (isinstance(value, np.ndarray) and value.dtype != object)
    undisturbed.update(trajectories[1], np.random.default_rng(1))  # must not reach into the state taken before
    resumed.load_state_dict(state)
    resumed.update(trajectories[1], np.random.default_rng(1))
    assert weights(resumed) == weights(undisturbed)
