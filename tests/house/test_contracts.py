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


def test_a_wrong_import_of_each_kind_breaks_its_contract(tmp_path: Path) -> None:
    for name in ("src/loomrl", "flows", "tasks", "pyproject.toml"):
        source, copy = ROOT / name, tmp_path / name.removeprefix("src/")
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    for name, text in PLANTED.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + f"\n\n{text}\n")
    told = _lint(tmp_path)
    assert "- loomrl.unplaced" in told
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    kept = [line for line in told.splitlines() if " KEPT" in line]
    assert kept == ["no circles KEPT"] * (len(contracts) - told.count(" BROKEN"))
    assert len(contracts) >= 7


def _lint(folder: Path) -> str:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "300"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
