"""A training's environments and policy on another machine, which may share no folder with the one it was begun on."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from loomrl.algorithms.base import Algorithm
from loomrl.system.files import write_atomic
from loomrl.training.distributed.learners.hosts import require_software
from loomrl.training.inputs import software
from loomrl.training.job import TrainingJob
from loomrl.types import Json


def packed(folder: Path) -> dict[str, bytes]:
    """The files of a snapshot's folder: their content by path relative to the folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unpacked(job: TrainingJob, files: Mapping[str, bytes], folder: Path) -> TrainingJob:
    """The same job, with `snapshot_folder` set to `folder`, into which the snapshot's files are written first.

    Raises:
        ArtifactError: when a file cannot be written.
    """
    for name, content in files.items():
        write_atomic(folder / name, content)
    return replace(job, snapshot_folder=folder)


class WorkerDirectory:
    """The `WorkerSetup` of a learner's workers: its job, and the snapshot's files, which each worker writes to a
    temporary folder of its machine when it needs them. `learner` is the learner's rank."""

    def __init__(self, job: TrainingJob, files: Mapping[str, bytes], num_workers: int, learner: int = 0) -> None:
        self._packed, self._files, self._learner = job, files, learner
        self._software = software(job.config.algorithm, job.backend)
        self.seed, self.num_workers = job.config.seed, num_workers

    @cached_property
    def _folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="loomrl-"))

    @cached_property
    def _job(self) -> TrainingJob:
        return unpacked(self._packed, self._files, self._folder / "snapshot")

    def algorithm(self) -> Algorithm:
        """A new algorithm equal to the learner's before it has learnt anything, made on this machine.

        Raises:
            ConfigError: when this machine has other software than the learner's.
            ArtifactError: when the snapshot's files cannot be written here.
        """
        require_software(self._software, self._packed.config.algorithm, self._packed.backend)
        return self._job.algorithm(self._folder)

    def environments(self, num_envs: int, autoreset: Any) -> VectorEnv[Any, Any, Any]:
        """`num_envs` training environments, with the job's bounds, made from the snapshot's files on this machine.

        Raises:
            ArtifactError: when the files cannot be written here.
            ConfigError: when this machine lacks a package that they need.
        """
        return self._job.environments_to_learn_from(num_envs, autoreset)

    def process(self, index: int, algorithm: Algorithm) -> Json:
        """A description of the process of worker `index` of this learner, JSON values."""
        return self._job.process(f"worker {index} of learner {self._learner}", algorithm)

    def close(self) -> None:
        """Delete the snapshot's files from this machine; what cannot be deleted stays, without an error."""
        shutil.rmtree(self._folder, ignore_errors=True)
