"""Databases with empty tables, made once a session and copied: MLflow and Prefect need seconds to make theirs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import Registry


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that all workers of a session share, and that the first to ask for it fills."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / name
    with FileLock(shared / f"{name}.lock"):
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one who failed
            folder.mkdir()
            make(folder)
            (folder / "done").touch()
    return folder


@pytest.fixture(scope="session")
def template_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never change it: copy it."""
    return made_once(tmp_path_factory, "template", _make_home)


def _make_home(home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOMRL_HOME", str(home))
        assert Registry(f"sqlite:///{home / 'mlflow.db'}").policies() == []
        LoomDB.open(f"sqlite:///{home / 'loom.db'}").close()


@pytest.fixture
def ready_home(template_home: Path, loomrl_home: Path) -> Path:
    """A home of the test's own whose databases are there already."""
    for name in ("mlflow.db", "loom.db"):
        shutil.copy2(template_home / name, loomrl_home / name)
    return loomrl_home


@contextmanager
def at_home(home: Path, template_home: Path) -> Iterator[None]:
    """A new home that is the LOOMRL_HOME of what happens in the block: to make what tests of a file copy."""
    shutil.copytree(template_home, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOMRL_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("LOOMRL_DATABASE_URL", raising=False)
        yield


@pytest.fixture(scope="session")
def prefect_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a Prefect server finds as `prefect.db` in its PREFECT_HOME. Never start one on it: copy it."""
    return made_once(tmp_path_factory, "template-prefect", _make_prefect) / "prefect.db"


def _make_prefect(folder: Path) -> None:
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    subprocess.run(command, env={**os.environ, "PREFECT_HOME": str(folder)}, check=True, capture_output=True)


def put_server_databases(home: Path, template_home: Path, prefect_database: Path) -> None:
    """Let the servers of a home begin with what they would make at their first start."""
    (home / "prefect").mkdir()
    shutil.copy2(prefect_database, home / "prefect" / "prefect.db")
    shutil.copy2(template_home / "mlflow.db", home / "mlflow.db")
