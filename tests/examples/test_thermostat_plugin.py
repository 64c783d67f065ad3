"""A package of others goes through the whole life cycle by its entry points alone, as its README says."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from projects import copy_project, environment, records, run

EXAMPLE = "examples/thermostat_plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A copy of the project, and the PYTHONPATH on which the plug-in is installed."""
    folder = tmp_path_factory.mktemp("plug-in")
    project, packages = copy_project(folder / "project"), folder / "packages"
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    run(project, *install, "--no-build-isolation", "--target", str(packages), EXAMPLE)
    return project, f"{packages}{os.pathsep}{environment(project)['PYTHONPATH']}"


def readme_commands(project: Path) -> list[str]:
    text = (project / EXAMPLE / "README.md").read_text()
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


@pytest.mark.usefixtures("shared_prefect")
def test_the_readme_takes_it_through_the_life_cycle(installed: tuple[Path, str]) -> None:
    project, python_path = installed
    install, *commands = readme_commands(project)
    assert install.endswith(EXAMPLE)
    for command in commands:
        run(project, "bash", "-c", command, PYTHONPATH=python_path)
    (record,) = records(project)
    assert (record["policy"], record["state"]) == ("thermostat", "promoted")


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
