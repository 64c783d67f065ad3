"""A version stands for a distribution's files only as long as they are those that were published."""

import base64
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env
from loomrl.environment.snapshots.releases import patched
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.sources import installed
from loomrl.environment.sources.installed import exact_version
from loomrl.environment.sources.roots import distributions
from loomrl.errors import ArtifactError
from loomrl.runs.verify_snapshot import verify_snapshot

NAME = "spec-springs"
ENVIRONMENT = """
import numpy as np
from gymnasium import spaces
from spec_springs import force

from loomrl.envs import BaseEnvironment


class Swing(BaseEnvironment):
    observation_space = spaces.Box(-100.0, 100.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self):
        self.place, self.steps = self.np_random.uniform(-1.0, 1.0), 0
        return [self.place]

    def step(self, action):
        self.place, self.steps = self.place + force(action), self.steps + 1
        return [self.place], self.place, self.steps >= 8, {}
"""
FILES = {
    "spec_springs/__init__.py": "from spec_springs import constants\n\ndef force(a):\n    return constants.STIFF * a\n",
    "spec_springs/constants.py": "STIFF = 0.1\n",
    "spec_springs/limits.json": "{}",
    "spec_springs/fast.cpython-311-x86_64-linux-gnu.so": "compiled",
    "spec_springs-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
    "spec_springs-1.0.dist-info/top_level.txt": "spec_springs\n",
    "spec_springs-1.0.dist-info/INSTALLER": "pip\n",
}
RECORD = "spec_springs-1.0.dist-info/RECORD"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a distribution is installed as pip leaves it."""
    folder = tmp_path / "site"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_record(folder)
    monkeypatch.syspath_prepend(str(folder))
    caches = (distributions, installed._require_same_files)
    for one in caches:
        one.cache_clear()
    yield folder
    for one in caches:
        one.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "spec_springs"]:
        del sys.modules[name]


def write_record(folder: Path) -> None:
    rows = [f"{name},{digest(folder / name)},{len(text)}" for name, text in FILES.items()]
    (folder / RECORD).write_text("\n".join([*rows, f"{RECORD},,"]))


def digest(path: Path) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


def make_editable(folder: Path) -> None:
    """What lies elsewhere is on no record."""
    (folder / RECORD).write_text(f"__editable__.spec_springs-1.0.pth,sha256=abc,3\n{RECORD},,\n")


def edit(path: Path) -> None:
    """Change a file's bytes, and nothing that it does."""
    path.write_text(path.read_text() + "\n")


def snapshot(folder: Path) -> Path:
    (folder / "swing.py").write_text(ENVIRONMENT)
    config = EnvironmentConfig(id="swing", entry_point="swing:Swing", path=folder, fingerprint_episodes=1)
    take_snapshot(config, folder, folder / "snapshot")
    return folder / "snapshot"


@pytest.mark.parametrize("installation", ["published", "editable", "edited"])
@pytest.mark.parametrize("file", ["constants.py", "limits.json"])
def test_an_edited_dependency_makes_no_environment_under_the_old_snapshot(
    site: Path, tmp_path: Path, installation: str, file: str
) -> None:
    if installation == "editable":
        make_editable(site)
    elif installation == "edited":
        edit(site / "spec_springs" / file)
    folder = snapshot(tmp_path)
    make_env(folder).close()
    text = (site / "spec_springs" / file).read_text()
    edit(site / "spec_springs" / file)
    installed._require_same_files.cache_clear()  # as in another process
    with pytest.raises(ArtifactError, match=rf"{NAME} 1\.0.*spec_springs/.* differs; undo the change .*{NAME}==1\.0"):
        make_env(folder)
    report = verify_snapshot(folder, tmp_path, EnvironmentConfig(id="swing", entry_point="swing:Swing", path=tmp_path))
    assert report.dependencies, "a new snapshot is taken, though the recorded steps may be equal"
    (site / "spec_springs" / file).write_text(text)
    make_env(folder).close()


def test_a_snapshot_of_before_made_with_an_editable_installation_warns(site: Path) -> None:
    """It names a version alone; a published release that was edited is refused all the same."""
    edit(site / "spec_springs" / "constants.py")
    with pytest.raises(ArtifactError, match="differs; undo the change"):
        installed.require_same_files({NAME: "1.0"})
    make_editable(site)
    with pytest.warns(UserWarning, match=f"does not say which files of {NAME} 1.0 it was taken with"):
        installed.require_same_files({NAME: "1.0"})


def test_a_version_alone_stands_for_published_files(site: Path) -> None:
    assert exact_version(NAME) == "1.0"
    (site / "spec_springs" / "fast.cpython-311-x86_64-linux-gnu.so").write_text("stripped")
    (site / "spec_springs" / "limits.json").unlink()
    os.utime(site / "spec_springs" / "constants.py")
    assert exact_version(NAME) == "1.0"
    edit(site / "spec_springs" / "constants.py")
    assert exact_version(NAME).startswith("1.0+edited.")
    (site / "spec_springs-1.0.dist-info" / "INSTALLER").write_text("conda")
    assert exact_version(NAME) == "1.0"


def test_what_stands_in_no_record_is_not_judged(site: Path) -> None:
    (site / RECORD).unlink()
    assert exact_version(NAME) == "1.0"
    assert exact_version("loomrl") == importlib.metadata.version("loomrl")


def test_a_local_version_keeps_one_plus(site: Path) -> None:
    metadata = site / "spec_springs-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "1.0+cpu"))
    make_editable(site)
    assert exact_version(NAME).startswith("1.0+cpu.edited.")


def test_an_edit_is_no_patch_release() -> None:
    one, other = "+edited.0123456789ab", "+edited.ba9876543210"
    assert patched({NAME: "1.0"}, {NAME: f"1.0{one}"}) is None
    assert patched({NAME: f"1.0{one}"}, {NAME: f"1.0{other}"}) is None
    assert patched({NAME: f"1.0{one}"}, {NAME: f"1.0.1{one}"}) == [f"{NAME} 1.0.1{one} for 1.0{one}"]
