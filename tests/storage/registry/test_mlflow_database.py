"""MLflow's SQLite file where its making was interrupted."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from loomrl.errors import ServiceError
from loomrl.storage.registry import Registry


@pytest.fixture
def half_made(loomrl_home: Path) -> Path:
    """As MLflow leaves it when it is killed in its second migration: a column is there, its version is not."""
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    path = loomrl_home / "mlflow.db"
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()
    with closing(sqlite3.connect(path)) as file:
        file.execute("ALTER TABLE metrics ADD COLUMN step BIGINT DEFAULT '0' NOT NULL")
    return path


def test_a_registry_is_found_by_a_uri_with_settings_too(ready_home: Path) -> None:
    for _ in range(2):
        assert Registry(f"sqlite:///{ready_home / 'mlflow.db'}?timeout=5").policies() == []


def test_tables_whose_making_is_interrupted_are_in_no_file(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(engine: Engine) -> None:
        Base.metadata.create_all(engine)
        raise KeyboardInterrupt

    from mlflow.store.tracking.dbmodels.initial_models import Base

    with monkeypatch.context() as patch:
        patch.setattr("mlflow.store.db.utils._initialize_tables", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Registry().policies()
    with closing(sqlite3.connect(loomrl_home / "mlflow.db")) as file:
        assert file.execute("SELECT name FROM sqlite_master").fetchall() == []
    assert Registry().policies() == []


def test_a_file_of_empty_tables_is_made_anew(half_made: Path) -> None:
    assert Registry().policies() == []


def test_an_empty_file_is_made_anew(loomrl_home: Path) -> None:
    (loomrl_home / "mlflow.db").touch()
    assert Registry().policies() == []


def test_a_file_that_holds_rows_is_kept_and_named(half_made: Path) -> None:
    with closing(sqlite3.connect(half_made)) as file:
        file.execute("INSERT INTO experiments (experiment_id, name) VALUES (7, 'mine')")
        file.commit()
    with pytest.raises(ServiceError, match=f"{half_made}.*loomrl backup"):
        Registry().policies()
    with closing(sqlite3.connect(half_made)) as file:
        assert file.execute("SELECT name FROM experiments WHERE experiment_id = 7").fetchone() == ("mine",)


def test_what_is_no_database_is_kept_and_named(loomrl_home: Path) -> None:
    path = loomrl_home / "mlflow.db"
    path.write_bytes(b"notes of a person, no database" * 10)
    with pytest.raises(ServiceError, match=f"{path}.*loomrl backup"):
        Registry().policies()
    assert path.read_bytes() == b"notes of a person, no database" * 10
