"""Soft actor-critic (Haarnoja et al., arXiv 1801.01290) with automatic temperature (arXiv 1812.05905).

Discrete actions: Christodoulou, arXiv 1910.07207. As in the authors' later code there is no state-value network. Where
this deviates from the papers, as most implementations do: a gradient step samples actions once and uses them for the
temperature and the actor; the temperature of a step is the one before its own update; the log temperature itself, not
the temperature, is what Adam moves; discrete actions aim by default at 0.5, not 0.98, of the greatest
entropy. A time limit bootstraps from the true successor: only `terminated` stops the return.

This file holds the loop, `config.py` the config, `losses.py` the losses; `torch_engine.py` takes gradient steps with
autograd, `compiled.py` the same steps as machine code. `docs/algorithms/sac.md` lists the details, the metrics and what
was measured.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loomrl.algorithms.base import ALONE, Algorithm, State, TrainingContext, below, check_threads, settle_engine
from loomrl.algorithms.noise import gaussian_noise, negated_gumbel
from loomrl.algorithms.off_policy import replay_spec, replay_storage
from loomrl.algorithms.peers import ALONE as NO_PEERS
from loomrl.algorithms.peers import LearnerGroup
from loomrl.algorithms.replay.buffer import ReplayBuffer
from loomrl.algorithms.replay.spec import ReplaySpec, Transitions
from loomrl.algorithms.sac.config import STEP_METRICS, SACConfig
from loomrl.algorithms.sac.policy import SACPolicy
from loomrl.types import Act, Trajectory

NAME = "sac"
Policy = SACPolicy
DISCRETE_ENTROPY_SHARE = 0.5
MOST_STEPS_AT_ONCE = 64  # gradient steps whose batches are drawn together


class SACEngine(Protocol):
    """Takes gradient steps on a policy it holds; `torch_engine` and `compiled` give the same numbers."""

    def sample(self, features: Tensor, noise: NDArray[np.float32]) -> NDArray[Any]:
        """Features (B, dim) -> actions: in [-1, 1] (B, A) by Gaussian noise, or indices (B,) by Gumbel noise (B, n)."""

    def learn(self, batches: Transitions, num_steps: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Take steps on the consecutive parts of `batches`; returns the sums of STEP_METRICS over the steps."""

    @property
    def temperature(self) -> float:
        """The entropy temperature alpha as it is now."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Everything but the policy, by name, as memory that may be read and written."""


class SAC(Algorithm):
    """Learns a `SACPolicy` from replayed transitions of its own sampling.

    With `peers` each learner replays what it saw itself; environment steps are those of all of them.
    """

    def __init__(
        self,
        config: SACConfig,
        policy: SACPolicy,
        learner: SACEngine,
        engine: str,
        context: TrainingContext = ALONE,
        peers: LearnerGroup = NO_PEERS,
    ) -> None:
        self.config, self.engine, self._peers = config, engine, peers
        self.num_envs, self.rollout_length = config.num_envs, config.rollout_length
        self._policy, self._learner = policy, learner
        self._storage = replay_storage(config, context)
        self._replay = ReplayBuffer(_replay_spec(config, policy, context), self._storage)
        self._env_steps = 0  # of the trajectories seen by `update`
        self._steps_ahead = 0  # acted since

    @property
    def policy(self) -> SACPolicy:
        """The policy as it is now."""
        return self._policy

    # --- acting ---

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Sample actions; uniform ones until learning starts. `extras["squashed"]` are continuous ones in [-1, 1]."""
        policy, num_rows = self._policy, len(obs)
        width = policy.distribution.width
        explores = self._env_steps + self._steps_ahead < self.config.learning_starts
        self._steps_ahead += num_rows * self._peers.num_learners
        if policy.is_discrete:
            gumbel = None if explores else -negated_gumbel((num_rows, width), rng)
            index = rng.integers(0, width, num_rows) if gumbel is None else self._sample(obs, gumbel)
            start = int(getattr(policy.action_space, "start", 0))
            return Act(action=index + start if start else index)
        if explores:
            squashed = rng.uniform(-1.0, 1.0, (num_rows, width)).astype(np.float32)
        else:
            squashed = self._sample(obs, gaussian_noise((num_rows, width), rng))
        action = policy.scaled(torch.from_numpy(squashed)).numpy().astype(policy.action_space.dtype, copy=False)
        return Act(action=action, extras={"squashed": squashed})

    @torch.no_grad()
    def _sample(self, obs: NDArray[Any], noise: NDArray[np.float32]) -> NDArray[Any]:
        return self._learner.sample(self._policy.features(torch.from_numpy(obs)), noise)

    # --- learning ---

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        """Remember a trajectory (T, B) and learn from replayed transitions; returns the means over gradient steps."""
        self._remember(trajectory)
        num_steps = 0
        if self._env_steps >= self.config.learning_starts:
            num_steps = self.config.gradient_steps or trajectory.reward.size * self._peers.num_learners
        sums, done = np.zeros(len(STEP_METRICS)), 0
        while done < num_steps:
            steps = int(min(self._steps_at_once, self._peers.steps_until_synchronisation, num_steps - done))
            batches = self._replay.sample(steps * self.config.batch_size, rng)
            sums += self._learner.learn(batches, steps, rng)
            done += steps
        replay_size = float(len(self._replay) * self._peers.num_learners)
        metrics = {"replay_size": replay_size, "num_gradient_steps": float(num_steps)}
        if num_steps:
            metrics |= dict(zip(STEP_METRICS, (sums / num_steps).tolist(), strict=True))
            metrics["temperature"] = self._learner.temperature
        return metrics

    @property
    def _steps_at_once(self) -> int:
        """No batch is drawn that the buffer could not hold."""
        return max(1, min(MOST_STEPS_AT_ONCE, self.config.replay_capacity // self.config.batch_size))

    def _remember(self, trajectory: Trajectory) -> None:
        policy = self._policy
        if not policy.is_discrete:
            trajectory = replace(trajectory, action=trajectory.extras["squashed"])
        self._replay.add(trajectory)
        self._env_steps += trajectory.reward.size * self._peers.num_learners
        self._steps_ahead = 0
        policy.learn_statistics(trajectory.obs, self._peers)

    # --- state ---

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self._policy.state_dict().items():
            yield f"policy.{name}", value
        for name, value in self._learner.tensors():
            yield f"learner.{name}", value

    def state_dict(self) -> State:
        """Networks, targets, optimisers, temperature, replay and the number of steps."""
        state: State = {name: value.numpy().copy() for name, value in self._tensors()}
        state |= {f"replay.{name}": value for name, value in self._replay.state_dict().items()}
        return state | {"env_steps": self._env_steps, "steps_ahead": self._steps_ahead}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`, in place."""
        self._replay.load_state_dict(below("replay.", state))  # first: it may lack what the state refers to
        with torch.no_grad():
            for name, value in self._tensors():
                value.copy_(torch.from_numpy(np.asarray(state[name])))
        if self._policy.normalizer is not None:
            self._policy.normalizer.refresh()
        self._env_steps, self._steps_ahead = int(state["env_steps"]), int(state["steps_ahead"])

    def close(self) -> None:
        """Close the replay buffer's storage, and its folder where it has one."""
        self._storage.close()


def default_target_entropy(policy: SACPolicy) -> float:
    """-dim of actions in [-1, 1] (arXiv 1812.05905, appendix D), or half of the greatest entropy of n actions."""
    width = policy.distribution.width
    return DISCRETE_ENTROPY_SHARE * math.log(width) if policy.is_discrete else -float(width)


def _replay_spec(config: SACConfig, policy: SACPolicy, context: TrainingContext) -> ReplaySpec:
    if policy.is_discrete:
        return replay_spec(config, context, policy.observation_space, (), policy.action_space.dtype)
    return replay_spec(config, context, policy.observation_space, (policy.distribution.width,), np.float32)


def choose_engine(
    config: SACConfig,
    observation_space: gymnasium.Space[Any],  # noqa: ARG001 - any that SAC can handle
    action_space: gymnasium.Space[Any],
) -> str:
    """`compiled` or `torch`: what `config.engine` asks for, or what the policy allows. Timing plays no part in it.

    Raises:
        ConfigError: for `engine: compiled` where the policy does not allow it, naming why; for `num_threads: 2` on
            torch.
    """
    from loomrl.algorithms.sac.compiled import obstacle

    engine = settle_engine(config.engine, obstacle(config, action_space))
    check_threads(engine, config.num_threads)
    return engine


def build(
    config: SACConfig,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    seed: int,
    total_env_steps: int,  # noqa: ARG001 - nothing follows a schedule
    context: TrainingContext = ALONE,
    peers: LearnerGroup = NO_PEERS,
) -> SAC:
    """SAC with weights that follow from `seed`; raises `ConfigError` for spaces or an engine it cannot handle."""
    from loomrl.algorithms.sac.compiled import CompiledSACEngine
    from loomrl.algorithms.sac.torch_engine import TorchSACEngine

    policy = SACPolicy.for_spaces(
        NAME,
        observation_space,
        action_space,
        config.hidden_sizes,
        config.activation,
        config.normalize_observations,
        torch.Generator().manual_seed(seed),
    )
    target_entropy = default_target_entropy(policy) if config.target_entropy is None else config.target_entropy
    engine = choose_engine(config, observation_space, action_space)
    make_learner = CompiledSACEngine if engine == "compiled" else TorchSACEngine
    learner = make_learner(config, policy, target_entropy, peers)
    return SAC(config, policy, learner, engine, context, peers)
