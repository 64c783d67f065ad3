"""What is to be learnt, from what, and how: all that one process, or several on other machines, need to begin."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl.algorithms.base import Algorithm, TrainingContext
from loomrl.algorithms.peers import ALONE, LearnerGroup
from loomrl.algorithms.registry import get_algorithm, parameters_for
from loomrl.environment.make import choose_backend, make_envs
from loomrl.environment.snapshots.snapshot import load_snapshot
from loomrl.environment.spaces import space_from_json
from loomrl.environment.wrappers.bounded import check_bounds
from loomrl.environment.wrappers.stacking import frame_places
from loomrl.system.schema import Section
from loomrl.training.collecting import Collecting
from loomrl.training.config import TrainingConfig
from loomrl.training.inputs import inputs_digest
from loomrl.training.loop import OnRow, TrainingLoop
from loomrl.training.processes import describe_process
from loomrl.training.seeds import Purpose, derive
from loomrl.training.validation import Validation
from loomrl.types import EnvironmentSnapshot, Json


@dataclass(frozen=True)
class TrainingJob:
    """One training: its config, the folder of its environment snapshot, and what was settled for it. Properties and
    methods that read the snapshot raise ArtifactError when a file of it is missing or was changed.

    `parameters` are the algorithm's own. `learning_backend` names how the environments it learns from are stepped,
    which may have bounds, `backend` how those of validation are. With `total_episodes` training also ends after so many
    of them.
    """

    config: TrainingConfig
    snapshot_folder: Path
    parameters: Section
    backend: str
    learning_backend: str
    total_episodes: int | None = None

    @classmethod
    def of(cls, config: TrainingConfig, snapshot_folder: Path) -> Self:
        """A job for a config and a snapshot, once the config was checked against the snapshot, and what it leaves open
        was settled.

        Raises:
            ConfigError: for an unknown algorithm, parameters it does not accept, or bounds the environment cannot have.
            ArtifactError: when the snapshot was changed.
        """
        backend, learning_backend = choose_backend(snapshot_folder), choose_backend(snapshot_folder, config.bounds)
        job = cls(config, snapshot_folder, parameters_for(config, backend), backend, learning_backend)
        if config.bounds is not None:
            check_bounds(config.bounds, *job.spaces)
        return job

    @cached_property
    def snapshot(self) -> EnvironmentSnapshot:
        """The environment snapshot that `snapshot_folder` holds."""
        return load_snapshot(self.snapshot_folder)

    def validation(self) -> Validation:
        """A new `Validation` of the policy while it learns, in environments without the training's bounds."""
        return Validation(self.config.validation, self.environments, self.snapshot.spec.reward_threshold)

    @cached_property
    def spaces(self) -> tuple[Any, Any]:
        """The observation space and the action space of the environment, as the snapshot describes them."""
        spec = self.snapshot.spec
        return space_from_json(spec.observation), space_from_json(spec.action)

    @cached_property
    def device(self) -> str:
        """Where environments and their learner run: "cpu", or the name of the GPU."""
        if self.backend != "device":
            return "cpu"
        from loomrl.environment.vector.device import best_device, device_name

        return device_name(best_device())

    @cached_property
    def engine(self) -> str:
        """The name of the engine that computes the updates: the algorithm's own choice where it has one, else "torch".

        Raises:
            ConfigError: when the engine that is asked for cannot learn in these spaces.
        """
        return get_algorithm(self.config.algorithm).choose_engine(self.parameters, *self.spaces)

    @cached_property
    def inputs_digest(self) -> str:
        """SHA-256, 64 hex digits, of everything the training's result depends on: config, snapshot, software and
        device."""
        return inputs_digest(self.config, self.snapshot, self.backend, self.device)

    def environments(self, num_envs: int, autoreset: Any) -> VectorEnv[Any, Any, Any]:
        """A vector of `num_envs` environments for validation, without the training's bounds. `autoreset` is as
        `loomrl.environment.make.make_envs` has it.

        Raises:
            ArtifactError: when the snapshot was changed.
            ConfigError: when a package that the environments need is not installed.
        """
        return make_envs(self.snapshot_folder, num_envs, autoreset, self.backend)

    def environments_to_learn_from(self, num_envs: int, autoreset: Any) -> VectorEnv[Any, Any, Any]:
        """A vector of `num_envs` environments for training, with the training's bounds where it has any. `autoreset` is
        as `loomrl.environment.make.make_envs` has it.

        Raises:
            ArtifactError: when the snapshot was changed.
            ConfigError: when a package that the environments need is not installed.
        """
        bounds = self.config.bounds
        return make_envs(self.snapshot_folder, num_envs, autoreset, self.learning_backend, bounds)

    def algorithm(self, folder: Path, peers: LearnerGroup = ALONE) -> Algorithm:
        """The job's algorithm before it has learnt anything; `folder` is for files that it keeps, `peers` are the
        learners that it shares its policy with.

        Raises:
            ConfigError: for spaces the algorithm does not accept.
            ArtifactError: when the algorithm's files cannot be made, or another process holds them.
        """
        context = create_training_context(self.snapshot, folder, self.config.checkpoint_interval_env_steps)
        return get_algorithm(self.config.algorithm).build(
            self.parameters,
            *self.spaces,
            seed=derive(self.config.seed, Purpose.WEIGHTS),
            total_env_steps=self.config.total_env_steps,
            context=context,
            peers=peers,
        )

    def process(self, name: str, algorithm: Algorithm) -> Json:
        """A description of this process, `name`, which computes with an algorithm of this job: JSON values."""
        return describe_process(name, algorithm, self.config.algorithm, self.learning_backend)

    def loop(
        self,
        algorithm: Algorithm,
        validation: Validation,
        peers: LearnerGroup = ALONE,
        on_update: OnRow = lambda _row: None,
        on_validation: OnRow = lambda _row: None,
        collecting: Collecting | None = None,
    ) -> TrainingLoop:
        """A `TrainingLoop` that trains an algorithm of this job, with the job's limits, validation and seed."""
        config = self.config
        return TrainingLoop(
            algorithm,
            self.environments_to_learn_from,
            seed=config.seed,
            total_env_steps=config.total_env_steps,
            total_episodes=self.total_episodes,
            segment_env_steps=config.checkpoint_interval_env_steps,
            validation=validation,
            needs_costs=config.bounds is not None and config.bounds.need_costs,
            on_update=on_update,
            on_validation=on_validation,
            peers=peers,
            collecting=collecting,
            process=self.process(f"learner {peers.rank}", algorithm),
        )


def create_training_context(snapshot: EnvironmentSnapshot, folder: Path, segment_env_steps: int) -> TrainingContext:
    """What an algorithm may know of its training in a snapshot's environment: `folder` for its own files, the
    environment steps of a segment, and where stacked frames stand."""
    return TrainingContext(folder, segment_env_steps, frames_of(snapshot))


def frames_of(snapshot: EnvironmentSnapshot) -> NDArray[np.int64] | None:
    """Where the frames of a snapshot's stacked observations stand: (k, n), row i holding the places of frame i's n
    values in the flat observation, the oldest frame first. None where observations are not stacked."""
    frame = snapshot.spec.frame
    return None if frame is None else frame_places(space_from_json(frame), snapshot.spec.frame_stack)
