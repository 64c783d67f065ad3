"""A call of `PPOTrainer.train` with several learners: they learn from a snapshot that is taken for it, and go on with
what the trainer has."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loomrl.algorithms import ppo
from loomrl.algorithms.base import below
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.config import NO_END, DistributedConfig, TrainingConfig
from loomrl.training.distributed.learners.joint_checkpoints import divided
from loomrl.training.distributed.run import Cancelled, learn_on_ray
from loomrl.training.job import TrainingJob
from loomrl.training.loop import OnRow, TrainingLoop

if TYPE_CHECKING:
    from loomrl.training.trainer import PPOConfig  # whose `train` begins this session


def train_together(
    loop: TrainingLoop, config: "PPOConfig", seed: int, total_env_steps: int | None, on_update: OnRow
) -> None:
    """Train a loop's algorithm by several learners on Ray. Afterwards the loop, which does not run itself, is where its
    own run would have left it.

    When the loop is told to stop, learning ends, and what the newest checkpoint holds is kept.

    Raises:
        ConfigError: when the training cannot be divided, or the cluster cannot be had.
        EnvironmentFault: when the environment breaks the API, or has episodes that cannot be repeated.
        ServiceError: when the cluster's head is gone.
        LoomRLError: the error a learner ends with; the loop is as it was before.
    """
    newest = loop.checkpoint()

    def save(checkpoint: Checkpoint) -> None:
        nonlocal newest
        newest = checkpoint

    with tempfile.TemporaryDirectory() as folder:
        job = _job(config, Path(folder), seed, total_env_steps)
        try:
            learn_on_ray(
                job, config.steps_per_rollout, newest, save, on_update, cancelled=lambda: loop.stop_reason is not None
            )
        except Cancelled:
            newest.values["stop_reason"] = loop.stop_reason
    whole = divided(newest, 1, config.num_envs)
    loop.restore(whole)
    loop.algorithm.load_state_dict(below("algorithm.", whole.arrays) | whole.values["algorithm"])


def _job(config: "PPOConfig", folder: Path, seed: int, total_env_steps: int | None) -> TrainingJob:
    assert config.environment is not None
    environment = EnvironmentConfig(id=config.environment, fingerprint_episodes=1)
    take_snapshot(environment, Path.cwd(), folder)
    training = TrainingConfig(
        algorithm=ppo.NAME,
        seed=seed,
        total_env_steps=total_env_steps or NO_END,
        checkpoint_interval_env_steps=max(20_000, (total_env_steps or 0) // 100),
        validation=config.validation_on_ray(total_env_steps),
        parameters=config.model_dump(include=set(ppo.Config.model_fields)),
        distributed=DistributedConfig(num_learners=config.num_learners, sync_frequency=config.sync_frequency),
    )
    return replace(TrainingJob.of(training, folder), total_episodes=config.total_episodes)
