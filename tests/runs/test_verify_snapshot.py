"""Each aspect changed alone, judged in a process of its own as the command is."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env
from loomrl.environment.snapshots.fingerprint import (
    compare,
    exact_digest,
    first_difference,
    record_rollouts,
    replay_rollouts,
    toleranced_digest,
)
from loomrl.environment.snapshots.releases import patched
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import ArtifactError
from loomrl.runs import verify_snapshot as verify
from loomrl.runs.verify_snapshot import verify_snapshot
from tests.support.preforked import Preforked
from tests.support.rooms_package import write_rooms

COMMAND = ("typer", "loomrl.cli.environment", "run")  # what `python -m` runs
IMPORTED = ("typer.cli", "loomrl.cli.environment", "loomrl.storage.loomdb.database", verify.__name__)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the path of the commands, which are copies of one process that has imported what they need."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        with Preforked({COMMAND[0]: IMPORTED}):
            yield folder


@pytest.fixture
def world(site: Path, ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable environment that leans on a package `worldlaws`, installed beside it with a version, and without a
    record of its files."""
    monkeypatch.chdir(tmp_path)
    for old in site.iterdir():
        shutil.rmtree(old)
    (site / "worldlaws").mkdir(parents=True)
    (site / "worldlaws" / "__init__.py").write_text("GRAVITY = 9.80665\n")
    write_metadata(site, "1.0")
    (site / "falling").mkdir()
    (site / "falling" / "__init__.py").write_text(
        "import numpy as np\nimport worldlaws\nfrom gymnasium import spaces\nfrom loomrl.envs import BaseEnvironment\n"
        "class Falling(BaseEnvironment):\n"
        "    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float64)\n"
        "    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)\n"
        "    def reset(self):\n"
        "        self.height, self.speed = 100.0 + self.np_random.uniform(), 0.0\n"
        "        return [self.height, self.speed]\n"
        "    def step(self, action):\n"
        "        self.speed += (float(action[0]) - worldlaws.GRAVITY) * 0.05\n"
        "        self.height += self.speed * 0.05\n"
        "        return [self.height, self.speed], self.height, self.height < 0, {}\n"
    )
    return site


def write_metadata(site: Path, version: str) -> None:
    for old in site.glob("worldlaws-*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    info = site / f"worldlaws-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: worldlaws\nVersion: {version}\n")
    (info / "top_level.txt").write_text("worldlaws\n")


def env_command(*arguments: str) -> tuple[int, dict]:
    command = [sys.executable, "-m", *COMMAND, *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def take(world: Path) -> str:
    code, taken = env_command("snapshot", "falling", "--entry-point", "falling:Falling")
    assert code == 0
    assert taken["dependencies"]["worldlaws"] == "1.0"
    return taken["digest"]


def test_nothing_changed(world: Path) -> None:
    code, report = env_command("verify", take(world))
    assert (code, report["changed"], report["unchanged"]) == (0, [], True)
    assert report["largest_deviation"] == 0.0


def test_only_the_dynamics_changed(world: Path) -> None:
    """A constant in an installed package, by one part in a million: no file of the environment, no version differs."""
    digest = take(world)
    (world / "worldlaws" / "__init__.py").write_text("GRAVITY = 9.80666\n")
    code, report = env_command("verify", digest)
    assert (code, report["changed"]) == (1, ["dynamics"])
    assert "the recorded actions lead elsewhere: largest relative deviation" in report["dynamics"][0]
    assert 0 < report["largest_deviation"] < 1e-3


def test_only_a_dependency_changed(world: Path) -> None:
    digest = take(world)
    write_metadata(world, "1.1")
    code, report = env_command("verify", digest)
    assert (code, report["changed"]) == (1, ["dependencies"])
    assert report["dependencies"] == ["worldlaws was 1.0, is 1.1"]


def test_a_patch_release_leaves_a_snapshot_valid_where_its_dynamics_are_equal(world: Path) -> None:
    """Of a dependency, and of Python itself; a patch that changes the dynamics is refused, and says where they begin
    to differ."""
    digest = take(world)
    write_metadata(world, "1.0.1")
    code, report = env_command("verify", digest)
    assert (code, report["changed"], report["largest_deviation"]) == (0, [], 0.0)
    assert "the snapshot stays valid under worldlaws 1.0.1 for 1.0: all " in report["remarks"][0]
    assert "are equal to the bit" in report["remarks"][0]
    (world / "worldlaws" / "__init__.py").write_text("GRAVITY = 9.80666\n")
    code, report = env_command("verify", digest)
    assert (code, report["changed"]) == (1, ["dependencies", "dynamics"])
    assert "; the first that differs is observation, episode 0, step 1" in report["dynamics"][0]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"python": "3.11.4", "numpy": "2.3.1"}, {"python": "3.11.9", "numpy": "2.3.1"}, ["python 3.11.9 for 3.11.4"]),
        ({"python": "3.11.4"}, {"python": "3.11.4"}, []),
        ({"python": "3.11.4"}, {"python": "3.12.4"}, None),
        ({"numpy": "2.3.1"}, {"numpy": "3.3.1"}, None),
        ({"numpy": "2.3.1"}, {"numpy": "2.3.1", "scipy": "1.0.0"}, None),
        ({"numpy": "2.3.1"}, {"numpy": "unknown"}, None),
        ({"loomrl": "0.1.0"}, {"loomrl": "1.4.0"}, ["loomrl 1.4.0 for 0.1.0"]),
    ],
)
def test_what_is_a_patch_release(before: dict[str, str], after: dict[str, str], expected: list[str] | None) -> None:
    assert patched(before, after) == expected


def test_where_rollouts_first_differ(tmp_path: Path) -> None:
    env = make_env(in_project(tmp_path, EnvironmentConfig(id="CartPole-v1")))
    recorded = record_rollouts(env, 3, 50)
    assert first_difference(recorded, recorded) is None
    lengths = recorded["length"]
    changed = {key: array.copy() for key, array in recorded.items()}
    changed["observation"][int(lengths[0]) + 4, 2] += 1e-3
    changed["reward"][int(lengths[0]) + 6] = 50.0
    assert first_difference(recorded, changed) == ("observation", 1, 5)
    changed["reset_observation"][1, 0] = 9.0
    assert first_difference(recorded, changed) == ("reset_observation", 1, 0)


def test_only_the_source_changed(world: Path) -> None:
    digest = take(world)
    (world / "falling" / "notes.txt").write_text("no code")
    code, report = env_command("verify", digest)
    assert (code, report["changed"]) == (1, ["source"])
    assert report["source"] == ["falling/notes.txt is new"]


def test_source_that_is_gone_is_said_and_the_archive_judged(world: Path) -> None:
    digest = take(world)
    (world / "falling" / "__init__.py").unlink()
    (world / "falling").rmdir()
    code, report = env_command("verify", digest)
    assert (code, report["changed"]) == (1, ["source"])
    assert "No module named 'falling'" in report["source"][0]


def in_project(tmp_path: Path, config: EnvironmentConfig) -> Path:
    folder = tmp_path / "snapshot"
    take_snapshot(config, tmp_path, folder)
    return folder


def test_parameters_and_spaces(tmp_path: Path) -> None:
    folder = in_project(tmp_path, EnvironmentConfig(id="FrozenLake-v1"))
    limit = verify_snapshot(folder, tmp_path, EnvironmentConfig(id="FrozenLake-v1", max_episode_steps=50))
    assert limit.changed == ["parameters"]
    assert limit.parameters == ["max_episode_steps was 100, is 50"]
    larger = verify_snapshot(folder, tmp_path, EnvironmentConfig(id="FrozenLake-v1", kwargs={"map_name": "8x8"}))
    assert larger.changed == ["parameters", "spaces", "dynamics"]
    assert larger.dynamics == ["recorded actions cannot be replayed in other spaces"]
    assert verify_snapshot(folder, tmp_path).unchanged


def test_the_config_of_a_stages_folder_is_found(tmp_path: Path) -> None:
    """`artifacts/cartpole/environment` belongs to `configs/cartpole.yaml`."""
    project = Path(__file__).parents[2]
    (tmp_path / "configs").mkdir()
    text = (project / "configs" / "cartpole.yaml").read_text()
    (tmp_path / "configs" / "cartpole.yaml").write_text(
        text.replace("CartPole-v1", "CartPole-v1\n  max_episode_steps: 9")
    )
    folder = tmp_path / "artifacts" / "cartpole" / "environment"
    take_snapshot(EnvironmentConfig(id="CartPole-v1"), tmp_path, folder)
    assert verify_snapshot(folder, tmp_path).parameters == ["max_episode_steps was 500, is 9"]


def test_an_environment_that_fails_now_is_a_change_of_the_dynamics(tmp_path: Path) -> None:
    code = write_rooms(tmp_path / "code")
    config = EnvironmentConfig(id="t", entry_point="rooms.thermostat:Thermostat", path=code)
    folder = in_project(tmp_path, config)
    write_rooms(code, gain="nan")
    report = verify_snapshot(folder, tmp_path, config)
    assert report.changed == ["source", "dynamics"]
    assert report.source == ["rooms/gain.txt was changed"]
    assert "observation[0] is nan" in report.dynamics[0]


def test_another_processor_family_is_given_the_tolerance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last bits that differ are drift where the arithmetic is the same, and none where it is not."""
    code = write_rooms(tmp_path / "code")
    config = EnvironmentConfig(id="t", entry_point="rooms.thermostat:Thermostat", path=code)
    folder = in_project(tmp_path, config)
    write_rooms(code, gain="1.000001")
    assert "dynamics" in verify_snapshot(folder, tmp_path, config).changed
    monkeypatch.setattr(verify, "arithmetic_digest", lambda: "another family's")
    report = verify_snapshot(folder, tmp_path, config)
    assert report.changed == ["source"]
    assert "only the first 10 steps of each episode were compared" in report.remarks[0]
    assert report.largest_deviation == pytest.approx(1e-7, rel=20)
    write_rooms(code, gain="1.5")
    assert "dynamics" in verify_snapshot(folder, tmp_path, config).changed


CHAOS = """
import numpy as np
from gymnasium import spaces
from loomrl.envs import BaseEnvironment


class Chaos(BaseEnvironment):
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self):
        self.x = self.np_random.uniform(0.1, 0.9)
        return [self.x]

    def step(self, action):
        self.x = {law}
        return [self.x], self.x, self.x > 0.9999, {{}}
"""


def test_chaotic_dynamics_agree_on_another_processor_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One law written in two ways rounds otherwise, as another processor would; 200 steps later nothing agrees."""
    (tmp_path / "chaos.py").write_text(CHAOS.format(law="3.99 * self.x * (1 - self.x)"))
    config = EnvironmentConfig(id="chaos", entry_point="chaos:Chaos", path=tmp_path)
    folder = in_project(tmp_path, config)
    (tmp_path / "chaos.py").write_text(CHAOS.format(law="3.99 * (self.x - self.x * self.x)"))
    here = verify_snapshot(folder, tmp_path, config)
    assert here.changed == ["source", "dynamics"]
    assert here.largest_deviation is None or here.largest_deviation > 0.1

    monkeypatch.setattr(verify, "arithmetic_digest", lambda: "another family's")
    elsewhere = verify_snapshot(folder, tmp_path, config)
    assert elsewhere.changed == ["source"]
    assert elsewhere.largest_deviation < 1e-10
    assert "only the first 10 steps of each episode were compared" in elsewhere.remarks[0]
    (tmp_path / "chaos.py").write_text(CHAOS.format(law="3.98 * (self.x - self.x * self.x)"))
    assert "dynamics" in verify_snapshot(folder, tmp_path, config).changed


def test_the_rounded_digest_is_of_what_other_arithmetic_can_repeat(tmp_path: Path) -> None:
    env = make_env(in_project(tmp_path, EnvironmentConfig(id="Pendulum-v1")))
    recorded = record_rollouts(env, 2, 30)
    late, early = recorded["reward"].copy(), recorded["reward"].copy()
    late[15], early[35] = 7.0, 7.0  # step 16 of the first episode, step 6 of the second
    assert toleranced_digest({**recorded, "reward": late}) == toleranced_digest(recorded)
    assert toleranced_digest({**recorded, "reward": early}) != toleranced_digest(recorded)


def test_a_tampered_snapshot_is_not_verified(tmp_path: Path) -> None:
    folder = in_project(tmp_path, EnvironmentConfig(id="CartPole-v1"))
    (folder / "source.tar").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"source\.tar was changed"):
        verify_snapshot(folder, tmp_path)


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "LunarLander-v3"])
def test_replayed_rollouts_are_equal_to_the_bit(environment_id: str, tmp_path: Path) -> None:
    env = make_env(in_project(tmp_path, EnvironmentConfig(id=environment_id)))
    recorded = record_rollouts(env, 3, 50)
    assert exact_digest(replay_rollouts(env, recorded)) == exact_digest(recorded)
    env.close()


def test_the_comparison_and_not_the_rounded_digest_is_the_judge(tmp_path: Path) -> None:
    env = make_env(in_project(tmp_path, EnvironmentConfig(id="CartPole-v1")))
    recorded = record_rollouts(env, 3, 50)
    at_a_boundary = {**recorded, "reward": np.full_like(recorded["reward"], 0.5e-4)}
    beside_it = {**recorded, "reward": np.full_like(recorded["reward"], 0.5e-4 * (1 + 1e-9))}
    assert toleranced_digest(at_a_boundary) != toleranced_digest(beside_it)
    assert compare(at_a_boundary, beside_it).largest < 1e-12


def test_the_deviation_says_where(tmp_path: Path) -> None:
    env = make_env(in_project(tmp_path, EnvironmentConfig(id="CartPole-v1")))
    recorded = record_rollouts(env, 3, 50)
    changed = {key: array.copy() for key, array in recorded.items()}
    first_length = int(recorded["length"][0])
    changed["reward"][first_length + 2] = 3.0
    deviation = compare(recorded, changed)
    assert (deviation.key, deviation.episode, deviation.step) == ("reward", 1, 3)
    assert deviation.largest == pytest.approx(2.0 / 2.0)
    shorter = {**changed, "length": recorded["length"] - 1}
    assert compare(recorded, shorter).key == "length"
