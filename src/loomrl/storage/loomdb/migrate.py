"""Bring a database to the newest schema, safely also when several processes open it at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from loomrl.errors import ServiceError
from loomrl.storage.loomdb.engine import MIGRATES, MIGRATION_SECONDS
from loomrl.storage.loomdb.models import HEAD
from loomrl.storage.sqlite import file_of
from loomrl.system.locks import hold_lock

_ADVISORY_LOCK = 0x100D_B001  # any number that nobody else in the database uses
_NO_TABLE = "42P01"  # PostgreSQL's code for a table that is not there


def ensure_schema(engine: Engine) -> None:
    """Bring the schema to the newest revision; nothing is done where it is there. One process migrates, others wait.

    Raises:
        ServiceError: when the database was made by a newer LoomRL, it is left as it is; when another process migrates a
            SQLite file for more than two minutes; when `alembic_version` was changed by hand.
        sqlalchemy.exc.SQLAlchemyError: when the database cannot be reached, stays locked, or refuses a migration.
    """
    with engine.connect() as connection:
        if current_revision(connection) == HEAD:
            return
    with _exclusively(engine) as connection:
        revision = current_revision(connection)
        if revision != HEAD:
            _upgrade(connection, revision)


def current_revision(connection: Connection) -> str | None:
    """The schema's revision, such as "0007"; None in an empty database.

    Raises:
        sqlalchemy.exc.DBAPIError: when the database cannot be reached or fails.
    """
    try:
        with connection.begin_nested() if connection.in_transaction() else connection.begin():
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == _NO_TABLE or "no such table: alembic_version" in str(error.orig):
            return None
        raise


def _upgrade(connection: Connection, revision: str | None) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise ServiceError(
            f"LoomDB at {connection.engine.url.render_as_string()} has schema {revision!r}, made by a newer LoomRL "
            f"(this one knows {HEAD!r}); upgrade LoomRL"
        )
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, HEAD)
    except CommandError as error:
        raise ServiceError(
            f"LoomDB at {connection.engine.url.render_as_string()}: its table alembic_version was changed: {error}; "
            "restore it from a backup"
        ) from error
    connection.commit()


@contextmanager
def _exclusively(engine: Engine) -> Iterator[Connection]:
    """A connection of the only process that migrates now; the others wait."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(**{MIGRATES: True}) as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_LOCK})
            connection.commit()
            try:
                yield connection
            finally:
                connection.rollback()
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _ADVISORY_LOCK})
                connection.commit()
        return
    if (path := file_of(engine.url)) is not None:
        with hold_lock(path.with_name(f"{path.name}.migrate.lock"), MIGRATION_SECONDS), engine.connect() as connection:
            yield connection
        return
    with engine.connect() as connection:
        yield connection
