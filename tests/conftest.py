"""Fixtures every room may use."""

from pathlib import Path

import pytest
from projects import copy_project, run
from template_home import ready_home, template_home

__all__ = ["ready_home", "template_home"]


@pytest.fixture
def loomrl_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty LOOMRL_HOME of the test's own."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("LOOMRL_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("LOOMRL_DATABASE_URL", raising=False)
    return home


@pytest.fixture(scope="session")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this project in which CartPole went through its life cycle once. Never change it: copy it."""
    project = copy_project(tmp_path_factory.mktemp("finished") / "project")
    run(project, "loomrl", "run", "configs/cartpole.yaml")
    return project
