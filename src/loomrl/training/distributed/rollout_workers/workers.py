"""Rollout workers and the learner they work for. Plain classes: `loomrl.training.distributed.rollout_workers.pool`
makes Ray actors of them.
"""

import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl.algorithms.base import Algorithm
from loomrl.algorithms.peers import Moments
from loomrl.environment.vector.states import State
from loomrl.system.threads import one_thread
from loomrl.training.collecting import OwnEnvironments, SegmentCollector
from loomrl.training.distributed.rollout_workers.actor_config import ActorConfig
from loomrl.training.distributed.rollout_workers.environment_shares import EnvironmentShare, ShareOfNoise, divided
from loomrl.training.distributed.rollout_workers.rollouts import (
    PolicyState,
    WorkerRollout,
    beside,
    finished_in_order,
    require_fresh,
)
from loomrl.training.seeds import Purpose, derive
from loomrl.types import Act, Json


class WorkerSetup(Protocol):
    """What a worker needs to create its policy and its environments, on whichever machine it runs. Its methods raise
    ConfigError or ArtifactError where that machine lacks what they need."""

    @property
    def seed(self) -> int:
        """The seed of the training, from which workers derive those of actions and episodes."""

    @property
    def num_workers(self) -> int:
        """How many rollout workers the learner has."""

    def algorithm(self) -> Algorithm:
        """A new algorithm equal to the learner's before it has learnt anything."""

    def environments(self, num_envs: int, autoreset: Any) -> VectorEnv[Any, Any, Any]:
        """A vector of `num_envs` training environments; `autoreset` as `loomrl.environment.vector.choose.Autoreset` has
        it."""

    def process(self, index: int, algorithm: Algorithm) -> Json:
        """A description of the process of worker `index`, JSON values; empty where no report needs it."""

    def close(self) -> None:
        """Delete what the worker keeps on this machine."""


class RolloutWorker:
    """Steps a share of a learner's environments with the policy it was given last. `index` is its number among the
    workers, from 0; a wrong `config` raises ConfigError."""

    def __init__(self, config: WorkerSetup | Mapping[str, Any], index: int = 0) -> None:
        """`index` counts workers, from 0; until `begin` is called, environments are divided evenly among them."""
        self._setup: WorkerSetup = ActorConfig.read(config) if isinstance(config, Mapping) else config
        self._index = index
        self._process: Json = {}
        self._algorithm = self._setup.algorithm()
        self._rng = np.random.default_rng(
            derive(self._setup.seed, Purpose.ACTIONS)
        )  # the same for all: see ShareOfNoise
        self._version = 0
        self._share = divided(self._algorithm.num_envs, [1.0] * self._setup.num_workers)[index]
        self._seed, self._state = derive(self._setup.seed, Purpose.EPISODES), dict[str, Any]()
        self._environments: tuple[OwnEnvironments, SegmentCollector] | None = None

    def begin(self, share: EnvironmentShare, seed: int, state: State) -> None:
        """Go on with the environments of `share`, from their state, arrays (B, ...) by name; with an empty one they
        begin anew, and number i of the learner's is seeded with `seed + i`."""
        self._close_environments()
        self._share, self._seed, self._state = share, seed, state

    def _started(self) -> tuple[OwnEnvironments, SegmentCollector]:
        own = OwnEnvironments(self._algorithm, self._setup.environments, self._share.num_envs, self._act)
        own.load_state_dict(self._state)
        return own, own.begin(self._seed + self._share.first)

    def sync_policy(self, state: PolicyState) -> None:
        """Act with the policy of these arrays from now on; rollouts are stamped with its version."""
        self._algorithm.policy.load_arrays(state.arrays)
        self._version = state.version

    def collect_rollout(self, rng: np.random.Generator | None = None, with_log_prob: bool = False) -> WorkerRollout:
        """Take `rollout_length` steps in every environment of the share and return them, with the state after them.

        `rng` draws noise for all of the learner's environments; None: the worker's own generator, which follows from
        the seed. With `with_log_prob` log-probabilities are kept, which a learner that has learnt meanwhile cannot
        compute.

        Raises:
            EnvironmentFault: when an environment breaks its API.
            LoomRLError: when an action is not finite.
        """
        algorithm = self._algorithm
        rng = rng or self._rng
        with one_thread(algorithm.engine):
            own, collector = self._environments = self._environments or self._started()
            began = time.perf_counter()
            noise = ShareOfNoise(rng, self._share)
            trajectory = collector.collect(algorithm.rollout_length, noise)
            seconds = time.perf_counter() - began
            if with_log_prob:
                trajectory = algorithm.with_log_prob(trajectory)
        finished = list(collector.finished)
        collector.finished.clear()
        rng_state, environments = dict(rng.bit_generator.state), own.state_dict()
        self._process = self._process or self._setup.process(self._index, algorithm)
        return WorkerRollout(trajectory, finished, self._version, rng_state, seconds, environments, self._process)

    def _act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        share = self._share
        chosen = self._algorithm.act(share.padded(obs), rng)
        own = share.batch_rows
        return Act(chosen.action[own], extras={name: values[own] for name, values in chosen.extras.items()})

    def _close_environments(self) -> None:
        if self._environments is not None:
            self._environments[0].close()
            self._environments = None

    def close(self) -> None:
        """Close the environments, and delete the files that are kept on this machine."""
        self._close_environments()
        self._setup.close()


class PPOLearner:
    """Updates PPO's policy from the rollouts of all workers together. A wrong `config` raises ConfigError."""

    def __init__(self, config: ActorConfig | Mapping[str, Any]) -> None:
        settings = ActorConfig.read(config)
        self._algorithm = settings.algorithm()
        self._rng = np.random.default_rng(derive(settings.seed, Purpose.ACTIONS, 1))
        self._version = 0

    def update(self, *rollouts: WorkerRollout) -> dict[str, float]:
        """Learn from one rollout of each worker, in the order of workers. Returns PPO's metrics, with the means
        `episode_return` and `episode_length` (in steps) where episodes ended.

        Raises:
            ConfigError: when a rollout was made by another version of the policy than the current; nothing is learnt
                then.
        """
        require_fresh(rollouts, self._version)
        metrics = self._algorithm.update(beside(rollouts), self._rng)
        self._version += 1
        if finished := finished_in_order(rollouts):
            means = Moments.of(np.array(finished)).mean.tolist()
            metrics |= dict(zip(("episode_return", "episode_length"), means, strict=True))
        return metrics

    def get_policy_state(self) -> PolicyState:
        """The arrays and the version that workers and evaluators need to act as this learner's policy."""
        return PolicyState(self._version, self._algorithm.policy.arrays())
