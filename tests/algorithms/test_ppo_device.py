"""PPO on the device: what it computes is the other learners', it learns, repeats itself, and names what is wrong."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from loomrl import preflight
from loomrl.algorithms import advantages, ppo
from loomrl.algorithms.distributions import action_distribution
from loomrl.algorithms.policy import load_policy
from loomrl.algorithms.ppo import returns
from loomrl.algorithms.ppo.device import DevicePPO
from loomrl.algorithms.ppo.learner import PPO, Batch
from loomrl.algorithms.ppo.rollout import DeviceCollector, DeviceTrajectory, draw_noise, sample
from loomrl.config import load_config
from loomrl.environment.collector import Collector
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_envs, settle_backend
from loomrl.environment.resolve import resolve
from loomrl.environment.snapshot import take_snapshot
from loomrl.environment.vector.batched import BatchedVectorEnv
from loomrl.environment.vector.choose import make_vector
from loomrl.environment.vector.device import DeviceVectorEnv, best_device, device_name
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError
from loomrl.files import sums
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.config import TrainingConfig, ValidationConfig
from loomrl.training.loop import TrainingLoop
from loomrl.training.train import train_policy
from loomrl.training.trainer import PPOConfig, PPOTrainer
from loomrl.training.validation import Validation
from loomrl.types import TrainingReport, Trajectory

OBSERVATION = Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE = Discrete(4, start=-2)
CONTINUOUS = Box(-0.5, 0.5, (2,), np.float32)
SMALL = {"num_envs": 4, "rollout_length": 16, "batch_size": 32, "n_epochs": 2, "hidden_sizes": (16,)}
DEVICE = best_device()


def make(engine: str, action: gymnasium.Space = DISCRETE, total_env_steps: int = 640, **values: Any) -> Any:
    config = ppo.Config(**{**SMALL, **values, "engine": engine})
    return ppo.build(config, OBSERVATION, action, seed=1, total_env_steps=total_env_steps)


def made_up(algorithm: PPO, seed: int = 0) -> Trajectory:
    """A trajectory of the algorithm's own actions on made-up observations, with both kinds of ends."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(17, 4, 3)).astype(np.float32)
    acts = [algorithm.act(step, rng) for step in obs[:16]]
    terminated = rng.random((16, 4)) < 0.1
    truncated = (rng.random((16, 4)) < 0.1) & ~terminated
    next_obs = obs[1:].copy()
    next_obs[terminated | truncated] += 1.0
    extras = {name: np.stack([act.extras[name] for act in acts]) for name in acts[0].extras}
    reward = rng.normal(size=(16, 4)) + obs[:16, :, 0]
    return Trajectory(obs[:16], np.stack([act.action for act in acts]), reward, terminated, truncated, next_obs, extras)


def environments(name: str, num_envs: int, backend: str = "device") -> Any:
    return make_vector(Recipe(resolve(EnvironmentConfig(id=name), Path("."))), num_envs, "same_step", backend)


def build_for(name: str, seed: int = 1, **values: Any) -> DevicePPO:
    envs = environments(name, 1)
    config = ppo.Config(**{**SMALL, "num_envs": 8, **values, "engine": "device"})
    spaces = envs.single_observation_space, envs.single_action_space
    algorithm = ppo.build(config, *spaces, seed=seed, total_env_steps=10_000)
    assert isinstance(algorithm, DevicePPO)
    return algorithm


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
    worth = algorithm._worth(trajectory, *2 * (value.double().reshape(16, 4),))
    batch = Batch(rows, learnt, log_prob, value, *worth)
    assert algorithm._step(batch[:32], 0.2).device == meta
    algorithm._learn_statistics(obs)
    assert returns.explained_variance(batch.value, batch.target).device == meta


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
    parts = [collector.collect(algorithm.act, 30, np.random.default_rng(0)) for _ in range(2)]
    whole = DeviceTrajectory(*(torch.cat(pair) for pair in zip(*(vars(part).values() for part in parts), strict=True)))
    actions, successors, rewards, terminated, truncated, infos = zip(*log, strict=True)
    assert torch.equal(whole.obs, torch.stack([first, *successors[:-1]]))
    assert torch.equal(whole.learnt, torch.stack(actions))
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


def test_cut_truncates_what_goes_on() -> None:
    host = made_up(make("torch"))
    trajectory = DeviceTrajectory.brought(host, action_distribution(DISCRETE), DEVICE)
    assert torch.equal(trajectory.cut().truncated.cpu(), torch.from_numpy(host.cut().truncated))
    assert trajectory.cut().ended[-1].all()
    assert not trajectory.truncated[-1].all()
    assert trajectory.num_transitions == host.num_transitions == 64


# --- faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [3, 200])  # ends within the rollout that began with it, too
def test_states_that_are_not_finite_are_named(num_steps: int) -> None:
    algorithm, envs = build_for("Pendulum-v1"), environments("Pendulum-v1", 8)
    collector = algorithm.collector(envs, 5)
    envs.states[3, 1] = np.nan
    with pytest.raises(EnvironmentFault, match=r"'Pendulum-v1' \(number 3 of 8\), step 1: reward is nan"):
        collector.collect(algorithm.act, num_steps, np.random.default_rng(0))


def test_actions_that_are_not_finite_are_the_policys_fault() -> None:
    algorithm = build_for("Pendulum-v1")
    with torch.no_grad():
        algorithm._policy.head.mean.bias.fill_(np.nan)
    collector = algorithm.collector(environments("Pendulum-v1", 8), 5)
    with pytest.raises(LoomRLError, match="the policy chose the action .*nan.* in environment 0: it has diverged"):
        collector.collect(algorithm.act, 3, np.random.default_rng(0))


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


# --- training ---------------------------------------------------------------------------------------------------


def loop(algorithm: DevicePPO, envs: Callable[..., Any] | None = None, updates: int = 4, **values: Any) -> TrainingLoop:
    """Segments of two updates."""
    size = algorithm.num_envs * algorithm.rollout_length
    settings = {"seed": 5, "total_env_steps": updates * size, "segment_env_steps": 2 * size, "validation": None}
    make_some = envs or (lambda num_envs, mode: environments("CartPole-v1", num_envs))
    return TrainingLoop(algorithm, make_some, **settings | values)


def state_bytes(checkpoint: Checkpoint) -> dict[str, Any]:
    return {name: array.tobytes() for name, array in checkpoint.arrays.items()} | {"values": checkpoint.values}


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_the_same_seed_gives_the_same_bytes_and_resumes_to_them(name: str) -> None:
    def training(seed: int = 5, weights: int = 1) -> TrainingLoop:
        algorithm = build_for(name, normalize_rewards=True, seed=weights)
        return loop(algorithm, lambda num_envs, mode: environments(name, num_envs), seed=seed)

    shared = torch.get_rng_state()
    first, last = training().run()
    assert [state_bytes(one) for one in training().run()] == [state_bytes(first), state_bytes(last)]
    assert state_bytes(list(training(seed=6).run())[-1]) != state_bytes(last)
    resumed = training(weights=2)
    resumed.restore(first)
    (again,) = resumed.run()
    assert state_bytes(again) == state_bytes(last)
    assert torch.equal(torch.get_rng_state(), shared)  # nothing is drawn from the generator that others use


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_learns_cartpole(seed: int) -> None:
    size = {"num_envs": 32, "rollout_length": 64, "batch_size": 256, "hidden_sizes": (64, 64), "n_epochs": 4}
    algorithm = build_for("CartPole-v1", seed, **size, learning_rate_schedule="constant")
    exact = ValidationConfig(interval_env_steps=8192, num_episodes=8, stop_at_return=450)
    training = loop(
        algorithm, seed=seed, total_env_steps=65_536, segment_env_steps=None, validation=Validation(exact, validating)
    )
    list(training.run())
    assert training.stop_reason == "stop_at_return"


def validating(num_envs: int, mode: Any) -> Any:
    """What a back-end that is not exact leaves validation to."""
    recipe = Recipe(resolve(EnvironmentConfig(id="CartPole-v1"), Path(".")))
    envs = make_vector(recipe, num_envs, mode, "device")
    assert isinstance(envs, BatchedVectorEnv)
    return envs


def test_other_environments_are_learnt_from_as_ever() -> None:
    algorithm = build_for("CartPole-v1")
    envs = environments("CartPole-v1", 8, "batched")
    collector = algorithm.collector(envs, 5)
    assert isinstance(collector, Collector)
    rng = np.random.default_rng(0)
    trajectory = collector.collect(algorithm.act, 16, rng)
    assert isinstance(trajectory, Trajectory)
    assert algorithm.update(trajectory, rng)["num_gradient_steps"] == 8


# --- how it is chosen -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of CartPole-v1 with `environment.backend: device`."""
    folder = tmp_path_factory.mktemp("cartpole")
    config = EnvironmentConfig(id="CartPole-v1", backend="device", fingerprint_episodes=1, fingerprint_steps=10)
    take_snapshot(config, folder, folder / "snapshot")
    settle_backend(folder / "snapshot", "device")
    return folder / "snapshot"


def training_config(**values: Any) -> TrainingConfig:
    settings = {
        "seed": 3,
        "total_env_steps": 1024,
        "checkpoint_interval_env_steps": 512,
        "checkpoint_interval_seconds": 0,
        "validation": {"interval_env_steps": 512, "num_episodes": 2},
        "parameters": {"num_envs": 8, "rollout_length": 32, "batch_size": 64, "n_epochs": 2, "hidden_sizes": [16]},
    }
    return TrainingConfig.model_validate(settings | values)


def test_the_training_stage_learns_on_the_device(on_device: Path, tmp_path: Path) -> None:
    config = training_config()
    train_policy(config, on_device, tmp_path / "output", tmp_path / "home")
    report = TrainingReport.read(tmp_path / "output" / "training.json")
    assert (report.engine, report.backend, report.device) == ("device", "device", device_name(DEVICE))
    assert report.total_env_steps == 1024
    assert load_policy(tmp_path / "output")(np.zeros((2, 4), np.float32)).shape == (2,)
    train_policy(config, on_device, tmp_path / "again", tmp_path / "other-home")
    assert sums(tmp_path / "again") == sums(tmp_path / "output")


def test_an_interrupted_stage_ends_with_the_same_bytes(
    on_device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_policy(training_config(), on_device, tmp_path / "output", tmp_path / "home")
    update, calls = DevicePPO.update, []

    def breaks(self: DevicePPO, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return update(self, *arguments)

    monkeypatch.setattr(DevicePPO, "update", breaks)
    train = partial(train_policy, training_config(), on_device, tmp_path / "resumed", tmp_path / "other-home")
    with pytest.raises(KeyboardInterrupt):
        train()
    train()
    assert len(calls) == 4 + 2  # of four updates two were kept
    assert sums(tmp_path / "resumed") == sums(tmp_path / "output")


def test_evaluation_is_left_to_exact_environments(on_device: Path) -> None:
    assert isinstance(make_envs(on_device, 2, "disabled"), BatchedVectorEnv)
    assert isinstance(make_envs(on_device, 2), DeviceVectorEnv)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"parameters": {"engine": "compiled"}}, "engine: compiled runs on the CPU and cannot learn from .*device"),
        ({"algorithm": "recurrent_ppo", "parameters": {}}, "gives tensors, .*'recurrent_ppo' does not learn"),
        ({"algorithm": "recurrent_ppo", "parameters": {"engine": "device"}}, "`engine: device` has no memory"),
        ({"algorithm": "dqn", "parameters": {}}, "gives tensors, .*'dqn' does not learn; set it to \"auto\""),
    ],
)
def test_what_cannot_learn_from_the_device_is_named(
    values: dict[str, Any], message: str, on_device: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_policy(training_config(**values), on_device, tmp_path / "output", tmp_path / "home")


def test_a_config_that_cannot_learn_from_the_device_is_refused_before_anything_runs() -> None:
    path = Path(__file__).resolve().parents[2] / "configs" / "cartpole.yaml"
    on_device = {"environment.backend": "device"}
    preflight.check(load_config(path, on_device), Path("."))
    for overrides in (on_device | {"training.algorithm": "dqn", "training.parameters": {}},
                      on_device | {"training.parameters": {"engine": "compiled"}},
                      {"training.parameters": {"engine": "device"}}):  # fmt: skip
        with pytest.raises(ConfigError, match="environment.backend"):
            preflight.check(load_config(path, overrides), Path("."))


def test_the_engine_follows_the_back_end() -> None:
    for engine in ("auto", "torch", "device"):
        assert ppo.for_backend(ppo.Config(engine=engine), "device").engine == "device"
    assert ppo.for_backend(ppo.Config(), "batched").engine == "auto"
    with pytest.raises(ConfigError, match="engine: device learns from environment.backend device, not from 'batched'"):
        PPOTrainer(PPOConfig(engine="device"))


def test_actions_that_are_not_drawn_on_a_device_are_named() -> None:
    algorithm = make("device", MultiDiscrete([3, 2]))
    with pytest.raises(ConfigError, match="multi_discrete actions are not drawn on a device"):
        algorithm.collector(environments("CartPole-v1", 4), 1)


def test_unusable_rewards_of_a_rollout() -> None:
    trajectory = DeviceTrajectory.brought(made_up(make("torch")), action_distribution(DISCRETE), DEVICE)
    assert trajectory.unusable_reward() is None
    reward = trajectory.reward.clone()
    reward[3, 1] = -np.inf
    assert replace(trajectory, reward=reward).unusable_reward() == (1, -np.inf)
