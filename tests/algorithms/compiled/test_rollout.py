"""Compiled rollouts and greedy episodes against the same policy stepped from Python."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.algorithms import ppo
from loomrl.algorithms.compiled.rollout import CompiledCollector
from loomrl.algorithms.ppo.compiled import CompiledPPO
from loomrl.environment.collecting.collector import Collector, run_episodes
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.resolve import resolve
from loomrl.environment.vector.batched import BatchedVectorEnv
from loomrl.environment.vector.choose import make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import EnvironmentFault, LoomRLError


def environments(name: str, num_envs: int, autoreset: Any, limit: int = 30) -> BatchedVectorEnv:
    definition = replace(resolve(EnvironmentConfig(id=name), Path()), max_episode_steps=limit)
    envs = make_vector(Recipe(definition), num_envs, autoreset, "batched")
    assert isinstance(envs, BatchedVectorEnv)
    return envs


def learner(envs: BatchedVectorEnv, **values: Any) -> CompiledPPO:
    config = ppo.Config(num_envs=envs.num_envs, rollout_length=100, batch_size=50, hidden_sizes=(20,), **values)
    spaces = envs.single_observation_space, envs.single_action_space
    algorithm = ppo.build(config, *spaces, seed=1, total_env_steps=10_000)
    assert isinstance(algorithm, CompiledPPO)
    return algorithm


@pytest.mark.parametrize(("name", "limit"), [("CartPole-v1", 4), ("CartPole-v1", 15), ("Pendulum-v1", 4)])
def test_a_compiled_rollout_is_that_of_the_collector(name: str, limit: int) -> None:
    """Same noise, same resets, episodes over the end of a rollout, more resets than were drawn ahead."""
    algorithm = learner(environments(name, 3, "same_step"))
    algorithm.policy.load_arrays({key: value + 0.1 for key, value in algorithm.policy.arrays().items()})
    compiled = algorithm.collector(environments(name, 3, "same_step", limit=limit), 7)
    assert isinstance(compiled, CompiledCollector)
    plain = Collector(environments(name, 3, "same_step", limit=limit), 7, algorithm.act)
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    for _ in range(2):
        fast, slow = compiled.collect(100, one), plain.collect(100, other)
        for field in ("obs", "action", "reward", "terminated", "truncated", "next_obs"):
            found, wanted = getattr(fast, field), getattr(slow, field)
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        assert compiled.finished == [pytest.approx(episode, rel=1e-4) for episode in plain.finished]
        assert len(compiled.finished) > 200 / limit
        if name == "Pendulum-v1":
            sample = fast.extras["sample"]
            np.testing.assert_allclose(sample, slow.extras["sample"], rtol=1e-4, atol=1e-4)
            assert (np.abs(sample) > 2.0).any()  # it is what was drawn; the action is cut at 2
            assert np.abs(fast.action).max() == 2.0
        if limit == 15:
            assert fast.terminated.any()
            assert fast.truncated.any()
    assert one.bit_generator.state == other.bit_generator.state


def test_log_probabilities_of_a_rollout_are_those_computed_afterwards() -> None:
    algorithm = learner(environments("Pendulum-v1", 3, "same_step"))
    trajectory = algorithm.collector(environments("Pendulum-v1", 3, "same_step"), 7).collect(
        100, np.random.default_rng(0)
    )
    again = replace(trajectory, extras={"sample": trajectory.extras["sample"]})
    features = algorithm.policy.features(algorithm.policy.raw_features(trajectory.obs))
    rows, others = algorithm._prepare(trajectory, features)[0], algorithm._prepare(again, features)[0]
    assert (rows.log_prob == others.log_prob).all()


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_greedy_episodes_are_those_of_run_episodes(name: str) -> None:
    envs = environments(name, 3, "disabled")
    policy = learner(envs).policy
    seeds = [5, 6, 7, 8]  # more than environments
    returns, lengths = policy.play(envs, seeds)  # type: ignore[misc]
    episodes = run_episodes(environments(name, 3, "disabled"), policy.act, seeds, np.random.default_rng(0))
    assert returns.tolist() == pytest.approx([episode.episode_return for episode in episodes], rel=1e-5)
    assert lengths.tolist() == [episode.length for episode in episodes]


def test_a_value_that_is_not_finite_is_named() -> None:
    envs = environments("CartPole-v1", 2, "same_step")
    algorithm = learner(envs)
    collector = algorithm.collector(envs, 0)
    envs.parameters[0] = np.nan  # gravity
    with pytest.raises(EnvironmentFault, match=r"'CartPole-v1' \(number 0 of 2\), step 1: observation\[\d\] is nan"):
        collector.collect(10, np.random.default_rng(0))
    still = environments("CartPole-v1", 2, "disabled")
    still.parameters[0] = np.nan
    with pytest.raises(EnvironmentFault, match="not finite"):
        algorithm.policy.play(still, [0, 1])


def test_a_deviation_that_diverged_is_the_policys_fault_too() -> None:
    envs = environments("Pendulum-v1", 2, "same_step")
    algorithm = learner(envs)
    algorithm.policy.parameters[algorithm.policy.actor.end :] = np.nan
    assert np.isnan(algorithm.policy.log_std()).all()
    with pytest.raises(LoomRLError, match="it has diverged"):
        algorithm.collector(envs, 0).collect(10, np.random.default_rng(0))


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_a_policy_that_diverged_is_named_and_not_the_environment(name: str) -> None:
    envs = environments(name, 2, "same_step")
    algorithm = learner(envs)
    collector = algorithm.collector(envs, 0)
    algorithm.policy.parameters[:] = np.nan
    with pytest.raises(LoomRLError, match=r"in environment 0: it has diverged; lower learning_rate"):
        collector.collect(10, np.random.default_rng(0))
    with pytest.raises(LoomRLError, match="it has diverged"):
        algorithm.policy.play(environments(name, 2, "disabled"), [0, 1])
