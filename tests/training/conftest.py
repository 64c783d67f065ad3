"""Real snapshots, and small trainings that end within a second."""

from pathlib import Path
from typing import Any

import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshot import take_snapshot
from loomrl.training.config import TrainingConfig


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a snapshot of CartPole-v1."""
    return snapshot(tmp_path_factory.mktemp("cartpole"), id="CartPole-v1")


def snapshot(folder: Path, **environment: Any) -> Path:
    config = EnvironmentConfig(fingerprint_episodes=1, fingerprint_steps=10, **environment)
    take_snapshot(config, folder, folder / "snapshot")
    return folder / "snapshot"


def small_config(**values: Any) -> TrainingConfig:
    """Six segments of two updates; a validation in every segment."""
    settings = {
        "seed": 3,
        "total_env_steps": 3072,
        "checkpoint_interval_env_steps": 512,
        "keep_checkpoints": 2,
        "validation": {"interval_env_steps": 512, "num_episodes": 3},
        "parameters": {"num_envs": 8, "rollout_length": 32, "batch_size": 64, "n_epochs": 2, "hidden_sizes": [16]},
    }
    return TrainingConfig.model_validate(settings | values)
