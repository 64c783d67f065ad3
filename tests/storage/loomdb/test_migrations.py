"""The schema comes from migrations only; opening applies them, once, whoever opens."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

import loomrl.storage.loomdb
from loomrl.errors import ServiceError
from loomrl.storage.loomdb import migrate
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.loomdb.models import HEAD, Base
from tests.support.databases import tables_locked
from tests.support.inside import wait_for

OPEN = (
    "import sys; from loomrl.storage.loomdb.database import LoomDB; LoomDB.open(sys.argv[1]).record_event('opened', {})"
)


def test_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(loomrl.storage.loomdb.__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_migrations_and_models_agree(database_url: str) -> None:
    LoomDB.open(database_url).close()
    engine = create_engine(database_url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


@pytest.mark.long_cases("postgresql")
def test_several_processes_open_an_empty_database_at_once(database_url: str) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", OPEN, database_url], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    with LoomDB.open(database_url) as database:
        assert len(database.events("opened")) == 4


def test_opening_a_current_database_needs_no_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'loom.db'}"
    LoomDB.open(url).close()
    program = f"import sys; sys.modules['alembic'] = None\n{OPEN}"
    subprocess.run([sys.executable, "-c", program, url], check=True)


def test_a_newer_schema_is_left_alone(database_url: str) -> None:
    LoomDB.open(database_url).close()
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ServiceError, match="has schema '9999', made by a newer LoomRL"):
        LoomDB.open(database_url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"
    engine.dispose()


def test_a_migration_that_fails_leaves_nothing_behind(database_url: str) -> None:
    """The third of the first migration's tables exists already."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE edges (id INTEGER PRIMARY KEY)"))
    with pytest.raises(ServiceError, match="edges"):
        LoomDB.open(database_url)
    assert "environments" not in inspect(engine).get_table_names()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE edges"))
    engine.dispose()
    LoomDB.open(database_url).close()


def test_a_locked_table_of_revisions_is_not_taken_for_a_missing_one(postgresql_url: str) -> None:
    LoomDB.open(postgresql_url).close()
    with tables_locked(postgresql_url, "alembic_version"), pytest.raises(ServiceError, match="lock timeout"):
        LoomDB.open(postgresql_url, wait_seconds=1)
    LoomDB.open(postgresql_url, wait_seconds=1).close()


def test_a_migration_takes_as_long_as_it_takes_also_where_who_opens_cannot_wait(postgresql_url: str) -> None:
    """The other one that migrates holds the lock of migrations longer than a statement may take otherwise."""
    holder = create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    with holder.connect() as connection, ThreadPoolExecutor() as pool:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": migrate._ADVISORY_LOCK})
        opened = pool.submit(LoomDB.open, postgresql_url, 1)
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_advisory_lock%' AND pid != pg_backend_pid()"
        )
        is_longer = text(f"{query} AND now() - query_start > interval '3 seconds'")
        wait_for(lambda: connection.execute(is_longer).scalar() == 1)
        connection.execute(text("SELECT pg_advisory_unlock_all()"))
        with opened.result() as database:
            assert database.events() == []
    holder.dispose()
