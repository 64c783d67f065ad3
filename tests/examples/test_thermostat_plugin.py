"""A package of others goes through the whole life cycle by its entry points alone, as its README says."""

import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.projects import copy_project, environment, records, run

EXAMPLE = "examples/thermostat_plugin"
OPTIMIZER = "import torch\n\ndef Descent(parameters, learning_rate):\n    return torch.optim.{}\n"
IMPORTS = "import torch\nfrom descent import Descent\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A copy of the project, and the PYTHONPATH on which the plug-in is installed."""
    folder = tmp_path_factory.mktemp("plug-in")
    project, packages = copy_project(folder / "project"), folder / "packages"
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    run(project, *install, "--no-build-isolation", "--target", str(packages), EXAMPLE)
    use_an_optimizer_of_others(packages)
    return project, f"{packages}{os.pathsep}{environment(project)['PYTHONPATH']}"


def use_an_optimizer_of_others(packages: Path) -> None:
    """The plug-in imports its optimiser from another package, which names no entry point of LoomRL's."""
    (packages / "descent").mkdir()
    (packages / "descent" / "__init__.py").write_text(OPTIMIZER.format("Adam(parameters, learning_rate)"))
    (packages / "descent-1.0.dist-info").mkdir()
    (packages / "descent-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: descent\nVersion: 1.0\n")
    (packages / "descent-1.0.dist-info" / "top_level.txt").write_text("descent\n")
    module = packages / "loomrl_thermostat" / "reinforce.py"
    text = module.read_text()
    assert "torch.optim.Adam(" in text
    module.write_text(text.replace("torch.optim.Adam(", "Descent(").replace("import torch\n", IMPORTS, 1))


def readme_commands(project: Path) -> list[str]:
    text = (project / EXAMPLE / "README.md").read_text()
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


@pytest.fixture(scope="module")
def promoted(installed: tuple[Path, str], running_prefect: str) -> tuple[Path, str]:
    """The same, after all that the README says."""
    project, python_path = installed
    install, *commands = readme_commands(project)
    assert install.endswith(EXAMPLE)
    for command in commands:
        run(project, "bash", "-c", command, PYTHONPATH=python_path, PREFECT_API_URL=running_prefect)
    return installed


@pytest.mark.long
def test_the_readme_takes_it_through_the_life_cycle(promoted: tuple[Path, str]) -> None:
    project, python_path = promoted
    (record,) = records(project)
    assert (record["policy"], record["state"]) == ("thermostat", "promoted")
    for stage in ("training", "evaluation", "safety", "export"):
        assert [package["name"] for package in plugins(project, stage)] == ["descent", "loomrl_thermostat"]
    archive = project / "artifacts" / "thermostat" / "training" / "plugins.tar"
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as archived:
        assert {"descent/__init__.py", "loomrl_thermostat/reinforce.py"} <= set(archived.getnames())
    (optimizer, _) = plugins(project, "export")
    node = f"plugin:descent@{optimizer['digest']}"
    forward = run(project, "loomrl", "policy", "lineage", node, "--json", PYTHONPATH=python_path)
    assert "policy:thermostat@1" in json.loads(forward)["found"]
    backward = json.loads(run(project, "loomrl", "policy", "lineage", "thermostat@1", "--json", PYTHONPATH=python_path))
    assert f"policy:thermostat@1 made_with {node}" in backward["edges"]
    for origin in ("plugin:descent", node[:-50]):
        decisions = run(project, "loomrl", "policy", "decisions", origin, "--json", PYTHONPATH=python_path)
        assert [version["version"] for version in json.loads(decisions)["versions"]] == ["1"]


def plugins(project: Path, stage: str) -> list[dict[str, str]]:
    """The packages of others that a stage's output names."""
    document = json.loads((project / "artifacts" / "thermostat" / stage / "plugins.json").read_text())
    packages: list[dict[str, str]] = document["packages"]
    return packages


@pytest.mark.long
def test_it_holds_to_the_conformance_suite(installed: tuple[Path, str]) -> None:
    project, python_path = installed
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-k", "reinforce", "tests/algorithms/test_conformance.py")
    output = run(project, *pytest_command, PYTHONPATH=python_path)
    assert " passed" in output


def test_a_plug_in_that_cannot_be_imported_is_named(installed: tuple[Path, str], tmp_path: Path) -> None:
    project, python_path = installed
    packages = shutil.copytree(python_path.partition(os.pathsep)[0], tmp_path / "packages")
    (packages / "loomrl_thermostat" / "environment.py").write_text("import no_such_module\n")
    python_path = f"{packages}{os.pathsep}{environment(project)['PYTHONPATH']}"
    output = run(project, "loomrl", "env", "check", "Thermostat-v0", expect=2, PYTHONPATH=python_path)
    assert "entry point loomrl.environments: thermostat" in " ".join(output.split())


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_an_installed_optimizer_that_was_replaced_trains_again(promoted: tuple[Path, str]) -> None:
    """It never learns now, and its version is what it was."""
    project, python_path = promoted
    packages = Path(python_path.partition(os.pathsep)[0])
    before = plugins(project, "training")
    output = run(project, "loomrl", "run", "configs/thermostat.yaml", PYTHONPATH=python_path)
    assert "is made again" not in output
    (packages / "descent" / "__init__.py").write_text(OPTIMIZER.format("SGD(parameters, 0.0)"))
    output = run(project, "loomrl", "run", "configs/thermostat.yaml", expect=1, PYTHONPATH=python_path)
    assert "training: code of descent is not what made the last output" in " ".join(output.split())
    latest = max(records(project), key=lambda record: record["started"])
    statuses = {stage["name"]: stage["status"] for stage in latest["stages"]}
    assert (statuses["environment"], statuses["training"]) == ("unchanged", "ran")
    after = plugins(project, "training")
    assert [package["version"] for package in after] == [package["version"] for package in before]
    assert [package["digest"] for package in after] != [package["digest"] for package in before]
