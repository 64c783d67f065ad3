"""Fixtures every room may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from projects import SHARED, copy_project, prefect_server, run
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


@pytest.fixture(scope="session")
def running_prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server; a run on it starts ten seconds sooner than one that starts its own."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:
        yield url


@pytest.fixture
def shared_prefect(running_prefect: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run this test's commands on the shared Prefect server; its API's URL."""
    monkeypatch.setitem(SHARED, "PREFECT_API_URL", running_prefect)
    return running_prefect
