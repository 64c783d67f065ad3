"""Policies to examine, and the case of each."""

import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.training.config import TrainingConfig
from tests.support.trained import EVALUATION, Policy, evaluate, examine, train, train_cartpole


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A CartPole policy that balances the pole. Never change its folders: copy them."""
    return evaluate(train_cartpole(tmp_path_factory.mktemp("good"), 150_000))


@pytest.fixture(scope="session")
def barely_trained(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A CartPole policy after 2,048 steps, with its case in `safety`. Never change its folders: copy them."""
    policy = evaluate(train_cartpole(tmp_path_factory.mktemp("barely"), 2_048))
    examine(policy, policy.root / "safety")
    return policy


@pytest.fixture(scope="session")
def discrete(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A policy whose observations are a number of 16."""
    training = TrainingConfig(total_env_steps=512, parameters={"num_envs": 4, "rollout_length": 64})
    policy = train(tmp_path_factory.mktemp("discrete"), EnvironmentConfig(id="FrozenLake-v1"), training)
    return evaluate(policy, EVALUATION)
