"""Training with `replay_storage: disk`: the bits of one in memory, killed anywhere, and checkpoints that stay small.

With keys or without.
"""

import json
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from loomrl.algorithms.base import MOST_UNSAVED_SEGMENTS, TrainingContext
from loomrl.algorithms.sac import learner as sac
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import ConfigError
from loomrl.system.files import sums
from loomrl.system.security.encryption import KEYS, new_entry
from loomrl.training.checkpoints import CheckpointStore
from loomrl.training.config import TrainingConfig
from loomrl.training.loop import TrainingLoop
from loomrl.training.train import train_policy
from loomrl.types import Trajectory

SEGMENT = 96  # environment steps: three updates
LEARNERS: dict[str, dict[str, Any]] = {
    "sac": {"algorithm": "sac", "parameters": {"batch_size": 16, "learning_starts": 32}},
    "dqn": {"algorithm": "dqn", "parameters": {"batch_size": 16}},
    "prioritised": {"algorithm": "dqn", "parameters": {"batch_size": 16, "prioritized": True}},
}


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a snapshot of CartPole-v1."""
    folder = tmp_path_factory.mktemp("cartpole")
    config = EnvironmentConfig(id="CartPole-v1", fingerprint_episodes=1, fingerprint_steps=10)
    take_snapshot(config, folder, folder / "snapshot")
    return folder / "snapshot"


def config(learner: str, storage: str) -> TrainingConfig:
    """Eleven segments. The replay goes round twice; by the clock only the first checkpoint is due."""
    parameters = {"num_envs": 2, "rollout_length": 16, "gradient_steps": 4, "hidden_sizes": [8]}
    parameters |= {"replay_capacity": 500, "replay_storage": storage, **LEARNERS[learner]["parameters"]}
    return TrainingConfig.model_validate(
        {
            "algorithm": LEARNERS[learner]["algorithm"],
            "seed": 3,
            "total_env_steps": 11 * SEGMENT,
            "checkpoint_interval_env_steps": SEGMENT,
            "checkpoint_interval_seconds": 600,
            "validation": {"interval_env_steps": 5 * SEGMENT, "num_episodes": 2},
            "parameters": parameters,
        }
    )


def learnt(folder: Path) -> dict[str, str]:
    """Digests of all that does not name the parameters."""
    return {name: digest for name, digest in sums(folder).items() if name != "training.json"}


def files_of_algorithms(home: Path) -> list[Path]:
    return list(home.glob("checkpoints/*/algorithm"))


KILLED = """
import importlib, os, signal, sys
from pathlib import Path
from loomrl.training.config import TrainingConfig
from loomrl.training.train import train_policy

place, name, calls = sys.argv[2].partition(":")[0], sys.argv[2].partition(":")[2], int(sys.argv[3])
owner = importlib.import_module(place)
*outer, name = name.split(".")
for part in outer:
    owner = getattr(owner, part)
inner, left = getattr(owner, name), calls

def fatal(*arguments, **named):
    global left
    left -= 1
    result = inner(*arguments, **named)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(owner, name, fatal)
snapshot, output, home = map(Path, sys.argv[4:])
train_policy(TrainingConfig.model_validate_json(sys.argv[1]), snapshot, output, home)
"""


def kill_in(place: str, calls: int, settings: TrainingConfig, cartpole: Path, folder: Path) -> None:
    """Train in a process that is killed when a function, MODULE:NAME, has been called so many times."""
    paths = [str(path) for path in (cartpole, folder / "output", folder / "home")]
    command = [sys.executable, "-c", KILLED, settings.model_dump_json(), place, str(calls), *paths]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    assert files_of_algorithms(folder / "home")


def resumed_at(events: Path) -> list[int]:
    lines = [json.loads(line) for line in events.read_text().splitlines() if '"resumed"' in line]
    return [line["step"] for line in lines]


ROWS_WRITTEN = "loomrl.algorithms.replay.rows:StepRing.append"
FLUSH_HALF_DONE = "loomrl.algorithms.replay.sealed_file:SealedFile.write"
CHECKPOINT_HALF_WRITTEN = "loomrl.training.checkpoints:write_sums"
SAVED = [SEGMENT, (1 + MOST_UNSAVED_SEGMENTS) * SEGMENT, (1 + 2 * MOST_UNSAVED_SEGMENTS) * SEGMENT]


@pytest.mark.parametrize(
    ("learner", "has_keys", "kills", "resumed"),
    [
        ("sac", False, [(CHECKPOINT_HALF_WRITTEN, 2)], SAVED[:1]),
        ("prioritised", False, [(ROWS_WRITTEN, 3 * 9)], [SAVED[1]]),  # the last moment before the third is built
        ("dqn", False, [], []),
        ("sac", True, [(FLUSH_HALF_DONE, 4 * 9 + 5)], SAVED[:1]),  # of the second checkpoint, nine arrays each
        ("prioritised", True, [(ROWS_WRITTEN, 3 * 9), (CHECKPOINT_HALF_WRITTEN, 1)], [SAVED[1]] * 2),
    ],
)
@pytest.mark.long_cases(
    "sac-False-kills0-resumed0",
    "sac-True-kills3-resumed3",
    "prioritised-False-kills1-resumed1",
    "prioritised-True-kills4-resumed4",
)
def test_the_bits_of_training_in_memory_though_it_is_killed(
    cartpole: Path,
    tmp_path: Path,
    learner: str,
    has_keys: bool,
    kills: list[tuple[str, int]],
    resumed: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOOMRL_EVENTS", str(tmp_path / "events"))
    train_policy(config(learner, "memory"), cartpole, tmp_path / "memory", tmp_path / "home-of-memory")
    assert not files_of_algorithms(tmp_path / "home-of-memory")
    on_disk = config(learner, "disk")
    if has_keys:
        monkeypatch.setenv(KEYS, new_entry("key"))
    for place, calls in kills:
        kill_in(place, calls, on_disk, cartpole, tmp_path)
    train_policy(on_disk, cartpole, tmp_path / "output", tmp_path / "home")
    assert resumed_at(tmp_path / "events") == resumed
    assert learnt(tmp_path / "output") == learnt(tmp_path / "memory")
    assert not files_of_algorithms(tmp_path / "home")  # it is finished


def test_a_finished_training_does_without_its_files(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMRL_EVENTS", str(tmp_path / "events"))
    for name in ("first", "second"):
        train_policy(config("dqn", "disk"), cartpole, tmp_path / name, tmp_path / "home")
    assert resumed_at(tmp_path / "events") == [11 * SEGMENT]
    assert sums(tmp_path / "second") == sums(tmp_path / "first")


def test_a_run_without_the_key_leaves_nothing_in_the_way_of_one_with_it(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS, new_entry("key"))
    train_policy(config("dqn", "disk"), cartpole, tmp_path / "first", tmp_path / "home")
    with monkeypatch.context() as without:
        without.delenv(KEYS)
        with pytest.raises(ConfigError, match="is encrypted with the key 'key'"):
            train_policy(config("dqn", "disk"), cartpole, tmp_path / "refused", tmp_path / "home")
    assert not files_of_algorithms(tmp_path / "home")
    train_policy(config("dqn", "disk"), cartpole, tmp_path / "second", tmp_path / "home")
    assert sums(tmp_path / "second") == sums(tmp_path / "first")


def test_checkpoints_whose_files_are_gone_are_passed_over(
    cartpole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config("dqn", "disk")
    train_policy(settings, cartpole, tmp_path / "first", tmp_path / "home")
    (last,) = (tmp_path / "home").glob(f"checkpoints/*/step-{11 * SEGMENT:012d}")
    (last / "values.json").unlink()  # the one before it refers to files that were removed
    train_policy(settings, cartpole, tmp_path / "second", tmp_path / "home")
    assert f"after {SAVED[2]} steps is passed over: the replay folder does not hold" in caplog.text
    assert sums(tmp_path / "second") == sums(tmp_path / "first")


def test_disk_needs_a_training_that_keeps_checkpoints() -> None:
    with pytest.raises(ConfigError, match='replay_storage: disk needs the folder .* set it to "memory"'):
        sac.build(sac.SACConfig(replay_storage="disk"), *SPACES, seed=0, total_env_steps=1)


# --- memory -----------------------------------------------------------------------------------------------------

SPACES = Box(-np.inf, np.inf, (60,), np.float32), Box(-1, 1, (6,), np.float32)
CAPACITY = 400_000


def full_replay(storage: str, folder: Path) -> TrainingLoop:
    """A training that has filled its replay, of some 100 MB, and learnt nothing yet."""
    settings = sac.SACConfig(
        num_envs=8, replay_capacity=CAPACITY, replay_storage=storage, learning_starts=2 * CAPACITY, hidden_sizes=(8,)
    )
    algorithm = sac.build(settings, *SPACES, seed=0, total_env_steps=CAPACITY, context=TrainingContext(folder))
    obs, flags = np.ones((10_000, 8, 60), np.float32), np.zeros((10_000, 8), np.bool_)
    action = obs[..., :6].copy()
    trajectory = Trajectory(obs, action, flags * 1.0, flags, flags, obs, extras={"squashed": action})
    for _ in range(CAPACITY // 80_000):
        algorithm.update(trajectory, np.random.default_rng(0))
    return TrainingLoop(
        algorithm, lambda *_: pytest.fail("no steps"), seed=0, total_env_steps=1, segment_env_steps=1, validation=None
    )


@pytest.mark.parametrize(("storage", "copies"), [("memory", 1.05), ("disk", 0.01)])
def test_memory_that_a_checkpoint_takes(storage: str, copies: float, tmp_path: Path) -> None:
    loop = full_replay(storage, tmp_path / "files")
    num_bytes = CAPACITY * (60 + 6 + 1) * 4
    with CheckpointStore(tmp_path / "store", keep=1) as store:
        tracemalloc.start()
        try:
            store.save(loop.checkpoint())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < copies * num_bytes
    loop.algorithm.close()
