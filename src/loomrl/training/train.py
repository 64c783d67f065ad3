"""The training stage: snapshot and config in, policy and learning curves out, deterministic to the byte.

Interrupted at any moment, it goes on from its newest intact checkpoint and ends with the same bytes. Checkpoints lie
under the home folder, keyed by a digest of everything the result depends on: other inputs never resume from them.
"""

import logging
import shutil
from contextlib import ExitStack, closing
from pathlib import Path

from loomrl.algorithms.architecture import WEIGHTS
from loomrl.algorithms.base import MOST_UNSAVED_SEGMENTS
from loomrl.errors import ArtifactError, ConfigError
from loomrl.system import events
from loomrl.system.files import sha256_file
from loomrl.system.home import home as default_home
from loomrl.system.threads import one_thread
from loomrl.training.checkpoints import Checkpoint, CheckpointStore
from loomrl.training.config import TrainingConfig
from loomrl.training.curves import write_curves
from loomrl.training.job import TrainingJob
from loomrl.training.loop import TrainingLoop
from loomrl.training.processes import common
from loomrl.training.progress_reporter import ProgressReporter
from loomrl.training.remarks import training_warnings
from loomrl.training.saver import Saver
from loomrl.training.validation import Validation
from loomrl.types import ComputingProcess, Json, TrainingReport

log = logging.getLogger(__name__)

REPORT = "training.json"
_FILES = "algorithm"  # beside the checkpoints: what an algorithm keeps on the disk and not in them


def train_policy(
    config: TrainingConfig, snapshot_folder: Path, output_folder: Path, home: Path | None = None
) -> TrainingReport:
    """Train, resuming from the newest intact checkpoint of the same inputs, and write the best validated policy to
    `output_folder`; returns the report that is written with it. Checkpoints lie under `home`; None: LoomRL's home
    folder.

    Writes `policy.safetensors`, `policy.json`, `curves.json`, `learning_curve.png` and `training.json`, once training
    has ended. Saved checkpoints outlive an error: the next call goes on from them.

    Raises:
        ConfigError: for parameters, or spaces, the algorithm does not accept, bounds the environment cannot have,
            checkpoints whose key is not configured, or a cluster that cannot be had.
        EnvironmentFault: when the environment breaks its API.
        LoomRLError: when a metric is not finite, or learners are lost more often than `max_restarts`.
        ServiceError: when the head of the learners' Ray cluster is gone.
        ArtifactError: when a folder cannot be written, the snapshot was changed, or another process trains with the
            same inputs.
    """
    job = TrainingJob.of(config, snapshot_folder)
    checkpoints = (home or default_home()) / "checkpoints" / job.inputs_digest
    with one_thread(job.engine), CheckpointStore(checkpoints, config.keep_checkpoints) as store, ExitStack() as stack:
        had_files = (checkpoints / _FILES).exists()
        algorithm = job.algorithm(checkpoints / _FILES)
        stack.callback(algorithm.close)
        with (
            closing(job.validation()) as validation,
            events.progress("training", config.total_env_steps) as bar,
            ProgressReporter(bar, job.engine) as narrator,
        ):
            loop = job.loop(algorithm, validation, on_update=narrator.update, on_validation=narrator.validation)
            try:
                newest = _resume(loop, store) if config.distributed is None else store.newest()
            except ConfigError:  # the key of its checkpoints is missing, and new files would stand in the way of it
                if not had_files:
                    shutil.rmtree(checkpoints / _FILES, ignore_errors=True)
                raise
            if newest is not None:
                narrator.resumed(newest.step)
            keeps_files = (checkpoints / _FILES).exists()
            if config.distributed is None:
                most_unsaved = MOST_UNSAVED_SEGMENTS if keeps_files else None
                saver = Saver(store.save, config.checkpoint_interval_seconds, most_unsaved)
                for checkpoint in loop.run(saver.due):
                    saver.save(checkpoint)
            else:
                if newest is None or newest.values["stop_reason"] is None:
                    from loomrl.training.distributed.run import learn_on_ray

                    newest = learn_on_ray(
                        job,
                        algorithm.rollout_length,
                        newest,
                        store.save,
                        on_update=narrator.update,
                        on_validation=narrator.validation,
                        on_restored=narrator.restored,
                    )
                loop.restore(newest)
        report = _write(job, loop, validation, output_folder)
        if keeps_files:
            shutil.rmtree(checkpoints / _FILES, ignore_errors=True)  # the last checkpoint does without them
        return report


def _resume(loop: TrainingLoop, store: CheckpointStore) -> Checkpoint | None:
    """Go on from the newest checkpoint that is intact and whose files are; from the start, where there is none."""
    for checkpoint in store.intact():
        try:
            loop.restore(checkpoint)
        except ArtifactError as error:
            store.pass_over(f"the checkpoint after {checkpoint.step} steps is passed over: {error}")
        else:
            return checkpoint
    return None


def _write(job: TrainingJob, loop: TrainingLoop, validation: Validation, folder: Path) -> TrainingReport:
    policy = loop.algorithm.policy
    policy.load_arrays(validation.best)
    policy.save(folder)
    write_curves(loop.rows.all(), validation.rows, folder)
    processes = [ComputingProcess.model_validate(process) for process in loop.processes]
    learners = [process for process in processes if process.name.startswith("learner")]
    report = TrainingReport(
        algorithm=job.config.algorithm,
        seed=job.config.seed,
        total_env_steps=loop.env_steps,
        stop_reason=str(loop.stop_reason),
        snapshot_digest=job.snapshot.digest,
        policy_digest=sha256_file(folder / WEIGHTS),
        parameters=job.parameters.model_dump(mode="json"),
        final_metrics=_final_metrics(loop, validation),
        engine=common(learners, "engine"),
        backend=job.learning_backend,
        device=common(learners, "device"),
        num_threads=max(process.num_threads for process in learners),
        processor=common(learners, "processor"),
        processes=processes,
        warnings=training_warnings(job, loop),
    )
    for warning in report.warnings:
        log.warning(warning)
        events.emit("warning", message=warning)
    report.write(folder / REPORT)
    return report


def _final_metrics(loop: TrainingLoop, validation: Validation) -> dict[str, float]:
    metrics: Json = {name: value for name, value in loop.rows.latest.items() if name != "step"}
    metrics |= {"best_validation_return": validation.best_return, "best_validation_step": validation.best_step}
    if (limit := loop.algorithm.cost_limit) is not None:
        metrics["best_validation_cost_excess"] = validation.best_excess
        if validation.best_excess > 0.0:
            log.warning(
                "no validation kept the mean cost within %g; the kept policy's is %g above",
                limit,
                validation.best_excess,
            )
    return {name: float(value) for name, value in metrics.items()}
