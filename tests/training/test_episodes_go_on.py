"""Episodes go on over checkpoints, and over interruptions at every one of them, to the bit, whoever steps them."""

import logging
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import settle_backend
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import ArtifactError
from loomrl.system.files import read_json, sums
from loomrl.training.checkpoints import Checkpoint, CheckpointStore
from loomrl.training.config import TrainingConfig
from loomrl.training.job import TrainingJob
from loomrl.training.loop import TrainingLoop
from loomrl.training.train import train_policy
from loomrl.training.validation import Validation
from loomrl.types import TrainingReport

ENVIRONMENTS = '''
import random
import gymnasium
import numpy as np

class Drift(gymnasium.Env):
    """Random numbers of its own, beside Gymnasium's; a cost; an episode of about 90 steps."""
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.own = random.Random(seed)
        self.steps, self.place = 0, self.np_random.normal()
        return np.array([self.place, 0.0]), {}

    def step(self, action):
        self.steps += 1
        self.place += (int(action) - 1) * 0.1 + self.own.gauss(0, 0.05) + self.np_random.normal() * 0.01
        reward = -abs(self.place)
        ended = self.steps >= 70 and self.own.random() < 0.05
        return np.array([self.place, self.own.random()]), reward, ended, False, {"cost": float(self.place > 0)}


class Continuous(Drift):
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action):
        return super().step(1 + float(action[0]))


made = 0

class Forgetful(Drift):
    """From its 61st step on an instance adds how many were made before it in this process."""

    def __init__(self):
        global made
        made += 1
        self.number, self.taken = made, 0

    def step(self, action):
        self.taken += 1
        obs, *rest = super().step(action)
        return obs + (self.number if self.taken > 60 else 0), *rest
'''
SMALL = {"hidden_sizes": [8]}


@dataclass(frozen=True)
class Case:
    """A training of 12 segments of 32 steps in each environment, so that episodes last for several of them."""

    environment: dict[str, Any]
    algorithm: str = "ppo"
    backend: str = "auto"
    parameters: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    every: int = 1  # checkpoints between two interruptions

    def job(self, folder: Path) -> TrainingJob:
        folder.mkdir(exist_ok=True)
        (folder / "going_on.py").write_text(ENVIRONMENTS)
        config = EnvironmentConfig.model_validate(
            {"fingerprint_episodes": 1, "fingerprint_steps": 10, **self.environment}
        )
        take_snapshot(config, folder, folder / "snapshot")
        settle_backend(folder / "snapshot", self.backend)
        return TrainingJob.of(self.config, folder / "snapshot")

    @property
    def config(self) -> TrainingConfig:
        num_envs = 3
        return TrainingConfig.model_validate(
            {
                "algorithm": self.algorithm,
                "seed": 4,
                "total_env_steps": num_envs * 32 * 12,
                "checkpoint_interval_env_steps": num_envs * 32,
                "checkpoint_interval_seconds": 0,
                "validation": {"interval_env_steps": num_envs * 32 * 6, "num_episodes": 1},
                "parameters": {"num_envs": num_envs, "rollout_length": 32, **SMALL, **self.parameters},
                **self.training,
            }
        )


OWN = {"id": "Drift-v0", "entry_point": "going_on:Drift", "path": "."}
CONTINUOUS = {"id": "Continuous-v0", "entry_point": "going_on:Continuous", "path": "."}
ON_POLICY = {"batch_size": 32, "n_epochs": 1, "normalize_rewards": True}
OFF_POLICY = {"batch_size": 8, "gradient_steps": 2, "learning_starts": 30, "replay_capacity": 300, "n_step": 3}
PENDULUM = {"id": "Pendulum-v1"}  # 200 steps
CASES = {
    "compiled rollouts": Case(PENDULUM, parameters=ON_POLICY),
    "mujoco": Case({"id": "HalfCheetah-v5", "max_episode_steps": 150}, parameters=ON_POLICY),
    "environments of others": Case(OWN, parameters=ON_POLICY),
    "torch": Case(PENDULUM, parameters=ON_POLICY | {"engine": "torch"}),
    "device": Case({"id": "Pendulum-v1", "backend": "device"}, backend="device", parameters=ON_POLICY),
    "processes": Case(OWN, backend="processes", parameters=ON_POLICY, every=7),
    "memory": Case(OWN, "recurrent_ppo", parameters=ON_POLICY | {"sequence_length": 8, "memory_size": 4}),
    "costs": Case(OWN, "ppo_lagrangian", parameters=ON_POLICY),
    "bounds": Case(OWN, training={"max_episode_cost": 60.0}, parameters=ON_POLICY),
    "stacked frames": Case(OWN | {"frame_stack": 3}, parameters=ON_POLICY),
    "dqn": Case(OWN, "dqn", parameters=OFF_POLICY),
    "dqn, compiled rollouts": Case({"id": "Acrobot-v1", "max_episode_steps": 150}, "dqn", parameters=OFF_POLICY),
    "sac": Case(CONTINUOUS, "sac", parameters=OFF_POLICY),
}


def loop_of(job: TrainingJob, folder: Path) -> TrainingLoop:
    return job.loop(job.algorithm(folder), Validation(job.config.validation, job.environments))


def interrupted(job: TrainingJob, folder: Path, every: int = 1) -> Checkpoint:
    """The last checkpoint of a training that ends after so many of them, and goes on from what is on the disk."""
    with CheckpointStore(folder / "checkpoints", 2) as store:
        while True:
            loop = loop_of(job, folder)
            if (newest := store.newest()) is not None:
                if newest.values["stop_reason"] is not None:
                    return newest
                loop.restore(newest)
                assert loop.checkpoint().digest == newest.digest
            with closing(loop.run()) as running:  # type: ignore[type-var]  # a generator
                for checkpoint in islice(running, every):
                    store.save(checkpoint)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.long_cases(
    *("mujoco", "device", "processes", "costs", "bounds", "stacked frames", "dqn", "dqn, compiled rollouts"),
    *("torch", "environments of others"),
)
def test_a_training_interrupted_at_every_checkpoint_is_the_one_that_was_not(case: Case, tmp_path: Path) -> None:
    job = case.job(tmp_path / "inputs")
    undisturbed = loop_of(job, tmp_path / "whole")
    checkpoints = list(undisturbed.run())
    assert len(checkpoints) == 12
    found = interrupted(job, tmp_path, case.every)
    assert found.digest == checkpoints[-1].digest
    assert undisturbed.num_episodes > 0
    lengths = [row["episode_length"] for row in undisturbed.rows.all() if "episode_length" in row]
    assert max(lengths) > 64, "no episode lasted longer than two segments: nothing was shown"
    assert not undisturbed.cuts_episodes


def trained(case: Case, folder: Path, snapshot: Path) -> TrainingReport:
    return train_policy(case.config, snapshot, folder / "output", folder / "home")


def test_episodes_longer_than_the_stretch_between_checkpoints_end(tmp_path: Path) -> None:
    """Of 999 steps, with a checkpoint after every 96: before, not one ended in all of training."""
    case = Case(
        {"id": "MountainCarContinuous-v0"},
        training={"total_env_steps": 3 * 1100},
        parameters={"batch_size": 32, "n_epochs": 1},
    )
    job = case.job(tmp_path / "inputs")
    report = trained(case, tmp_path, job.snapshot_folder)
    assert report.final_metrics["num_episodes"] >= 3
    assert report.warnings == []


def test_a_training_in_which_no_episode_ends_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = Case({"id": "MountainCarContinuous-v0"}, parameters={"batch_size": 32, "n_epochs": 1})
    job = case.job(tmp_path / "inputs")
    report = trained(case, tmp_path, job.snapshot_folder)
    assert report.warnings == [
        "no episode ended in 1152 environment steps: each of 3 environments took 384, and an episode may take 999; "
        "raise training.total_env_steps above 2997, or lower training.parameters.num_envs or "
        "environment.max_episode_steps"
    ]
    assert report.warnings[0] in caplog.text
    again = tmp_path / "again"
    trained(case, again, job.snapshot_folder)
    assert sums(again / "output") == sums(tmp_path / "output")


def test_an_environment_that_does_not_come_back_begins_another_episode_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forgetful = {"id": "Forgetful-v0", "entry_point": "going_on:Forgetful", "path": "."}
    job = Case(forgetful, parameters=ON_POLICY).job(tmp_path / "inputs")
    with caplog.at_level(logging.WARNING):
        last = interrupted(job, tmp_path)
    assert "3 of 3 environments were not where they had been, after the same seed and actions" in caplog.text
    assert last.values["stop_reason"] == "total_env_steps"


def test_a_checkpoint_from_before_is_refused(tmp_path: Path) -> None:
    job = CASES["compiled rollouts"].job(tmp_path / "inputs")
    checkpoint = next(loop_of(job, tmp_path).run())
    del checkpoint.values["cuts_episodes"]
    with pytest.raises(ArtifactError, match="step 96 is of an older LoomRL, which ended all episodes"):
        loop_of(job, tmp_path / "other").restore(checkpoint)


def test_a_report_from_before_is_read(tmp_path: Path) -> None:
    case = CASES["compiled rollouts"]
    trained(case, tmp_path, case.job(tmp_path / "inputs").snapshot_folder)
    path = tmp_path / "output" / "training.json"
    document = read_json(path)
    for name in ("warnings", "processes"):
        del document[name]
    older = TrainingReport.model_validate(document)
    assert (older.warnings, older.processes) == ([], [])


def test_what_is_open_is_all_that_is_kept(tmp_path: Path) -> None:
    """Actions of episodes that have ended are in no checkpoint."""
    job = CASES["environments of others"].job(tmp_path / "inputs")
    for checkpoint in loop_of(job, tmp_path).run():
        if checkpoint.values["stop_reason"] is None:
            taken = checkpoint.arrays["environments.envs.actions"]
            lengths = checkpoint.arrays["environments.lengths"]
            assert taken.shape[1] == lengths.max()
            np.testing.assert_array_equal(checkpoint.arrays["environments.envs.num_actions"], lengths)
