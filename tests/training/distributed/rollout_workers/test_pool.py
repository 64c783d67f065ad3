"""Rollout workers as Ray actors: shares follow speed, whoever is lost is replaced, and learners learn all the same."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.algorithms.peers import ALONE
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.collecting import OwnEnvironments
from loomrl.training.config import DistributedConfig, TrainingConfig
from loomrl.training.distributed import calls
from loomrl.training.distributed.cluster import cluster
from loomrl.training.distributed.learners.learner import DistributedLearner, create_task
from loomrl.training.distributed.learners.learner_jobs import require_work
from loomrl.training.distributed.learners.worker_directory import WorkerDirectory, packed
from loomrl.training.distributed.rollout_workers import pool as crews
from loomrl.training.distributed.rollout_workers.pool import RolloutWorkerPool
from loomrl.training.distributed.rollout_workers.rollouts import PolicyState, WorkerRollout, beside
from loomrl.training.job import TrainingJob

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray warns of its own

NUM_ENVS = 8
HANG_SECONDS = 10.0


@pytest.fixture(scope="module", autouse=True)
def ray_cluster() -> Iterator[Any]:
    with cluster(DistributedConfig(num_learners=1, rollout_workers_per_learner=3)) as ray:
        yield ray


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker seems slow, nor faster than another, however busy the machine is."""
    monkeypatch.setattr(crews, "SLOW", 0.0)
    monkeypatch.setattr(crews, "GAIN", 1.0)


def job_of(
    folder: Path, entry_point: str = "Mishaps", distributed: dict[str, Any] | None = None, **kwargs: Any
) -> TrainingJob:
    """Of a walk; six segments of two updates. Mishaps happen to workers, not to this process."""
    (folder / "spared").write_text(str(os.getpid()))
    config = EnvironmentConfig(
        id="Walk-v0",
        entry_point=f"unreliable_env:{entry_point}",
        kwargs={"folder": str(folder), **kwargs},
        max_episode_steps=20,
        fingerprint_episodes=1,
        fingerprint_steps=10,
    )
    take_snapshot(config, folder, folder / "snapshot")
    training = {
        "seed": 3,
        "total_env_steps": 3072,
        "checkpoint_interval_env_steps": 512,
        "checkpoint_interval_seconds": 0,
        "validation": {"interval_env_steps": 1024, "num_episodes": 3},
        "parameters": {"num_envs": NUM_ENVS, "rollout_length": 32, "batch_size": 64, "hidden_sizes": [16]},
        "distributed": distributed,
    }
    return TrainingJob.of(TrainingConfig.model_validate(training), folder / "snapshot")


class Collected:
    """A pool, and the same environments in this process."""

    def __init__(self, job: TrainingJob, folder: Path, num_workers: int = 2) -> None:
        place = WorkerDirectory(job, packed(job.snapshot_folder), num_workers)
        self.warnings: list[str] = []
        self.pool = RolloutWorkerPool(place, NUM_ENVS, {"CPU": 0.5}, HANG_SECONDS, self.warnings.append)
        self._algorithm = job.algorithm(folder / "own")
        self._own = OwnEnvironments(self._algorithm, job.environments_to_learn_from, NUM_ENVS)
        self._rng = np.random.default_rng(1)

    def begin(self, seed: int) -> None:
        """Both go on from where the pool's environments are; at first they begin."""
        self._own.close()
        self._own.load_state_dict(self.pool.state)
        self._collector = self._own.begin(seed)
        self.pool.begin(seed, self.pool.state)

    def rollouts(self) -> list[WorkerRollout]:
        import ray

        state = ray.put(PolicyState(0, self._algorithm.policy.arrays()))
        return self.pool.wait_for_rollouts(self.pool.request_rollouts(state, self._rng))

    def demand_same(self) -> None:
        """The workers' next rollout is the one of this process."""
        found = beside(self.rollouts())
        wanted = self._collector.collect(self._algorithm.rollout_length, self._rng)
        for name in ("obs", "action", "reward", "next_obs"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))

    def close(self) -> None:
        self.pool.close()
        self._own.close()


@pytest.mark.long
def test_shares_follow_speed_and_a_slow_worker_is_replaced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process sleeps in every step; what is collected does not depend on who collects it."""
    collected = Collected(job_of(tmp_path, "Sluggish"), tmp_path)
    monkeypatch.setattr(crews, "SLOW", 0.0)  # nobody is too slow
    collected.begin(5)
    assert [share.num_envs for share in collected.pool.shares] == [4, 4]
    collected.demand_same()
    (tmp_path / "now").touch()
    for _ in range(8):  # a mean of speeds forgets 30 % each time
        slow = int(np.argmax([rollout.seconds for rollout in collected.rollouts()]))
    collected.begin(6)
    (tmp_path / "now").unlink()  # what is slow stays slow
    assert collected.pool.shares[slow].num_envs == 1
    collected.demand_same()
    before = [*collected.pool.workers]
    monkeypatch.undo()
    collected.begin(6)  # a rollout of less than a second: it does not matter
    collected.demand_same()
    assert collected.pool.workers == before
    monkeypatch.setattr(crews, "SLOW_SECONDS", 0.0)
    for seed in (7, 8):
        collected.begin(seed)
        collected.demand_same()
    assert [one is other for one, other in zip(before, collected.pool.workers, strict=True)] == [slow == 1, slow == 0]
    (warning,) = collected.warnings
    assert f"rollout worker {slow} is replaced: it does" in warning
    assert collected.pool.num_replaced == 1
    collected.close()


@pytest.mark.long
@pytest.mark.usefixtures("unhurried")
def test_workers_that_die_or_hang_are_replaced_and_broken_environments_end_all(tmp_path: Path) -> None:
    """Each worker takes 128 steps in a rollout, and a successor first those of the episodes under way again: 48 in the
    second rollout, 16 in the third. One dies in the second; one hangs in the third; in the fifth, one fails."""
    collected = Collected(job_of(tmp_path, mishaps={"kill": 150, "hang": 300, "raise": 520}), tmp_path)
    pool = collected.pool
    collected.begin(5)
    opening, second, third = collected.rollouts(), collected.rollouts(), collected.rollouts()
    assert pool.num_replaced == 2
    died, hung = collected.warnings
    assert "The actor died" in died
    assert f"no answer within {HANG_SECONDS:g} s (training.distributed.hang_timeout_seconds)" in hung
    for warning, rollouts in ((died, second), (hung, third)):
        lost = int(warning.split()[2])
        before = (opening if rollouts is second else second)[lost].trajectory
        goes_on = ~(before.terminated[-1] | before.truncated[-1])  # 20 steps an episode: all of them
        assert goes_on.all()
        np.testing.assert_array_equal(rollouts[lost].trajectory.obs[0], before.next_obs[-1])
        assert rollouts[lost].trajectory.obs.shape == (32, 4, 2)
    pool.begin(5, {})  # successors take part as if nothing had been
    for rollout, wanted in zip(collected.rollouts(), opening, strict=True):
        np.testing.assert_array_equal(rollout.trajectory.obs[0], wanted.trajectory.obs[0])
    with pytest.raises(EnvironmentFault, match="the valve is stuck"):
        collected.rollouts()
    collected.close()


@pytest.mark.long
@pytest.mark.usefixtures("unhurried")
def test_a_worker_that_is_lost_again_and_again_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_LOSSES", 1)
    collected = Collected(job_of(tmp_path, mishaps={"kill": 5, "exit": 10}), tmp_path, num_workers=1)
    collected.begin(5)
    with pytest.raises(
        LoomRLError, match="worker 0 was lost 2 times in one rollout; .* neither ends nor blocks .*; .* The actor died"
    ):
        collected.rollouts()
    collected.close()


@pytest.mark.long
@pytest.mark.usefixtures("unhurried")
def test_several_workers_may_be_lost_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a host."""
    monkeypatch.setattr(calls, "MAX_LOSSES", 1)
    collected = Collected(job_of(tmp_path, mishaps={"kill": 5, "exit": 10}), tmp_path)
    collected.begin(5)
    assert len(collected.rollouts()) == 2
    assert collected.pool.num_replaced == 2
    collected.close()


def test_a_worker_with_other_software_ends_all(tmp_path: Path) -> None:
    place = WorkerDirectory(job_of(tmp_path, mishaps={}), {}, 1)
    place._software["versions"]["torch"] = "1.0"
    pool = RolloutWorkerPool(place, NUM_ENVS, {"CPU": 0.5}, HANG_SECONDS, print)
    pool.begin(5, {})
    with pytest.raises(LoomRLError, match="an actor cannot begin: .*has other software .*: versions torch"):
        pool.wait_for_rollouts(pool.request_rollouts(None, np.random.default_rng(0)))
    pool.close()


# --- learners ---


def left_by(job: TrainingJob, newest: Checkpoint | None = None) -> list[Checkpoint]:
    """All checkpoints of a learner in this process."""
    left: list[Checkpoint] = []

    def call(method: str, *arguments: Any) -> Any:
        if method == "submit_checkpoint":
            left.append(arguments[2])
        return newest if method == "register_learner" else None

    distributed = job.config.distributed or DistributedConfig(num_learners=1)
    job = replace(job, config=job.config.model_copy(update={"distributed": distributed}))
    DistributedLearner(create_task(job, job.parameters.rollout_length, None), 0, 1, call).run(
        lambda config, watchdog: ALONE
    )
    return left


def demand_equal(one: Checkpoint, other: Checkpoint) -> None:
    assert one.values == other.values
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(other.arrays[name], array, strict=True)


@pytest.mark.usefixtures("unhurried")
def test_a_learner_with_workers_learns_what_it_learns_by_itself(tmp_path: Path) -> None:
    alone, helped = tmp_path / "alone", tmp_path / "helped"
    workers = {"num_learners": 1, "rollout_workers_per_learner": 2}
    for folder in (alone, helped):
        folder.mkdir()
    wanted = left_by(job_of(alone, mishaps={}))
    found = left_by(job_of(helped, mishaps={}, distributed=workers))
    assert [one.step for one in found] == [512, 1024, 1536, 2048, 2560, 3072]
    names = [process["name"] for process in found[-1].values["processes"]]
    assert names == ["learner 0", "worker 0 of learner 0", "worker 1 of learner 0"]
    found[-1].values["processes"] = wanted[-1].values["processes"]
    demand_equal(found[-1], wanted[-1])


@pytest.mark.long
@pytest.mark.usefixtures("unhurried")
def test_workers_that_collect_ahead_give_the_same_however_many_resumed_or_not(tmp_path: Path) -> None:
    ahead = {"num_learners": 1, "max_staleness": 1, "resources_per_worker": {"CPU": 0.5}}
    whole = left_by(job_of(tmp_path, mishaps={}, distributed=ahead | {"rollout_workers_per_learner": 1}))
    job = job_of(tmp_path, mishaps={}, distributed=ahead | {"rollout_workers_per_learner": 3})
    resumed = left_by(job, whole[2])
    assert len(resumed[-1].values["processes"]) == 1 + 3
    resumed[-1].values["processes"] = whole[-1].values["processes"]
    demand_equal(resumed[-1], whole[-1])
    rows = whole[-1].values["rows"]["rows"]
    assert [row["step"] for row in rows] == [256 * update for update in range(1, 13)]


@pytest.mark.parametrize(
    ("algorithm", "parameters", "message"),
    [
        ("ppo", {"num_envs": 1, "rollout_length": 32, "batch_size": 32}, "2 workers for a learner's 1 environments"),
        ("dqn", {}, "algorithm 'dqn' with environment.backend 'serial' collects itself; set it to 0"),
    ],
)
def test_learners_that_have_no_use_for_workers_are_told(
    algorithm: str, parameters: dict[str, Any], message: str, tmp_path: Path
) -> None:
    job = job_of(tmp_path, mishaps={})
    config = job.config.model_copy(update={"algorithm": algorithm, "parameters": parameters})
    with pytest.raises(ConfigError, match=message):
        require_work(TrainingJob.of(config, job.snapshot_folder), DistributedConfig(rollout_workers_per_learner=2))
