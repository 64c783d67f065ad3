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
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.distributed.config import DistributedConfig
from loomrl.training.distributed.learners.learner_jobs import share_of
from loomrl.training.distributed.learners.watchdog import Watchdog
from loomrl.training.distributed.learners.worker_directory import WorkerDirectory, packed, unpacked
from loomrl.training.distributed.rollout_workers.collecting import CollectedByWorkers
from loomrl.training.distributed.rollout_workers.pool import RolloutWorkerPool
from loomrl.training.job import TrainingJob
from loomrl.training.loop import TrainingLoop
from loomrl.training.saver import Saver
from loomrl.training.threads import one_thread
from loomrl.types import Json

TELL_SECONDS = 0.2  # at least so long between two updates that are told


@dataclass(frozen=True)
class LearnerTask:
    """What each learner is given: the whole job. `files` are the snapshot's, by relative path: there may be no shared
    folders."""

    job: TrainingJob
    rollout_length: int
    distributed: DistributedConfig
    files: dict[str, bytes]
    desk: Any  # handle of the `Desk`


def assigned(job: TrainingJob, rollout_length: int, desk: Any) -> LearnerTask:
    """The task that every learner of a training gets, with the snapshot's files and a handle of the coordinator."""
    config = job.config.distributed
    assert config is not None, "whoever trains in one process does not come here"
    return LearnerTask(job, rollout_length, config, packed(job.snapshot_folder), desk)


def learn(config: dict[str, LearnerTask]) -> None:
    """Train until the end, from the newest checkpoint; Ray Train calls it in every learner's process.

    Raises:
        LoomRLError: what training ends with; the desk knows it too.
    """
    import ray
    import ray.train
    from ray.exceptions import RayTaskError

    assignment = config["assignment"]
    keep_to(assignment.distributed.resources_per_learner["CPU"])  # also in stepping environments

    def ask(method: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(assignment.desk, method).remote(*arguments))
        except RayTaskError as error:
            raise error.as_instanceof_cause() from error

    try:
        context = ray.train.get_context()
        DistributedLearner(assignment, context.get_world_rank(), context.get_world_size(), ask).run(_peers)
    except LoomRLError as error:
        ask("fail", error)
        raise


def _peers(config: DistributedConfig, watchdog: Watchdog) -> LearnerGroup:
    """Those of the process group that Ray Train has made."""
    if config.num_learners == 1:
        return ALONE
    from loomrl.training.distributed.learners.group import DistributedLearnerGroup

    return DistributedLearnerGroup(config, watchdog)


class DistributedLearner:
    """One of `num_learners`. `ask` calls a method of the `Desk` and gives its answer."""

    def __init__(self, assignment: LearnerTask, rank: int, num_learners: int, ask: Callable[..., Any]) -> None:
        self._assignment, self._ask = assignment, ask
        self._rank, self._num_learners = rank, num_learners
        self._told = 0.0

    def run(self, make_peers: Callable[[DistributedConfig, Watchdog], LearnerGroup]) -> None:
        """From what the desk has, to the end."""
        config = self._assignment.distributed
        with (
            tempfile.TemporaryDirectory() as folder,
            Watchdog(config.hang_timeout_seconds, self._warn) as self._watchdog,
        ):
            job = unpacked(self._share(), self._assignment.files, Path(folder) / "snapshot")
            with one_thread(job.engine), closing(job.validation()) as validation:
                peers = make_peers(config, self._watchdog)
                algorithm = job.algorithm(Path(folder), peers)
                collecting = self._workers(job, algorithm) if config.rollout_workers_per_learner else None
                self._train(job.loop(algorithm, validation, peers, self._update, self._validation, collecting))

    def _share(self) -> TrainingJob:
        given = self._assignment
        return share_of(given.job, given.rollout_length, given.distributed, self._num_learners)

    def _workers(self, share: TrainingJob, algorithm: Algorithm) -> CollectedByWorkers:
        """That collect for this learner."""
        config = self._assignment.distributed
        place = WorkerDirectory(share, self._assignment.files, config.rollout_workers_per_learner, self._rank)
        crew = RolloutWorkerPool(
            place,
            algorithm.num_envs,
            config.resources_per_worker,
            config.hang_timeout_seconds,
            self._warn,
            self._watchdog.at_rest,
        )
        return CollectedByWorkers(algorithm, crew, config.max_staleness)

    def _train(self, loop: TrainingLoop) -> None:
        newest: Checkpoint | None = self._ask("begin", self._rank, self._num_learners, loop.algorithm.num_envs)
        if newest is not None:
            loop.restore(newest)
            self._demand_equal(loop.checkpoint(), newest)
        interval = self._assignment.job.config.checkpoint_interval_seconds
        saver = Saver(lambda part: self._ask("leave", self._rank, self._num_learners, part), interval, None)
        for part in loop.run(saver.due):
            saver.save(part)

    def _demand_equal(self, restored: Checkpoint, saved: Checkpoint) -> None:
        if saved.values["stop_reason"] is not None:  # there is nothing to go on with
            return
        if restored.digest != saved.digest:
            raise ArtifactError(
                f"training: learner {self._rank} has state {restored.digest} after going on from the checkpoint at "
                f"step {saved.step}, whose state is {saved.digest}; it would learn something else; report this"
            )
        self._ask("tell", "restored", {"learner": self._rank, "step": restored.step, "digest": restored.digest})

    def _warn(self, message: str) -> None:
        self._ask("tell", "warnings", f"learner {self._rank}: {message}")

    def _update(self, row: Json) -> None:
        self._watchdog.alive()
        if self._rank == 0 and time.monotonic() - self._told >= TELL_SECONDS:
            self._told = time.monotonic()
            self._ask("tell", "updates", row)

    def _validation(self, row: Json) -> None:
        self._watchdog.alive()
        if self._rank == 0:
            self._ask("tell", "validations", row)
