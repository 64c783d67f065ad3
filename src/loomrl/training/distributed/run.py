"""A training by several learners: Ray Train begins them, joins them, and begins them again when one is lost."""

import math
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loomrl.errors import LoomRLError
from loomrl.training.checkpoints import Checkpoint, CheckpointStore
from loomrl.training.config import DistributedConfig
from loomrl.training.distributed.calls import MAX_LOSSES, START_SECONDS
from loomrl.training.distributed.cluster import ClusterHead, cluster
from loomrl.training.distributed.learners.coordinator import Coordinator, Updates
from loomrl.training.distributed.learners.hosts import same_software
from loomrl.training.distributed.learners.learner import LearnerTask, create_task, learn
from loomrl.training.distributed.learners.learner_jobs import check_shares
from loomrl.training.job import TrainingJob
from loomrl.training.loop import OnRow

POLL_SECONDS = 0.1
GROUP_TIMEOUT_FACTOR = 2  # collectives wait so many times as long as a learner may be busy


class Cancelled(LoomRLError):
    """Training was cancelled by the process that began it."""


def learn_on_ray(
    job: TrainingJob,
    rollout_length: int,
    newest: Checkpoint | None,
    save: Callable[[Checkpoint], None],
    on_update: OnRow,
    on_validation: OnRow = lambda _row: None,
    on_restored: OnRow = lambda _row: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Checkpoint:
    """Train on Ray until the end, from the checkpoint `newest`, or from step 0 where it is None. Each new checkpoint is
    given to `save`, and the last is returned. The `on_` functions are called with rows as they are reported.

    Raises:
        Cancelled: when `cancelled` returns True, once all learners have ended.
        ConfigError: when the cluster cannot be had, or the training cannot be divided.
        ServiceError: when the cluster's head is gone.
        LoomRLError: the error a learner ends with, or that learners were lost more often than `max_restarts`; saved
            checkpoints stay.
    """
    config = job.config.distributed
    assert config is not None, "whoever trains in one process does not come here"
    check_shares(job, rollout_length, config)
    saved: Checkpoint | None = None

    def publish(updates: Updates) -> None:
        """Call the callbacks for all updates; checkpoints are on the disk afterwards."""
        nonlocal saved
        for message in updates.warnings:
            CheckpointStore.pass_over(message)
        told = (updates.restored, on_restored), (updates.updates, on_update), (updates.validations, on_validation)
        for rows, tell in told:
            for row in rows:
                tell(row)
        for saved in updates.checkpoints:
            save(saved)

    with cluster(config) as ray, tempfile.TemporaryDirectory() as folder:
        coordinator = _beside(Coordinator).remote(newest)
        fitted = _begin(_trainer(create_task(job, rollout_length, coordinator), Path(folder)))
        head = ClusterHead(ray)
        while not fitted.done():
            head.require_answer()
            publish(ray.get(coordinator.take_updates.remote()))
            if cancelled():
                coordinator.report_failure.remote(Cancelled("training: it was cancelled"))
            time.sleep(POLL_SECONDS)
        publish(ray.get(coordinator.take_updates.remote()))
        _require_success(fitted, ray.get(coordinator.failure.remote()), config)
        ray.kill(coordinator)
    assert saved is not None, "learners that end leave a checkpoint"
    return saved


def _beside(actor: type) -> Any:
    """An actor on the machine of this process."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(actor)


def _trainer(task: LearnerTask, folder: Path) -> Any:
    """Ray Train's, with a folder for files of its own."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    from loomrl.training.distributed.learners.process_group import GroupConfig
    from loomrl.training.distributed.ray_train import Trainer

    config, number = task.distributed, task.distributed.num_learners
    function, order = same_software(learn, task)
    return Trainer(
        function,
        train_loop_config=order,
        scaling_config=ScalingConfig(
            num_workers=(config.min_learners, number) if config.min_learners is not None else number,
            use_gpu=config.resources_per_learner.get("GPU", 0.0) > 0.0,
            elastic_resize_monitor_interval_s=config.resize_interval_seconds,
            resources_per_worker=config.resources_per_learner,
        ),
        torch_config=GroupConfig(timeout_s=_patience(config)),
        run_config=RunConfig(
            name="loomrl",
            storage_path=str(folder),
            failure_config=FailureConfig(
                max_failures=config.max_restarts, controller_failure_limit=config.max_restarts
            ),
        ),
    )


def _patience(config: DistributedConfig) -> int:
    """Seconds that a learner waits for the others in a collective."""
    if config.rollout_workers_per_learner == 0:
        return math.ceil(GROUP_TIMEOUT_FACTOR * config.hang_timeout_seconds)
    rollout = config.hang_timeout_seconds + START_SECONDS  # of a worker that has just taken a lost one's place
    return math.ceil((MAX_LOSSES + 1) * rollout + config.hang_timeout_seconds)


def _begin(trainer: Any) -> "Future[Any]":
    """In a thread, which ends with the training, or with the connection to the cluster."""
    pool = ThreadPoolExecutor(1, "ray-train")
    fitted = pool.submit(trainer.fit)
    pool.shutdown(wait=False)
    return fitted


def _require_success(fitted: "Future[Any]", failure: LoomRLError | None, config: DistributedConfig) -> None:
    from ray.train import WorkerGroupError

    if failure is not None:
        raise failure
    error = fitted.exception()
    if isinstance(error, WorkerGroupError):
        raise LoomRLError(
            f"training: learners were lost more often than training.distributed.max_restarts {config.max_restarts}; "
            f"saved checkpoints are intact, run the same command again; the last time: {error}"
        ) from error
    if error is not None:
        raise LoomRLError(f"training: Ray Train failed: {error}; saved checkpoints are intact") from error
