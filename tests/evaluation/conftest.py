"""A policy to evaluate."""

import pytest

from tests.support.trained import Policy, evaluate, train_cartpole


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A barely trained CartPole policy, evaluated. Never change its folders: copy them."""
    return evaluate(train_cartpole(tmp_path_factory.mktemp("cartpole"), 2_048))
