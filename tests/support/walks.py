"""Trainings of a walk, on which mishaps happen, by several learners."""

from pathlib import Path
from typing import Any

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.training.config import TrainingConfig
from loomrl.training.distributed.learners.learner import LearnerTask, create_task
from loomrl.training.job import TrainingJob


def settings(**values: Any) -> TrainingConfig:
    """Six segments of two updates of eight gradient steps."""
    return TrainingConfig.model_validate(
        {
            "seed": 3,
            "total_env_steps": 3072,
            "checkpoint_interval_env_steps": 512,
            "checkpoint_interval_seconds": 0,
            "validation": {"interval_env_steps": 1024, "num_episodes": 3},
            "parameters": {"num_envs": 8, "rollout_length": 32, "batch_size": 64, "n_epochs": 2, "hidden_sizes": [16]},
        }
        | values
    )


def walk(folder: Path, **mishaps: int) -> Path:
    """A snapshot of a walk on which mishaps happen, each once, to whichever learner comes to that step first."""
    folder.mkdir()
    config = EnvironmentConfig(
        id="Mishaps-v0",
        entry_point="unreliable_env:Mishaps",
        kwargs={"folder": str(folder), "mishaps": mishaps},
        max_episode_steps=20,
        fingerprint_episodes=1,
        fingerprint_steps=10,
    )
    take_snapshot(config, folder, folder / "snapshot")
    return folder / "snapshot"


def given(
    taken: Path, distributed: dict[str, Any], rollout_length: int = 32, coordinator: Any = None, **training: Any
) -> LearnerTask:
    """What each learner gets."""
    return create_task(
        TrainingJob.of(settings(distributed=distributed, **training), taken), rollout_length, coordinator
    )
