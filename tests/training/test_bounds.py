"""Training within bounds: learnt from, not judged by; the same bytes from every back-end and after a resume."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.algorithms.policies.loading import load_policy
from loomrl.environment.collecting.collector import run_episodes
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_envs, settle_backend
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import ConfigError
from loomrl.system.files import sums
from loomrl.training import job
from loomrl.training.config import TrainingConfig
from loomrl.training.train import train_policy
from loomrl.types import TrainingReport

TIGHT = {"quantity": "observation[0]", "low": -0.1, "high": 0.1, "margin": 0.05, "penalty": 0.5, "terminate": True}


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cartpole")
    config = EnvironmentConfig(id="CartPole-v1", fingerprint_episodes=1, fingerprint_steps=10)
    take_snapshot(config, folder, folder / "snapshot")
    return folder / "snapshot"


def settled(cartpole: Path, folder: Path, backend: str) -> Path:
    """A copy of the snapshot that is stepped by this back-end."""
    shutil.copytree(cartpole, folder / backend)
    settle_backend(folder / backend, backend)
    return folder / backend


def bounded(**values: Any) -> TrainingConfig:
    """Four segments of two updates; a validation in each."""
    settings = {
        "seed": 3,
        "total_env_steps": 1024,
        "checkpoint_interval_env_steps": 256,
        "checkpoint_interval_seconds": 0,  # every segment's
        "validation": {"interval_env_steps": 256, "num_episodes": 3},
        "parameters": {"num_envs": 2, "rollout_length": 64, "batch_size": 64, "n_epochs": 2, "hidden_sizes": [16]},
        "boundaries": [TIGHT],
    }
    return TrainingConfig.model_validate(settings | values)


@pytest.fixture(scope="module")
def learnt(cartpole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learnt")
    train_policy(bounded(), cartpole, folder / "output", folder / "home")
    return folder / "output"


def curves(output: Path) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = json.loads((output / "curves.json").read_text())
    return found


def test_what_is_learnt_from_has_bounds_and_what_judges_has_none(
    learnt: Path, cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, ...]] = []

    def told(folder: Path, num_envs: int, *more: Any) -> Any:
        made.append(more)
        return make_envs(folder, num_envs, *more)

    monkeypatch.setattr(job, "make_envs", told)
    config = bounded()
    train_policy(config, cartpole, tmp_path / "output", tmp_path / "home")
    assert set(made) == {("resumable", "serial", config.bounds), ("disabled", "batched")}
    for row in curves(learnt)["updates"]:
        assert row["episode_return"] < row["episode_length"]  # CartPole's reward is 1 for every step; less penalties
    for row in curves(learnt)["validations"]:
        assert row["mean_return"] == row["mean_length"]
    assert TrainingReport.read(learnt / "training.json").backend == "serial"


def test_a_learner_that_steps_compiled_environments_itself_does_not_pass_them_by(
    cartpole: Path, tmp_path: Path
) -> None:
    config = bounded(algorithm="dqn", parameters={"num_envs": 2, "learning_starts": 64, "hidden_sizes": [16]})
    report = train_policy(config, cartpole, tmp_path / "output", tmp_path / "home")
    assert (report.engine, report.backend) == ("compiled", "serial")
    rows = [row for row in curves(tmp_path / "output")["updates"] if "episode_return" in row]
    assert sum(row["episode_return"] for row in rows) < 0.95 * sum(row["episode_length"] for row in rows)


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.long_cases("processes")
def test_every_back_end_gives_the_same_policy(backend: str, learnt: Path, cartpole: Path, tmp_path: Path) -> None:
    train_policy(bounded(), settled(cartpole, tmp_path, backend), tmp_path / "output", tmp_path / "home")
    for name in ("policy.safetensors", "curves.json"):
        assert sums(tmp_path / "output")[name] == sums(learnt)[name]
    assert TrainingReport.read(tmp_path / "output" / "training.json").backend == backend


def test_they_are_an_input_like_any_other(learnt: Path, cartpole: Path, tmp_path: Path) -> None:
    milder = TIGHT | {"penalty": 0.25}
    for number, boundaries in enumerate(([TIGHT], [milder], [])):
        train_policy(bounded(boundaries=boundaries), cartpole, tmp_path / str(number), tmp_path / "home")
    first, second, third = (sums(tmp_path / str(number))["policy.safetensors"] for number in range(3))
    assert first == sums(learnt)["policy.safetensors"]
    assert len({first, second, third}) == 3


def test_resumed_gives_the_same_bytes(learnt: Path, cartpole: Path, tmp_path: Path) -> None:
    train_policy(bounded(), cartpole, tmp_path / "first", tmp_path / "home")
    shutil.rmtree(sorted(tmp_path.glob("home/checkpoints/*/step-*"))[-1])  # as if it had been killed before
    train_policy(bounded(), cartpole, tmp_path / "second", tmp_path / "home")
    assert sums(tmp_path / "second") == sums(learnt)


def test_a_component_that_is_not_there_stops_before_anything_runs(cartpole: Path, tmp_path: Path) -> None:
    config = bounded(boundaries=[TIGHT, {"quantity": "observation[4]", "low": 0, "terminate": True}])
    with pytest.raises(ConfigError, match=r"training\.boundaries\.1\.quantity: found quantity 'observation\[4\]'"):
        train_policy(config, cartpole, tmp_path / "output", tmp_path / "home")
    assert list(tmp_path.iterdir()) == []


def test_a_back_end_that_cannot_keep_them_stops_before_anything_runs(cartpole: Path, tmp_path: Path) -> None:
    taken = settled(cartpole, tmp_path / "snapshot", "device")
    with pytest.raises(ConfigError, match=r"'device' keeps no bounds, which training\.boundaries"):
        train_policy(bounded(), taken, tmp_path / "output", tmp_path / "home")
    assert not (tmp_path / "home").exists()


def share_outside(policy_folder: Path, cartpole: Path) -> float:
    """Of the steps of a hundred greedy episodes, those more than 0.5 from the middle."""
    with closing(make_envs(cartpole, 50, "disabled")) as envs:
        episodes = run_episodes(
            envs, load_policy(policy_folder).act, range(6_000_000, 6_000_100), np.random.default_rng(0)
        )
    return float(np.mean(np.abs(np.concatenate([episode.next_obs[:, 0] for episode in episodes])) > 0.5))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.long_cases("1", "3")
def test_what_is_learnt_within_bounds_stays_there_without_them(seed: int, cartpole: Path, tmp_path: Path) -> None:
    near = {"quantity": "observation[0]", "low": -0.5, "high": 0.5, "margin": 0.25, "penalty": 1.0, "terminate": True}
    settings: dict[str, Any] = {
        "seed": seed,
        "total_env_steps": 25_000,
        "checkpoint_interval_env_steps": 25_000,
        "validation": {"interval_env_steps": 10_000},
        "parameters": {"num_envs": 8, "rollout_length": 128},
    }
    shares = []
    for number, boundaries in enumerate(([near], [])):
        config = bounded(**settings, boundaries=boundaries)
        report = train_policy(config, cartpole, tmp_path / str(number), tmp_path / "home")
        assert report.final_metrics["best_validation_return"] >= 475
        shares.append(share_outside(tmp_path / str(number), cartpole))
    assert shares[0] < 0.01
    assert shares[1] > 0.05


# --- costs ------------------------------------------------------------------------------------------------------

COSTLY = '''
import gymnasium, numpy as np

class Costly(gymnasium.Env):
    """Twenty steps; those in which 1 is chosen cost 1 and say so."""
    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, silent=False):
        self.silent = silent

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        info = {"cost": 1.0} if action == 1 and not self.silent else {}
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0, False, self.steps >= 20, info
'''


def costly(folder: Path, **kwargs: Any) -> Path:
    (folder / "costly.py").write_text(COSTLY)
    config = EnvironmentConfig(
        id="Costly-v0", entry_point="costly:Costly", path=Path(), kwargs=kwargs, fingerprint_episodes=1
    )
    take_snapshot(config, folder, folder / "snapshot")
    return folder / "snapshot"


def test_episodes_that_are_learnt_from_end_when_they_have_cost_too_much(tmp_path: Path, loomrl_home: Path) -> None:
    config = bounded(boundaries=[], max_episode_cost=2.0)
    train_policy(config, costly(tmp_path), tmp_path / "output", loomrl_home)
    found = curves(tmp_path / "output")
    assert all(row["episode_length"] < 15 for row in found["updates"])  # at first half of the steps cost 1
    assert all(row["mean_length"] == 20 for row in found["validations"])


@pytest.mark.parametrize(
    "bounds",
    [
        {"boundaries": [], "max_episode_cost": 2.0},
        {"boundaries": [{"quantity": "cost", "high": 0.5, "terminate": True}]},
    ],
)
def test_an_environment_that_tells_no_cost_is_named(bounds: dict[str, Any], tmp_path: Path, loomrl_home: Path) -> None:
    taken = costly(tmp_path, silent=True)
    with pytest.raises(ConfigError, match=r'max_episode_cost and .*no info\["cost"\] in 128 steps; return one, 0.0'):
        train_policy(bounded(**bounds), taken, tmp_path / "output", loomrl_home)
