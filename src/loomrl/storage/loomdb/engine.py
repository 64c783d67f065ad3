"""SQLAlchemy engines as LoomDB needs them."""

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.storage.sqlite import file_of
from loomrl.system.files import private_database

BUSY_SECONDS = 30
WRITES = "loomrl_writes"  # execution option of the engine that writing transactions use
MIGRATES = "loomrl_migrates"  # execution option of a connection that migrates: it may work, and wait, for long
MIGRATION_SECONDS = 120  # that whoever migrates waits for a lock, and for another that does


def make_engine(url: str, wait_seconds: int = BUSY_SECONDS) -> Engine:
    """An engine for a SQLAlchemy URL. The file of a SQLite database is made; no other database is asked yet.

    `wait_seconds` is how long its connections wait for a lock, or for a server to take a connection. With
    one shorter than `BUSY_SECONDS` a statement may take twice as long at a server: whoever names it cannot wait.

    Raises:
        ConfigError: when the URL is not one, or its driver is not installed.
        ArtifactError: when the folder of a SQLite file cannot be made.
    """
    parsed = _parse(url)
    try:
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed, wait_seconds)
        engine = create_engine(parsed, pool_pre_ping=True, connect_args=_waits(parsed, wait_seconds))
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        fix = "pip install 'loomrl[postgresql]'" if "psycopg" in str(error) else "use sqlite or postgresql+psycopg"
        raise ConfigError(f"LoomDB URL {parsed.render_as_string()}: {error}; {fix}") from error
    if engine.dialect.name == "postgresql":
        _bound(engine, wait_seconds)
    return engine


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigError(
            f"LOOMRL_DATABASE_URL {url!r} is not a database URL; write sqlite:///path or postgresql+psycopg://..."
        ) from error
    if parsed.drivername in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _waits(url: URL, seconds: int) -> dict[str, int]:
    """libpq's time-outs for connecting and for what was sent and is not confirmed; what the URL says comes first."""
    if url.get_driver_name() != "psycopg":
        return {}
    waits = {"connect_timeout": seconds, "tcp_user_timeout": 1_000 * seconds}
    return {name: value for name, value in waits.items() if name not in url.query}


def _bound(engine: Engine, wait_seconds: int) -> None:
    """Have PostgreSQL end statements that wait, or take, too long. Each transaction says so for itself: a pooler
    between may give the next one another connection.
    """
    statement_seconds = 2 * wait_seconds if wait_seconds < BUSY_SECONDS else 0  # 0: as long as it takes

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        migrates = connection.get_execution_options().get(MIGRATES, False)
        lock, statement = (MIGRATION_SECONDS, 0) if migrates else (wait_seconds, statement_seconds)
        connection.exec_driver_sql(
            f"SELECT set_config('lock_timeout', '{lock}s', true), set_config('statement_timeout', '{statement}s', true)"
        )


def _sqlite(url: URL, wait_seconds: int) -> Engine:
    path = file_of(url)
    if path is None:
        engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        _make_file(path)
        engine = create_engine(url, connect_args={"timeout": wait_seconds})

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: Any) -> None:
        # The driver starts transactions late and only for writes; `_begin` below starts them where they begin.
        connection.isolation_level = None
        connection.text_factory = _text
        if path is not None:
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA busy_timeout={wait_seconds * 1000}")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads and then writes fails at once, without waiting, when another one wrote meanwhile.
        # One that takes the write lock at its start waits for it instead.
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _text(data: bytes) -> str | bytes:
    """What is no UTF-8 stays bytes: it damages the row that holds it, and not the answer to a query over many."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _make_file(path: Path) -> None:
    try:
        private_database(path)
    except OSError as error:
        raise ArtifactError(f"cannot make the folder of LoomDB {path}: {error.strerror}") from error


def unreachable(engine: Engine, error: SQLAlchemyError) -> ServiceError:
    """The error for a database call that failed; it names the database, the cause and the fix."""
    cause = getattr(error, "orig", None) or error
    where = engine.url.render_as_string(hide_password=True)
    return ServiceError(f"LoomDB at {where} failed: {cause}; check that it runs, or set LOOMRL_DATABASE_URL")
