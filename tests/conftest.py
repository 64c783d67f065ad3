"""Fixtures every room may use."""

from pathlib import Path

import pytest
from filelock import FileLock
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
def finished_project(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A copy of this project in which CartPole went through its life cycle once. Never change it: copy it."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent  # parallel workers share one
    project, done = shared / "finished" / "project", shared / "finished" / "done"
    (shared / "finished").mkdir(exist_ok=True)
    with FileLock(shared / "finished" / "lock"):
        if not done.exists():
            copy_project(project)
            run(project, "loomrl", "run", "configs/cartpole.yaml")
            done.touch()
    return project
