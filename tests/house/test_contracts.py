"""The import contracts notice a wrong import of each kind, deferred ones too, and a room that nobody has placed."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLANTED = {
    "loomrl/system/processors.py": "def _wrong():\n    from loomrl.serving.client import PolicyClient",
    "loomrl/promotion/rules.py": "import loomrl.cli.main\nimport mlflow",
    "loomrl/statistics/betting.py": "import prefect\nimport tasks.run",
    "loomrl/serving/client.py": "def _wrong():\n    import torch",
    "loomrl/algorithms/replay/tree.py": "import gymnasium",
    "loomrl/unplaced/__init__.py": "",
}

CIRCLE = {"loomrl/serving/telemetry/metrics.py": "def _wrong():\n    from loomrl.serving.context import ServerContext"}


def test_a_wrong_import_of_each_kind_breaks_its_contract(tmp_path: Path) -> None:
    told = _lint_with(PLANTED, tmp_path)
    assert "- loomrl.unplaced" in told
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert (told.count(" BROKEN"), told.count(" KEPT")) == (len(contracts), 0)
    assert len(contracts) >= 7


def test_a_circle_within_a_room_breaks_that_contract_alone(tmp_path: Path) -> None:
    told = _lint_with(CIRCLE, tmp_path)
    assert [line for line in told.splitlines() if " BROKEN" in line][0].startswith("no circles BROKEN")
    assert told.count(" BROKEN") == 1


def _lint_with(planted: dict[str, str], folder: Path) -> str:
    """What `lint-imports` says of a copy of the code in `folder`, with texts added to files."""
    for name in ("src/loomrl", "flows", "tasks", "pyproject.toml"):
        source, copy = ROOT / name, folder / name.removeprefix("src/")
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    for name, text in planted.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + f"\n\n{text}\n")
    return _lint(folder)


def _lint(folder: Path) -> str:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "300"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
