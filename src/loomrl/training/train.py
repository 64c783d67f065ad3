"""The training stage: snapshot and config in, policy and learning curves out, deterministic to the byte.

Interrupted at any moment, it goes on from its newest intact checkpoint and ends with the same bytes. Checkpoints lie
under the home folder, keyed by a digest of everything the result depends on: other inputs never resume from them.
"""

import inspect
import logging
import math
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl import events
from loomrl.algorithms.architecture import WEIGHTS
from loomrl.algorithms.base import MOST_UNSAVED_SEGMENTS, Algorithm, Surroundings
from loomrl.algorithms.registry import get_algorithm, parameters_for
from loomrl.environment.bounded import check_bounds
from loomrl.environment.make import choose_backend, make_envs
from loomrl.environment.snapshot import load_snapshot
from loomrl.environment.spaces import space_from_json
from loomrl.environment.stacking import frame_places
from loomrl.errors import ArtifactError, ConfigError
from loomrl.files import sha256_file
from loomrl.home import home as default_home
from loomrl.schema import Section
from loomrl.training.checkpoints import Checkpoint, CheckpointStore
from loomrl.training.config import TrainingConfig
from loomrl.training.curves import write_curves
from loomrl.training.inputs import inputs_digest
from loomrl.training.loop import TrainingLoop
from loomrl.training.seeds import Purpose, derive
from loomrl.training.threads import NUM_THREADS, one_thread, processor_family
from loomrl.training.validation import Validation
from loomrl.types import EnvironmentSnapshot, Json, TrainingReport

log = logging.getLogger(__name__)

REPORT = "training.json"
_FILES = "algorithm"  # beside the checkpoints: what an algorithm keeps on the disk and not in them


def train_policy(
    config: TrainingConfig, snapshot_folder: Path, output_folder: Path, home: Path | None = None
) -> TrainingReport:
    """Train, resuming from the newest intact checkpoint of the same inputs, and write the best validated policy.

    Writes `policy.safetensors`, `policy.json`, `curves.json`, `learning_curve.png` and `training.json`.

    Raises:
        ConfigError: for parameters, or spaces, the algorithm does not accept, or bounds the environment cannot have.
        EnvironmentFault: when the environment breaks its API; checkpoints stay.
        LoomRLError: when a metric is not finite; checkpoints stay.
        ArtifactError: when a folder cannot be written.
    """
    snapshot = load_snapshot(snapshot_folder)
    backend = choose_backend(snapshot_folder)
    learning_backend = choose_backend(snapshot_folder, config.bounds)
    parameters = parameters_for(config, backend)
    _check_bounds(config, snapshot)
    device = device_of(backend)
    checkpoints = (home or default_home()) / "checkpoints" / inputs_digest(config, snapshot, backend, device)

    def environments(num_envs: int, autoreset: Any) -> VectorEnv[Any, Any, Any]:
        return make_envs(snapshot_folder, num_envs, autoreset, backend)

    def to_learn_from(num_envs: int, autoreset: Any) -> VectorEnv[Any, Any, Any]:
        return make_envs(snapshot_folder, num_envs, autoreset, learning_backend, config.bounds)

    engine = _engine(config, parameters, snapshot)
    with one_thread(engine), CheckpointStore(checkpoints, config.keep_checkpoints) as store, ExitStack() as stack:
        had_files = (checkpoints / _FILES).exists()
        surroundings = surroundings_of(snapshot, checkpoints / _FILES, config.checkpoint_interval_env_steps)
        algorithm = _build(config, parameters, snapshot, surroundings)
        stack.callback(getattr(algorithm, "close", lambda: None))
        with (
            closing(Validation(config.validation, environments)) as validation,
            events.progress("training", config.total_env_steps) as bar,
            _Narrator(bar, engine) as narrator,
        ):
            loop = TrainingLoop(
                algorithm,
                to_learn_from,
                seed=config.seed,
                total_env_steps=config.total_env_steps,
                segment_env_steps=config.checkpoint_interval_env_steps,
                validation=validation,
                needs_costs=config.bounds is not None and config.bounds.need_costs,
                on_update=narrator.update,
                on_validation=narrator.validation,
            )
            try:
                is_resumed = _resume(loop, store)
            except ConfigError:  # the key of its checkpoints is missing, and new files would stand in the way of it
                if not had_files:
                    shutil.rmtree(checkpoints / _FILES, ignore_errors=True)
                raise
            if is_resumed:
                narrator.resumed(loop.env_steps)
            keeps_files = (checkpoints / _FILES).exists()
            saver = _Saver(store, config.checkpoint_interval_seconds, MOST_UNSAVED_SEGMENTS if keeps_files else None)
            for checkpoint in loop.run(saver.due):
                saver.save(checkpoint)
        computed_by = (engine, learning_backend, device)
        report = _write(config, parameters, snapshot, computed_by, loop, validation, output_folder)
        if keeps_files:
            shutil.rmtree(checkpoints / _FILES, ignore_errors=True)  # the last checkpoint does without them
        return report


def _check_bounds(config: TrainingConfig, snapshot: EnvironmentSnapshot) -> None:
    if config.bounds is not None:
        spec = snapshot.spec
        check_bounds(config.bounds, space_from_json(spec.observation), space_from_json(spec.action))


def _resume(loop: TrainingLoop, store: CheckpointStore) -> bool:
    """Go on from the newest checkpoint that is intact and whose files are; from the start, where there is none."""
    for checkpoint in store.intact():
        try:
            loop.restore(checkpoint)
        except ArtifactError as error:
            store.pass_over(f"the checkpoint after {checkpoint.step} steps is passed over: {error}")
        else:
            return True
    return False


def device_of(backend: str) -> str:
    """What environments of a back-end, and whoever learns from them, run on: "cpu", or the name of the GPU."""
    if backend != "device":
        return "cpu"
    from loomrl.environment.vector.device import best_device, device_name

    return device_name(best_device())


def _engine(config: TrainingConfig, parameters: Section, snapshot: EnvironmentSnapshot) -> str:
    """What computes the updates: the algorithm's own choice where it has one, else torch."""
    choose = getattr(get_algorithm(config.algorithm), "choose_engine", None)
    if choose is None:
        return "torch"
    return str(choose(parameters, space_from_json(snapshot.spec.observation), space_from_json(snapshot.spec.action)))


def surroundings_of(snapshot: EnvironmentSnapshot, folder: Path, segment_env_steps: int) -> Surroundings:
    """What an algorithm that learns in a snapshot's environment may know, with a folder for its files."""
    return Surroundings(folder, segment_env_steps, frames_of(snapshot))


def frames_of(snapshot: EnvironmentSnapshot) -> NDArray[np.int64] | None:
    """Where the frames of a stacked observation stand; None for others."""
    frame = snapshot.spec.frame
    return None if frame is None else frame_places(space_from_json(frame), snapshot.spec.frame_stack)


def _build(
    config: TrainingConfig, parameters: Section, snapshot: EnvironmentSnapshot, surroundings: Surroundings
) -> Algorithm:
    build: Callable[..., Algorithm] = get_algorithm(config.algorithm).build
    more = {"surroundings": surroundings} if "surroundings" in inspect.signature(build).parameters else {}
    return build(
        parameters,
        space_from_json(snapshot.spec.observation),
        space_from_json(snapshot.spec.action),
        seed=derive(config.seed, Purpose.WEIGHTS),
        total_env_steps=config.total_env_steps,
        **more,
    )


def _write(
    config: TrainingConfig,
    parameters: Section,
    snapshot: EnvironmentSnapshot,
    computed_by: tuple[str, str, str],
    loop: TrainingLoop,
    validation: Validation,
    folder: Path,
) -> TrainingReport:
    policy = loop.algorithm.policy
    policy.load_arrays(validation.best)
    policy.save(folder)
    write_curves(loop.rows.all(), validation.rows, folder)
    report = TrainingReport(
        algorithm=config.algorithm,
        seed=config.seed,
        total_env_steps=loop.env_steps,
        stop_reason=str(loop.stop_reason),
        snapshot_digest=snapshot.digest,
        policy_digest=sha256_file(folder / WEIGHTS),
        parameters=parameters.model_dump(mode="json"),
        final_metrics=_final_metrics(loop, validation),
        engine=computed_by[0],
        backend=computed_by[1],
        device=computed_by[2],
        num_threads=NUM_THREADS,
        processor=processor_family(),
    )
    report.write(folder / REPORT)
    return report


def _final_metrics(loop: TrainingLoop, validation: Validation) -> dict[str, float]:
    metrics: Json = {name: value for name, value in loop.rows.latest.items() if name != "step"}
    metrics |= {"best_validation_return": validation.best_return, "best_validation_step": validation.best_step}
    if (limit := getattr(loop.algorithm, "cost_limit", None)) is not None:
        metrics["best_validation_cost_excess"] = validation.best_excess
        if validation.best_excess > 0.0:
            log.warning(
                "no validation kept the mean cost within %g; the kept policy's is %g above",
                limit,
                validation.best_excess,
            )
    return {name: float(value) for name, value in metrics.items()}


class _Saver:
    """Saves the first checkpoint, then so rarely that it takes a fiftieth of the time at most. What is passed over is
    not even built, and changes nothing: training goes on from an older one to the same result.

    An algorithm that keeps files can go on from its newest saved state for so many segments only.
    """

    SHARE = 1 / 50

    def __init__(self, store: CheckpointStore, interval_seconds: float, most_segments: int | None) -> None:
        self._store, self._interval, self._most_segments = store, interval_seconds, most_segments
        self._due_at = -math.inf
        self._segments = 0  # since the last checkpoint
        self._asked = 0.0

    def due(self) -> bool:
        """Asked at the end of each segment: whether it is time to save a checkpoint."""
        self._segments += 1
        self._asked = time.monotonic()  # building the state is part of what it takes
        return self._segments == self._most_segments or self._asked >= self._due_at

    def save(self, checkpoint: Checkpoint) -> None:
        """Write it, and settle when the next one is due."""
        self._store.save(checkpoint)
        ended = time.monotonic()
        cost = ended - self._asked
        self._due_at = ended + (max(self._interval, cost / self.SHARE) if self._interval else 0.0)
        self._segments = 0


class _Narrator:
    """Tells how training goes: a progress bar, and events for whoever started the process.

    Updates are told a few times a second, the last one always; `curves.json` has the whole curve.
    """

    SECONDS = 0.2

    def __init__(self, bar: events.Reporter, engine: str) -> None:
        self._bar = bar
        self._started, self._from_step = time.monotonic(), 0
        self._told = -math.inf
        self._untold: Json | None = None
        self._return = float("nan")
        events.emit("engine", engine=engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tell()

    def resumed(self, step: int) -> None:
        self._from_step = step
        events.emit("resumed", step=step)

    def update(self, row: Json) -> None:
        self._untold = row
        self._return = row.get("episode_return", self._return)
        if time.monotonic() - self._told >= self.SECONDS:
            self._tell()

    def _tell(self) -> None:
        if (row := self._untold) is None:
            return
        self._told, self._untold = time.monotonic(), None
        speed = (row["step"] - self._from_step) / max(self._told - self._started, 1e-9)
        events.emit("metrics", **row, steps_per_second=speed)
        shown = {"return": self._return} if self._return == self._return else {}
        self._bar.update(row["step"], **shown, steps_per_second=speed)

    def validation(self, row: Json) -> None:
        self._tell()
        values = {f"validation_{name}": value for name, value in row.items() if name != "step"}
        events.emit("metrics", step=row["step"], **values)
