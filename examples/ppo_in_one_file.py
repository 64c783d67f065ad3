"""PPO in one file, to be read from top to bottom: `python examples/ppo_in_one_file.py CartPole-v1`.

Proximal policy optimisation (Schulman et al., arXiv 1707.06347) for one choice of n (Discrete) or a diagonal Gaussian
(Box), with generalised advantages (arXiv 1506.02438), normalised observations, and time limits that are no ends. It
needs torch, NumPy and Gymnasium, and nothing of LoomRL. LoomRL's engines are faster, and a test holds them to this
file: from equal parameters and the same rollout, an update of each ends where this one does.

Shapes: T steps, B environments, N = T x B rows, D features, A choices or components of an action.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[Any]


@dataclass(frozen=True)
class Config:
    """The parameters of the paper; the defaults solve CartPole-v1."""

    num_envs: int = 16
    rollout_length: int = 128  # steps of each environment between two updates
    batch_size: int = 256  # rows in a gradient step
    n_epochs: int = 10  # passes over a rollout
    learning_rate: float = 1e-3  # falls to 0 over the training
    gamma: float = 0.99  # discount
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    value_loss_coef: float = 0.5
    entropy_coef: float = 0.0
    max_grad_norm: float = 0.5
    hidden_sizes: tuple[int, ...] = (64, 64)


# --- the policy -------------------------------------------------------------------------------------------------


class Normalizer:
    """Running mean and variance of D features: (x - mean) / std, clipped at ±10. What never varied is only centred."""

    def __init__(self, dim: int) -> None:
        self.mean, self.var, self.count = np.zeros(dim), np.ones(dim), 0

    def __call__(self, obs: Array) -> Tensor:
        """Observations (..., D) -> features (..., D), float32."""
        scale = np.where(self.var < 1e-8, 1.0, 1.0 / np.sqrt(self.var + 1e-8))
        mean, scale = self.mean.astype(np.float32), scale.astype(np.float32)
        return torch.from_numpy(((obs.astype(np.float32) - mean) * scale).clip(-10.0, 10.0))

    def update(self, obs: Array) -> None:
        """Merge rows (N, D) into the statistics (Chan, Golub and LeVeque, 1979)."""
        rows = obs.astype(np.float64)
        total, delta = self.count + len(rows), rows.mean(0) - self.mean
        squares = self.var * self.count + rows.var(0) * len(rows) + delta**2 * self.count * len(rows) / total
        self.mean, self.var, self.count = self.mean + delta * len(rows) / total, squares / total, total


def dense(sizes: list[int], last_gain: float) -> nn.Sequential:
    """Layers of these widths with tanh between them; orthogonal weights, zero biases."""
    layers: list[nn.Module] = []
    for index, (width_in, width_out) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        layer = nn.Linear(width_in, width_out)
        nn.init.orthogonal_(layer.weight, last_gain if index == len(sizes) - 2 else np.sqrt(2))
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class ActorCritic(nn.Module):
    """The actor's network gives logits (N, A), or the mean (N, A) of a Gaussian; the critic's gives values (N,)."""

    def __init__(self, num_features: int, action_space: gymnasium.Space[Any], hidden_sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.is_discrete = isinstance(action_space, gymnasium.spaces.Discrete)
        width = int(action_space.n) if self.is_discrete else int(np.prod(action_space.shape))
        self.actor = dense([num_features, *hidden_sizes, width], last_gain=0.01)
        self.critic = dense([num_features, *hidden_sizes, 1], last_gain=1.0)
        self.log_std = None if self.is_discrete else nn.Parameter(torch.zeros(width))

    def distribution(self, features: Tensor) -> torch.distributions.Distribution:
        """Over actions, one for each row: Categorical, or independent Gaussians."""
        if self.log_std is None:
            return torch.distributions.Categorical(logits=self.actor(features))
        gaussian = torch.distributions.Normal(self.actor(features), self.log_std.exp())
        return torch.distributions.Independent(gaussian, 1)

    def value(self, features: Tensor) -> Tensor:
        """What the discounted rewards to come are expected to sum up to, (N,)."""
        return self.critic(features).squeeze(-1)


# --- experience -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollout:
    """T steps of B environments."""

    obs: Array  # (T, B, D) as the policy saw it
    action: Array  # (T, B) choices, or (T, B, A) samples before they were clipped to the bounds
    reward: Array  # (T, B)
    terminated: Array  # (T, B): the episode ended, and nothing would have followed
    truncated: Array  # (T, B): the episode was cut, by a time limit for one, and more would have followed
    next_obs: Array  # (T, B, D) the true successor, also where an episode ended


def collect(
    envs: gymnasium.vector.VectorEnv, policy: ActorCritic, normalizer: Normalizer, obs: Array, length: int
) -> tuple[Rollout, Array]:
    """Play on from `obs` (B, D) for `length` steps; the rollout, and the observations after it."""
    steps = []
    for _ in range(length):
        with torch.no_grad():
            action = policy.distribution(normalizer(obs)).sample().numpy()
        space = envs.single_action_space
        bounded = action if policy.is_discrete else action.clip(space.low, space.high)
        following, reward, terminated, truncated, info = envs.step(bounded)
        next_obs = following.copy()
        for index in np.flatnonzero(terminated | truncated):  # `following` is the next episode's first observation
            next_obs[index] = info["final_obs"][index]
        steps.append((obs, action, reward, terminated, truncated, next_obs))
        obs = following
    return Rollout(*(np.stack(part) for part in zip(*steps, strict=True))), obs


def generalized_advantages(rollout: Rollout, value: Array, next_value: Array, gamma: float, gae_lambda: float) -> Array:
    """Advantages (T, B), arXiv 1506.02438, equation 16, from values (T, B) of `obs` and of `next_obs`.

    A truncated episode bootstraps from the value of its successor, a terminated one from nothing, and neither lets what
    the next episode was worth flow back.
    """
    advantage, running = np.empty_like(value), np.zeros(value.shape[1])
    for step in reversed(range(len(value))):
        following = gamma * next_value[step] * ~rollout.terminated[step]
        error = rollout.reward[step] + following - value[step]
        running = error + gamma * gae_lambda * ~(rollout.terminated[step] | rollout.truncated[step]) * running
        advantage[step] = running
    return advantage


# --- learning ---------------------------------------------------------------------------------------------------


def make_optimizer(policy: ActorCritic) -> torch.optim.Adam:
    """Adam; `update` sets its learning rate."""
    return torch.optim.Adam(policy.parameters(), eps=1e-5)


def update(
    policy: ActorCritic,
    optimizer: torch.optim.Optimizer,
    normalizer: Normalizer,
    rollout: Rollout,
    config: Config,
    learning_rate: float,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Learn from one rollout, in place; returns the means of the losses over its gradient steps."""
    features = normalizer(rollout.obs).flatten(0, 1)  # (N, D)
    action = torch.from_numpy(rollout.action).flatten(0, 1)  # (N,) or (N, A)
    with torch.no_grad():
        old_log_prob = policy.distribution(features).log_prob(action)
        value = policy.value(normalizer(rollout.obs)).numpy().astype(np.float64)  # (T, B)
        next_value = policy.value(normalizer(rollout.next_obs)).numpy().astype(np.float64)
    advantage = generalized_advantages(rollout, value, next_value, config.gamma, config.gae_lambda)
    returns = torch.from_numpy((advantage + value).astype(np.float32)).flatten()  # what the critic is to say
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    advantages = torch.from_numpy(advantage.astype(np.float32)).flatten()

    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    losses = []
    for _ in range(config.n_epochs):
        order = torch.from_numpy(rng.permutation(len(features)))
        for rows in order.split(config.batch_size):
            distribution = policy.distribution(features[rows])
            ratio = torch.exp(distribution.log_prob(action[rows]) - old_log_prob[rows])
            clipped = ratio.clamp(1.0 - config.clip_epsilon, 1.0 + config.clip_epsilon)
            policy_loss = -torch.minimum(ratio * advantages[rows], clipped * advantages[rows]).mean()  # equation 7
            value_loss = ((policy.value(features[rows]) - returns[rows]) ** 2).mean()
            entropy = distribution.entropy().mean()
            optimizer.zero_grad()
            (policy_loss + config.value_loss_coef * value_loss - config.entropy_coef * entropy).backward()
            nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            optimizer.step()
            losses.append([policy_loss.item(), value_loss.item(), entropy.item()])
    normalizer.update(
        rollout.obs.reshape(-1, rollout.obs.shape[-1])
    )  # for the next rollout: this one was played without
    return dict(zip(("policy_loss", "value_loss", "entropy"), np.mean(losses, 0).tolist(), strict=True))


def train(env_id: str, total_env_steps: int, seed: int, config: Config) -> list[float]:
    """Returns of all episodes that ended, in their order; prints the mean of each update's."""
    torch.set_num_threads(1)  # such small networks gain nothing from more
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    same_step = gymnasium.vector.AutoresetMode.SAME_STEP
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make(env_id) for _ in range(config.num_envs)], autoreset_mode=same_step
    )
    policy = ActorCritic(envs.single_observation_space.shape[0], envs.single_action_space, config.hidden_sizes)
    optimizer, normalizer = make_optimizer(policy), Normalizer(envs.single_observation_space.shape[0])
    obs, _ = envs.reset(seed=seed)
    running, finished, played = np.zeros(config.num_envs), list[float](), 0
    while played < total_env_steps:
        rollout, obs = collect(envs, policy, normalizer, obs, config.rollout_length)
        losses = update(
            policy, optimizer, normalizer, rollout, config, config.learning_rate * (1.0 - played / total_env_steps), rng
        )
        played += rollout.reward.size
        first = len(finished)
        for reward, ended in zip(rollout.reward, rollout.terminated | rollout.truncated, strict=True):
            running += reward
            finished += running[ended].tolist()
            running[ended] = 0.0
        if len(finished) > first:
            told = ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
            print(f"{played:>9,} steps: mean return {np.mean(finished[first:]):8.2f}; {told}", flush=True)
    envs.close()
    return finished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env_id", nargs="?", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    train(options.env_id, options.steps, options.seed, Config())


if __name__ == "__main__":
    main()
