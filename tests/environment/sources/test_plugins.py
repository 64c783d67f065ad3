"""The code of a plug-in is its own package and all that it imports, digested by its bytes."""

import importlib
import io
import py_compile
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from loomrl.environment.sources import plugin_files, plugins
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
        "theirs": (installed / "theirs",),
        "alone": (installed / "alone.py",),
        "shared_names.inner": (installed / "shared_names" / "inner",),
    }
    assert found.requirements == {"numpy", "torch"}
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


OTHERS = {
    "named/__init__.py": "import importlib\nfrom importlib import import_module\n"
    "by_name = importlib.import_module('by_name')\nother = import_module('.part', package='by_package')\n"
    "plain = __import__(name='by_dunder')\ncomputed = import_module('not_' + 'seen')\n"
    "beyond = import_module('..x', 'y')\nfrom named import compiled\n",
    "named/.settings.json": "{}",
    "named/.gitignore": "*",
    "named/.git/index": "",
    "by_name.py": "import grown\n",
    "by_package/__init__.py": "",
    "by_package/part.py": "",
    "by_dunder.py": "",
    "not_seen.py": "",
    "grown/__init__.py": "from pathlib import Path\n__path__.append(str(Path(__file__).parents[1] / 'elsewhere'))\n",
    "elsewhere/__init__.py": "",
    "elsewhere/more.py": "import by_more\n",
    "by_more.py": "",
    "outside/deep.py": "import by_deep\n",
    "by_deep.py": "",
}


@pytest.fixture
def others(installed: Path) -> Iterator[Path]:
    for name, text in OTHERS.items():
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text(text)
    write_compiled(installed, "VALUE = 1\n")
    (installed / "named" / "linked").symlink_to(installed / "outside")
    (installed / "outside" / "back").symlink_to(installed / "named")
    (installed / "outside" / "around").symlink_to(installed)
    importlib.invalidate_caches()
    yield installed
    sys.modules.pop("grown", None)


def write_compiled(folder: Path, text: str) -> None:
    """A module without its source."""
    (folder / "written.py").write_text(text)
    py_compile.compile(str(folder / "written.py"), cfile=str(folder / "named" / "compiled.pyc"), doraise=True)


def other_digests() -> dict[str, str]:
    return digests(code_of([EntryPoint("named", "named:build", "loomrl.algorithms")]))


def test_names_as_they_stand_in_calls_are_imports(others: Path) -> None:
    names = ["by_deep", "by_dunder", "by_more", "by_name", "by_package", "grown", "named"]
    assert sorted(other_digests()) == names


@pytest.mark.parametrize(
    ("changed", "packages"),
    [
        ("by_name.py", {"by_name"}),
        ("by_package/part.py", {"by_package"}),
        ("by_dunder.py", {"by_dunder"}),
        ("named/.settings.json", {"named"}),
        ("elsewhere/more.py", {"grown"}),
        ("outside/deep.py", {"named"}),
        ("not_seen.py", set()),
        ("named/.gitignore", set()),
        ("named/.git/index", set()),
    ],
)
def test_code_and_data_in_unusual_places_count(others: Path, changed: str, packages: set[str]) -> None:
    before = other_digests()
    with (others / changed).open("a") as file:
        file.write("# changed")
    after = other_digests()
    assert {name for name in before if before[name] != after[name]} == packages


NAMESPACE = {  # what a file imports, `{up}` its namespace -> the file that this runs
    "from {up}optim import rate": "corp/optim.py",
    "from {up}shared.optim import rate": "corp/shared/optim.py",
    "from {up} import optim": "corp/optim.py",
    "import importlib\nimportlib.import_module('{up}optim', __package__)": "corp/optim.py",
    "from importlib import import_module\nimport_module('{up}optim', package=__package__)": "corp/optim.py",
    "import pkgutil\npkgutil.resolve_name('elsewhere:rate')": "elsewhere.py",
    "import pkgutil\nRATE: str = 'elsewhere:rate'\npkgutil.resolve_name(RATE)": "elsewhere.py",
    "from importlib import import_module as load\nload('elsewhere')": "elsewhere.py",
    "import importlib as i\nload = i.import_module\nload('elsewhere')": "elsewhere.py",
}


@pytest.mark.parametrize(("text", "needed"), NAMESPACE.items())
@pytest.mark.parametrize(
    ("module", "file", "up"), [("corp.one", "corp/one.py", "."), ("corp.two", "corp/two/__init__.py", "..")]
)
def test_what_a_file_in_a_namespace_imports_counts(
    installed: Path, module: str, file: str, up: str, text: str, needed: str
) -> None:
    """A folder without `__init__.py` holds packages and modules, each of which is a root of its own."""
    for name, content in {file: text.format(up=up), needed: "rate = 1"}.items():
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text(content)
    importlib.invalidate_caches()
    point = EntryPoint("corp", module, "loomrl.algorithms")
    before = digests(code_of([point]))
    (installed / needed).write_text("rate = 2")
    after = digests(code_of([point]))
    root = needed.removesuffix(".py").replace("/", ".")
    assert before.keys() == {module, root}
    assert {name for name in before if before[name] != after[name]} == {root}


LINKED = {
    "code one level down": {"inner/deep.py": "x = 1\n"},
    "compiled code": {"fast.cpython-311-x86_64-linux-gnu.so": "1"},
    "settings": {"inner/limits.yaml": "speed: 1\n"},
    "a large file beside code": {"inner/deep.py": "x = 1\n", "weights.bin": "1" * 2_000},
}


@pytest.mark.parametrize("holds", LINKED)
def test_a_linked_folder_counts(installed: Path, monkeypatch: pytest.MonkeyPatch, holds: str) -> None:
    monkeypatch.setattr(plugin_files, "MAX_LINKED_DATA_BYTES", 1_000)
    outside = installed / "outside"
    files = [outside / name for name in LINKED[holds]]
    for path, text in zip(files, LINKED[holds].values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (installed / "theirs" / "linked").symlink_to(outside)
    for path in files:
        before = digests(code_of([POINT]))
        with path.open("a") as file:
            file.write("# changed")
        after = digests(code_of([POINT]))
        assert {name for name in before if before[name] != after[name]} == {"theirs"}, path


def test_a_linked_data_set_does_not_count(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is large, and no file in it is code, but for what tools and hidden folders hold."""
    monkeypatch.setattr(plugin_files, "MAX_LINKED_DATA_BYTES", 1_000)
    before = digests(code_of([POINT]))
    data = installed / "data"
    for name, size in {"one/1.png": 600, "two/2.png": 600, ".git/hook.py": 1, "__pycache__/x.pyc": 1}.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(bytes(size))
    (data / "gone").symlink_to("nowhere")
    (installed / "theirs" / "data").symlink_to(data)
    assert digests(code_of([POINT])) == before
    (data / "two" / "2.png").unlink()
    assert digests(code_of([POINT])) != before, "now it is small"


def test_a_module_without_its_source_counts(others: Path) -> None:
    before = other_digests()
    write_compiled(others, "VALUE = 2\n")
    assert {name for name, digest in other_digests().items() if digest != before[name]} == {"named"}
    (others / "named" / "compiled.py").write_text("VALUE = 2\n")
    with_source = other_digests()
    write_compiled(others, "VALUE = 3\n")
    assert other_digests() == with_source


def test_a_package_that_was_imported_has_the_digest_that_it_had_before(others: Path) -> None:
    before = other_digests()
    sys.modules.pop("grown")
    importlib.import_module("grown")
    assert other_digests() == before


def test_all_places_are_archived_and_no_hidden_file_is(others: Path) -> None:
    code = code_of([EntryPoint("named", "named:build", "loomrl.algorithms")])
    with tarfile.open(fileobj=io.BytesIO(code.archive(code.packages()))) as archive:
        names = set(archive.getnames())
    assert names >= {"grown/__init__.py", "grown/__path__/1/more.py", "named/compiled.pyc", "named/linked/deep.py"}
    assert "named/.settings.json" not in names


def test_digests_of_what_lies_in_usual_places_stay_what_they_are(installed: Path) -> None:
    """Users' locks hold them."""
    assert digests(code_of([POINT])) == {
        "alone": "d2eaf95ba37479844fa0a64f427873180d6208d22096fa3bfd9d67c6681b816d",
        "shared_names.inner": "50b4b0799e57c22f9986209c6074f3eb193bd64215b5a3d7a2e075b97eb7ed4d",
        "theirs": "0cfa44d4114037e6e6ce6bf5d7bf104ee32d057e4639266173c0e1e97b7a3ee3",
    }


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
    total = sum(path.stat().st_size for name, (place,) in code.locations.items() for path, _ in files_of(place, name))
    monkeypatch.setattr(plugins, "MAX_ARCHIVED_BYTES", total - 1)  # each would fit alone
    packages = code.packages()
    assert {one.name: one.archived for one in packages} == {
        "alone": True,
        "shared_names.inner": True,
        "theirs": False,
    }
    with tarfile.open(fileobj=io.BytesIO(code.archive(packages))) as archive:
        assert archive.getnames() == ["alone.py", "shared_names/inner/__init__.py", "shared_names/inner/late.py"]
