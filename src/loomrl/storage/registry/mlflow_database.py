"""MLflow's tables in a SQLite file: all of them, or none.

MLflow makes them in some hundred transactions, one for each step of their history. A process that is killed among
these leaves a file that no later one can bring further. Here they are made in memory and copied to the file in one
transaction of SQLite, which rolls back what was interrupted when the file is opened again.
"""

import sqlite3
from contextlib import closing

from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.pool import StaticPool

from loomrl.storage.sqlite import file_of
from loomrl.system.files import private_database

_WRITTEN_BY_MIGRATIONS = ("alembic_version", "workspaces")  # hold a row of their own before anybody stored anything
_READ_SECONDS = (
    10.0  # that a file may be locked for, where the URI has no `timeout`: servers start without a registry, too
)
_WRITE_SECONDS = 60.0  # that another process may take to make the tables


def ensure_tables(uri: str) -> None:
    """Make MLflow's tables, all or none, in the file of a SQLite URI; its folder and file are made too.

    Nothing is touched where a table of the file holds a row, nor for the URI of a server or of another database.

    Raises:
        sqlite3.DatabaseError: when the file is no database, or stays locked.
        OSError: when the file's folder cannot be made.
    """
    path = file_of(uri)
    if path is None:
        return
    private_database(path)
    seconds = float(str(make_url(uri).query.get("timeout", _READ_SECONDS)))
    with closing(sqlite3.connect(path, timeout=seconds)) as file:
        if not _holds_rows(file):
            _copy_new_tables(file)


def _holds_rows(file: sqlite3.Connection) -> bool:
    names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    own = [name for name in names if name not in _WRITTEN_BY_MIGRATIONS]
    return any(file.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone() for name in own)


def _copy_new_tables(file: sqlite3.Connection) -> None:
    from mlflow.store.db.utils import _initialize_tables  # what its own stores call for a file without tables

    file.execute(f"PRAGMA busy_timeout = {_WRITE_SECONDS * 1000:.0f}")
    made = sqlite3.connect(":memory:", check_same_thread=False)
    engine = create_engine("sqlite://", creator=lambda: made, poolclass=StaticPool)
    try:
        _initialize_tables(engine)  # type: ignore[no-untyped-call]
        made.backup(file)
    finally:
        engine.dispose()
