"""What each learner does: the training loop, with its share of the environments and every batch."""

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loomrl.algorithms.base import Algorithm
from loomrl.algorithms.peers import ALONE, LearnerGroup
from loomrl.errors import ArtifactError, LoomRLError
from loomrl.system.processors import keep_to
from loomrl.system.threads import one_thread
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.config import DistributedConfig
from loomrl.training.distributed.learners.learner_jobs import share_of
from loomrl.training.distributed.learners.watchdog import Watchdog
from loomrl.training.distributed.learners.worker_directory import WorkerDirectory, packed, unpacked
from loomrl.training.distributed.rollout_workers.collecting import CollectedByWorkers
from loomrl.training.distributed.rollout_workers.pool import RolloutWorkerPool
from loomrl.training.job import TrainingJob
from loomrl.training.loop import TrainingLoop
from loomrl.training.saver import Saver
from loomrl.types import Json

REPORT_SECONDS = 0.2  # at least so long between two updates that are told


@dataclass(frozen=True)
class LearnerTask:
    """What each learner is given: the whole job, the steps of a rollout in each environment, and a handle of the
    `Coordinator`. `files` are the snapshot's, by relative path: there may be no shared folders."""

    job: TrainingJob
    rollout_length: int
    distributed: DistributedConfig
    files: dict[str, bytes]
    coordinator: Any  # handle of the `Coordinator`


def create_task(job: TrainingJob, rollout_length: int, coordinator: Any) -> LearnerTask:
    """The task that every learner of a training gets, with the snapshot's files and a handle of the coordinator."""
    config = job.config.distributed
    assert config is not None, "whoever trains in one process does not come here"
    return LearnerTask(job, rollout_length, config, packed(job.snapshot_folder), coordinator)


def learn(config: dict[str, LearnerTask]) -> None:
    """Train until the end, from the newest checkpoint; Ray Train calls it in every learner's process, with the task
    under "task".

    Raises:
        LoomRLError: the error that training ends with; it was reported to the coordinator.
    """
    import ray
    import ray.train
    from ray.exceptions import RayTaskError

    task = config["task"]
    keep_to(task.distributed.resources_per_learner["CPU"])  # also in stepping environments

    def call(method: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(task.coordinator, method).remote(*arguments))
        except RayTaskError as error:
            raise error.as_instanceof_cause() from error

    try:
        context = ray.train.get_context()
        DistributedLearner(task, context.get_world_rank(), context.get_world_size(), call).run(_create_group)
    except LoomRLError as error:
        call("report_failure", error)
        raise


def _create_group(config: DistributedConfig, watchdog: Watchdog) -> LearnerGroup:
    """The group of the learners in Ray Train's process group; `ALONE` for one learner."""
    if config.num_learners == 1:
        return ALONE
    from loomrl.training.distributed.learners.group import DistributedLearnerGroup

    return DistributedLearnerGroup(config, watchdog)


class DistributedLearner:
    """Trains its share of a job's environments, in a process of its own, in step with the other learners.

    Args:
        task: the job, its files, and how many environments and steps are all learners' together.
        rank: its number, from 0.
        num_learners: how many there are.
        call: is given the name of a method of the `Coordinator` and its arguments, and returns its result.
    """

    def __init__(self, task: LearnerTask, rank: int, num_learners: int, call: Callable[..., Any]) -> None:
        self._task, self._call = task, call
        self._rank, self._num_learners = rank, num_learners
        self._reported_at = 0.0

    def run(self, create_group: Callable[[DistributedConfig, Watchdog], LearnerGroup]) -> None:
        """Train from the coordinator's newest checkpoint to the end. `create_group` makes this learner's
        `LearnerGroup`. A learner that hangs ends its process.

        Raises:
            LoomRLError: the error that training ends with, such as an `EnvironmentFault`.
            ArtifactError: when the restored state differs from the checkpoint's.
            RuntimeError: when another learner is lost.
        """
        config = self._task.distributed
        with (
            tempfile.TemporaryDirectory() as folder,
            Watchdog(config.hang_timeout_seconds, self._warn) as self._watchdog,
        ):
            job = unpacked(self._share(), self._task.files, Path(folder) / "snapshot")
            with one_thread(job.engine), closing(job.validation()) as validation:
                peers = create_group(config, self._watchdog)
                algorithm = job.algorithm(Path(folder), peers)
                collecting = self._workers(job, algorithm) if config.rollout_workers_per_learner else None
                self._train(job.loop(algorithm, validation, peers, self._update, self._validation, collecting))

    def _share(self) -> TrainingJob:
        given = self._task
        return share_of(given.job, given.rollout_length, given.distributed, self._num_learners)

    def _workers(self, share: TrainingJob, algorithm: Algorithm) -> CollectedByWorkers:
        """The rollout workers that collect for this learner, as the loop's `Collecting`."""
        config = self._task.distributed
        directory = WorkerDirectory(share, self._task.files, config.rollout_workers_per_learner, self._rank)
        pool = RolloutWorkerPool(
            directory,
            algorithm.num_envs,
            config.resources_per_worker,
            config.hang_timeout_seconds,
            self._warn,
            self._watchdog.at_rest,
        )
        return CollectedByWorkers(algorithm, pool, config.max_staleness)

    def _train(self, loop: TrainingLoop) -> None:
        newest: Checkpoint | None = self._call(
            "register_learner", self._rank, self._num_learners, loop.algorithm.num_envs
        )
        if newest is not None:
            loop.restore(newest)
            self._require_equal(loop.checkpoint(), newest)
        interval = self._task.job.config.checkpoint_interval_seconds
        saver = Saver(
            lambda part: self._call("submit_checkpoint", self._rank, self._num_learners, part), interval, None
        )
        for part in loop.run(saver.due):
            saver.save(part)

    def _require_equal(self, restored: Checkpoint, saved: Checkpoint) -> None:
        if saved.values["stop_reason"] is not None:  # there is nothing to go on with
            return
        if restored.digest != saved.digest:
            raise ArtifactError(
                f"training: learner {self._rank} has state {restored.digest} after going on from the checkpoint at "
                f"step {saved.step}, whose state is {saved.digest}; it would learn something else; report this"
            )
        self._call("report", "restored", {"learner": self._rank, "step": restored.step, "digest": restored.digest})

    def _warn(self, message: str) -> None:
        self._call("report", "warnings", f"learner {self._rank}: {message}")

    def _update(self, row: Json) -> None:
        self._watchdog.alive()
        if self._rank == 0 and time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = time.monotonic()
            self._call("report", "updates", row)

    def _validation(self, row: Json) -> None:
        self._watchdog.alive()
        if self._rank == 0:
            self._call("report", "validations", row)
