"""A snapshot is taken only of what repeats itself, in any order of episodes and from its archive alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env
from loomrl.environment.snapshots.snapshot import DOCUMENT, take_snapshot
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError
from tests.support.rooms_package import write_rooms

ENTRY_POINT = "rooms.thermostat:Thermostat"


def edit(code: Path, old: str, new: str) -> None:
    file = code / "rooms" / "thermostat.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def take(code: Path, folder: Path, **changes: object) -> Path:
    fields = {"id": "t", "entry_point": ENTRY_POINT, "path": code, "fingerprint_steps": 20, **changes}
    take_snapshot(EnvironmentConfig.model_validate(fields), code, folder)
    return folder


@pytest.mark.parametrize("episodes", [1, 2, 3, 8])
@pytest.mark.parametrize("gain", ["1.0 + 0.01 * self.resets", "1.0 + 0.01 * (self.resets % 2)"])
def test_state_kept_across_resets_is_refused(episodes: int, gain: str, rooms: Path, tmp_path: Path) -> None:
    """Two instances that walk the same seeds in the same order agree about it."""
    edit(rooms, "self.steps = 0\n", "self.steps = 0\n        self.resets = getattr(self, 'resets', 0) + 1\n")
    edit(rooms, "self.drift)", f"self.drift * ({gain}))")
    with pytest.raises(
        EnvironmentFault, match=r"keep no state across resets: .* \(episode \d differs, first in [a-z_]+ at step \d+"
    ):
        take(rooms, tmp_path / "snapshot", fingerprint_episodes=episodes)
    assert not (tmp_path / "snapshot" / DOCUMENT).exists()


def test_the_end_of_the_last_episode_does_not_leak_into_the_next(rooms: Path, tmp_path: Path) -> None:
    edit(rooms, "self.np_random.uniform(-1.0, 1.0)", "getattr(self, 'temperature', 0.0)")
    with pytest.raises(
        EnvironmentFault, match=r"keep no state across resets: .* differs, first in reset_observation at step 0"
    ):
        take(rooms, tmp_path / "snapshot")


def test_a_linked_folder_that_the_code_needs_is_named(rooms: Path, tmp_path: Path) -> None:
    """Importable, but not archived."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("HEAT = 1.0\n")
    (rooms / "rooms" / "laws").symlink_to(tmp_path / "shared")
    edit(rooms, "from .late import HEAT", "from .laws import HEAT")
    with pytest.raises(
        ConfigError,
        match=r"archive does not run on its own: .* No module named 'rooms\.laws'; .* linked folders; .* 'rooms'",
    ):
        take(rooms, tmp_path / "snapshot")


def test_a_data_file_beside_a_single_module_is_named(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "gain.txt").write_text("2.0")
    (code / "lever.py").write_text(LEVER.format(gain="float((Path(__file__).parent / 'gain.txt').read_text())"))
    with pytest.raises(ConfigError, match=r"does not run on its own: .*gain\.txt.*it holds the files of lever"):
        take(code, tmp_path / "snapshot", entry_point="lever:Lever")


def test_a_module_whose_behaviour_depends_on_a_hidden_file(tmp_path: Path) -> None:
    """It runs without, but otherwise."""
    code = write_rooms(tmp_path / "code")
    (code / "rooms" / ".gain").write_text("")
    doubled = "self.drift * (2 if __import__('pathlib').Path(__file__).with_name('.gain').exists() else 1))"
    edit(code, "self.drift)", doubled)
    with pytest.raises(ConfigError, match=r"behaves otherwise than the code it was taken of \(episode 0 differs"):
        take(code, tmp_path / "snapshot")


LEVER = """
from pathlib import Path
import numpy as np
from gymnasium import spaces
from loomrl.envs import BaseEnvironment

GAIN = {gain}

class Lever(BaseEnvironment):
    observation_space = spaces.Box(-1e6, 1e6, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self):
        self.place = self.np_random.uniform()
        return [self.place]

    def step(self, action):
        self.place += GAIN * action
        return [self.place], self.place, self.place > 20, {{}}
"""


def test_modules_beside_an_importable_one_are_archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No distribution owns them, so no version could stand for them: the archive must hold them."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "lonely_lever.py").write_text("import lonely_gain\n" + LEVER.format(gain="lonely_gain.GAIN"))
    (site / "lonely_gain.py").write_text("from lonely_deep import GAIN\n")
    (site / "lonely_deep.py").write_text("GAIN = 2.0\n")
    program = (
        "from pathlib import Path; from loomrl.environment.config import EnvironmentConfig\n"
        "from loomrl.environment.snapshots.snapshot import take_snapshot\n"
        "config = EnvironmentConfig(id='lever', entry_point='lonely_lever:Lever')\n"
        "print(take_snapshot(config, Path('.'), Path('snapshot')).source_roots)"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['lonely_lever', 'lonely_deep', 'lonely_gain']", done.stderr
    env = make_env(tmp_path / "snapshot")  # this process cannot import them
    start = env.reset(seed=0)[0][0]
    assert env.step(1)[0][0] == start + 2.0


@pytest.mark.parametrize("breakage", ["raise RuntimeError('half edited')", "undefined_name", "1 / 0", "import nowhere"])
@pytest.mark.long_cases("raise RuntimeError('half edited')", "undefined_name", "import nowhere")
def test_a_snapshot_runs_though_todays_module_is_broken(
    breakage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archived source is what runs, and nothing of today's is imported to find that out."""
    site = tmp_path / "site"
    write_rooms(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    snapshot = (
        "import sys; from pathlib import Path; from loomrl.environment.config import EnvironmentConfig\n"
        "from loomrl.environment.snapshots.snapshot import take_snapshot\n"
        f"take_snapshot(EnvironmentConfig(id='t', entry_point='{ENTRY_POINT}'), Path('.'), Path('snapshot'))"
    )
    subprocess.run([sys.executable, "-c", snapshot], cwd=tmp_path, check=True)
    (site / "rooms" / "__init__.py").write_text(f"open('imported', 'w')\n{breakage}\n")
    run = (
        "from pathlib import Path; from loomrl.environment.make import make_env\n"
        "env = make_env(Path('snapshot')); print(env.reset(seed=0)[0].shape)"
    )
    done = subprocess.run([sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(2,)", done.stderr
    assert not (tmp_path / "imported").exists()
    again = subprocess.run([sys.executable, "-c", snapshot], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"ConfigError: entry point '{ENTRY_POINT}'" in again.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "raise RuntimeError('half edited')",
            r"importing 'rooms\.thermostat' raised RuntimeError: half edited \(.*line 2",
        ),
        ("undefined_name", r"importing 'rooms\.thermostat' raised NameError: name 'undefined_name' is not defined"),
        ("import rooms.cellar", r"No module named 'rooms\.cellar'; a module of the code itself is missing"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(line: str, message: str, rooms: Path, tmp_path: Path) -> None:
    (rooms / "rooms" / "__init__.py").write_text(f"\n{line}\n")
    with pytest.raises(LoomRLError, match=message) as caught:
        take(rooms, tmp_path / "snapshot")
    assert type(caught.value) is ConfigError
