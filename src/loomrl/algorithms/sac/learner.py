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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from loomrl.algorithms.base import ALONE, State, TrainingContext, below, settle_engine
from loomrl.algorithms.compiled.names import ACTIVATIONS
from loomrl.algorithms.noise import gaussian_noise, negated_gumbel
from loomrl.algorithms.off_policy import ReplayingAlgorithm
from loomrl.algorithms.peers import ALONE as NO_PEERS
from loomrl.algorithms.peers import LearnerGroup
from loomrl.algorithms.sac.config import STEP_METRICS, SACConfig
from loomrl.algorithms.sac.policy import SACPolicy
from loomrl.types import Act, Trajectory

if TYPE_CHECKING:
    from loomrl.algorithms.sac.compiled import CompiledSACEngine
    from loomrl.algorithms.sac.torch_engine import TorchSACEngine

NAME = "sac"
Policy = SACPolicy
DISCRETE_ENTROPY_SHARE = 0.5
MOST_STEPS_AT_ONCE = 64  # gradient steps whose batches are drawn together


class SAC(ReplayingAlgorithm[SACPolicy]):
    """Learns a `SACPolicy` from replayed transitions of its own sampling. `learner` is the engine that takes the
    gradient steps. With `peers` of several learners `update` waits for the others, and raises RuntimeError where one is
    lost."""

    learner: "TorchSACEngine | CompiledSACEngine"

    def __init__(
        self,
        config: SACConfig,
        policy: SACPolicy,
        learner: "TorchSACEngine | CompiledSACEngine",
        engine: str,
        context: TrainingContext = ALONE,
        peers: LearnerGroup = NO_PEERS,
    ) -> None:
        self.config, self.engine, self.learner = config, engine, learner
        kept = ((), policy.action_space.dtype) if policy.is_discrete else ((policy.distribution.width,), np.float32)
        super().__init__(config, policy, context, peers, *kept)

    # --- acting ---

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Observations (B, *obs) -> sampled actions (B, *action); uniform ones until learning starts.
        `extras["squashed"]` holds continuous ones in [-1, 1], (B, A)."""
        policy, num_rows = self._policy, len(obs)
        width = policy.distribution.width
        explores = self._env_steps + self._steps_ahead < self.config.learning_starts
        self._steps_ahead += num_rows * self.peers.num_learners
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
        return self.learner.sample(self._policy.features(torch.from_numpy(obs)), noise)

    # --- learning ---

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        """Keep a trajectory (T, B) in the replay and learn from replayed transitions. Returns `replay_size`,
        `num_gradient_steps` and, where steps were taken, the means of STEP_METRICS over them and `temperature`.

        Raises:
            EnvironmentFault: for a reward that float32 cannot hold; nothing of the trajectory is kept.
        """
        self._remember(trajectory)
        num_steps = 0
        if self._env_steps >= self.config.learning_starts:
            num_steps = self.config.gradient_steps or trajectory.reward.size * self.peers.num_learners
        sums, done = np.zeros(len(STEP_METRICS)), 0
        while done < num_steps:
            steps = int(min(self._steps_at_once, self.peers.steps_until_synchronisation, num_steps - done))
            batches = self._replay.sample(steps * self.config.batch_size, rng)
            sums += self.learner.learn(batches, steps, rng)
            done += steps
        replay_size = float(len(self._replay) * self.peers.num_learners)
        metrics = {"replay_size": replay_size, "num_gradient_steps": float(num_steps)}
        if num_steps:
            metrics |= dict(zip(STEP_METRICS, (sums / num_steps).tolist(), strict=True))
            metrics["temperature"] = self.learner.temperature
        return metrics

    @property
    def _steps_at_once(self) -> int:
        """No batch is drawn that the buffer could not hold."""
        return max(1, min(MOST_STEPS_AT_ONCE, self.config.replay_capacity // self.config.batch_size))

    def _remember(self, trajectory: Trajectory) -> None:
        policy = self._policy
        if not policy.is_discrete:
            trajectory = replace(trajectory, action=trajectory.extras["squashed"])
        super()._remember(trajectory)
        policy.learn_statistics(trajectory.obs, self.peers)

    # --- state ---

    def state_dict(self) -> State:
        """The policy's networks and statistics, and the state of the learner, the replay and the counts: arrays and
        numbers by name.

        Raises:
            ArtifactError: when a replay on the disk cannot be written.
        """
        return super().state_dict() | {f"policy.{name}": value for name, value in self._policy.arrays().items()}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal algorithm, in place.

        Raises:
            ArtifactError: when the replay's files do not hold what the state refers to, and nothing has changed then;
                when the replay is of another shape or kind of storage.
        """
        super().load_state_dict(state)
        self._policy.load_arrays(below("policy.", state))


def default_target_entropy(policy: SACPolicy) -> float:
    """The entropy, in nats, that the temperature steers towards where none is given: -A for A continuous numbers in
    [-1, 1] (arXiv 1812.05905, appendix D), half of the greatest entropy, log n, for n discrete actions."""
    width = policy.distribution.width
    return DISCRETE_ENTROPY_SHARE * math.log(width) if policy.is_discrete else -float(width)


def _obstacle(config: SACConfig, action_space: gymnasium.Space[Any]) -> str | None:
    """What the compiled engine does not have; None where it can learn the policy."""
    if isinstance(action_space, gymnasium.spaces.Discrete):
        return f"discrete actions {action_space}"
    if config.activation not in ACTIVATIONS:
        return f"with activation {config.activation} (it has {', '.join(ACTIVATIONS)})"
    return None


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
    return settle_engine(config.engine, _obstacle(config, action_space), config.num_threads)


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
    """SAC with weights that follow from `seed`.

    Raises:
        ConfigError: for spaces it cannot handle, an engine that cannot learn the policy, or a replay on the disk
            without a folder for it.
        ArtifactError: when the replay's folder cannot be used, or there is no room for it.
    """
    from loomrl.algorithms.sac import compiled, torch_engine  # here: numba takes a while to import

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
    make_learner = compiled.CompiledSACEngine if engine == "compiled" else torch_engine.TorchSACEngine
    learner = make_learner(config, policy, target_entropy, peers)
    return SAC(config, policy, learner, engine, context, peers)
