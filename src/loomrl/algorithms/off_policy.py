"""Algorithms that learn off-policy: what is theirs whatever they learn, the replay and the count of steps."""

import math
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from loomrl.algorithms.base import MOST_UNSAVED_SEGMENTS, Algorithm, State, TrainingContext, below
from loomrl.algorithms.flat import TensorState
from loomrl.algorithms.peers import LearnerGroup
from loomrl.algorithms.policies.policy import TrainedPolicy
from loomrl.algorithms.replay.config import ReplayingConfig
from loomrl.algorithms.replay.sealed import SealedStorage
from loomrl.algorithms.replay.spec import ReplaySpec
from loomrl.algorithms.replay.storage import MappedStorage, MemoryStorage, Storage
from loomrl.errors import ConfigError
from loomrl.system.security.encryption import keyring
from loomrl.types import Trajectory

_Policy = TypeVar("_Policy", bound=TrainedPolicy)


class ReplayingAlgorithm(Algorithm, Generic[_Policy]):
    """Learns a policy from replayed transitions of its own acting. `learner` takes the gradient steps, and holds what
    is learnt beside the policy.

    With `peers` each learner replays what it saw itself; environment steps are counted over all of them.
    """

    learner: TensorState  # takes gradient steps, and holds what is learnt beside the policy

    def __init__(
        self,
        config: ReplayingConfig,
        policy: _Policy,
        context: TrainingContext,
        peers: LearnerGroup,
        action_shape: tuple[int, ...],
        action_dtype: DTypeLike | None,
    ) -> None:
        self.num_envs, self.rollout_length = config.num_envs, config.rollout_length
        self._policy, self.peers = policy, peers
        self._storage = replay_storage(config, context)
        places, observed = context.frame_places, policy.observation_space
        kept = np.dtype(observed.dtype)
        spec = ReplaySpec(
            capacity=config.replay_capacity,
            num_envs=config.num_envs,
            obs_shape=observed.shape or (),
            obs_dtype=np.dtype(np.float32) if kept.kind == "f" else kept,  # as the networks take them
            action_shape=action_shape,
            action_dtype=np.dtype(action_dtype),
            n_step=config.n_step,
            gamma=config.gamma,
            frame_stack=1 if places is None else len(places),  # each frame of a stack is kept once
            frame_places=places,
        )
        self._replay = self._make_replay(spec, self._storage)
        self._env_steps = 0  # of the trajectories seen by `update`
        self._steps_ahead = 0  # acted since

    def _make_replay(self, spec: ReplaySpec, storage: Storage) -> Any:
        from loomrl.algorithms.replay.buffer import ReplayBuffer  # here: numba takes a while to import

        return ReplayBuffer(spec, storage)

    @property
    def policy(self) -> _Policy:
        """The policy as it is now: the same object all along, changed by `update`."""
        return self._policy

    def _remember(self, trajectory: Trajectory) -> None:
        self._replay.add(trajectory)
        self._env_steps += trajectory.reward.size * self.peers.num_learners
        self._steps_ahead = 0

    def state_dict(self) -> State:
        """The state of the learner, the replay and the counts of environment steps: arrays and numbers by name. A
        replay on the disk only says where it stands.

        Raises:
            ArtifactError: when a replay on the disk cannot be written.
        """
        state: State = {f"learner.{name}": value for name, value in self.learner.state_dict().items()}
        state |= {f"replay.{name}": value for name, value in self._replay.state_dict().items()}
        return state | {"env_steps": self._env_steps, "steps_ahead": self._steps_ahead}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal algorithm, in place.

        Raises:
            ArtifactError: when the replay's files do not hold what the state refers to, and nothing has changed then;
                when the replay is of another shape or kind of storage.
        """
        self._replay.load_state_dict(below("replay.", state))  # first: it may lack what the state refers to
        self.learner.load_state_dict(below("learner.", state))
        self._env_steps, self._steps_ahead = int(state["env_steps"]), int(state["steps_ahead"])

    def close(self) -> None:
        """Close the replay buffer's storage; a folder is then free for another process."""
        self._storage.close()


def replay_storage(config: ReplayingConfig, context: TrainingContext) -> Storage:
    """The storage of an algorithm's replay: memory, or files in the folder that the training offers. A state that was
    saved can be restored from the files for as long as `TrainingContext` demands. Where keys are configured the files
    are encrypted.

    Raises:
        ConfigError: for `disk` where there is no folder; where the folder is encrypted and no key is configured, or the
            one it was written with is not; where the folder holds plain files and keys are configured.
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
