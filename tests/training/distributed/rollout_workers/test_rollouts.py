"""What workers collect is what a learner would that collects itself, whatever their shares; as plain objects."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.vector.states import joined, rows_of
from loomrl.errors import ConfigError
from loomrl.system.threads import one_thread
from loomrl.training.collecting import OwnEnvironments
from loomrl.training.config import TrainingConfig
from loomrl.training.distributed.learners.worker_directory import WorkerDirectory, packed
from loomrl.training.distributed.rollout_workers.environment_shares import EnvironmentShare
from loomrl.training.distributed.rollout_workers.rollouts import (
    PolicyState,
    WorkerRollout,
    beside,
    finished_in_order,
    require_fresh,
)
from loomrl.training.distributed.rollout_workers.workers import RolloutWorker
from loomrl.training.job import TrainingJob
from loomrl.types import Trajectory

SEED = 77
ARRAYS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


def job_of(folder: Path, name: str, engine: str, num_envs: int) -> TrainingJob:
    take_snapshot(EnvironmentConfig(id=name, fingerprint_episodes=1), folder, folder / "snapshot")
    parameters = {"num_envs": num_envs, "rollout_length": 40, "batch_size": 80, "engine": engine, "hidden_sizes": [16]}
    config = TrainingConfig.model_validate({"total_env_steps": 5000, "parameters": parameters})
    return TrainingJob.of(config, folder / "snapshot")


def collected(workers: list[RolloutWorker], state: PolicyState, rng: np.random.Generator) -> list[WorkerRollout]:
    """As a pool would."""
    for worker in workers:
        worker.sync_policy(state)
    rollouts = [worker.collect_rollout(copy.deepcopy(rng)) for worker in workers]
    rng.bit_generator.state = rollouts[0].rng_state
    return rollouts


@pytest.mark.parametrize(
    ("name", "engine", "num_envs", "cuts"),
    [
        ("CartPole-v1", "compiled", 5, [2, 1]),
        ("CartPole-v1", "torch", 5, [2, 1]),
        ("CartPole-v1", "torch", 16, [7]),
        ("Pendulum-v1", "compiled", 5, [3]),
        ("Acrobot-v1", "torch", 16, [9]),
    ],
)
def test_workers_collect_what_the_learner_would_to_the_bit(
    name: str, engine: str, num_envs: int, cuts: list[int], tmp_path: Path
) -> None:
    """Each cut divides the environments among two workers anew."""
    job = job_of(tmp_path, name, engine, num_envs)
    algorithm: Any = job.algorithm(tmp_path / "own")
    own = OwnEnvironments(algorithm, job.environments_to_learn_from, num_envs)
    place = WorkerDirectory(job, packed(job.snapshot_folder), 2)
    workers = [RolloutWorker(place, index) for index in range(2)]
    rng, other = np.random.default_rng(3), np.random.default_rng(3)
    with one_thread():
        for segment, cut in enumerate(cuts):
            state = own.state_dict()  # empty at first
            collector = own.begin(SEED + segment)
            for worker, share in zip(
                workers,
                (EnvironmentShare(0, cut, num_envs), EnvironmentShare(cut, num_envs - cut, num_envs)),
                strict=True,
            ):
                worker.begin(share, SEED + segment, rows_of(state, share.rows))
            for version in range(2):
                wanted = collector.collect(algorithm.rollout_length, rng)
                rollouts = collected(workers, PolicyState(version, algorithm.policy.arrays()), other)
                same(beside(rollouts), wanted)
                assert finished_in_order(rollouts) == collector.finished
                assert rng.bit_generator.state == other.bit_generator.state
                collector.finished.clear()
                together = joined([rollout.environments for rollout in rollouts])
                for name, values in own.state_dict().items():
                    np.testing.assert_array_equal(together[name], values, strict=True)
                algorithm.update(wanted, rng)  # so that the policy, and its normaliser, change
                other.bit_generator.state = rng.bit_generator.state
    own.close()
    for worker in workers:
        worker.close()


def same(found: Trajectory, wanted: Trajectory) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), strict=True)
    assert found.extras.keys() == wanted.extras.keys()
    for name, values in wanted.extras.items():
        np.testing.assert_array_equal(found.extras[name], values, strict=True)


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_kept_log_probabilities_are_the_acting_policys_and_are_learnt_with(engine: str, tmp_path: Path) -> None:
    """A learner that has moved on since has a ratio other than 1 from its first gradient step on."""
    job = job_of(tmp_path, "Pendulum-v1", engine, 4)
    worker = RolloutWorker(WorkerDirectory(job, packed(job.snapshot_folder), 1))
    with one_thread():
        rollout = worker.collect_rollout(with_log_prob=True)
        acted, moved = job.algorithm(tmp_path / "one"), job.algorithm(tmp_path / "other")
        sample, log_prob = rollout.trajectory.extras["sample"], rollout.trajectory.extras["log_prob"]
        mean = acted.policy.act(rollout.trajectory.obs.reshape(-1, 3), np.random.default_rng(0)).action  # within bounds
        assert (np.abs(mean) < 2).all()
        gaussian = -0.5 * ((sample.ravel() - mean.ravel()) ** 2 + np.log(2 * np.pi))  # of deviation 1 at first
        np.testing.assert_allclose(log_prob.ravel(), gaussian, rtol=1e-4)
        moved.update(rollout.trajectory, np.random.default_rng(0))
        arrays = moved.policy.arrays()
        one_step = job.config.model_copy(
            update={"parameters": {**job.config.parameters, "n_epochs": 1, "batch_size": 160}}
        )
        stale: Any = TrainingJob.of(one_step, job.snapshot_folder).algorithm(tmp_path / "stale")
        stale.policy.load_arrays(arrays)
        assert stale.update(rollout.trajectory, np.random.default_rng(1))["approx_kl"] > 1e-6
    worker.close()


def test_costs_are_joined_where_any_are_told(tmp_path: Path) -> None:
    def part(cost: float | None) -> WorkerRollout:
        arrays = {name: np.zeros((2, 1)) for name in ARRAYS}
        told = None if cost is None else np.full((2, 1), cost)
        return WorkerRollout(Trajectory(**arrays, cost=told), [], 0, {}, 1.0)  # type: ignore[arg-type]

    assert beside([part(None), part(None)]).cost is None
    np.testing.assert_array_equal(beside([part(None), part(3.0)]).cost, [[0.0, 3.0]] * 2)


def test_rollouts_of_other_policies_are_refused() -> None:
    rollout = WorkerRollout(Trajectory(*[np.zeros((1, 1))] * 6), [], 4, {}, 1.0)  # type: ignore[arg-type]
    require_fresh([rollout], 4)
    require_fresh([rollout], 5, max_staleness=1)
    for version, most in ((5, 0), (6, 1), (3, 1)):
        with pytest.raises(ConfigError, match=f"made by version 4 of the policy, which is at {version} now"):
            require_fresh([rollout], version, most)
