"""The replay of an algorithm that learns off-policy: what it keeps of the spaces, and where."""

import math
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
from numpy.typing import DTypeLike

from loomrl.algorithms.base import MOST_UNSAVED_SEGMENTS, TrainingContext
from loomrl.algorithms.replay.sealed import SealedStorage
from loomrl.algorithms.replay.spec import ReplaySpec
from loomrl.algorithms.replay.storage import MappedStorage, MemoryStorage, Storage
from loomrl.errors import ConfigError
from loomrl.system.security.encryption import keyring

if TYPE_CHECKING:
    from loomrl.algorithms.dqn.config import DQNConfig
    from loomrl.algorithms.sac.config import SACConfig

ReplayStorage = Literal["memory", "disk"]


def replay_spec(
    config: "DQNConfig | SACConfig",
    context: TrainingContext,
    observation: gymnasium.Space[Any],
    action_shape: tuple[int, ...],
    action_dtype: DTypeLike | None,
) -> ReplaySpec:
    """A replay of observations of a space, each frame of a stack once; floats as the networks take them, in float32."""
    places, kept = context.frame_places, np.dtype(observation.dtype)
    return ReplaySpec(
        capacity=config.replay_capacity,
        num_envs=config.num_envs,
        obs_shape=observation.shape or (),
        obs_dtype=np.dtype(np.float32) if kept.kind == "f" else kept,
        action_shape=action_shape,
        action_dtype=np.dtype(action_dtype),
        n_step=config.n_step,
        gamma=config.gamma,
        frame_stack=1 if places is None else len(places),
        frame_places=places,
    )


def replay_storage(config: "DQNConfig | SACConfig", context: TrainingContext) -> Storage:
    """Memory, or the folder that training gives; it holds what was saved as long as `TrainingContext` demands.

    Where keys are configured its files are encrypted.

    Raises:
        ConfigError: for `disk` where there is no folder, or it was written with keys that are not configured, or
            without any and some are.
        ArtifactError: when the folder cannot be made, is held by another process, or was changed.
    """
    if config.replay_storage == "memory":
        return MemoryStorage()
    if context.folder is None:
        raise ConfigError(
            "training.parameters.replay_storage: disk needs the folder of a training that keeps checkpoints, and "
            'there is none; set it to "memory"'
        )
    rollout_size = config.num_envs * config.rollout_length
    segment_rows = math.ceil(context.segment_env_steps / rollout_size) * config.rollout_length
    kind = MappedStorage if keyring() is None else SealedStorage
    return kind(context.folder, least_spare_rows=MOST_UNSAVED_SEGMENTS * segment_rows)
