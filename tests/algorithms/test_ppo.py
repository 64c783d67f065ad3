"""PPO as a whole: what it samples, what an update changes, schedules, early stop, determinism, state."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch.distributions import Normal

from loomrl.algorithms import ppo
from loomrl.algorithms.advantages import generalized_advantages
from loomrl.algorithms.flat import FlatParameters
from loomrl.algorithms.networks.modules import PolicyNetwork
from loomrl.algorithms.ppo.learner import PPO, losses
from tests.support.trajectories import made_up

OBSERVATION = Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE = Discrete(4)
CONTINUOUS = Box(-0.5, 0.5, (2,), np.float32)
SMALL = {"num_envs": 4, "rollout_length": 16, "batch_size": 32, "n_epochs": 2, "hidden_sizes": (16,)}


def make(action: gymnasium.Space = DISCRETE, total_env_steps: int = 640, **values: Any) -> PPO:
    config = ppo.Config(**{**SMALL, **values, "engine": "torch"})
    algorithm = ppo.build(config, OBSERVATION, action, seed=1, total_env_steps=total_env_steps)
    assert isinstance(algorithm, PPO)
    return algorithm


def weights(algorithm: PPO) -> bytes:
    return b"".join(value.numpy().tobytes() for value in algorithm.policy.state_dict().values())


def test_samples_follow_the_logits() -> None:
    algorithm = make()
    with torch.no_grad():
        algorithm.policy.head.logits.bias.copy_(torch.tensor([0.0, 1.0, 2.0, -1.0]))
    obs = np.zeros((40_000, 3), np.float32)
    action = algorithm.act(obs, np.random.default_rng(0)).action
    expected = algorithm.policy.forward(torch.from_numpy(obs[:1]))["logits"].softmax(-1)[0].detach().numpy()
    frequencies = np.bincount(action, minlength=4) / len(action)
    assert frequencies == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(len(action)))


class Zeros(np.random.Generator):
    """Draws the rarest of exponential numbers."""

    def standard_exponential(self, size: Any = None, *_: Any, **__: Any) -> Any:
        return np.zeros(size, np.float32)


def test_noise_of_zero_is_no_fault() -> None:
    action = make().act(np.zeros((5, 3), np.float32), Zeros(np.random.PCG64(0))).action
    assert ((action >= 0) & (action < 4)).all()


def test_gaussian_samples_are_clipped_for_the_environment_only() -> None:
    algorithm = make(CONTINUOUS)
    act = algorithm.act(np.zeros((20_000, 3), np.float32), np.random.default_rng(0))
    sample = act.extras["sample"]
    assert (act.action == sample.clip(-0.5, 0.5)).all()
    assert sample.mean(0) == pytest.approx([0, 0], abs=0.03)
    assert sample.std(0) == pytest.approx([1, 1], abs=0.03)


@pytest.mark.parametrize("action", [DISCRETE, Discrete(4, start=3), CONTINUOUS])
def test_first_gradient_step_sees_the_policy_that_acted(action: gymnasium.Space) -> None:
    algorithm = make(action, n_epochs=1, batch_size=64)
    metrics = algorithm.update(made_up(algorithm), np.random.default_rng(0))
    assert metrics["num_gradient_steps"] == 1
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["policy_loss"] == pytest.approx(0.0, abs=1e-6)  # ratio 1, advantages normalised to mean 0


def test_what_is_learnt_of_a_rollout_by_hand() -> None:
    """Advantages are normalised over the whole rollout, and the critic's targets are made before that."""
    algorithm = make(gamma=0.9, gae_lambda=0.8)
    trajectory = made_up(algorithm)
    with torch.no_grad():
        value, next_value = (
            algorithm.policy.forward(torch.from_numpy(obs.reshape(-1, 3)))["value"].double().numpy().reshape(16, 4)
            for obs in (trajectory.obs, trajectory.next_obs)
        )
    advantage = generalized_advantages(
        trajectory.reward, value, next_value, trajectory.terminated, trajectory.truncated, 0.9, 0.8
    )
    batch = algorithm._prepare(trajectory)
    assert batch.returns.reshape(16, 4).numpy() == pytest.approx(advantage + value, abs=1e-5)
    assert batch.advantage.reshape(16, 4).numpy() == pytest.approx(
        (advantage - advantage.mean()) / advantage.std(), abs=1e-5
    )


def test_every_epoch_takes_each_transition_once_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(n_epochs=2, batch_size=32, normalize_observations=False)
    trajectory, seen = made_up(algorithm), []
    step = algorithm._step
    monkeypatch.setattr(algorithm, "_step", lambda batch, clip: seen.append(batch.features) or step(batch, clip))
    algorithm.update(trajectory, np.random.default_rng(0))
    epochs = torch.cat(seen).numpy().reshape(2, 64, 3)
    rows = trajectory.obs.reshape(64, 3)
    places = [[int(np.flatnonzero((rows == row).all(1))[0]) for row in epoch] for epoch in epochs]
    assert [sorted(epoch) for epoch in places] == 2 * [list(range(64))]
    assert places[0] != places[1]
    assert all(np.mean(np.diff(epoch) == 1) < 0.2 for epoch in places)  # neighbours in time are torn apart


def test_step_is_adam_on_the_clipped_gradient_of_the_weighted_losses() -> None:
    """The flat, fused step against torch's plain autograd, norm clipping and Adam."""
    config = {"n_epochs": 1, "batch_size": 64, "entropy_coef": 0.1, "max_grad_norm": 0.3, "learning_rate": 0.01}
    flat, plain = make(**config), make(**config)
    trajectory = made_up(flat)
    batch = plain._prepare(trajectory)
    batch = batch[torch.from_numpy(np.random.default_rng(0).permutation(64))]
    parameters = [torch.nn.Parameter(parameter.detach().clone()) for parameter in plain.policy.parameters()]
    for module_parameter, own in zip(plain.policy.parameters(), parameters, strict=True):
        module_parameter.data, module_parameter.grad = own.data, None
    policy_loss, value_loss, entropy, _ = losses(plain.policy, batch, 0.2, None)
    (policy_loss + 0.5 * value_loss - 0.1 * entropy).backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(plain.policy.parameters(), 0.3)
    torch.optim.Adam(plain.policy.parameters(), lr=0.01, eps=1e-5, foreach=False).step()
    metrics = flat.update(trajectory, np.random.default_rng(0))
    assert metrics["grad_norm"] == pytest.approx(float(grad_norm), rel=1e-5)
    assert float(grad_norm) > 0.3  # else clipping would not show
    for one, other in zip(flat.policy.parameters(), plain.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_metrics_are_complete_and_finite(action: gymnasium.Space) -> None:
    metrics = make(action).update(made_up(make(action)), np.random.default_rng(0))
    expected = {
        "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm", "explained_variance",
        "learning_rate", "num_gradient_steps",
    }  # fmt: skip
    assert set(metrics) == expected | ({"std"} if action is CONTINUOUS else set())
    assert all(math.isfinite(value) for value in metrics.values())


def test_normaliser_learns_after_the_update() -> None:
    algorithm = make()
    trajectory = made_up(algorithm)
    algorithm.update(trajectory, np.random.default_rng(0))
    assert algorithm.policy.normalizer is not None
    expected = trajectory.obs.reshape(-1, 3).astype(np.float64).mean(0)
    assert algorithm.policy.normalizer.mean.numpy() == pytest.approx(expected)


def test_linear_schedules_reach_zero() -> None:
    algorithm = make(total_env_steps=128, learning_rate=0.01, clip_schedule="linear")
    rates = [algorithm.update(made_up(algorithm), np.random.default_rng(0))["learning_rate"] for _ in range(3)]
    assert rates == pytest.approx([0.01, 0.005, 0.0])
    before = weights_without_statistics(algorithm)
    algorithm.update(made_up(algorithm), np.random.default_rng(0))
    assert weights_without_statistics(algorithm) == before


def weights_without_statistics(algorithm: PPO) -> bytes:
    return b"".join(parameter.detach().numpy().tobytes() for parameter in algorithm.policy.parameters())


def test_adaptive_learning_rate_steers_towards_the_desired_divergence() -> None:
    def rate_after(desired_kl: float) -> float:
        algorithm = make(learning_rate=0.001, learning_rate_schedule="adaptive", desired_kl=desired_kl, n_epochs=3)
        return algorithm.update(made_up(algorithm), np.random.default_rng(0))["learning_rate"]

    assert rate_after(1e-9) == pytest.approx(0.001 / 1.5**3)
    assert rate_after(1e3) == pytest.approx(0.001 * 1.5**3)


def test_target_kl_ends_an_update_early() -> None:
    algorithm = make(target_kl=1e-6, n_epochs=10, learning_rate=0.01)
    assert algorithm.update(made_up(algorithm), np.random.default_rng(0))["num_gradient_steps"] == 2  # one epoch


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_state_continues_to_the_bit(action: gymnasium.Space) -> None:
    undisturbed, resumed = (make(action, normalize_rewards=True) for _ in range(2))
    rng = np.random.default_rng(5)
    undisturbed.update(made_up(undisturbed, 1), rng)
    state, rng_state = undisturbed.state_dict(), rng.bit_generator.state
    undisturbed.update(made_up(undisturbed, 2), rng)
    resumed.load_state_dict(state)
    again = np.random.default_rng()
    again.bit_generator.state = rng_state
    resumed.update(made_up(resumed, 2), again)
    assert weights(resumed) == weights(undisturbed)


def test_behaviour_is_as_recorded() -> None:
    """Guards refactoring: the figures of the third update. A wanted change of behaviour changes them too."""
    algorithm = make(learning_rate=0.01, entropy_coef=0.01, n_epochs=4)
    rng = np.random.default_rng(0)
    metrics = [algorithm.update(made_up(algorithm, seed), rng) for seed in range(3)][-1]
    recorded = {
        "policy_loss": -0.0144236,
        "value_loss": 3.14489,
        "entropy": 1.32083,
        "approx_kl": 0.00379974,
        "clip_fraction": 0.0546875,
        "grad_norm": 1.07619,
        "explained_variance": 0.15211,
    }
    assert {name: metrics[name] for name in recorded} == pytest.approx(recorded, rel=1e-3)


def test_flat_parameters_are_the_modules_own() -> None:
    network = PolicyNetwork({"state_dim": 3, "action_dim": 2, "encoder_dims": [4]})
    state = torch.randn(5, 3)
    before = network(state)[1].detach()
    flat = FlatParameters(network)
    torch.testing.assert_close(network(state)[1], before)
    distribution, value = network(state)
    assert isinstance(distribution, Normal)
    (value.sum() + distribution.mean.sum()).backward()
    gradients = torch.cat([parameter.grad.ravel() for parameter in network.parameters()])  # type: ignore[union-attr]
    assert torch.equal(flat.gradient, gradients)
    assert gradients.any()
    with torch.no_grad():
        flat.vector.zero_()
    assert not network(state)[1].any()
