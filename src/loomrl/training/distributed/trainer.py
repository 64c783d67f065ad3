"""Rollout workers and a learner as Ray actors, driven from one call:

    trainer = DistributedTrainer(config)
    metrics = await trainer.train(num_iterations=1000)
    results = await PolicyEvaluator(config).evaluate(trainer.learner)

The life cycle shares a training among learners instead: `training.distributed` in a policy's config.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from loomrl.environment.collecting.collector import run_episodes
from loomrl.environment.seeds import DISTRIBUTED_SEEDS
from loomrl.errors import LoomRLError
from loomrl.training.distributed.cluster import connected
from loomrl.training.distributed.rollout_workers.actor_config import ActorConfig
from loomrl.training.distributed.rollout_workers.pool import RolloutWorkerPool
from loomrl.training.distributed.rollout_workers.rollouts import PolicyState, WorkerRollout
from loomrl.training.distributed.rollout_workers.workers import PPOLearner
from loomrl.training.seeds import Purpose, derive

HANG_TIMEOUT_SECONDS = 300.0  # how long a worker may take for a rollout

log = logging.getLogger(__name__)


class DistributedTrainer:
    """PPO with `num_workers` rollout workers. A worker that is lost is replaced by one that plays other episodes.

    Runs on the cluster this process is connected to (`ray.init`), else on one of this machine's that it begins, and
    that ends with this process, or with `ray.shutdown`.

    Raises:
        ConfigError: for a wrong config, or where Ray is not installed.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = ActorConfig.read(config)
        ray = connected(self.config.num_workers + 1)
        self.learner: Any = ray.remote(num_cpus=1)(PPOLearner).remote(self.config)
        self._pool = RolloutWorkerPool(
            self.config, self.config.parameters.num_envs, {"CPU": 1.0}, HANG_TIMEOUT_SECONDS, log.warning
        )
        self._rng = np.random.default_rng(derive(self.config.seed, Purpose.ACTIONS))

    @property
    def workers(self) -> list[Any]:
        """The Ray handles of the rollout workers, in their order."""
        return self._pool.workers

    async def train(self, num_iterations: int) -> list[dict[str, float]]:
        """Run `num_iterations` iterations: all workers collect, the learner updates, its policy goes to all workers.
        Returns the metrics of each iteration; a second call continues.

        Raises:
            EnvironmentFault: when an environment breaks its API.
            LoomRLError: when a worker is lost again and again, or the learner is, and with it what it has learnt.
        """
        from ray.exceptions import RayError, RayTaskError

        metrics = []
        for _ in range(num_iterations):
            state = self.learner.get_policy_state.remote()  # sent once, however many workers read it
            rollouts = await asyncio.to_thread(self._collect, state)
            try:
                metrics.append(await self.learner.update.remote(*rollouts))
            except RayTaskError as error:
                raise error.as_instanceof_cause() from error
            except RayError as error:
                raise LoomRLError(f"the learner was lost, and with it what it has learnt: {error}") from error
        return metrics

    def _collect(self, state: Any) -> list[WorkerRollout]:
        rollouts = self._pool.wait_for_rollouts(self._pool.request_rollouts(state, self._rng))
        self._rng.bit_generator.state = rollouts[0].rng_state
        return rollouts

    def close(self) -> None:
        """End the rollout workers and the learner; what was learnt and not read is lost."""
        import ray

        self._pool.close()
        ray.kill(self.learner)


class PolicyEvaluator:
    """Evaluates a learner's policy in `num_episodes` greedy episodes on seeds that no training uses. A wrong `config`
    raises ConfigError."""

    def __init__(self, config: Mapping[str, Any], num_episodes: int = 32) -> None:
        self.config, self._num_episodes = ActorConfig.read(config), num_episodes

    async def evaluate(self, learner: Any) -> dict[str, float]:
        """Evaluate the policy of a learner, a Ray handle of a `PPOLearner`, as it is now. Returns `mean_return`,
        `std_return`, `interquartile_mean_return`, `mean_length` (in steps), `num_episodes` and `policy_version`.

        Raises:
            EnvironmentFault: when an environment breaks its API, or an episode does not end.
            LoomRLError: when an action is not finite.
        """
        state: PolicyState = await learner.get_policy_state.remote()
        return await asyncio.to_thread(self._play, state)

    def _play(self, state: PolicyState) -> dict[str, float]:
        from loomrl.statistics.intervals import interquartile_mean

        policy = self.config.algorithm().policy
        policy.load_arrays(state.arrays)
        seeds = DISTRIBUTED_SEEDS[: self._num_episodes]
        envs = self.config.environments(min(self._num_episodes, 32), "disabled")
        try:
            episodes = run_episodes(envs, policy.act, seeds, np.random.default_rng(0))
        finally:
            envs.close()
        returns = np.array([episode.episode_return for episode in episodes])
        return {
            "mean_return": float(returns.mean()),
            "std_return": float(returns.std()),
            "interquartile_mean_return": float(interquartile_mean(returns)),
            "mean_length": float(np.mean([episode.length for episode in episodes])),
            "num_episodes": float(len(episodes)),
            "policy_version": float(state.version),
        }
