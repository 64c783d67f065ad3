"""`make release`: what is built is what was committed; its bill of materials lists what is pinned of the product."""

import hashlib
import json
import re
import tarfile
import tomllib
import zipfile
from importlib.metadata import Distribution, distributions
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.release.bill_of_materials import NOT_KNOWN, license_of, license_of_text, product
from tests.support.planted import PLANTED
from tests.support.projects import ROOT, copy_project, git, run

PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def release(project: Path) -> Path:
    """Make it; returns the folder it lies in."""
    run(project, "make", "release", MAKEFLAGS="", VENV=str(project / ".venv"))
    return project / "dist"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a release, and with a secret that nobody committed where wheels take their data from."""
    made = copy_project(tmp_path_factory.mktemp("release") / "project")
    (made / "src" / "loomrl" / "safety" / "local.json").write_text(json.dumps({"password": PLANTED}))
    (made / "src" / "loomrl" / "local.py").write_text(f"password = '{PLANTED}'\n")
    release(made)
    return made


@pytest.fixture(scope="module")
def bill(project: Path) -> dict[str, Any]:
    (path,) = (project / "dist").glob("*.cdx.json")
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def listed(bill: dict[str, Any]) -> dict[str, str]:
    """Version by name."""
    return {canonicalize_name(one["name"]): one["version"] for one in bill["components"]}


@pytest.mark.long
def test_it_is_a_wheel_a_source_archive_the_pins_and_a_bill(project: Path) -> None:
    name = f"loomrl-{PROJECT['version']}"
    expected = {f"{name}-py3-none-any.whl", f"{name}.tar.gz", f"{name}.cdx.json", "constraints.txt"}
    assert {path.name for path in (project / "dist").iterdir()} == expected
    assert (project / "dist" / "constraints.txt").read_text() == (ROOT / "constraints.txt").read_text()


@pytest.mark.long
def test_the_wheel_holds_the_committed_package_with_its_data_and_nothing_else(project: Path) -> None:
    """So it holds no secret where the tree does not: `tests/system/security/test_secret_files.py`."""
    (path,) = (project / "dist").glob("*.whl")
    committed = git(project, "ls-tree", "-r", "-z", "--name-only", "HEAD", "src/loomrl").split("\0")
    expected = {name.removeprefix("src/") for name in committed if name}
    assert {"loomrl/safety/controls.yaml", "loomrl/serving/api/dashboard/static/page.js", "loomrl/py.typed"} <= expected
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == expected
        assert all(wheel.read(name) == (project / "src" / name).read_bytes() for name in names)


def test_neither_tests_nor_what_was_not_committed_is_in_the_source_archive(project: Path) -> None:
    (path,) = (project / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = [one for one in archive if one.isfile()]
        names = {one.name.partition("/")[2] for one in members}
        assert {"pyproject.toml", "LICENSE", "src/loomrl/cli/main.py", "src/loomrl/safety/controls.yaml"} <= names
        assert not {name for name in names if name.startswith(("tests/", "benchmarks/", "."))}
        assert not names & {"src/loomrl/local.py", "src/loomrl/safety/local.json"}
        contents = [file.read() for one in members if (file := archive.extractfile(one)) is not None]
    assert not any(PLANTED.encode() in content for content in contents)


@pytest.mark.long
def test_the_same_commit_gives_the_same_bytes_elsewhere(project: Path, tmp_path: Path) -> None:
    git(project, "clone", "--quiet", str(project), str(tmp_path / "clone"))
    (tmp_path / "clone" / ".venv").symlink_to((project / ".venv").resolve(), target_is_directory=True)
    made, again = (
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
        for folder in (project / "dist", release(tmp_path / "clone"))
    )
    assert made == again


def test_the_bill_is_valid(bill: dict[str, Any]) -> None:
    names = [f"{name}.SNAPSHOT.schema.json" for name in ("bom-1.6", "spdx", "jsf-0.82")]
    schema, *others = (json.loads((files("cyclonedx.schema") / "_res" / name).read_text()) for name in names)
    places = [schema["$id"].replace("bom-1.6.schema.json", name) for name in names[1:]]
    registry = jsonschema_rs.Registry(list(zip(places, others, strict=True)))
    validator = jsonschema_rs.validator_for(schema, registry=registry)
    assert [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(bill)] == []
    assert not validator.is_valid(bill | {"components": [{"name": "without a type"}]})


def test_the_bill_lists_what_is_pinned_of_the_product_and_no_tool_of_developers(bill: dict[str, Any]) -> None:
    versions = listed(bill)
    assert len(versions) == len(bill["components"])
    assert versions.items() <= PINS.items()
    assert {"torch", "aiohttp", "psycopg-binary"} <= versions.keys()  # by itself, through others, by an extra
    tools = {canonicalize_name(Requirement(text).name) for text in EXTRAS["dev"]} - {"loomrl", "setuptools"}
    assert not {*tools, "iniconfig", "mypy-extensions"} & versions.keys()
    installed = {canonicalize_name(one.name): one for one in distributions()}

    def needs(name: str, extra: str) -> list[Requirement]:
        found = map(Requirement, installed[name].requires or () if name in installed else ())
        return [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]

    direct = [Requirement(text) for name in EXTRAS if name != "dev" for text in EXTRAS[name]]
    direct += map(Requirement, PROJECT["dependencies"])
    for requirement in [*direct, *(one for name in versions for one in needs(name, ""))]:
        name = canonicalize_name(requirement.name)
        assert name in versions
        for extra in ("", *requirement.extras):
            assert {canonicalize_name(one.name) for one in needs(name, extra)} <= versions.keys(), requirement


def test_the_bill_says_who_needs_what_and_under_whichlicense_of(bill: dict[str, Any]) -> None:
    root = bill["metadata"]["component"]
    needs = {one["ref"]: set(one["dependsOn"]) for one in bill["dependencies"]}
    by_name = {canonicalize_name(one["name"]): one for one in bill["components"]}
    assert by_name["pydantic-core"]["bom-ref"] in needs[by_name["pydantic"]["bom-ref"]]
    assert by_name["pydantic"]["bom-ref"] in needs[root["bom-ref"]]
    assert by_name["pydantic-core"]["bom-ref"] not in needs[root["bom-ref"]]
    licenses = {name: json.dumps(one.get("licenses")) for name, one in by_name.items()}
    assert '"id": "MIT"' in licenses["pydantic"]
    assert "GNU GENERAL PUBLIC LICENSE" in licenses["stormpy"]
    # No one declares what these three are, but their license files; these two are not installed.
    for name, expected in (("huey", "MIT"), ("zss", "BSD-3-Clause"), ("sigstore-models", "MIT")):
        assert by_name[name]["licenses"] == [{"license": {"id": expected, "acknowledgement": "concluded"}}]
    for name in ("optree", "dm-env"):
        assert by_name[name]["licenses"] == [{"license": {"id": "Apache-2.0", "acknowledgement": "declared"}}]
    assert [name for name, found in licenses.items() if found == "null" or NOT_KNOWN in found] == []
    assert str(Path.home()) not in json.dumps(bill)
    assert str(ROOT) not in json.dumps(bill)


def test_a_license_that_nobody_declares_is_said_to_be_unknown(tmp_path: Path) -> None:
    """A new pin of what is not installed, a package that says nothing, and one whose text is no known license."""
    silent = package(tmp_path, "silent")
    assert license_of("optree==0.20.1", None) == license_of("silent==1", silent) == {"name": NOT_KNOWN}
    assert license_of_text("Do what you like.") is None
    apache = "Apache License\n   Version 2.0, January 2004 ... 3. Grant of Patent License."
    assert license_of_text(apache) == "Apache-2.0"


def package(folder: Path, name: str, *requires: str) -> Distribution:
    """An installed one that needs others."""
    metadata = folder / f"{name}-1.dist-info"
    metadata.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1", *(f"Requires-Dist: {one}" for one in requires)]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n")
    return Distribution.at(metadata)


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, Distribution]:
    made = [
        package(
            tmp_path, "web", "socket", 'fast; extra == "speed"', 'docs; extra == "docs"', 'x; python_version < "3"'
        ),
        *(package(tmp_path, name) for name in ("socket", "fast", "docs", "linter-core", "loop-b")),
        package(tmp_path, "linter", "linter-core", "socket"),
        package(tmp_path, "loop-a", "Loop_B"),
    ]
    return {one.name: one for one in made}


def test_what_only_tools_need_is_left_out(installed: dict[str, Distribution]) -> None:
    pins = {"web", "socket", "fast", "docs", "linter", "linter-core", "loop-a", "loop-b", "gpu", "gpu-core"}
    extras = {"gpu": ["gpu"], "loop": ["Loop.A"], "dev": ["thing[gpu]", "linter>=1", "docs"]}
    project = {"name": "thing", "dependencies": ["web[speed]>=1"], "optional-dependencies": extras}
    names, needs = product(project, pins, installed)
    assert names == {"web", "socket", "fast", "loop-a", "loop-b", "gpu", "gpu-core"}
    assert needs["thing"] == {"web", "gpu", "loop-a"}
    assert needs["web"] == {"socket", "fast"}
    assert needs["loop-a"] == {"loop-b"}


def test_what_is_needed_and_not_pinned_is_named(installed: dict[str, Distribution]) -> None:
    project = {"name": "thing", "dependencies": ["web"], "optional-dependencies": {"dev": []}}
    with pytest.raises(SystemExit, match="not in constraints.txt, and needed: socket"):
        product(project, {"web"}, installed)
