"""Registered policies around CartPole: one that balances, and challengers that differ from it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.evaluation.config import EvaluationConfig
from loomrl.export.config import ExportConfig
from loomrl.runs.config import PolicyConfig
from loomrl.safety.config import SafetyConfig
from loomrl.shadow.config import ConsequencesConfig, ShadowConfig
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.training.config import TrainingConfig
from tests.support.policies import BALANCING, discrete_folder
from tests.support.template_home import at_home

PROJECT = Path(__file__).parents[2]
SIMILAR = BALANCING * np.array([[1.0], [1.1], [1.0], [0.9]], dtype=np.float32)


@pytest.fixture(scope="session")
def registered(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, PolicyVersion]]:
    """Versions by what they do, in a LOOMRL_HOME of their own."""
    folder = tmp_path_factory.mktemp("shadow")
    weights = {"good": BALANCING, "similar": SIMILAR, "opposite": -BALANCING}
    with at_home(folder / "home", template_home):
        registry = Registry()
        yield {
            name: registry.register("cartpole", discrete_folder(folder / name, array, value=float(index)), name)
            for index, (name, array) in enumerate(weights.items())
        }


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CartPole's snapshot."""
    folder = tmp_path_factory.mktemp("snapshot")
    take_snapshot(EnvironmentConfig(id="CartPole-v1"), PROJECT, folder)
    return folder


@pytest.fixture
def config() -> PolicyConfig:
    """Six episodes are enough to see what the tests plant."""
    return PolicyConfig(
        name="cartpole",
        environment=EnvironmentConfig(id="CartPole-v1"),
        training=TrainingConfig(total_env_steps=1),
        evaluation=EvaluationConfig(),
        safety=SafetyConfig(),
        export=ExportConfig(),
        shadow=ShadowConfig(
            num_episodes=6,
            min_decisions=1_000,
            consequences=ConsequencesConfig(num_episodes=64, num_disturbed=64, num_noisy=64, max_pairs=64, num_envs=64),
        ),
    )
