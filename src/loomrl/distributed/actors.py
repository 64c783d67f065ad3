"""Rollout workers and the learner they work for. Plain classes: `DistributedTrainer` makes Ray actors of them.

Every rollout is stamped with the version of the policy that made it: how many updates that had learnt from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.peers import Moments
from loomrl.distributed.actor_config import ActorConfig
from loomrl.environment.collector import Collector
from loomrl.errors import ConfigError
from loomrl.training.seeds import Purpose, derive
from loomrl.types import Trajectory

_ARRAYS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


@dataclass(frozen=True)
class PolicyState:
    """All of a policy that acting needs."""

    version: int
    arrays: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Rollout:
    """One worker's, with (return, length) of the episodes that ended in it."""

    trajectory: Trajectory
    finished: list[tuple[float, int]]
    policy_version: int


class RolloutWorker:
    """Steps its own environments with the policy it was given last."""

    def __init__(self, config: ActorConfig | Mapping[str, Any], index: int = 0, num_replaced: int = 0) -> None:
        """`index` counts workers, from 0; `num_replaced` those that were lost before this one was made. No two play the
        same episodes."""
        settings = ActorConfig.read(config)
        num_envs = settings.parameters.num_envs // settings.num_workers
        self._algorithm = settings.algorithm(num_envs)
        envs = settings.environments(num_envs, "same_step")
        make = getattr(self._algorithm, "collector", Collector)
        self._collector = make(envs, derive(settings.seed, Purpose.EPISODES, num_replaced) + index * num_envs)
        self._rng = np.random.default_rng([derive(settings.seed, Purpose.ACTIONS, index), num_replaced])
        self._version = 0

    def collect_rollout(self) -> Rollout:
        """`rollout_length` steps in every environment.

        Raises:
            EnvironmentFault: when an environment breaks its API.
        """
        trajectory = self._collector.collect(self._algorithm.act, self._algorithm.rollout_length, self._rng)
        finished = list(self._collector.finished)
        self._collector.finished.clear()
        return Rollout(trajectory, finished, self._version)

    def sync_policy(self, state: PolicyState) -> None:
        """Act with this policy from now on."""
        self._algorithm.policy.load_arrays(state.arrays)
        self._version = state.version


class PPOLearner:
    """Learns from the rollouts of all workers together."""

    def __init__(self, config: ActorConfig | Mapping[str, Any]) -> None:
        settings = ActorConfig.read(config)
        self._algorithm = settings.algorithm(settings.parameters.num_envs)
        self._rng = np.random.default_rng(derive(settings.seed, Purpose.ACTIONS, settings.num_workers))
        self._version = 0

    def update(self, *rollouts: Rollout) -> dict[str, float]:
        """Learn from one rollout of each worker, in the order of workers; returns metrics.

        Raises:
            ConfigError: when one was made by another version of the policy than the current: PPO learns from its own.
        """
        stale = [rollout.policy_version for rollout in rollouts if rollout.policy_version != self._version]
        if stale:
            raise ConfigError(
                f"a rollout was made by version {stale[0]} of the policy, which is at {self._version} now; call "
                "sync_policy before collect_rollout"
            )
        metrics = self._algorithm.update(beside([rollout.trajectory for rollout in rollouts]), self._rng)
        self._version += 1
        finished = [episode for rollout in rollouts for episode in rollout.finished]
        if finished:
            means = Moments.of(np.array(finished)).mean.tolist()
            metrics |= dict(zip(("episode_return", "episode_length"), means, strict=True))
        return metrics

    def get_policy_state(self) -> PolicyState:
        """What workers, and who evaluates, need to act as this learner would."""
        return PolicyState(self._version, self._algorithm.policy.arrays())


def beside(trajectories: Sequence[Trajectory]) -> Trajectory:
    """One trajectory with the environments of all, in their order."""
    first = trajectories[0]
    joined = {name: np.concatenate([getattr(one, name) for one in trajectories], 1) for name in _ARRAYS}
    extras = {name: np.concatenate([one.extras[name] for one in trajectories], 1) for name in first.extras}
    return replace(first, **joined, extras=extras, cost=None)
