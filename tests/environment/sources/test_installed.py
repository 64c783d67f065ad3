"""A version stands for a distribution's files only as long as they are those that were published."""

import base64
import hashlib
import importlib
import json
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
DIRECT_URL = "spec_springs-1.0.dist-info/direct_url.json"
PIP = rf"\(`pip install --force-reinstall --no-deps {NAME}==1\.0`\)"
REFUSALS = {  # how it was installed when the snapshot was taken -> what is said after a file was edited
    "published": rf"{NAME} 1\.0, installed is 1\.0\+edited\..*: {{file}} differs; undo the change {PIP}, or take",
    "editable": r"its working copy has changed; check out the files it was taken with, or take",
    "edited": r"but others than now or otherwise \(edited now: {file}\); restore those, or take",
}


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


def make_editable_without_names(folder: Path, rows: str, pth: str) -> None:
    """What other tools than setuptools write: no `top_level.txt`, and rows with digests."""
    (folder / "spec_springs-1.0.dist-info" / "top_level.txt").unlink()
    (folder / DIRECT_URL).write_text(json.dumps({"url": "file:///checkout", "dir_info": {"editable": True}}))
    (folder / RECORD).write_text(f"{rows}{RECORD},,\n")
    for row in rows.splitlines():
        (folder / row.partition(",")[0]).write_text(pth)


def edit(path: Path) -> None:
    """Change a file's bytes, and nothing that it does."""
    path.write_text(path.read_text() + "\n")


def snapshot(folder: Path) -> Path:
    (folder / "swing.py").write_text(ENVIRONMENT)
    config = EnvironmentConfig(id="swing", entry_point="swing:Swing", path=folder, fingerprint_episodes=1)
    take_snapshot(config, folder, folder / "snapshot")
    return folder / "snapshot"


@pytest.mark.parametrize("installation", REFUSALS)
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
    refusal = REFUSALS[installation].format(file=rf"spec_springs/{file}")
    with pytest.raises(ArtifactError, match=refusal) as caught:
        make_env(folder)
    assert ("pip install" in str(caught.value)) == (installation == "published")
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


def test_clean_files_after_a_snapshot_of_edited_ones_are_called_so(site: Path) -> None:
    """To install the release again would change nothing."""
    text = (site / "spec_springs" / "constants.py").read_text()
    edit(site / "spec_springs" / "constants.py")
    recorded = exact_version(NAME)
    (site / "spec_springs" / "constants.py").write_text(text)
    with pytest.raises(ArtifactError, match="its files are those published, the snapshot was taken with") as caught:
        installed.require_same_files({NAME: recorded})
    assert "pip install" not in str(caught.value)


def test_what_was_not_installed_from_an_index_is_not_fetched_from_one(site: Path) -> None:
    """Under its name another package may lie there."""
    (site / DIRECT_URL).write_text(json.dumps({"url": "file:///checkout", "dir_info": {}}))
    edit(site / "spec_springs" / "constants.py")
    with pytest.raises(ArtifactError, match="spec_springs/constants.py differs; undo the change, or take"):
        installed.require_same_files({NAME: "1.0"})


@pytest.mark.parametrize("pth", ["_spec_springs.pth", "spec_springs.pth", "_editable_impl_spec_springs.pth"])
@pytest.mark.parametrize("says_so", [True, False])
def test_editable_installations_of_every_tool_count_by_their_files(site: Path, pth: str, says_so: bool) -> None:
    """Hatchling, Poetry, Flit and PDM name in a `.pth` file where the code lies; PDM's record lists more."""
    rows = f"{pth},sha256=abc,3\n" + (".gitignore,sha256=abc,1\n" if says_so else "")
    make_editable_without_names(site, rows, f"# code\nimport os\n{site}\nmissing\n")
    if not says_so:
        (site / DIRECT_URL).unlink()
    (site / "test").mkdir()
    (site / "test" / "__init__.py").touch()
    before = exact_version(NAME)
    assert before.startswith("1.0+edited.")
    (site / "test" / "__init__.py").write_text("changed = True\n")
    assert exact_version(NAME) == before, "tests are no code that others import"
    edit(site / "spec_springs" / "constants.py")
    assert exact_version(NAME) != before
    with pytest.raises(ArtifactError, match="its working copy has changed"):
        installed.require_same_files({NAME: before})
    with pytest.warns(UserWarning, match=f"does not say which files of {NAME} 1.0 it was taken with"):
        installed.require_same_files({NAME: "1.0"})


def test_an_editable_installation_whose_files_are_not_known_warns(site: Path) -> None:
    """As where a hook, which the record lists, finds the code."""
    rows = "_hook_springs.py,sha256=abc,3\n_hook_springs.pth,sha256=abc,3\n"
    make_editable_without_names(site, rows, "import _hook_springs\n")
    with pytest.warns(UserWarning, match=f"which files {NAME} consists of is not known"):
        assert exact_version(NAME) == "1.0"
    (site / DIRECT_URL).unlink()
    (site / RECORD).write_text(f"{RECORD},,\n")
    assert exact_version(NAME) == "1.0", "what holds no code needs no warning"


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
