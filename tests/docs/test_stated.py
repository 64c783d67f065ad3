"""What the documentation states of all the code, held to the code."""

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
CODE = ("src", "flows", "tasks")
THAT_RUN_WHAT_THEY_READ = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def imported(module: Path) -> Iterator[str]:
    """The dotted names a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def unpickling(module: Path) -> bool:
    return any(THAT_RUN_WHAT_THEY_READ & set(name.split(".")) for name in imported(module))


def test_pickles_are_for_the_processes_of_one_training_alone() -> None:
    modules = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in modules if unpickling(path)} == {
        "src/loomrl/training/distributed/learners/hosts.py"
    }
    for path in modules:
        text = path.read_text()
        assert "allow_pickle=True" not in text, path
        assert "torch.load(" not in text.replace("safetensors.torch.load(", ""), path


def test_dvcs_graph_is_in_git_and_its_lock_is_each_projects_own() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "dvc.yaml", "dvc.lock"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert tracked == ["dvc.yaml"]
    assert "`dvc.yaml` in git, `dvc.lock` in the project" in (ROOT / "docs/architecture.md").read_text()


def test_the_server_whose_internals_are_subclassed_is_below_a_version_nobody_tried() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (uvicorn,) = (one for one in map(Requirement, extras["serve"]) if one.name == "uvicorn")
    installed = Version(version("uvicorn"))
    assert installed in uvicorn.specifier
    assert f"{installed.major}.{installed.minor + 1}" not in uvicorn.specifier
