"""An LOOMRL_HOME with empty databases, made once a session and copied: MLflow needs seconds to make its tables."""

import shutil
from pathlib import Path

import pytest

from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import Registry


@pytest.fixture(scope="session")
def template_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never change it: copy it."""
    home = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOMRL_HOME", str(home))
        assert Registry(f"sqlite:///{home / 'mlflow.db'}").policies() == []
        LoomDB.open(f"sqlite:///{home / 'loom.db'}").close()
    return home


@pytest.fixture
def ready_home(template_home: Path, loomrl_home: Path) -> Path:
    """A home of the test's own whose databases are there already."""
    for name in ("mlflow.db", "loom.db"):
        shutil.copy2(template_home / name, loomrl_home / name)
    return loomrl_home
