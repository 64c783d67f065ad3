"""Machine code is kept by content: another copy of the sources finds it, another content does not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import loomrl
from loomrl.system import machine_code

SCRIPT = """
from loomrl.environment.vector.classic.pendulum import _step
print(_step.__code__.co_filename if hasattr(_step, "__code__") else _step.py_func.__code__.co_filename)
print(sum(_step.stats.cache_hits.values()), sum(_step.stats.cache_misses.values()))
"""

COUNTED = """
import sys
from numba.core.cpu import CPUContext
made_ready = []
make_ready = CPUContext.load_additional_registries
CPUContext.load_additional_registries = lambda self: (made_ready.append(self), make_ready(self))
from loomrl.environment.vector.classic.pendulum import _step
print(sum(_step.stats.cache_hits.values()), sum(_step.stats.cache_misses.values()))
print(bool(made_ready), "scipy.linalg" in sys.modules)
"""


def copied(folder: Path) -> Path:
    """A copy of the package, to be imported from there."""
    shutil.copytree(Path(loomrl.__file__).parent, folder / "loomrl", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def load(sources: Path, cache: Path) -> tuple[int, int]:
    """Hits and misses of a kernel that is compiled when its module is loaded."""
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    settings = {**kept, "PYTHONPATH": str(sources), "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=settings, check=True, capture_output=True, text=True)
    place, counts = done.stdout.splitlines()
    assert Path(place).is_relative_to(sources)
    hits, misses = counts.split()
    return int(hits), int(misses)


@pytest.mark.long
def test_a_copy_elsewhere_compiles_nothing_and_changed_sources_anew(tmp_path: Path) -> None:
    one, other, cache = copied(tmp_path / "one"), copied(tmp_path / "other"), tmp_path / "cache"
    assert load(one, cache) == (0, 1)
    assert load(other, cache) == (1, 0)
    changed = other / "loomrl" / "environment" / "vector" / "classic" / "pendulum.py"
    changed.write_text(changed.read_text() + "\n# changed\n")
    assert load(other, cache) == (0, 1)
    assert load(one, cache) == (1, 0)


def test_a_folder_that_cannot_be_made_leaves_it_to_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    monkeypatch.setattr(machine_code, "folder", lambda: blocked / "compiled")
    assert machine_code.ContentLocator.from_function(copied, machine_code.__file__) is None


def test_functions_of_other_packages_are_left_to_numba() -> None:
    assert machine_code.ContentLocator.from_function(copied, __file__) is None


def test_kept_code_is_loaded_without_what_only_a_compiler_needs(tmp_path: Path) -> None:
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COUNTED]
    first, second = (subprocess.run(command, env=settings, check=True, capture_output=True, text=True) for _ in "ab")
    assert first.stdout.split() == ["0", "1", "True", "False"]
    assert second.stdout.split() == ["1", "0", "False", "False"]


def test_a_matrix_product_in_machine_code_finds_its_blas() -> None:
    left, right = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    product = machine_code.njit()(lambda one, other: one @ other)
    np.testing.assert_array_equal(product(left, right), left @ right)
