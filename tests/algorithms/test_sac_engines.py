"""SAC's two engines: autograd against a plain implementation, machine code against autograd, one thread against two."""

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.distributions import Categorical, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from loomrl.algorithms.replay.spec import Transitions
from loomrl.algorithms.sac import learner as sac
from loomrl.algorithms.sac.compiled import CompiledSACEngine
from loomrl.algorithms.sac.policy import SACPolicy
from loomrl.algorithms.sac.torch_engine import TorchSACEngine

OBSERVATION = Box(-np.inf, np.inf, (5,), np.float32)
CONTINUOUS = Box(-2.0, 0.5, (3,), np.float32)
SMALL: dict[str, Any] = {"batch_size": 24, "hidden_sizes": (20, 32), "replay_capacity": 1000}


def config_of(**values: Any) -> sac.SACConfig:
    return sac.SACConfig(**{**SMALL, **values})


def policy_of(config: sac.SACConfig, action: gymnasium.Space = CONTINUOUS, seed: int = 1) -> SACPolicy:
    policy = SACPolicy.for_spaces(
        "sac",
        OBSERVATION,
        action,
        config.hidden_sizes,
        config.activation,
        config.normalize_observations,
        torch.Generator().manual_seed(seed),
    )
    if policy.normalizer is not None:
        policy.normalizer.update(np.random.default_rng(2).normal(1.0, 3.0, (50, 5)))
    return policy


def transitions(count: int, action: gymnasium.Space = CONTINUOUS, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)
    discrete = isinstance(action, Discrete)
    return Transitions(
        obs=rng.standard_normal((count, 5), np.float32),
        action=rng.integers(0, 4, count) + 2 if discrete else rng.uniform(-1, 1, (count, 3)).astype(np.float32),
        reward=rng.standard_normal(count, np.float32),
        next_obs=rng.standard_normal((count, 5), np.float32),
        terminated=rng.random(count) < 0.3,
        discount=rng.choice([0.9, 0.81], count).astype(np.float32),
        index=np.arange(count),
        weight=np.ones(count, np.float32),
    )


def every_value(policy: SACPolicy, learner: Any) -> dict[str, np.ndarray]:
    return policy.arrays() | {name: value.numpy().copy() for name, value in learner.tensors()}


# --- against a plain implementation -----------------------------------------------------------------------------


class Plain:
    """SAC as the papers write it: networks of `nn.Linear` one by one, torch's Adam and distributions, loops."""

    def __init__(self, config: sac.SACConfig, policy: SACPolicy, target_entropy: float) -> None:
        self.config, self.discrete, self.target_entropy = config, policy.is_discrete, target_entropy
        self.actor = copy.deepcopy(policy.actor.layers)
        self.critics = [self._critic(policy, index) for index in range(2)]
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=config.actor_learning_rate)
        self.critic_adams = [torch.optim.Adam(one.parameters(), lr=config.critic_learning_rate) for one in self.critics]
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=config.temperature_learning_rate)

    def _critic(self, policy: SACPolicy, index: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for weight, bias in zip(policy.critics.weights, policy.critics.biases, strict=True):
            layer = nn.Linear(weight.shape[1], weight.shape[2])
            layer.weight.data.copy_(weight.detach()[index].T)
            layer.bias.data.copy_(bias.detach()[index, 0])
            layers += [layer, nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def distribution(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.actor(obs).chunk(2, -1)
        return mean, log_std.clamp(-20, 2).exp()

    def sampled(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = self.distribution(obs)
        before = mean + std * noise
        squashed = TransformedDistribution(Normal(mean, std), [TanhTransform(cache_size=1)])
        action = squashed.transforms[0](before)
        return action, squashed.log_prob(action).sum(-1)

    def value(self, critics: list[nn.Sequential], obs: torch.Tensor, noise: torch.Tensor, alpha: float) -> torch.Tensor:
        if self.discrete:
            chances = Categorical(logits=self.actor(obs))
            lower = torch.minimum(critics[0](obs), critics[1](obs))
            return (chances.probs * lower).sum(-1) + alpha * chances.entropy()
        action, log_prob = self.sampled(obs, noise)
        inputs = torch.cat([obs, action], -1)
        return torch.minimum(critics[0](inputs), critics[1](inputs)).squeeze(-1) - alpha * log_prob

    def entropy(self, obs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        if self.discrete:
            return Categorical(logits=self.actor(obs)).entropy().mean()
        return -self.sampled(obs, noise)[1].mean()

    def step(self, batch: Transitions, noise: torch.Tensor) -> None:
        obs, next_obs = torch.from_numpy(batch.obs), torch.from_numpy(batch.next_obs)
        alpha = float(self.log_alpha.detach().exp())
        entropy = self.entropy(obs, noise[0]).detach()
        with torch.no_grad():
            future = self.value(self.targets, next_obs, noise[1], alpha)
        continues = torch.from_numpy(np.where(batch.terminated, 0.0, batch.discount).astype(np.float32))
        target = torch.from_numpy(batch.reward) + continues * future
        for critic, adam in zip(self.critics, self.critic_adams, strict=True):
            adam.zero_grad()
            (0.5 * (self._taken(critic, obs, batch.action) - target).square().mean()).backward()
            adam.step()
        self.actor_adam.zero_grad()
        (-self.value(self.critics, obs, noise[0], alpha).mean()).backward()
        self.actor_adam.step()
        self.alpha_adam.zero_grad()
        (self.log_alpha * (entropy - self.target_entropy)).backward()
        self.alpha_adam.step()
        for critic, slow in zip(self.critics, self.targets, strict=True):
            for new, old in zip(critic.parameters(), slow.parameters(), strict=True):
                old.data = (1 - self.config.tau) * old.data + self.config.tau * new.data

    def _taken(self, critic: nn.Sequential, obs: torch.Tensor, action: np.ndarray) -> torch.Tensor:
        if self.discrete:
            return critic(obs)[torch.arange(len(obs)), torch.from_numpy(action) - 2]
        return critic(torch.cat([obs, torch.from_numpy(action)], -1)).squeeze(-1)


@pytest.mark.parametrize("action", [CONTINUOUS, Discrete(4, start=2)], ids=["continuous", "discrete"])
def test_autograd_engine_equals_a_plain_implementation(action: gymnasium.Space) -> None:
    config = config_of(actor_learning_rate=3e-3, critic_learning_rate=1e-3, temperature_learning_rate=2e-3, tau=0.1)
    policy = policy_of(config, action)
    target_entropy = sac.default_target_entropy(policy)
    plain, learner = Plain(config, policy, target_entropy), TorchSACEngine(config, policy, target_entropy)
    width = 0 if policy.is_discrete else 3
    rng = np.random.default_rng(3)
    for number in range(8):
        batch = transitions(24, action, seed=number)
        noise = torch.from_numpy(rng.standard_normal((2, 24, width), np.float32))
        learner.step(batch, slice(0, 24), noise)
        plain.step(batch, noise)
    state = dict(learner.tensors())
    for found, wanted in zip(policy.actor.parameters(), plain.actor.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for index in range(2):
        weights = [layer.weight for layer in plain.critics[index] if isinstance(layer, nn.Linear)]
        for found, wanted in zip(policy.critics.weights, weights, strict=True):
            torch.testing.assert_close(found[index].T, wanted, rtol=1e-4, atol=1e-5)
    slow = torch.stack([plain.targets[index][0].weight.T for index in range(2)]).flatten()
    torch.testing.assert_close(state["targets"][: slow.numel()], slow.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["log_temperature"], plain.log_alpha.detach(), rtol=1e-4, atol=1e-6)


# --- machine code against autograd ------------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "tanh, three layers": {"activation": "tanh", "hidden_sizes": (16, 20, 33)},
    "elu, one layer, fixed temperature": {"activation": "elu", "hidden_sizes": (16,), "temperature": 0.3},
    "odd batch, normalised": {"batch_size": 23, "normalize_observations": True},
    "two rows": {"batch_size": 2},
    "large steps": {"actor_learning_rate": 0.05, "target_entropy": 1.0, "tau": 1.0},  # log std leaves its bounds
}


@pytest.mark.parametrize("name", CASES)
def test_machine_code_equals_autograd(name: str) -> None:
    config = config_of(**CASES[name])
    size, num_steps = config.batch_size, 6
    found, wanted = policy_of(config), policy_of(config)
    if name == "large steps":
        for policy in (found, wanted):
            with torch.no_grad():
                policy.actor.layers[-1].weight.mul_(100.0)
    target_entropy = sac.default_target_entropy(found) if config.target_entropy is None else config.target_entropy
    compiled, reference = (kind(config, policy, target_entropy) for kind, policy in
                           ((CompiledSACEngine, found), (TorchSACEngine, wanted)))  # fmt: skip
    batches = transitions(size * num_steps)
    noise = np.random.default_rng(4).standard_normal((num_steps, 2, size, 3), np.float32)
    sums = compiled.learn_with(batches, noise)
    rows = [slice(number * size, (number + 1) * size) for number in range(num_steps)]
    expected = sum(reference.step(batches, part, torch.from_numpy(noise[n])) for n, part in enumerate(rows))
    np.testing.assert_allclose(sums, expected.numpy(), rtol=1e-4, atol=1e-4)
    for key, value in wanted.arrays().items():
        np.testing.assert_allclose(found.arrays()[key], value, rtol=2e-3, atol=2e-5, err_msg=key)
    assert compiled.temperature == pytest.approx(reference.temperature, rel=1e-5)
    features = torch.from_numpy(transitions(9).obs)
    draws = noise[0, 0, :1].repeat(9, 0)
    np.testing.assert_allclose(compiled.sample(features, draws), reference.sample(features, draws), atol=2e-4)


def test_one_thread_and_two_give_the_same_bits() -> None:
    values = []
    for num_threads in (1, 2, 2):
        config = config_of(num_threads=num_threads)
        policy = policy_of(config)
        learner = CompiledSACEngine(config, policy, -3.0)
        for seed in range(20):
            learner.learn(transitions(24 * 8, seed=seed), 8, np.random.default_rng(seed))
        values.append(every_value(policy, learner))
    for other in values[1:]:
        assert {name: value.tobytes() for name, value in other.items()} == {
            name: value.tobytes() for name, value in values[0].items()
        }


def test_padding_stays_zero() -> None:
    """Widths that are no multiple of a vector are padded with units that must never wake up."""
    config = config_of(hidden_sizes=(20,))
    policy = policy_of(config)
    learner = CompiledSACEngine(config, policy, -3.0)
    learner.learn(transitions(24 * 4), 4, np.random.default_rng(0))
    vector = dict(learner.tensors())["targets"]
    own = 2 * (8 * 20 + 20 + 20 + 1)
    assert int((vector != 0).sum()) == own


def test_the_lower_critic_alone_moves_the_action() -> None:
    """Critics that differ in sign everywhere: the actor climbs the lower one."""
    config = config_of(temperature=1e-6, actor_learning_rate=0.01, critic_learning_rate=1e-9)
    policy = policy_of(config)
    with torch.no_grad():
        policy.critics.biases[-1][0] += 100.0  # the first critic is never the lower one
    learner = CompiledSACEngine(config, policy, -3.0)
    features = torch.from_numpy(transitions(24).obs)

    def lower() -> float:
        mean, _ = policy.moments(features)
        return float(policy.critics(torch.cat([features, torch.tanh(mean)], -1))[1].mean().detach())

    before = lower()
    for _ in range(30):
        learner.learn(transitions(24), 1, np.random.default_rng(0))
    assert lower() > before + 0.01
