"""SAC's policy: bounds, files, the exported graph, and what it refuses."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.sac.policy import SACPolicy
from loomrl.errors import ConfigError
from loomrl.export.observations import random_observations
from loomrl.export.parity import prove_parity
from tests.support.served import served

OBSERVATION = Box(-np.inf, np.inf, (4,), np.float64)
MATRIX = Box(np.array([[-2.0, 0.0], [1.0, -1.0]]), np.array([[2.0, 1.0], [4.0, 1.0]]), dtype=np.float64)
ACTIONS = {"vector": Box(-1, 1, (3,), np.float32), "matrix": MATRIX, "discrete": Discrete(3, start=5)}


def policy_for(action: gymnasium.Space, observation: gymnasium.Space = OBSERVATION) -> SACPolicy:
    policy = SACPolicy.for_spaces("sac", observation, action, (32, 20), "relu", True, torch.Generator().manual_seed(1))
    with torch.no_grad():
        policy.actor.layers[-1].weight.mul_(10.0)
    if policy.normalizer is not None:
        policy.normalizer.update(np.random.default_rng(1).normal(1.0, 3.0, (100, policy.preprocessor.dim)))
    return policy


@pytest.mark.parametrize("name", ACTIONS)
def test_greedy_action_and_its_value(name: str) -> None:
    space = ACTIONS[name]
    policy = policy_for(space)
    obs = np.random.default_rng(0).normal(size=(9, 4))
    act = policy.act(obs, np.random.default_rng(0))
    assert all(space.contains(one) for one in act.action)
    features = policy.features(torch.from_numpy(obs))
    if isinstance(space, Discrete):
        index = policy.actor(features).argmax(-1)
        assert (act.action == index.numpy() + 5).all()
        expected = policy.critics(features).amin(0)[torch.arange(9), index]
    else:
        squashed = torch.tanh(policy.moments(features)[0])
        assert act.action.shape == (9, *space.shape)
        low, high = space.low.ravel(), space.high.ravel()
        wanted = low + (high - low) * (squashed.detach().numpy() + 1.0) / 2.0
        np.testing.assert_allclose(act.action.reshape(9, -1), wanted, atol=1e-6)
        expected = policy.critics(torch.cat([features, squashed], -1)).amin(0).squeeze(-1)
    np.testing.assert_allclose(act.value, expected.detach().numpy(), atol=1e-5)


def test_scaling_reaches_exactly_the_bounds() -> None:
    policy = policy_for(MATRIX)
    for end, bound in ((-1.0, MATRIX.low), (1.0, MATRIX.high)):
        np.testing.assert_allclose(policy.scaled(torch.full((1, 4), end)).numpy()[0], bound, atol=1e-6)
    assert all(MATRIX.contains(one.astype(np.float64)) for one in policy.scaled(torch.rand(500, 4) * 2 - 1).numpy())


@pytest.mark.parametrize("name", ACTIONS)
def test_files_bring_the_same_policy_back(name: str, tmp_path: Path) -> None:
    policy = policy_for(ACTIONS[name])
    policy.save(tmp_path)
    again = load_policy(tmp_path)
    assert isinstance(again, SACPolicy)
    obs = np.random.default_rng(0).normal(size=(5, 4))
    assert again(obs).tobytes() == policy(obs).tobytes()


@pytest.mark.parametrize("name", ACTIONS)
def test_the_exported_graph_says_the_same(name: str) -> None:
    policy = policy_for(ACTIONS[name]).eval()
    visited = np.random.default_rng(2).normal(size=(64, 4))
    report = prove_parity(policy, served(policy), visited, random_observations(visited, OBSERVATION, 500), 1e-4)
    assert report.passed, report


def test_twin_critics_are_two_networks_side_by_side() -> None:
    critics = policy_for(ACTIONS["vector"]).critics
    inputs = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    for index in range(2):
        hidden = inputs
        for layer, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            hidden = hidden @ weight[index] + bias[index]
            hidden = hidden.relu() if layer < 2 else hidden
        torch.testing.assert_close(critics(inputs)[index], hidden)
    assert not torch.equal(critics(inputs)[0], critics(inputs)[1])


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (OBSERVATION, Box(-np.inf, 1, (2,), np.float32), "RescaleAction"),
        (OBSERVATION, MultiDiscrete([2, 2]), "supported: Discrete and Box of floats"),
        (OBSERVATION, Box(0, 5, (2,), np.int64), "supported"),
        (Box(0, 255, (8, 8, 3), np.uint8), Box(-1, 1, (2,), np.float32), "use PPO or DQN"),
    ],
)
def test_other_spaces_are_refused(observation: gymnasium.Space, action: gymnasium.Space, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy_for(action, observation)
