"""Prints the test files of what was changed in the work tree, and of what imports that: `make test CHANGED=1`.

    python tests/support/changed_tests.py [REVISION]    # since REVISION, HEAD if none is named; new files count

A test file is printed when it changed, when it mirrors a changed module, or when it imports a changed module or
one that imports it. What no module is (a config, a page) is not looked at: the whole of `make test` runs what reads it.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "src", ROOT / "tests" / "support" / "on_path", ROOT)  # where imports are found


def changed(revision: str) -> set[Path]:
    """Python files that differ from a revision, and new ones."""
    asked = (["diff", "--name-only", revision], ["ls-files", "--others", "--exclude-standard"])
    names = [line for one in asked for line in _git(*one).splitlines()]
    return {ROOT / name for name in names if name.endswith(".py") and (ROOT / name).is_file()}


def selected(files: set[Path]) -> list[Path]:
    """The test files to run for changed files, in order."""
    sources = [path for folder in ("src", "flows", "tasks", "tests", "benchmarks") for path in _python(ROOT / folder)]
    imported = {path: _imported(path) for path in sources}
    touched = files | {path for path in sources if not _is_test(path) and imported[path] & files}
    tests = [path for path in sources if _is_test(path)]
    return [path for path in tests if path in files or imported[path] & touched or _mirrored(path) in files]


def _is_test(path: Path) -> bool:
    return path.name.startswith("test_")


def _mirrored(test: Path) -> Path:
    """The module that a test file mirrors, whether there is one or not."""
    inside = test.relative_to(ROOT / "tests").parent
    return ROOT / "src" / "loomrl" / inside / test.name.removeprefix("test_")


@cache
def _imported(path: Path) -> frozenset[Path]:
    """Our files that a file imports, also inside functions."""
    return frozenset(found for name in _names(path) if (found := _file_of(name)) is not None)


def _names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


@cache
def _file_of(module: str) -> Path | None:
    parts = module.split(".")
    for folder in FOLDERS:
        for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if path.is_file():
                return path
    return None


def _python(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    revision = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    print("\n".join(str(path.relative_to(ROOT)) for path in selected(changed(revision))))
