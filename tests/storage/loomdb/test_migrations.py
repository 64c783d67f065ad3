"""Opening a database makes the schema of the models, once, whoever opens it and whichever revision it had."""

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect, text

from loomrl.errors import ServiceError
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.loomdb.models import HEAD, Base

OPEN = (
    "import sys; from loomrl.storage.loomdb.database import LoomDB; LoomDB.open(sys.argv[1]).record_event('opened', {})"
)
TAKEN_BACK = {  # by revision: what makes the schema of the one before it
    "0007": ("DROP INDEX ix_events_place", "ALTER TABLE events DROP COLUMN place"),
    "0006": ("ALTER TABLE controls DROP COLUMN replaces",),
    "0005": ("DROP TABLE monitor_evidence",),
    "0004": ("DROP TABLE audit_anchors",),
    "0003": ("ALTER TABLE audit_heads DROP COLUMN keyid", "ALTER TABLE audit_heads DROP COLUMN signature"),
    "0002": ("DROP TABLE controls",),
}


def differences(engine: Engine) -> list[object]:
    """Between a database's schema and the models, as Alembic sees them."""
    with engine.connect() as connection:
        found: list[object] = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    return found


def revision(engine: Engine) -> str:
    with engine.connect() as connection:
        (found,) = connection.execute(text("SELECT version_num FROM alembic_version")).scalars()
    return str(found)


def test_every_revision_can_be_taken_back() -> None:
    assert list(TAKEN_BACK) == [f"{number:04d}" for number in range(int(HEAD), 1, -1)]


def test_a_new_database_has_the_schema_of_the_models(database_url: str) -> None:
    LoomDB.open(database_url).close()
    engine = create_engine(database_url)
    assert (differences(engine), revision(engine)) == ([], HEAD)
    engine.dispose()


@pytest.mark.parametrize("before", [f"{number:04d}" for number in range(1, int(HEAD))])
def test_a_database_of_an_earlier_revision_gets_what_it_lacks(before: str, database_url: str) -> None:
    with LoomDB.open(database_url) as database:
        database.record_event("kept", {"policy": "cartpole"})
    engine = create_engine(database_url)
    with engine.begin() as connection:
        for statement in (one for later, found in TAKEN_BACK.items() if later > before for one in found):
            connection.execute(text(statement))
        connection.execute(text("UPDATE alembic_version SET version_num = :before"), {"before": before})
    assert differences(engine) != []
    with LoomDB.open(database_url) as database:
        assert [event.data for event in database.events("kept")] == [{"policy": "cartpole"}]
        assert [database.add_event("taken", {}, "here") for _ in range(2)] == [True, False]
    assert (differences(engine), revision(engine)) == ([], HEAD)
    engine.dispose()


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


def test_opening_needs_no_alembic(tmp_path: Path) -> None:
    """Neither a new database nor a current one."""
    program = f"import sys; sys.modules['alembic'] = None\n{OPEN}"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, f"sqlite:///{tmp_path / 'loom.db'}"], check=True)


@pytest.mark.parametrize("unknown", ["9999", "0000", "another"])
def test_a_newer_schema_is_left_alone(unknown: str, database_url: str) -> None:
    LoomDB.open(database_url).close()
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :unknown"), {"unknown": unknown})
    with pytest.raises(ServiceError, match=f"has schema '{unknown}', made by a newer LoomRL"):
        LoomDB.open(database_url)
    assert revision(engine) == unknown
    engine.dispose()


def test_a_migration_that_fails_leaves_nothing_behind(database_url: str) -> None:
    """One of the tables exists already, before there is any revision."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE edges (id INTEGER PRIMARY KEY)"))
    with pytest.raises(ServiceError, match="edges"):
        LoomDB.open(database_url)
    assert inspect(engine).get_table_names() == ["edges"]
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE edges"))
    engine.dispose()
    LoomDB.open(database_url).close()
