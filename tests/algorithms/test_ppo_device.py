"""PPO on the device: what it computes is the other learners', and it names what is wrong."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from loomrl.algorithms import advantages, ppo
from loomrl.algorithms.policies.distributions import action_distribution
from loomrl.algorithms.ppo import returns
from loomrl.algorithms.ppo.device import DevicePPO
from loomrl.algorithms.ppo.learner import PPOBatch
from loomrl.algorithms.ppo.rollout import DeviceCollector, DeviceTrajectory, draw_noise, sample
from loomrl.environment.vector.device import DeviceVectorEnv, best_device
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError
from tests.support.on_device import SMALL, build_for, environments, loop
from tests.support.trajectories import made_up

OBSERVATION = Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE = Discrete(4, start=-2)
CONTINUOUS = Box(-0.5, 0.5, (2,), np.float32)
DEVICE = best_device()


def make(engine: str, action: gymnasium.Space = DISCRETE, total_env_steps: int = 640, **values: Any) -> Any:
    config = ppo.Config(**{**SMALL, **values, "engine": engine})
    return ppo.build(config, OBSERVATION, action, seed=1, total_env_steps=total_env_steps)


def tensors(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(array).to(DEVICE) for array in arrays)


# --- what trajectories were worth -------------------------------------------------------------------------------


def test_advantages_are_the_reference() -> None:
    rng = np.random.default_rng(0)
    reward, value, next_value = rng.normal(size=(3, 20, 7))
    terminated, truncated = rng.random((2, 20, 7)) < 0.1
    arrays = reward, value, next_value, terminated, truncated
    expected = advantages.generalized_advantages(*arrays, 0.9, 0.8)
    found = returns.generalized_advantages(*tensors(*arrays), 0.9, 0.8)
    np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=1e-12)


class FirstTimesTen(torch.nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return 10.0 * features[:, 0]


def test_time_limits_bootstrap_from_the_true_successor_and_terminals_do_not() -> None:
    """Values by hand: the critic says 10 x of an observation x, advantages are r + gamma V(next) - V."""
    algorithm = make("device", normalize_observations=False, normalize_advantages=False, gamma=0.5, gae_lambda=0.0)
    algorithm._policy.critic, algorithm._policy.value_head = torch.nn.Identity(), FirstTimesTen()
    obs, next_obs = torch.zeros(2, 3, 3), torch.zeros(2, 3, 3)
    obs[:, :, 0] = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    next_obs[:, :, 0] = torch.tensor([[7.0, 8.0, 6.0], [9.0, 11.0, 12.0]])
    terminated = torch.tensor([[True, False, False], [False, False, True]])
    truncated = torch.tensor([[False, True, False], [False, False, False]])
    parts = obs, torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3), terminated, truncated, next_obs
    batch = algorithm._batch(DeviceTrajectory(*(part.to(DEVICE) for part in parts)))
    # terminated: 1 - V;  truncated: 1 + V(its own last observation) / 2 - V;  going on: the next row, or the last one's
    expected = [[1 - 10, 1 + 40 - 20, 1 + 30 - 30], [1 + 45 - 40, 1 + 55 - 50, 1 - 60]]
    assert batch.advantage.reshape(2, 3).tolist() == expected


def test_reward_scale_is_the_references() -> None:
    rng = np.random.default_rng(0)
    reference, scaler = advantages.RewardScaler(5, 0.9), returns.DeviceRewardScaler(5, 0.9)
    for _ in range(3):
        reward, ended = rng.normal(2.0, 3.0, (8, 5)), rng.random((8, 5)) < 0.2
        found = scaler.scaled(*tensors(reward, ended))
        np.testing.assert_allclose(found.cpu().numpy(), reference(reward, ended), rtol=1e-12)
    for name, value in reference.state_dict().items():
        np.testing.assert_allclose(scaler.state_dict()[name], value, rtol=1e-12)


@pytest.mark.parametrize("target", [np.random.default_rng(1).normal(size=50), np.ones(50)])
def test_explained_variance_is_the_references(target: np.ndarray) -> None:
    value = np.random.default_rng(0).normal(size=50)
    found = returns.explained_variance(*tensors(value, target))
    assert float(found) == pytest.approx(advantages.explained_variance(value, target))


# --- updates ----------------------------------------------------------------------------------------------------

UPDATES: dict[str, dict[str, Any]] = {
    "discrete": {},
    "continuous": {"action": CONTINUOUS, "normalize_rewards": True, "entropy_coef": 0.01},
    "squashed": {"action": CONTINUOUS, "squash_actions": True},
    "clipped values": {"value_clip_epsilon": 0.1, "clip_schedule": "linear", "normalize_advantages": False},
    "early end": {"target_kl": 1e-6, "n_epochs": 9, "learning_rate": 0.01},
    "adaptive": {"learning_rate_schedule": "adaptive", "desired_kl": 1e-9},
    "several choices": {"action": MultiDiscrete([3, 2], start=[5, -3])},
    "raw observations": {"normalize_observations": False},
}


@pytest.mark.parametrize("case", UPDATES)
def test_updates_are_those_of_the_torch_learner(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them, in the same order of rows: metrics, weights, statistics and all other state."""
    torch_one, device_one = (make(engine, **UPDATES[case]) for engine in ("torch", "device"))
    orders = np.random.default_rng(7)
    monkeypatch.setattr(device_one, "_order", lambda rows, rng: tensors(orders.permutation(rows))[0])
    rng = np.random.default_rng(7)
    for number in range(2):
        trajectory = made_up(torch_one, number)
        expected = torch_one.update(trajectory, rng)
        found = device_one.update(trajectory, np.random.default_rng(0))
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    wanted, state = torch_one.state_dict(), device_one.state_dict()
    assert state.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_the_policy_on_the_cpu_is_what_was_learnt() -> None:
    algorithm = make("device")
    policy, before = algorithm.policy, algorithm.policy.arrays()
    algorithm.update(made_up(algorithm), np.random.default_rng(0))
    assert algorithm.policy is policy
    assert all(value.device.type == "cpu" for value in policy.state_dict().values())
    learnt = {name: value.cpu().numpy() for name, value in algorithm._policy.state_dict().items()}
    assert all(np.array_equal(value, learnt[name]) for name, value in policy.arrays().items())
    assert any(not np.array_equal(value, before[name]) for name, value in learnt.items())


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_everything_is_on_the_device(action: gymnasium.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """On "meta", a device without data: two devices in one operation are refused there, as they are on a GPU."""
    meta = torch.device("meta")
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(2, device=meta) * torch.ones(2)
    on_cpu = make("device", action)
    monkeypatch.setattr(torch, "Generator", lambda device: None)  # nothing can be drawn there
    algorithm = DevicePPO(on_cpu.config, on_cpu.policy, 640, meta)
    policy, obs = algorithm._policy, torch.ones(16, 4, 3, device=meta)
    rows, ended = policy.features(obs.flatten(0, 1)), torch.ones(16, 4, dtype=torch.bool, device=meta)
    with torch.no_grad():
        noise = torch.ones(64, policy.distribution.width, device=meta)
        learnt, _ = sample(policy.distribution, policy.parameters_of(rows), noise)
        log_prob, _ = policy.distribution.log_prob_and_entropy(policy.parameters_of(rows), learnt)
        value = policy.value_head(policy.critic(rows))
    trajectory = DeviceTrajectory(obs, learnt, value.reshape(16, 4), ended, ended, obs)
    worth = algorithm._advantages_and_returns(trajectory, *2 * (value.double().reshape(16, 4),))
    batch = PPOBatch(rows, learnt, log_prob, value, *worth)
    assert algorithm._step(batch[:32], 0.2).device == meta
    algorithm._learn_statistics(obs)
    assert returns.explained_variance(batch.value, batch.returns).device == meta


# --- rollouts ---------------------------------------------------------------------------------------------------


def test_samples_follow_the_policy() -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    categorical = action_distribution(DISCRETE).to(DEVICE)
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0], device=DEVICE)
    index, action = sample(categorical, (logits,), draw_noise(categorical, (1, 40_000), generator)[0])
    assert torch.equal(action, index - 2)
    assert np.bincount(index.cpu(), minlength=4) / 40_000 == pytest.approx(logits.softmax(-1).cpu().numpy(), abs=0.01)
    gaussian = action_distribution(CONTINUOUS).to(DEVICE)
    mean, log_std = tensors(np.array([0.3, -1.0], np.float32), np.array([-1.0, 0.5], np.float32))
    drawn, action = sample(gaussian, (mean, log_std), draw_noise(gaussian, (1, 40_000), generator)[0])
    assert drawn.mean(0).tolist() == pytest.approx(mean.tolist(), abs=0.03)
    assert drawn.std(0).tolist() == pytest.approx(log_std.exp().tolist(), rel=0.02)
    assert torch.equal(action, drawn.clamp(-0.5, 0.5))


def test_a_rollout_is_what_the_environments_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a log of every step: transitions, true successors, and returns and lengths across rollouts."""
    algorithm, envs, log = build_for("CartPole-v1"), environments("CartPole-v1", 8), []
    step = envs.step
    monkeypatch.setattr(envs, "step", lambda action: log.append((action, *step(action))) or log[-1][1:])
    collector = algorithm.collector(envs, 5)
    assert isinstance(collector, DeviceCollector)
    first = collector._obs
    parts = [collector.collect(30, np.random.default_rng(0)) for _ in range(2)]
    whole = DeviceTrajectory(*(torch.cat(pair) for pair in zip(*(vars(part).values() for part in parts), strict=True)))
    actions, successors, rewards, terminated, truncated, infos = zip(*log, strict=True)
    assert torch.equal(whole.obs, torch.stack([first, *successors[:-1]]))
    assert torch.equal(whole.raw_action, torch.stack(actions))
    assert torch.equal(whole.next_obs, torch.stack([info["final_obs"] for info in infos]))
    assert torch.equal(whole.reward, torch.stack(rewards))
    assert torch.equal(whole.ended, torch.stack(terminated) | torch.stack(truncated))
    assert collector.finished == finished(whole)
    assert len(collector.finished) > 5
    assert all(total == length > 1 for total, length in collector.finished)


def finished(trajectory: DeviceTrajectory) -> list[tuple[float, int]]:
    """Returns and lengths of the episodes that ended, step by step."""
    total, length, found = np.zeros(8), np.zeros(8, int), []
    for reward, ended in zip(trajectory.reward.cpu().numpy(), trajectory.ended.cpu().numpy(), strict=True):
        total, length = total + reward, length + 1
        found += zip(total[ended].tolist(), length[ended].tolist(), strict=True)
        total[ended], length[ended] = 0, 0
    return found


def test_actions_and_first_states_are_drawn_apart() -> None:
    """From one seed, but not the same numbers; other seeds give others."""
    algorithm = build_for("CartPole-v1")
    collectors = [DeviceCollector(algorithm._policy, environments("CartPole-v1", 8), seed) for seed in (5, 5, 6)]
    numbers = [torch.rand(64, generator=one._generator, device=DEVICE).tolist() for one in collectors]
    assert numbers[0] == numbers[1] != numbers[2]
    start = collectors[0].envs.generator.initial_seed()
    assert numbers[0] != torch.rand(64, generator=torch.Generator(DEVICE).manual_seed(start), device=DEVICE).tolist()


# --- faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [3, 200])  # ends within the rollout that began with it, too
def test_states_that_are_not_finite_are_named(num_steps: int) -> None:
    algorithm, envs = build_for("Pendulum-v1"), environments("Pendulum-v1", 8)
    collector = algorithm.collector(envs, 5)
    envs.states[3, 1] = np.nan
    with pytest.raises(EnvironmentFault, match=r"'Pendulum-v1' \(number 3 of 8\), step 1: reward is nan"):
        collector.collect(num_steps, np.random.default_rng(0))


def test_actions_that_are_not_finite_are_the_policys_fault() -> None:
    algorithm = build_for("Pendulum-v1")
    with torch.no_grad():
        algorithm._policy.head.mean.bias.fill_(np.nan)
    collector = algorithm.collector(environments("Pendulum-v1", 8), 5)
    with pytest.raises(LoomRLError, match="the policy chose the action .*nan.* in environment 0: it has diverged"):
        collector.collect(3, np.random.default_rng(0))


class Unrewarding(DeviceVectorEnv):
    """Gives one reward that is not finite."""

    def step(self, actions: torch.Tensor) -> Any:
        obs, reward, *rest = super().step(actions)
        reward[2] = np.inf
        return obs, reward, *rest


def test_rewards_and_metrics_that_are_not_finite_are_named() -> None:
    def unrewarding(num_envs: int, mode: Any) -> Any:
        envs = environments("CartPole-v1", num_envs)
        envs.__class__ = Unrewarding
        return envs

    with pytest.raises(EnvironmentFault, match=r"environment 2 gave reward inf, .* within 128 environment steps"):
        list(loop(build_for("CartPole-v1"), unrewarding).run())
    with pytest.raises(LoomRLError, match=r"is (inf|-inf|nan) after \d+ environment steps"):
        list(loop(build_for("CartPole-v1", activation="relu", learning_rate=1e37)).run())


def test_actions_that_are_not_drawn_on_a_device_are_named() -> None:
    algorithm = make("device", MultiDiscrete([3, 2]))
    with pytest.raises(ConfigError, match="multi_discrete actions are not drawn on a device"):
        algorithm.collector(environments("CartPole-v1", 4), 1)


def test_unusable_rewards_of_a_rollout() -> None:
    trajectory = DeviceTrajectory.from_trajectory(made_up(make("torch")), action_distribution(DISCRETE), DEVICE)
    assert trajectory.unusable_reward() is None
    reward = trajectory.reward.clone()
    reward[3, 1] = -np.inf
    assert replace(trajectory, reward=reward).unusable_reward() == (1, -np.inf)
