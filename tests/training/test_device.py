"""Training on the device: it learns, repeats itself, goes on from a checkpoint, and follows from the back-end."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loomrl.algorithms import ppo
from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.ppo.device import DevicePPO
from loomrl.environment.collecting.collector import Collector
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_envs, settle_backend
from loomrl.environment.resolve import resolve
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.vector.batched import BatchedVectorEnv
from loomrl.environment.vector.choose import make_vector
from loomrl.environment.vector.device import DeviceVectorEnv, best_device, device_name
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError
from loomrl.runs import preflight
from loomrl.runs.config import load_config
from loomrl.system.files import sums
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.config import TrainingConfig, ValidationConfig
from loomrl.training.loop import TrainingLoop
from loomrl.training.train import train_policy
from loomrl.training.trainer import PPOConfig, PPOTrainer
from loomrl.training.validation import Validation
from loomrl.types import TrainingReport, Trajectory
from tests.support.on_device import build_for, environments, loop

# --- training ---------------------------------------------------------------------------------------------------


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
    trajectory = collector.collect(16, rng)
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
    assert (report.engine, report.backend, report.device) == ("device", "device", device_name(best_device()))
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
