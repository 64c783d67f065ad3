"""Deep Q-learning (Mnih et al., Nature 518, 2015), and double, duelling, n-step, prioritised, quantile by choice.

Double Q-learning: van Hasselt et al., arXiv 1509.06461. Duelling networks: Wang et al., arXiv 1511.06581. Prioritised
replay: Schaul et al., arXiv 1511.05952. Quantile regression: Dabney et al., arXiv 1710.10044. n-step returns without
off-policy correction, as in Rainbow (Hessel et al., arXiv 1710.02298).

Where this deviates from the 2015 paper, as most implementations do: Adam in place of RMSProp; the gradient is clipped
by its global norm; the target network may follow by Polyak averaging. A time limit bootstraps from the true successor:
only `terminated` stops the return.

This file holds the loop, `config.py` the config, `losses.py` the targets and losses; `torch_engine.py` takes gradient
steps with autograd, `compiled.py` the same steps as machine code.

`docs/algorithms/dqn.md` lists the details, the metrics and what was measured.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl.algorithms.base import ALONE, RolloutCollector, TrainingContext, settle_engine
from loomrl.algorithms.compiled.names import ACTIVATIONS
from loomrl.algorithms.dqn.config import DQNConfig
from loomrl.algorithms.dqn.policy import ActionValuePolicy
from loomrl.algorithms.off_policy import ReplayingAlgorithm
from loomrl.algorithms.peers import ALONE as NO_PEERS
from loomrl.algorithms.peers import LearnerGroup
from loomrl.algorithms.replay.spec import PRIORITY_LIMIT, ReplaySpec, Transitions
from loomrl.algorithms.replay.storage import Storage
from loomrl.environment.wrappers.flat import parts_of
from loomrl.types import Act, ActFunction, FloatArray, Trajectory

if TYPE_CHECKING:
    from loomrl.algorithms.dqn.compiled import CompiledDQNEngine
    from loomrl.algorithms.dqn.torch_engine import TorchDQNEngine

NAME = "dqn"
Policy = ActionValuePolicy
STEP_METRICS = ("loss", "td_error", "q_value", "grad_norm")  # of a gradient step


class DQN(ReplayingAlgorithm[ActionValuePolicy]):
    """Learns an `ActionValuePolicy` from replayed transitions of its own epsilon-greedy acting. `learner` is the engine
    that takes the gradient steps. With `peers` of several learners `update` waits for the others, and raises
    RuntimeError where one is lost."""

    learner: "TorchDQNEngine | CompiledDQNEngine"

    def __init__(
        self,
        config: DQNConfig,
        policy: ActionValuePolicy,
        total_env_steps: int,
        context: TrainingContext = ALONE,
        peers: LearnerGroup = NO_PEERS,
    ) -> None:
        from loomrl.algorithms.dqn import compiled, torch_engine  # here: numba takes a while to import

        self.config = config
        self.engine = choose_engine(config, policy.observation_space, policy.action_space)
        engine = torch_engine.TorchDQNEngine if self.engine == "torch" else compiled.CompiledDQNEngine
        self.learner = engine(config, policy, peers)
        super().__init__(config, policy, context, peers, (), policy.action_space.dtype)
        self._batch = Transitions.empty(self._replay.spec, config.batch_size)
        self._total_env_steps = total_env_steps

    def _make_replay(self, spec: ReplaySpec, storage: Storage) -> Any:
        if self.config.prioritized:
            from loomrl.algorithms.replay.prioritized import PrioritizedReplay

            return PrioritizedReplay(spec, self.config.priority_exponent, storage=storage)
        return super()._make_replay(spec, storage)

    # --- acting ---

    def epsilons(self, steps_ahead: NDArray[np.int64]) -> FloatArray:
        """Probabilities (K,) of a random action, at `steps_ahead` (K,) environment steps after the last update: 1 until
        learning starts, then falling linearly to `epsilon_final`."""
        config, step = self.config, self._env_steps + steps_ahead
        falling_until = config.exploration_fraction * self._total_env_steps
        progress = np.minimum(step / falling_until, 1.0) if falling_until else np.ones(len(step))
        epsilon = config.epsilon_initial + progress * (config.epsilon_final - config.epsilon_initial)
        return np.where(step < config.learning_starts, 1.0, epsilon)

    @property
    def beta(self) -> float:
        """Exponent of the importance weights now, rising linearly to 1 at the last step."""
        first = self.config.importance_exponent
        return first + self._progress * (1.0 - first)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next gradient steps, as the schedule has it now."""
        falls = self.config.learning_rate_schedule == "linear"
        return self.config.learning_rate * (1.0 - self._progress if falls else 1.0)

    @property
    def _progress(self) -> float:
        """The share of all environment steps that were learned from."""
        return min(self._env_steps / self._total_env_steps, 1.0)

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Observations (B, *obs) -> epsilon-greedy actions (B,): random ones with a probability that `epsilons` gives,
        else those of highest value."""
        explores = rng.random(len(obs)) < self.epsilons(np.array([self._steps_ahead]))
        action = (rng.random(len(obs)) * self.policy.num_actions).astype(np.int64)
        if not explores.all():
            action = np.where(explores, action, self.learner.greedy(obs))
        self._steps_ahead += len(obs) * self.peers.num_learners
        return Act(action=(action + self.policy.first_action).astype(self.policy.action_space.dtype, copy=False))

    def collector(self, envs: VectorEnv[Any, Any, Any], seed: int, act: ActFunction | None = None) -> RolloutCollector:
        """A collector of rollouts in `envs`: one that acts by itself, in a kernel, where both the policy and the
        environments are compiled; else the usual one, which asks `act`."""
        from loomrl.environment.vector.batched import BatchedVectorEnv

        network: Any = self.policy.compiled  # has of a `CompiledPolicy` what the rollout asks it for
        if network is None or not isinstance(envs, BatchedVectorEnv):
            return super().collector(envs, seed, act)
        from loomrl.algorithms.compiled.rollout import CompiledCollector
        from loomrl.algorithms.dqn.compiled import exploring_noise

        return CompiledCollector(network, envs, seed, partial(exploring_noise, self))

    # --- learning ---

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        """Keep a trajectory (T, B) in the replay and learn from replayed transitions. Returns `epsilon`,
        `learning_rate`, `replay_size`, `num_gradient_steps` and, where steps were taken, the means of STEP_METRICS over
        them.

        Raises:
            EnvironmentFault: for a reward that float32 cannot hold; nothing of the trajectory is kept.
        """
        config, before = self.config, self._env_steps
        self._remember(trajectory)
        interval = config.target_update_interval
        if interval is not None and self._env_steps // interval > before // interval:
            self.peers.synchronise()  # all learners copy the same
            self.learner.copy_target()
        num_steps = config.gradient_steps or self._env_steps - before
        steps = [self._learn(rng) for _ in range(num_steps if self._env_steps >= config.learning_starts else 0)]
        metrics = {
            "epsilon": float(self.epsilons(np.array([0]))[0]),
            "learning_rate": self.learning_rate,
            "replay_size": float(len(self._replay) * self.peers.num_learners),
            "num_gradient_steps": float(len(steps)),
        }
        if steps:
            metrics |= dict(zip(STEP_METRICS, np.mean(steps, 0).tolist(), strict=True))
        return metrics

    def _learn(self, rng: np.random.Generator) -> FloatArray:
        """One gradient step on a replayed batch; returns its metrics in the order of STEP_METRICS."""
        replay, batch = self._replay, self._batch
        if not self.config.prioritized:
            replay.sample(len(batch.index), rng, out=batch)
            return self.learner.step(batch, self.learning_rate)[0]
        replay.sample(len(batch.index), rng, self.beta, batch)
        metrics, td_error = self.learner.step(batch, self.learning_rate)
        if (td_error < PRIORITY_LIMIT).all():  # else it has diverged, and whoever reads the metrics stops
            replay.update_priorities(batch.index, td_error)
        return metrics


def _obstacle(config: DQNConfig, observation_space: gymnasium.Space[Any]) -> str | None:
    """What the compiled engine does not have; None where it can learn the policy."""
    if config.activation not in ACTIVATIONS:
        return f"with activation {config.activation} (it has {', '.join(ACTIVATIONS)})"
    floats = isinstance(observation_space, gymnasium.spaces.Box) and np.dtype(observation_space.dtype).kind == "f"
    if not floats or not all(part.kind == "box" for part in parts_of(observation_space)):
        return f"from observations {observation_space} (it takes a Box of floats)"
    return None


def choose_engine(
    config: DQNConfig,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],  # noqa: ARG001 - any that DQN can handle
) -> str:
    """`compiled` or `torch`: what `config.engine` asks for, or what the policy allows. Timing plays no part in it.

    Raises:
        ConfigError: for `engine: compiled` where the policy does not allow it, naming why.
    """
    return settle_engine(config.engine, _obstacle(config, observation_space))


def build(
    config: DQNConfig,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    seed: int,
    total_env_steps: int,
    context: TrainingContext = ALONE,
    peers: LearnerGroup = NO_PEERS,
) -> DQN:
    """DQN with weights that follow from `seed`.

    Raises:
        ConfigError: for action spaces other than Discrete, `engine: compiled` for a policy it cannot express, or a
            replay on the disk without a folder for it.
        ArtifactError: when the replay's folder cannot be used, or there is no room for it.
    """
    policy = ActionValuePolicy.for_spaces(
        NAME,
        observation_space,
        action_space,
        config.hidden_sizes,
        config.activation,
        generator=torch.Generator().manual_seed(seed),
        dueling=config.dueling,
        num_quantiles=config.num_quantiles or 1,
    )
    return DQN(config, policy, total_env_steps, context, peers)
