"""Code of packages outside LoomRL is an input of a stage, though DVC does not see where it lies."""

import importlib
import json
import os
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.run_record import RunRecord, write_run
from loomrl.types import Json
from tasks import progress
from tasks.record import StageEntry
from tasks.reproduce import reproduce
from tests.support.policy_versions import config

# The runner itself; a file of weights in place of learning, which takes long.
STAGE = """
import sys
from loomrl.runs.stages import training
from loomrl.runs.stages.__main__ import main

training.INPUTS = ()
training.run = lambda config, folders: (folders["training"] / "weights").write_text("learnt")
sys.exit(main(["training", "cart"]))
"""
PIPELINE = {
    "stages": {
        "training": {
            "matrix": {"policy": ["cart"]},
            "cmd": "python stage.py",
            "outs": ["artifacts/${item.policy}/training"],
        }
    }
}
ALGORITHM = "from descent import Descent\nfrom loomrl.algorithms.ppo import Config, build\nNAME = 'descending'\n"
INSTALLED = {
    "descending.py": ALGORITHM,
    "descent.py": "Descent = 'Adam'\n",
    "descending-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: descending\nVersion: 1.0\n",
    "descending-1.0.dist-info/entry_points.txt": "[loomrl.algorithms]\ndescending = descending\n",
}

RUNS = ("run-1", "run-2", "run-3")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an algorithm and its optimiser are installed, for this process and those that it starts."""
    folder = tmp_path / "packages"
    for name, text in INSTALLED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return folder


@pytest.fixture
def project(ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose only stage is a training, in three runs."""
    folder = tmp_path / "project"
    document = config("cart").model_dump(mode="json")
    document["training"]["algorithm"] = "descending"
    files = {"stage.py": STAGE, "dvc.yaml": yaml.safe_dump(PIPELINE), "configs/cart.yaml": yaml.safe_dump(document)}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    Repo.init(str(folder), no_scm=True).close()
    for run_id in RUNS:
        write_run(RunRecord(run_id=run_id, policy="cart", state="running", started="2026", config=document))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(progress, "create_progress_artifact", lambda *_, **__: None)
    return folder


def run(run_id: str) -> StageEntry:
    entry = StageEntry()
    reproduce(run_id, "training", entry)
    return entry


def in_lock(project: Path, entry: StageEntry) -> dict[str, str]:
    """Package -> digest, as the document says that the stage's entry in `dvc.lock` leads to."""
    assert entry.lock is not None
    (output,) = entry.lock["outs"]
    files = {one["relpath"]: one["md5"] for one in json.loads(cached(project, output["md5"]))}
    assert "plugins.json" in files
    found: Json = json.loads(cached(project, files["plugins.json"]))
    return {package["name"]: package["digest"] for package in found["packages"]}


def cached(project: Path, md5: str) -> bytes:
    return (project / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]).read_bytes()


def test_code_of_others_is_in_the_lock_and_in_lineage_and_a_change_of_it_trains_again(
    packages: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = run(RUNS[0]), run(RUNS[1])
    assert (first.status, again.status) == ("ran", "unchanged")
    (packages / "descent.py").write_text("Descent = 'SGD(lr=0)'\n")
    changed = run(RUNS[2])
    assert changed.status == "ran"
    assert "code of descent is not what made the last output" in capsys.readouterr().err
    before, after = in_lock(project, first), in_lock(project, changed)
    assert before.keys() == after.keys() == {"descending", "descent"}
    assert before["descending"] == after["descending"]
    assert before["descent"] != after["descent"]
    for entry, digests in ((first, before), (again, before), (changed, after)):
        assert entry.plugins == [f"plugin:{name}@{digest}" for name, digest in digests.items()]
    with LoomDB.open() as db:
        used = [{edge.object for edge in db.edges(f"run:{run_id}")} for run_id in RUNS]
    assert used == [{*first.plugins}, {*again.plugins}, {*changed.plugins}]
