"""Training on stacked frames: the replay keeps each once, as the snapshot says, and learning does not notice."""

import math
from pathlib import Path
from typing import Any

import pytest

from loomrl.algorithms import dqn, sac
from loomrl.algorithms.base import ALONE
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import load_snapshot, take_snapshot
from loomrl.environment.spaces import space_from_json
from loomrl.system.files import sums
from loomrl.training import job
from loomrl.training.config import TrainingConfig
from loomrl.training.train import train_policy
from loomrl.types import EnvironmentSnapshot

FRAMES = 4
PICTURES = '''
import gymnasium
import numpy as np

class Pictures(gymnasium.Env):
    """A dot on SHAPE that moves at random; episodes end, or are cut off, soon."""
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, shape):
        self.observation_space = gymnasium.spaces.Box(0, 255, tuple(shape), np.uint8)

    def _picture(self):
        picture = np.zeros(self.observation_space.shape, np.uint8)
        picture.reshape(-1)[self.np_random.integers(picture.size)] = 255
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._picture(), {}

    def step(self, action):
        self.steps += 1
        draw = self.np_random.random()
        return self._picture(), float(action == 1), draw < 0.1, self.steps == 12, {}
'''
SHAPES = {"channels last": (9, 8, 1), "colours": (9, 8, 3), "channels first": (1, 9, 8), "numbers": (9,)}


def snapshot(shape: tuple[int, ...], folder: Path) -> Path:
    (folder / "dotted_pictures.py").write_text(PICTURES)
    config = EnvironmentConfig(
        id="Pictures-v0",
        entry_point="dotted_pictures:Pictures",
        path=Path(),
        kwargs={"shape": list(shape)},
        frame_stack=FRAMES,
        fingerprint_episodes=1,
        fingerprint_steps=10,
    )
    take_snapshot(config, folder, folder / "snapshot")
    return folder / "snapshot"


def config(algorithm: str, **parameters: Any) -> TrainingConfig:
    shared = {"num_envs": 2, "rollout_length": 16, "gradient_steps": 2, "batch_size": 8, "hidden_sizes": [8]}
    return TrainingConfig.model_validate(
        {
            "algorithm": algorithm,
            "total_env_steps": 256,
            "checkpoint_interval_env_steps": 96,
            "validation": {"interval_env_steps": 128, "num_episodes": 1},
            "parameters": {**shared, "replay_capacity": 100, "learning_starts": 32, **parameters},
        }
    )


@pytest.mark.parametrize(
    ("algorithm", "kind", "parameters"),
    [
        ("dqn", "channels last", {"n_step": 3, "prioritized": True}),
        ("dqn", "colours", {"replay_storage": "disk"}),
        ("sac", "numbers", {}),
    ],
)
@pytest.mark.long_cases("dqn-colours-parameters1", "sac-numbers-parameters2")
def test_the_policy_is_that_of_a_replay_of_whole_stacks(
    algorithm: str, kind: str, parameters: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = snapshot(SHAPES[kind], tmp_path)
    settings = config(algorithm, **parameters)
    train_policy(settings, taken, tmp_path / "frames", tmp_path / "home-1")
    monkeypatch.setattr(job, "frames_of", lambda _: None)
    train_policy(settings, taken, tmp_path / "stacks", tmp_path / "home-2")
    assert sums(tmp_path / "frames") == sums(tmp_path / "stacks")


def replay_bytes(algorithm: Any, taken: EnvironmentSnapshot, *, frames: bool) -> int:
    """Of a replay of 100,000 transitions."""
    spaces = space_from_json(taken.spec.observation), space_from_json(taken.spec.action)
    settings = algorithm.Config(replay_capacity=100_000, num_envs=1)
    context = job.create_training_context(taken, Path(), 1) if frames else ALONE
    built = algorithm.build(settings, *spaces, seed=0, total_env_steps=1, context=context)
    num_bytes: int = built._replay.nbytes
    return num_bytes


@pytest.mark.parametrize(("algorithm", "kind"), [*((dqn, kind) for kind in SHAPES), (sac, "numbers")])
def test_frames_are_kept_once(algorithm: Any, kind: str, tmp_path: Path) -> None:
    taken = load_snapshot(snapshot(SHAPES[kind], tmp_path))
    row = replay_bytes(algorithm, taken, frames=True) / 100_000
    size = math.prod(SHAPES[kind])
    assert size < row < 1.02 * (size + 8 + 4 + 1)
    assert replay_bytes(algorithm, taken, frames=False) / 100_000 > FRAMES * size
