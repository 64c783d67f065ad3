"""What a stage's code imports is what `dvc.yaml` declares for it: else a change leaves stale results in place."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src"
# How a stage's process is started, reads its settings, counts its processors and reports; no output can change by it.
PLUMBING = {
    *(f"loomrl/{name}.py" for name in ("__init__", "errors", "runs/config")),
    *(f"loomrl/system/{name}.py" for name in ("events", "home", "lifetime", "moved", "processors")),
    *(f"loomrl/{room}/__init__.py" for room in ("promotion", "runs", "runs/stages", "shadow", "storage", "system")),
    *(f"loomrl/{room}/config.py" for room in ("promotion", "serving", "shadow")),
    "loomrl/runs/stages/__main__.py",
    # A registered environment never changes, so how LoomDB keeps it cannot either.
    *(f"loomrl/storage/loomdb/{path.name}" for path in (SOURCE / "loomrl" / "storage" / "loomdb").glob("*.py")),
}

# Packages whose modules a stage looks up by name, so that no import leads to them.
DYNAMICS = "environment/vector/classic"
FOUND_BY_NAME = {
    "environment": (DYNAMICS,),
    "training": (DYNAMICS, "algorithms", "language/algorithms"),
    "evaluation": (DYNAMICS,),
    "safety": (DYNAMICS, "safety/checks"),
    "export": (DYNAMICS,),
}


def module_file(name: str) -> Path | None:
    path = SOURCE / name.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imported(file: Path) -> Iterator[str]:
    """Names of our modules that a file imports anywhere, inside functions too; not those for its types alone."""
    for node in at_run_time(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from at_run_time(child)


def reached(*files: Path) -> set[Path]:
    found: set[Path] = set()
    open_files = list(files)
    while open_files:
        here = open_files.pop()
        if here in found:
            continue
        found.add(here)
        if str(here.relative_to(SOURCE)) in PLUMBING:
            continue  # the readers of settings know every room
        names = (name for name in imported(here) if name.split(".")[0] == "loomrl")
        open_files += [file for name in names if (file := module_file(name))]
    return found


def covered(file: Path, declared: list[Path]) -> bool:
    return any(file.is_relative_to(path) for path in declared)


@pytest.mark.parametrize("stage", FOUND_BY_NAME)
def test_a_stage_declares_all_the_code_it_uses(stage: str) -> None:
    declared = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]["deps"]
    folders = [ROOT / path for path in declared if path.startswith("src/")]
    by_name = [file for package in FOUND_BY_NAME[stage] for file in (SOURCE / "loomrl" / package).glob("*.py")]
    used = reached(SOURCE / "loomrl" / "runs" / "stages" / f"{stage}.py", *by_name)
    undeclared = {str(file.relative_to(SOURCE)) for file in used if not covered(file, folders)}
    assert undeclared - PLUMBING == set()
