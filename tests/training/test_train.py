"""The stage: deterministic to the byte, killed and resumed to the bit, and what it says when something breaks."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from loomrl.algorithms.policies.loading import load_policy
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_envs
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.vector.batched import BatchedVectorEnv
from loomrl.environment.vector.choose import Autoreset
from loomrl.errors import ArtifactError, ConfigError, EnvironmentFault, LoomRLError
from loomrl.system.files import sums
from loomrl.training import job
from loomrl.training.config import TrainingConfig
from loomrl.training.train import train_policy
from loomrl.types import TrainingReport


def snapshot(folder: Path, **environment: Any) -> Path:
    config = EnvironmentConfig(fingerprint_episodes=1, fingerprint_steps=10, **environment)
    take_snapshot(config, folder, folder / "snapshot")
    return folder / "snapshot"


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a snapshot of CartPole-v1."""
    return snapshot(tmp_path_factory.mktemp("cartpole"), id="CartPole-v1")


def small_config(**values: Any) -> TrainingConfig:
    """Six segments of two updates; a validation in every segment."""
    settings = {
        "seed": 3,
        "total_env_steps": 3072,
        "checkpoint_interval_env_steps": 512,
        "checkpoint_interval_seconds": 0,  # every segment's
        "keep_checkpoints": 2,
        "validation": {"interval_env_steps": 512, "num_episodes": 3},
        "parameters": {"num_envs": 8, "rollout_length": 32, "batch_size": 64, "n_epochs": 2, "hidden_sizes": [16]},
    }
    return TrainingConfig.model_validate(settings | values)


@pytest.fixture(scope="module")
def undisturbed(cartpole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a training nobody interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train_policy(small_config(), cartpole, folder / "output", folder / "home")
    return folder / "output"


def checkpoints(home: Path) -> list[Path]:
    return sorted(home.glob("checkpoints/*/step-*"))


def test_outputs(undisturbed: Path) -> None:
    report = TrainingReport.read(undisturbed / "training.json")
    assert (report.total_env_steps, report.stop_reason, report.num_threads) == (3072, "total_env_steps", 1)
    assert report.policy_digest == sums(undisturbed)["policy.safetensors"]
    assert report.parameters["hidden_sizes"] == [16]
    assert report.engine == "compiled"
    curves = json.loads((undisturbed / "curves.json").read_text())
    assert [row["step"] for row in curves["updates"]] == list(range(256, 3073, 256))
    assert [row["step"] for row in curves["validations"]] == list(range(512, 3073, 512))
    best = max(curves["validations"], key=lambda row: (row["mean_return"], row["step"]))
    assert report.final_metrics["best_validation_step"] == best["step"]
    assert (undisturbed / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert load_policy(undisturbed)(np.zeros((2, 4), np.float32)).shape == (2,)


def test_the_same_inputs_give_the_same_bytes_and_another_seed_others(
    cartpole: Path, undisturbed: Path, tmp_path: Path
) -> None:
    train_policy(small_config(), cartpole, tmp_path / "again", tmp_path / "home-1")
    assert sums(tmp_path / "again") == sums(undisturbed)
    train_policy(small_config(seed=4), cartpole, tmp_path / "other", tmp_path / "home-2")
    assert sums(tmp_path / "other")["policy.safetensors"] != sums(undisturbed)["policy.safetensors"]


SCRIPT = """
import sys
from pathlib import Path
from loomrl.training.config import TrainingConfig
from loomrl.training.train import train_policy
snapshot, output, home = map(Path, sys.argv[2:])
train_policy(TrainingConfig.model_validate_json(sys.argv[1]), snapshot, output, home)
"""


def long_config() -> TrainingConfig:
    """A few seconds, a checkpoint every few hundredths."""
    parameters = {"num_envs": 8, "rollout_length": 64, "batch_size": 64, "n_epochs": 8}
    validation = {"interval_env_steps": 50_000, "num_episodes": 3}
    return small_config(
        total_env_steps=250_000, checkpoint_interval_env_steps=8192, validation=validation, parameters=parameters
    )


def start(cartpole: Path, folder: Path) -> subprocess.Popen[bytes]:
    arguments = [long_config().model_dump_json(), cartpole, folder / "output", folder / "home"]
    environment = os.environ | {"LOOMRL_EVENTS": str(folder / "events"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *map(str, arguments)], env=environment)


def kill_after(process: subprocess.Popen[bytes], home: Path, delay_seconds: float) -> None:
    """Kill it soon after it has saved a checkpoint."""
    deadline, earlier = time.monotonic() + 600, checkpoints(home)
    while checkpoints(home) == earlier:
        assert process.poll() is None, "training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(delay_seconds)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.long
def test_killed_again_and_again_and_resumed_gives_the_same_bytes(cartpole: Path, tmp_path: Path) -> None:
    train_policy(long_config(), cartpole, tmp_path / "undisturbed", tmp_path / "home-1")
    for _ in range(3):
        kill_after(start(cartpole, tmp_path), tmp_path / "home", random.uniform(0, 0.2))
    assert start(cartpole, tmp_path).wait() == 0
    resumed = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines() if '"resumed"' in line]
    assert len(resumed) == 3  # else less was shown
    assert sums(tmp_path / "output") == sums(tmp_path / "undisturbed")


def test_passing_over_checkpoints_changes_nothing(cartpole: Path, undisturbed: Path, tmp_path: Path) -> None:
    train_policy(small_config(checkpoint_interval_seconds=60), cartpole, tmp_path / "output", tmp_path / "home")
    names = [path.name for path in checkpoints(tmp_path / "home")]
    assert names == ["step-000000000512", "step-000000003072"]  # the first, and when training has ended
    assert sums(tmp_path / "output") == sums(undisturbed)


def test_a_corrupt_newest_checkpoint_does_not_change_the_result(
    cartpole: Path, undisturbed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_policy(small_config(), cartpole, tmp_path / "first", tmp_path / "home")
    older, newest = checkpoints(tmp_path / "home")
    (newest / "arrays.safetensors").write_bytes(b"damaged")
    train_policy(small_config(), cartpole, tmp_path / "second", tmp_path / "home")
    assert newest.name in caplog.text
    assert older.name not in caplog.text
    assert sums(tmp_path / "second") == sums(undisturbed)


def test_wrong_parameters_stop_before_anything_runs(cartpole: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="training.parameters.gama: unknown key; did you mean 'gamma'"):
        train_policy(small_config(parameters={"gama": 1}), cartpole, tmp_path / "output", tmp_path / "home")
    assert list(tmp_path.iterdir()) == []


BROKEN = '''
import gymnasium, numpy as np

total = 0

class Broken(gymnasium.Env):
    """Twenty steps an episode; after 1500 steps of all environments together something goes wrong."""
    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault="none"):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        global total
        total += 1
        self.steps += 1
        obs, reward = self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0
        if total > 1500 and self.fault == "nan":
            obs[1] = np.nan
        if total > 1500 and self.fault == "huge reward":
            reward = 1e300
        return obs, reward, self.steps >= 20, False, {}
'''


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("nan", EnvironmentFault, "nan|NaN|finite"),
        ("huge reward", EnvironmentFault, r"environment \d gave reward 1e\+300, .* \d+ environment steps; .*intact"),
    ],
)
def test_a_fault_keeps_the_checkpoints(
    tmp_path: Path, fault: str, error: type[LoomRLError], message: str, loomrl_home: Path
) -> None:
    name = f"broken_{fault.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(BROKEN)
    taken = snapshot(tmp_path, id="Broken-v0", entry_point=f"{name}:Broken", path=Path(), kwargs={"fault": fault})
    config = small_config(checkpoint_interval_seconds=60)  # too soon for any but the first
    with pytest.raises(error, match=message):
        train_policy(config, taken, tmp_path / "output", loomrl_home)
    assert checkpoints(loomrl_home)
    assert not (tmp_path / "output").exists()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[VectorEnv[Any, Any, Any]]]:
    """The vectors that training makes from now on, by their autoreset: "disabled" are those for validation."""
    vectors: dict[str, list[VectorEnv[Any, Any, Any]]] = {"resumable": [], "disabled": []}

    def counted(folder: Path, num_envs: int, autoreset: Autoreset, *more: Any) -> VectorEnv[Any, Any, Any]:
        vectors[autoreset].append(make_envs(folder, num_envs, autoreset, *more))
        return vectors[autoreset][-1]

    monkeypatch.setattr(job, "make_envs", counted)
    return vectors


@pytest.mark.parametrize(("kept", "num_made"), [(True, 1), (False, 6)])
def test_environments_that_are_kept_change_nothing(
    kept: bool,
    num_made: int,
    made: dict[str, list[VectorEnv[Any, Any, Any]]],
    cartpole: Path,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not kept:
        monkeypatch.delattr(BatchedVectorEnv, "renew")
    train_policy(small_config(), cartpole, tmp_path / "output", tmp_path / "home")
    assert sums(tmp_path / "output") == sums(undisturbed)  # curves, report and policy
    assert (len(made["resumable"]), len(made["disabled"])) == (1, num_made)
    assert all(envs.closed for vectors in made.values() for envs in vectors)


def test_a_fault_closes_the_environments_that_are_kept(
    made: dict[str, list[VectorEnv[Any, Any, Any]]], cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(self: BatchedVectorEnv) -> None:
        assert not self.closed
        raise EnvironmentFault("stuck")

    monkeypatch.setattr(BatchedVectorEnv, "renew", stuck)
    with pytest.raises(EnvironmentFault, match="stuck"):
        train_policy(small_config(), cartpole, tmp_path / "output", tmp_path / "home")
    assert [envs.closed for envs in made["disabled"]] == [True]


def test_an_unwritable_home_is_named(cartpole: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.raises(ArtifactError, match=r"cannot write checkpoints to .*home"):
        train_policy(small_config(), cartpole, tmp_path / "output", tmp_path / "home")


def test_stagnation_is_recorded(cartpole: Path, tmp_path: Path) -> None:
    settings = {"interval_env_steps": 256, "num_episodes": 2, "patience": 2, "min_improvement": 1e6}
    config: TrainingConfig = small_config(validation=settings)
    report = train_policy(config, cartpole, tmp_path / "output", tmp_path / "home")
    assert (report.stop_reason, report.total_env_steps) == ("stagnation", 768)
