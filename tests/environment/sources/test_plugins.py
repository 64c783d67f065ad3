"""The code of a plug-in is its own package and all that it imports, digested by its bytes."""

import importlib
import io
import tarfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from loomrl.environment.sources import plugins
from loomrl.environment.sources.plugins import PluginCode, code_of
from loomrl.environment.sources.roots import files_of

FILES = {
    "theirs/__init__.py": "",
    "theirs/algorithm.py": "import json\nimport numpy\nimport torch\nfrom loomrl.algorithms import ppo\n"
    "from . import helper\n\ndef build():\n    from shared_names.inner import late\n",
    "theirs/helper.py": "try:\n    import not_installed_anywhere\nexcept ImportError:\n    pass\nimport alone\n",
    "theirs/weights.bin": "1 2 3",
    "theirs/__pycache__/helper.cpython-311.pyc": "compiled",
    "shared_names/inner/__init__.py": "",
    "shared_names/inner/late.py": "import theirs\n",
    "shared_names/other/__init__.py": "",
    "alone.py": "",
    "imported_by_nobody/__init__.py": "",
}
POINT = EntryPoint("theirs", "theirs.algorithm:build", "loomrl.algorithms")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


def digests(code: PluginCode) -> dict[str, str]:
    return {package.name: package.digest for package in code.packages()}


def test_imports_are_followed_and_what_loomrl_requires_is_not(installed: Path) -> None:
    found = code_of([POINT])
    assert found.locations == {
        "theirs": installed / "theirs",
        "alone": installed / "alone.py",
        "shared_names.inner": installed / "shared_names" / "inner",
    }
    assert code_of([]).packages() == []


@pytest.mark.parametrize(
    ("changed", "package"),
    [
        ("theirs/helper.py", "theirs"),
        ("theirs/weights.bin", "theirs"),
        ("shared_names/inner/late.py", "shared_names.inner"),
        ("alone.py", "alone"),
    ],
)
def test_each_byte_counts(installed: Path, changed: str, package: str) -> None:
    before = digests(code_of([POINT]))
    with (installed / changed).open("a") as file:
        file.write("# changed")
    after = digests(code_of([POINT]))
    assert {name for name in before if before[name] != after[name]} == {package}


def test_files_that_python_compiled_count_for_nothing(installed: Path) -> None:
    before = digests(code_of([POINT]))
    (installed / "theirs" / "__pycache__" / "helper.cpython-311.pyc").write_text("compiled anew")
    (installed / "imported_by_nobody" / "__init__.py").write_text("changed = True")
    assert digests(code_of([POINT])) == before


def test_packages_are_archived_as_long_as_they_fit_together_and_digested_all(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "theirs" / "weights.bin").write_text("9" * 500)
    code = code_of([POINT])
    assert all(one.archived for one in code.packages())
    total = sum(path.stat().st_size for name, place in code.locations.items() for path, _ in files_of(place, name))
    monkeypatch.setattr(plugins, "MAX_ARCHIVED_BYTES", total - 1)  # each would fit alone
    packages = code.packages()
    assert {one.name: one.archived for one in packages} == {
        "alone": True,
        "shared_names.inner": True,
        "theirs": False,
    }
    with tarfile.open(fileobj=io.BytesIO(code.archive(packages))) as archive:
        assert archive.getnames() == ["alone.py", "shared_names/inner/__init__.py", "shared_names/inner/late.py"]
