"""A policy that went through the first four stages; its limits are wide, so that the case passes in seconds."""

from pathlib import Path

import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.evaluation.config import EvaluationConfig
from loomrl.export.config import ExportConfig
from loomrl.runs.config import PolicyConfig
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.training.config import TrainingConfig
from tests.support.trained import Policy, evaluate, examine, train_cartpole

WIDE = ConstraintConfig(name="cart_is_somewhere", quantity="observation[0]", low=-100, high=100, max_probability=0.2)
LENIENT = {"minimum_return": {"threshold": 1.0}, "robustness": {"noise": 1e-4, "max_action_change": 0.25}}
CONFIG = PolicyConfig(
    name="cartpole",
    environment=EnvironmentConfig(id="CartPole-v1"),
    training=TrainingConfig(total_env_steps=2_048),
    evaluation=EvaluationConfig(),
    safety=SafetyConfig(num_episodes=40, num_envs=40, constraints=[WIDE], checks=LENIENT),
    export=ExportConfig(parity_visited=512, parity_random=2_048),
)


@pytest.fixture(scope="session")
def admitted(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Never change its folders: copy them."""
    policy = evaluate(train_cartpole(tmp_path_factory.mktemp("admitted"), 2_048))
    case = examine(policy, policy.root / "safety", CONFIG.safety)
    assert case.decision.passed, case.decision.reason
    return policy


@pytest.fixture(scope="session")
def config() -> PolicyConfig:
    """The config of `admitted`."""
    return CONFIG


@pytest.fixture
def safety(admitted: Policy) -> Path:
    """The folder of its safety case."""
    return admitted.root / "safety"
