"""PPO learns: the shipped CartPole config, with a quicker rule to stop, solves it on three seeds.

`benchmarks/learning.py` measures the configs as they are, on five seeds and on harder tasks.
"""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from loomrl.algorithms.policies.loading import load_policy
from loomrl.environment.collecting.collector import run_episodes
from loomrl.environment.make import make_envs
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.runs.config import load_config
from loomrl.training.train import train_policy

PROJECT = Path(__file__).parents[2]
QUICKER = {"training.validation.num_episodes": 16, "training.validation.stop_after_validations": 1}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.long_cases("2", "3")
def test_cartpole_is_solved(seed: int, tmp_path: Path) -> None:
    config = load_config(PROJECT / "configs" / "cartpole.yaml", {**QUICKER, "training.seed": seed})
    take_snapshot(config.environment, PROJECT, tmp_path / "environment")
    report = train_policy(config.training, tmp_path / "environment", tmp_path / "training", tmp_path / "home")
    assert report.stop_reason == "stop_at_return"
    policy = load_policy(tmp_path / "training")
    with closing(make_envs(tmp_path / "environment", 50, "disabled")) as envs:
        episodes = run_episodes(envs, policy.act, range(6_000_000, 6_000_100), np.random.default_rng(0))
    assert np.mean([episode.episode_return for episode in episodes]) >= 475
