"""PPO in torch, as the paper has it: for every policy torch can express, and what the compiled engine is held to."""

from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from loomrl.algorithms.advantages import (
    explained_variance,
    generalized_advantages,
    needs_successor_value,
    normalized,
    successor_values,
)
from loomrl.algorithms.base import State
from loomrl.algorithms.flat import FlatAdam, FlatParameters
from loomrl.algorithms.initial import dense_actor_critic
from loomrl.algorithms.networks.modules import GaussianPolicyHead
from loomrl.algorithms.peers import ALONE, LearnerGroup
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.algorithms.policies.policy import ROWS
from loomrl.algorithms.ppo.config import PPOParameters
from loomrl.algorithms.ppo.schedules import STEP_METRICS, ScheduledPPO
from loomrl.types import Act, Trajectory

# --- losses -----------------------------------------------------------------------------------------------------


def clipped_policy_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_epsilon: float) -> Tensor:
    """The negated clipped surrogate objective, a scalar (), of three tensors (N,) (arXiv 1707.06347, equation 7)."""
    ratio = torch.exp(log_prob - old_log_prob)
    clipped = ratio.clamp(1.0 - clip_epsilon, 1.0 + clip_epsilon)
    return -torch.minimum(advantage * ratio, advantage * clipped).mean()


def squared_value_loss(value: Tensor, returns: Tensor, old_value: Tensor | None, clip_epsilon: float | None) -> Tensor:
    """The mean of `squared_value_errors` over all rows, a scalar ()."""
    return squared_value_errors(value, returns, old_value, clip_epsilon).mean()


def squared_value_errors(
    value: Tensor, returns: Tensor, old_value: Tensor | None, clip_epsilon: float | None
) -> Tensor:
    """Squared errors of the values, in their shape. With `clip_epsilon` and `old_value` each is the greater of two:
    that of the value, and that of the value kept within `clip_epsilon` of the old one."""
    if clip_epsilon is None or old_value is None:
        return functional.mse_loss(value, returns, reduction="none")
    near = old_value + (value - old_value).clamp(-clip_epsilon, clip_epsilon)
    return torch.maximum((value - returns) ** 2, (near - returns) ** 2)


@dataclass(frozen=True)
class PPOBatch:
    """N transitions with all that the losses need of them: normalised `features` (N, dim), `action`, indices (N,) or
    samples before clipping (N, A); and, all (N,), `log_prob` of the policy that acted, its `value`, `advantage`, and
    the `returns` that the critic is fitted to."""

    features: Tensor  # (N, dim), normalised
    action: Tensor  # (N,) indices or (N, A) samples before clipping
    log_prob: Tensor  # (N,) of the policy that acted
    value: Tensor  # (N,)
    advantage: Tensor  # (N,)
    returns: Tensor  # (N,) what the critic's values are fitted to

    def __getitem__(self, rows: Any) -> "PPOBatch":
        return type(self)(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.log_prob)


def losses(
    policy: ActorCriticPolicy, batch: PPOBatch, clip_epsilon: float, value_clip_epsilon: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Policy loss (), value loss () and mean entropy (), none of them weighted, and the log-probabilities (N,) of the
    actions by the policy as it is now."""
    log_prob, entropy = _log_prob_and_entropy(policy, batch.features, batch.action)
    value = policy.value_head(policy.critic(batch.features))
    policy_loss = clipped_policy_loss(log_prob, batch.log_prob, batch.advantage, clip_epsilon)
    value_loss = squared_value_loss(value, batch.returns, batch.value, value_clip_epsilon)
    return policy_loss, value_loss, entropy.mean(), log_prob


def _log_prob_and_entropy(policy: ActorCriticPolicy, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    return policy.distribution.log_prob_and_entropy(policy.parameters_of(features), action)


# --- the algorithm ----------------------------------------------------------------------------------------------


class PPO(ScheduledPPO[ActorCriticPolicy]):
    """Learns an `ActorCriticPolicy` from trajectories that its own `act` has collected. With `peers` of several
    learners `update` waits for the others, and raises RuntimeError where one is lost."""

    def __init__(
        self, config: PPOParameters, policy: ActorCriticPolicy, total_env_steps: int, peers: LearnerGroup = ALONE
    ) -> None:
        super().__init__(config, policy, total_env_steps, peers)
        self._flat = FlatParameters(policy)
        self._optimizer = FlatAdam(self._flat.vector, config.learning_rate, eps=1e-5)
        self._rows_per_step = config.batch_size  # of a prepared batch in one gradient step
        peers.register_parameters(self._flat.vector.data, self._flat.matrices)

    # --- acting ---

    @torch.no_grad()
    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Observations (B, *obs) -> actions (B, *action) sampled from the policy. Only the actor runs: probabilities
        and values are computed for the whole rollout later."""
        policy = self.policy
        parameters = policy.parameters_of(policy.features(torch.from_numpy(obs)))
        return policy.distribution.sample(tuple(part.numpy() for part in parameters), rng)

    @torch.no_grad()
    def with_log_prob(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with the log-probabilities (T, B) of its actions by the policy as it is now, in its extras:
        for a learner whose policy has changed before it learns from it. Computed in whole tiles, so that a row's does
        not depend on the number of rows."""
        policy, shape = self._policy, trajectory.reward.shape
        obs = torch.from_numpy(trajectory.obs.reshape(-1, *trajectory.obs.shape[2:]))
        rows = torch.arange(-(-len(obs) // ROWS) * ROWS).clamp(max=len(obs) - 1)  # the last ones again
        action = policy.distribution.raw_actions(trajectory)
        log_prob, _ = _log_prob_and_entropy(policy, policy.features(obs[rows]), action[rows])
        extras = {**trajectory.extras, "log_prob": log_prob[: len(obs)].numpy().reshape(shape)}
        return replace(trajectory, extras=extras)

    # --- learning ---

    def update(self, trajectory: Trajectory, rng: np.random.Generator) -> dict[str, float]:
        """Learn from one rollout (T, B). Returns the means of STEP_METRICS over its gradient steps,
        `explained_variance`, `learning_rate`, `num_gradient_steps` and, for continuous actions, `std`."""
        metrics = self._learn(self._prepare(trajectory), rng)
        self._policy.learn_statistics(trajectory.obs, self._peers)
        return metrics

    def _learn(self, batch: PPOBatch, rng: np.random.Generator) -> dict[str, float]:
        """All epochs over a prepared rollout."""
        config = self.config
        learning_rate, clip_epsilon = self._schedules.begin()
        steps: list[Tensor] = []  # metrics of each gradient step
        self._optimizer.learning_rate = learning_rate
        for _ in range(config.n_epochs):
            first = len(steps)
            shuffled = batch[self._order(len(batch), rng)]
            starts = range(0, len(batch), self._rows_per_step)
            steps += [self._step(shuffled[start : start + self._rows_per_step], clip_epsilon) for start in starts]
            if not self._schedules.follow_divergence:
                continue
            mean = torch.stack(steps[first:])[:, KL].mean(0, keepdim=True).double().cpu()
            (kl,) = self._peers.all_reduce_mean(mean.numpy()).tolist()
            learning_rate = self._schedules.adapt(learning_rate, kl)
            self._optimizer.learning_rate = learning_rate
            if self._schedules.ends_update(kl):
                break
        self._schedules.advance(batch.log_prob.numel() * self._peers.num_learners)
        rates = {"learning_rate": learning_rate, "num_gradient_steps": float(len(steps))}
        return self._metrics(batch, torch.stack(steps).mean(0)) | rates

    def _order(self, num_rows: int, rng: np.random.Generator) -> Tensor:
        """The order of a prepared batch's rows in an epoch."""
        return torch.from_numpy(rng.permutation(num_rows))

    def _metrics(self, batch: PPOBatch, means: Tensor) -> dict[str, float]:
        """`means` over the gradient steps by name, how well the values explained the returns, and the deviation."""
        metrics = dict(zip(STEP_METRICS, means.tolist(), strict=True))
        metrics["explained_variance"] = explained_variance(batch.value.numpy(), batch.returns.numpy())
        if isinstance(self._policy.head, GaussianPolicyHead):
            metrics["std"] = float(self._policy.head.log_std.detach().exp().mean())
        return metrics

    @torch.no_grad()
    def _prepare(self, trajectory: Trajectory) -> PPOBatch:
        """Values, probabilities and advantages of a whole rollout, T x B flattened to N."""
        return self._with_values(trajectory, *self._features(trajectory))

    def _with_values(self, trajectory: Trajectory, features: Tensor, next_features: Tensor) -> PPOBatch:
        policy, shape = self._policy, trajectory.reward.shape
        value = policy.value_head(policy.critic(features))
        last_value = policy.value_head(policy.critic(next_features))
        advantage, returns = self._advantages(trajectory, value.reshape(shape).numpy(), last_value.numpy())
        action = policy.distribution.raw_actions(trajectory)
        return PPOBatch(
            features, action, self._log_prob(trajectory, features, action), value, advantage.ravel(), returns.ravel()
        )

    def _log_prob(self, trajectory: Trajectory, features: Tensor, action: Tensor) -> Tensor:
        """Log-probabilities (N,) of the policy that acted: the current one, unless they were kept."""
        if "log_prob" in trajectory.extras:
            return torch.from_numpy(trajectory.extras["log_prob"].reshape(-1))
        return _log_prob_and_entropy(self._policy, features, action)[0]

    def _advantages(
        self, trajectory: Trajectory, value: NDArray[Any], last_value: NDArray[Any]
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns, (T, B) each, from values (T, B) and those of the successors that are
        not the next row of the trajectory."""
        ended = trajectory.terminated | trajectory.truncated
        value64 = value.astype(np.float64)
        next_value = successor_values(value64, ended, last_value.astype(np.float64))
        reward = trajectory.reward if self._scaler is None else self._scaler(trajectory.reward, ended)
        advantage = generalized_advantages(
            reward, value64, next_value, trajectory.terminated, trajectory.truncated,
            self.config.gamma, self.config.gae_lambda,
        )  # fmt: skip
        returns = advantage + value64
        if self.config.normalize_advantages:
            advantage = normalized(advantage, self._peers)
        return _float32(advantage), _float32(returns)

    def _features(self, trajectory: Trajectory) -> tuple[Tensor, Tensor]:
        """Features of all N observations and of the successors that are not the next row of the trajectory."""
        ended = trajectory.terminated | trajectory.truncated
        obs = trajectory.obs.reshape(-1, *trajectory.obs.shape[2:])
        successors = trajectory.next_obs[needs_successor_value(ended)]
        return self._policy.features(torch.from_numpy(obs)), self._policy.features(torch.from_numpy(successors))

    def _losses(self, batch: PPOBatch, clip_epsilon: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return losses(self._policy, batch, clip_epsilon, self.config.value_clip_epsilon)

    def _step(self, batch: PPOBatch, clip_epsilon: float) -> Tensor:
        """One gradient step; returns its metrics in the order of STEP_METRICS."""
        config = self.config
        self._flat.gradient.zero_()
        policy_loss, value_loss, entropy, log_prob = self._losses(batch, clip_epsilon)
        torch.autograd.backward(policy_loss + config.value_loss_coef * value_loss - config.entropy_coef * entropy)
        if self._peers.all_reduces_gradients:
            self._peers.all_reduce_gradient(self._flat.gradient)
        grad_norm = self._flat.clip_gradient(config.max_grad_norm)
        self._optimizer.step()
        self._peers.count_steps(1)
        with torch.no_grad():
            log_ratio = log_prob - batch.log_prob
            ratio = log_ratio.exp()
            kl = (ratio - 1.0 - log_ratio).mean()  # http://joschu.net/blog/kl-approx.html, estimator k3
            clipped = ((ratio - 1.0).abs() > clip_epsilon).float().mean()
            return torch.stack([policy_loss, value_loss, entropy, kl, clipped, grad_norm])

    # --- state ---

    def _optimizer_state(self) -> State:
        return {name: value.cpu().numpy().copy() for name, value in self._optimizer.state.items()}

    def _load_optimizer(self, state: State) -> None:
        for name, value in state.items():
            self._optimizer.state[name].copy_(torch.from_numpy(value))


KL = STEP_METRICS.index("approx_kl")


def _float32(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def first_policy(
    config: PPOParameters,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    seed: int,
    algorithm: str = "ppo",
) -> ActorCriticPolicy:
    """The policy before it has learnt anything, with weights that follow from `seed`; `algorithm` is the name that
    `policy.json` gets.

    Raises:
        ConfigError: for spaces no policy can handle.
    """
    policy = ActorCriticPolicy.for_spaces(
        algorithm,
        observation_space,
        action_space,
        config.hidden_sizes,
        config.activation,
        config.normalize_observations,
        torch.Generator().manual_seed(seed),
        **config.network,
    )
    log_std = begin_log_std(policy.head, config)
    if policy.preprocessor.images:
        return policy
    # Dense networks get the first weights every engine gives them.
    first = dense_actor_critic(
        np.random.default_rng(seed), policy.preprocessor.dim, config.hidden_sizes, policy.distribution.width, log_std
    )
    policy.load_state_dict({name: torch.from_numpy(value) for name, value in first.items()}, strict=False)
    return policy


def begin_log_std(head: nn.Module, config: PPOParameters) -> float | None:
    """Set a Gaussian head's log standard deviation to `initial_log_std` and return that; None, and nothing is changed,
    for a head of another distribution."""
    if not isinstance(head, GaussianPolicyHead):
        return None
    nn.init.constant_(head.log_std, config.initial_log_std)
    return config.initial_log_std
