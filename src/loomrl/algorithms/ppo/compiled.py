"""PPO on the compiled engine: the same figures as `learner`, to within float32's rounding, many times faster."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl.algorithms.advantages import RewardScaler, needs_successor_value
from loomrl.algorithms.architecture import PolicyArchitecture
from loomrl.algorithms.base import RolloutCollector, State
from loomrl.algorithms.compiled import gae
from loomrl.algorithms.compiled.policy import CompiledPolicy
from loomrl.algorithms.compiled.ppo import (
    BLOCK,
    GRAD_NORM,
    KL,
    PPONetworks,
    PPOWorkspace,
    RolloutRows,
    apply_gradient,
    batch_gradient,
    gradient_steps,
    log_probabilities,
)
from loomrl.algorithms.compiled.rollout import CompiledCollector
from loomrl.algorithms.initial import dense_actor_critic
from loomrl.algorithms.noise import gaussian_noise, negated_gumbel
from loomrl.algorithms.peers import ALONE, LayerWeights, LearnerGroup, Moments
from loomrl.algorithms.ppo.config import PPOParameters
from loomrl.algorithms.ppo.engine import num_outputs
from loomrl.algorithms.ppo.schedules import STEP_METRICS, ScheduledPPO
from loomrl.environment.spaces import space_to_json
from loomrl.environment.vector.batched import BatchedVectorEnv
from loomrl.system.processors import num_processors
from loomrl.types import Act, ActFunction, FloatArray, Trajectory

NO_INDEX, NO_SAMPLE = np.zeros(0, np.int64), np.zeros((0, 0), np.float32)


class CompiledRewardScaler(RewardScaler):
    """A `RewardScaler` whose loop over time steps is compiled; results are equal."""

    def _discounted(self, reward: FloatArray, ended: NDArray[np.bool_]) -> FloatArray:
        returns = np.empty(reward.shape)
        gae.discounted_returns(reward, ended, self._running, self._gamma, returns)
        return returns


class CompiledPPO(ScheduledPPO[CompiledPolicy]):
    """Learns a `CompiledPolicy` from trajectories of its own `act` or collector. With `peers` of several learners
    `update` waits for the others, and raises RuntimeError where one is lost."""

    engine = "compiled"
    _scaler_type = CompiledRewardScaler

    def __init__(
        self, config: PPOParameters, policy: CompiledPolicy, total_env_steps: int, peers: LearnerGroup = ALONE
    ) -> None:
        super().__init__(config, policy, total_env_steps, peers)
        self._networks = _networks(policy)
        self._num_gradient_steps = 0
        self._work = _work(policy)
        self._num_threads = min(config.num_threads, num_processors())
        self._helper = ThreadPoolExecutor(1, "ppo") if self._num_threads > 1 else None
        matrices = [*policy.critic.matrices(), *policy.actor.matrices()]
        peers.register_parameters(policy.parameters, [LayerWeights(*place) for place in matrices])

    # --- acting ---

    def collector(self, envs: VectorEnv[Any, Any, Any], seed: int, act: ActFunction | None = None) -> RolloutCollector:
        """A collector that steps compiled environments itself; for others the usual one, which asks `act`."""
        if isinstance(envs, BatchedVectorEnv):
            return CompiledCollector(self._policy, envs, seed)
        return super().collector(envs, seed, act)

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Observations (B, *obs) -> actions (B, *action) sampled from the policy."""
        policy = self._policy
        outputs = policy.outputs(policy.features(policy.raw_features(obs)))
        if policy.is_discrete:
            return Act(action=policy.discrete((outputs - negated_gumbel(outputs.shape, rng)).argmax(-1)))
        sample = outputs + np.exp(policy.log_std()) * gaussian_noise(outputs.shape, rng)
        return Act(action=policy.bounded(sample), extras={"sample": sample})

    def with_log_prob(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with the log-probabilities (T, B) of its actions by the policy as it is now, in its extras:
        for a learner whose policy has changed before it learns from it."""
        policy = self._policy
        features = policy.features(policy.raw_features(trajectory.obs))
        log_prob = self._log_prob(trajectory, features, *self._raw_actions(trajectory))
        extras = {**trajectory.extras, "log_prob": log_prob.reshape(trajectory.reward.shape)}
        return replace(trajectory, extras=extras)

    # --- learning ---

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        """Learn from one rollout (T, B). Returns the means of STEP_METRICS over its gradient steps,
        `explained_variance`, `learning_rate`, `num_gradient_steps` and, for continuous actions, `std`."""
        config, policy = self.config, self._policy
        raw = policy.raw_features(trajectory.obs)
        rows, explained = self._prepare(trajectory, policy.features(raw))
        rate, clip_epsilon = self._schedules.begin()
        per_epoch = -(-len(raw) // config.batch_size)
        steps = np.zeros((config.n_epochs * per_epoch, len(STEP_METRICS)))
        # In one go, unless what follows an epoch depends on its divergence.
        together = 1 if self._schedules.follow_divergence else config.n_epochs
        num_steps = 0
        for _ in range(0, config.n_epochs, together):
            orders = np.stack([rng.permutation(len(raw)) for _ in range(together)])
            epoch = steps[num_steps : num_steps + together * per_epoch]
            self._learn(rows, orders, np.array(self._settings(rate, clip_epsilon)), epoch)
            num_steps += len(epoch)
            if not self._schedules.follow_divergence:
                continue
            (kl,) = self._peers.all_reduce_mean(epoch[:, KL].mean(keepdims=True)).tolist()
            rate = self._schedules.adapt(rate, kl)
            if self._schedules.ends_update(kl):
                break
        self._schedules.advance(len(raw) * self._peers.num_learners)
        if policy.normalizer is not None:
            policy.normalizer.update(raw, self._peers)
        metrics = dict(zip(STEP_METRICS, steps[:num_steps].mean(0).tolist(), strict=True))
        metrics["explained_variance"] = explained
        metrics["learning_rate"] = rate
        metrics["num_gradient_steps"] = float(num_steps)
        if not policy.is_discrete:
            with np.errstate(over="ignore"):  # training stops at infinity, and says so
                metrics["std"] = float(np.exp(policy.parameters[policy.actor.end :]).mean())
        return metrics

    def _prepare(self, trajectory: Trajectory, features: NDArray[np.float32]) -> tuple[RolloutRows, float]:
        """Values, probabilities and advantages of a whole rollout, T x B flattened to N, and how well the values
        explained the returns."""
        policy, config, shape = self._policy, self.config, trajectory.reward.shape
        ended = trajectory.terminated | trajectory.truncated
        successors = policy.raw_features(trajectory.next_obs[needs_successor_value(ended)])
        value = policy.values(features)
        last_value = policy.values(policy.features(successors)).astype(np.float64)
        value64, advantage = value.astype(np.float64).reshape(shape), np.empty(shape)
        reward = trajectory.reward if self._scaler is None else self._scaler(trajectory.reward, ended)
        gae.advantages(
            reward, value64, last_value, trajectory.terminated, trajectory.truncated, config.gamma, config.gae_lambda,
            advantage,
        )  # fmt: skip
        returns = (advantage + value64).ravel()
        if config.normalize_advantages:
            mean, var = (np.array(moment) for moment in gae.moments(advantage.reshape(-1)))
            joined = self._peers.all_reduce_moments(Moments(mean, var, float(advantage.size)))
            gae.normalize(advantage.reshape(-1), float(joined.mean), float(joined.var))
        index, sample = self._raw_actions(trajectory)
        rows = RolloutRows(
            features, index, sample, self._log_prob(trajectory, features, index, sample), np.ascontiguousarray(value),
            advantage.ravel().astype(np.float32), returns.astype(np.float32),
        )  # fmt: skip
        return rows, gae.explained_variance(value64.ravel(), returns)

    def _raw_actions(self, trajectory: Trajectory) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """What was sampled: indices (N,), or Gaussian samples before clipping (N, A)."""
        policy = self._policy
        if not policy.is_discrete:
            return NO_INDEX, trajectory.extras["sample"].reshape(-1, policy.num_outputs)
        index = trajectory.action.reshape(-1)
        return (index - policy.start if policy.start else index).astype(np.int64, copy=False), NO_SAMPLE

    def _log_prob(
        self,
        trajectory: Trajectory,
        features: NDArray[np.float32],
        index: NDArray[np.int64],
        sample: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Log-probabilities (N,) of the policy that acted; its own collector has kept them."""
        if "log_prob" in trajectory.extras:
            return trajectory.extras["log_prob"].reshape(-1)
        policy, log_prob = self._policy, np.empty(len(features), np.float32)
        log_probabilities(policy.parameters, policy.is_discrete, policy.outputs(features), index, sample, log_prob)
        return log_prob

    def _settings(self, rate: float, clip_epsilon: float) -> tuple[float, ...]:
        """In the order of `compiled.ppo.SETTINGS`."""
        config = self.config
        value_clip = config.value_clip_epsilon or 0.0
        return rate, clip_epsilon, value_clip, config.value_loss_coef, config.entropy_coef, config.max_grad_norm

    def _learn(self, rows: RolloutRows, orders: NDArray[np.int64], settings: FloatArray, metrics: FloatArray) -> None:
        """Epochs in the given orders; `metrics` has a row for each gradient step."""
        if self._peers.all_reduces_gradients:
            self._learn_jointly(rows, orders, settings, metrics)
            return
        done = 0
        for part in self._parts(orders, len(metrics)):
            num_steps = len(part) * -(-part.shape[1] // self.config.batch_size)
            self._take_steps(rows, part, settings, metrics[done : done + num_steps])
            self._peers.count_steps(num_steps)
            done += num_steps

    def _parts(self, orders: NDArray[np.int64], num_steps: int) -> Iterator[NDArray[np.int64]]:
        """The epochs (E, N) in one go, or cut wherever the learners are to meet."""
        if num_steps <= self._peers.steps_until_synchronisation:
            yield orders
            return
        for order in orders:
            first = 0
            while first < order.size:
                last = int(min(first + self._peers.steps_until_synchronisation * self.config.batch_size, order.size))
                yield order[None, first:last]
                first = last

    def _learn_jointly(
        self, rows: RolloutRows, orders: NDArray[np.int64], settings: FloatArray, metrics: FloatArray
    ) -> None:
        """The same epochs, with every gradient that of all learners."""
        size = self.config.batch_size
        batches = (order[first : first + size] for order in orders for first in range(0, order.size, size))
        for chosen, step in zip(batches, metrics, strict=True):
            batch_gradient(self._networks, rows, chosen, settings, self._work, step)
            self._peers.all_reduce_gradient(self._networks.gradient)
            step[GRAD_NORM] = apply_gradient(self._networks, self._num_gradient_steps, settings)
            self._num_gradient_steps += 1

    def _take_steps(
        self, rows: RolloutRows, orders: NDArray[np.int64], settings: FloatArray, metrics: FloatArray
    ) -> None:
        """Epochs in the given orders, on one thread or two."""
        counter = np.zeros(1, np.int64)
        rest: Any = (
            self._num_threads, counter, self._networks, rows, self._num_gradient_steps, orders,
            self.config.batch_size, settings, self._work, metrics,
        )  # fmt: skip
        helping = self._helper.submit(gradient_steps, 1, *rest) if self._helper else None
        gradient_steps(0, *rest)
        if helping:
            helping.result()
        self._num_gradient_steps += len(metrics)

    # --- state ---

    def _optimizer_state(self) -> State:
        moments = self._networks.first.copy(), self._networks.second.copy()
        return {"step": self._num_gradient_steps, "exp_avg": moments[0], "exp_avg_sq": moments[1]}

    def _load_optimizer(self, state: State) -> None:
        self._num_gradient_steps = int(state["step"])
        self._networks.first[:], self._networks.second[:] = state["exp_avg"], state["exp_avg_sq"]


def _networks(policy: CompiledPolicy) -> PPONetworks:
    gradient, first, second = (np.zeros_like(policy.parameters) for _ in range(3))
    bounds = np.array([0, policy.critic.end, policy.parameters.size])
    return PPONetworks(
        policy.parameters, gradient, first, second, policy.critic.table, policy.actor.table, bounds,
        policy.activation, policy.is_discrete,
    )  # fmt: skip


def _work(policy: CompiledPolicy) -> PPOWorkspace:
    return PPOWorkspace(
        hidden=np.stack([policy.actor.hidden(BLOCK)] * 2),
        scratch=np.stack([policy.actor.scratch(BLOCK)] * 2),
        gradient=np.zeros_like(policy.parameters),
        squares=np.zeros((2, 2), np.float32),
    )


def first_policy(
    config: PPOParameters, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], seed: int
) -> CompiledPolicy:
    """The policy before it has learnt anything, with weights that follow from `seed`. The spaces must be ones for which
    `engine.choose` gives "compiled": others are not checked here."""
    architecture = PolicyArchitecture(
        algorithm="ppo",
        observation=space_to_json(observation_space),
        action=space_to_json(action_space),
        hidden_sizes=list(config.hidden_sizes),
        activation=config.activation,
        normalize_observations=config.normalize_observations,
    )
    gaussian = not isinstance(action_space, gymnasium.spaces.Discrete)
    first = dense_actor_critic(
        np.random.default_rng(seed),
        math.prod(observation_space.shape or ()),
        config.hidden_sizes,
        num_outputs(action_space),
        config.initial_log_std if gaussian else None,
    )
    return CompiledPolicy(architecture, first)
