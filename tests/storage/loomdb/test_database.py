"""LoomDB's statements, each on SQLite and on a real PostgreSQL server."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.storage.loomdb.database import DamagedRow, LoomDB
from loomrl.storage.loomdb.records import AuditAnchor, EnvironmentRecord


@pytest.fixture
def database(database_url: str) -> Iterator[LoomDB]:
    with LoomDB.open(database_url) as opened:
        yield opened


def record(version: str = "1", **changes: object) -> EnvironmentRecord:
    fields = {
        "name": "pendulum",
        "version": version,
        "entry_point": "m:C",
        "kwargs": {"gravity": 9.81, "names": ["ä", None]},
        "max_episode_steps": 100,
        "reward_threshold": 1.5,
        "source_digest": "a" * 64,
        "source_roots": ["m"],
        "path": "/somewhere",
        "created": datetime.now(UTC),
        **changes,
    }
    return EnvironmentRecord.model_validate(fields)


def test_environments(database: LoomDB) -> None:
    first = record()
    assert database.register_environment(first, b"\x00source") == first
    assert database.find_environment("pendulum") == first
    assert database.environment_source("pendulum", "1") == b"\x00source"
    database.register_environment(record("0.9"), b"second")
    newest = database.find_environment("pendulum")
    assert newest is not None
    assert newest.version == "0.9"
    assert database.find_environment("pendulum", "1") == first
    assert [item.version for item in database.list_environments()] == ["1", "0.9"]
    assert database.find_environment("pendulum", "3") is None
    assert database.find_environment("acrobot") is None
    with pytest.raises(ConfigError, match="'acrobot' version '1' is not registered"):
        database.environment_source("acrobot", "1")


def test_a_version_is_immutable(database: LoomDB) -> None:
    database.register_environment(record(), b"source")
    moved = record(path="/elsewhere", created=datetime.now(UTC) + timedelta(days=1))
    kept = database.register_environment(moved, b"source")
    assert kept.path == "/somewhere"
    for changes in ({"source_digest": "b" * 64}, {"kwargs": {}}, {"entry_point": "m:D"}, {"max_episode_steps": None}):
        with pytest.raises(ConfigError, match=f"with another {next(iter(changes))}; a version is immutable"):
            database.register_environment(record(**changes), b"other")
    assert database.environment_source("pendulum", "1") == b"source"


def test_snapshots(database: LoomDB, tmp_path: Path) -> None:
    taken = take_snapshot(EnvironmentConfig(id="CartPole-v1", fingerprint_episodes=1), tmp_path, tmp_path / "snapshot")
    database.record_snapshot(taken)
    database.record_snapshot(taken)
    assert database.get_snapshot(taken.digest) == taken
    assert database.get_snapshot("0" * 64) is None
    assert [item.digest for item in database.list_snapshots()] == [taken.digest]
    assert database.list_snapshots("Acrobot-v1") == []


def test_rows_that_were_changed_by_hand_are_named(database: LoomDB, database_url: str, tmp_path: Path) -> None:
    taken = take_snapshot(EnvironmentConfig(id="CartPole-v1", fingerprint_episodes=1), tmp_path, tmp_path / "snapshot")
    database.record_snapshot(taken)
    database.append_audit_anchor(anchor)
    for version in ("1", "2"):
        database.register_environment(record(version), b"source")
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE environments SET kwargs = '3' WHERE version = '1'"))
        if engine.dialect.name == "sqlite":  # the others hold no such text
            connection.execute(text("UPDATE environments SET kwargs = '{' WHERE version = '2'"))
        connection.execute(text("UPDATE snapshots SET document = '{}'"))
        connection.execute(text("UPDATE audit_anchors SET payload = '{}'"))
    engine.dispose()
    with pytest.raises(DamagedRow, match="is no EnvironmentSnapshot, it was changed"):
        database.get_snapshot(taken.digest)
    with pytest.raises(DamagedRow, match="is no AuditChain, it was changed"):
        database.audit_chains()
    for version in ("1", "2") if engine.dialect.name == "sqlite" else ("1",):
        for read in (
            lambda version=version: database.find_environment("pendulum", version),
            lambda version=version: database.register_environment(record(version), b"source"),
            lambda version=version: database.unregister_environment("pendulum", version),
        ):
            with pytest.raises(DamagedRow, match="is no EnvironmentRecord, it was changed"):
                read()


def test_a_pool_without_a_free_connection_is_said(database: LoomDB, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = database._engine.pool
    monkeypatch.setattr(pool, "_timeout", 0.1)
    taken = [pool.connect() for _ in range(pool.size() + pool._max_overflow)]
    try:
        with pytest.raises(ServiceError, match="no connection came free .*QueuePool limit.* fewer threads"):
            database.list_environments()
    finally:
        for one in taken:
            one.close()


def test_lineage(database: LoomDB) -> None:
    for edge in (
        ("policy:p@1", "made_by", "run:r"),
        ("run:r", "used", "snapshot:s"),
        ("policy:p@2", "made_by", "run:r"),
    ):
        database.link(*edge)
        database.link(*edge)
    found = [(edge.subject, edge.predicate, edge.object) for edge in database.edges("run:r")]
    assert found == [
        ("policy:p@1", "made_by", "run:r"),
        ("run:r", "used", "snapshot:s"),
        ("policy:p@2", "made_by", "run:r"),
    ]
    assert database.edges("run:x") == []
    for wrong in ("run", "run:", ":r"):
        with pytest.raises(ConfigError, match="must be written kind:id"):
            database.link(wrong, "used", "snapshot:s")


def test_deployments(database: LoomDB) -> None:
    database.record_deployment("p", "1", "champion", "run-1", "first")
    database.record_deployment("p", "2", "champion", None, "rollback")
    database.record_deployment("q", "1", "champion", "run-2", "first")
    assert [(item.version, item.run_id) for item in database.deployments("p")] == [("2", None), ("1", "run-1")]
    assert len(database.deployments()) == 3


def test_approvals(database: LoomDB) -> None:
    assert database.request_approval("r", "p", "1").state == "waiting"
    assert database.request_approval("r", "p", "1").state == "waiting"
    database.request_approval("s", "p", "2")
    with pytest.raises(ConfigError, match="does not wait for approval; waiting: (r, s|s, r)$"):
        database.decide_approval("t", True, "Bob", "")
    decided = database.decide_approval("r", True, "Ada", "looks right")
    assert (decided.state, decided.person, decided.reason) == ("approved", "Ada", "looks right")
    assert database.decide_approval("s", False, "Ada", "no").state == "rejected"
    assert database.approval("r") == decided
    assert database.approval("t") is None
    with pytest.raises(ConfigError, match="was approved by Ada already; a decision is final"):
        database.decide_approval("r", False, "Bob", "")
    with pytest.raises(ConfigError, match="does not wait for approval; waiting: none"):
        database.decide_approval("t", True, "Bob", "")
    with pytest.raises(ConfigError, match="asks for the approval of another version"):
        database.request_approval("r", "p", "9")
    with pytest.raises(ConfigError, match="needs the name of the person"):
        database.decide_approval("r", True, " ", "")


def anchor(
    number: int, previous: str, server: str = "cartpole/a", kind: str = "head", sequence: int = 4
) -> AuditAnchor:
    told = {"server": server, "host": "here", "segment": "000001", "sequence": sequence, "digest": "d" * 64}
    payload = json.dumps({**told, "time": "2026-01-01T00:00:00+00:00", "previous": previous})
    return AuditAnchor(number=number, server=server, kind=kind, payload=payload, digest=f"{number:064}")


def test_audit_anchors_are_numbered_and_named_by_the_next_one(database: LoomDB) -> None:
    for kind, sequence in (("chain", 0), ("head", 4), ("head", 9)):
        database.append_audit_anchor(lambda *after, k=kind, s=sequence: anchor(*after, kind=k, sequence=s))
    database.append_audit_anchor(lambda *after: anchor(*after, server="other/b"))
    found = database.audit_anchors()
    assert [one.number for one in found] == [1, 2, 3, 4]
    assert [json.loads(one.payload)["previous"] for one in found] == ["0" * 64, *(one.digest for one in found[:-1])]
    assert database.audit_anchors(after=1, limit=1) == [found[1]]
    assert database.newest_audit_anchor() == found[3]
    assert database.newest_audit_anchor("cartpole/a", "head") == found[2]
    assert database.newest_audit_anchor("nobody") is None
    (chain,) = database.audit_chains("cartpole")
    assert (chain.server, chain.host, chain.sequence) == ("cartpole/a", "here", 9)
    assert [chain.server for chain in database.audit_chains()] == ["cartpole/a", "other/b"]


def test_anchors_of_several_processes_at_once_are_one_list(database_url: str) -> None:
    def work(_: int) -> None:
        with LoomDB.open(database_url) as database:
            for _ in range(10):
                database.append_audit_anchor(anchor)

    with LoomDB.open(database_url) as database, ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
        found = database.audit_anchors()
    assert [one.number for one in found] == list(range(1, 41))
    assert all(json.loads(b.payload)["previous"] == a.digest for a, b in pairwise(found))


def test_events(database: LoomDB) -> None:
    recorded = database.record_event("drift", {"value": 0.25, "tags": ["x"]})
    database.record_event("other", {})
    assert database.events("drift") == [recorded]
    assert [item.kind for item in database.events()] == ["drift", "other"]
    assert recorded.created.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - recorded.created) < timedelta(minutes=1)


def test_threads_write_at_once(database: LoomDB) -> None:
    def write(number: int) -> None:
        database.record_event("load", {"number": number})
        database.link(f"a:{number % 5}", "knows", "b:1")
        database.register_environment(record(str(number % 5)), b"source")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    assert sorted(item.data["number"] for item in database.events("load")) == list(range(40))
    assert len(database.edges("b:1")) == 5
    assert len(database.list_environments()) == 5


def test_only_one_of_two_deciders_wins(database: LoomDB) -> None:
    database.request_approval("r", "p", "1")

    def decide(person: str) -> bool:
        try:
            database.decide_approval("r", True, person, "")
        except ConfigError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(decide, "abcdefgh")) == 1


def test_what_is_written_is_there_after_reopening(database_url: str) -> None:
    with LoomDB.open(database_url) as database:
        database.record_event("kept", {"x": 1})
    with LoomDB.open(database_url) as database:
        assert [item.data for item in database.events("kept")] == [{"x": 1}]


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("not a url", ConfigError, "is not a database URL"),
        ("oracle://host/db", ConfigError, "use sqlite or postgresql"),
        ("postgresql+psycopg://user:secret@127.0.0.1:1/db", ServiceError, "check that it runs"),
        ("sqlite:////proc/nowhere/loom.db", ArtifactError, "cannot make the folder"),
    ],
)
def test_a_database_that_cannot_be_opened(url: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        LoomDB.open(url)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "loom.db").write_bytes(b"not sqlite" * 1000)
    with pytest.raises(ServiceError, match="file is not a database"):
        LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}")


def test_the_default_lies_under_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOOMRL_DATABASE_URL", raising=False)
    LoomDB.open().close()
    assert os.path.isfile(tmp_path / "home" / "loom.db")


def test_whoever_takes_no_row_is_named_and_not_asked_for_ever(database: LoomDB, database_url: str) -> None:
    numbered = AuditAnchor(number=1, server="a/b", kind="head", payload="{}", digest="a" * 64, keyid="", signature="")

    def next_anchor(number: int, _before: str) -> AuditAnchor:
        return numbered.model_copy(update={"number": number, "digest": f"{number:064}"})

    database.append_audit_anchor(next_anchor)
    engine = create_engine(database_url)
    tables = ("audit_anchors", "monitor_evidence", "environments")
    for table in tables:
        refuse_rows(engine, table)
    for write in (
        lambda: database.append_audit_anchor(next_anchor),
        lambda: database.share_evidence("cartpole", "1", "a", lambda _revision, _former: {}),
        lambda: database.register_environment(record(), b"source"),
    ):
        with pytest.raises(ServiceError, match="takes no row after number"):
            write()
    engine.dispose()


def test_a_table_that_takes_no_row_is_named_and_nothing_is_taken_for_written(
    database: LoomDB, database_url: str, tmp_path: Path
) -> None:
    taken = take_snapshot(EnvironmentConfig(id="CartPole-v1", fingerprint_episodes=1), tmp_path, tmp_path / "snapshot")
    database.link("policy:cartpole@1", "trained_in", "run:1")
    engine = create_engine(database_url)
    for table in ("events", "edges", "snapshots", "approvals"):
        refuse_rows(engine, table)
    database.link("policy:cartpole@1", "trained_in", "run:1")  # stands there already
    for write, table in (
        (lambda: database.record_event("monitors", {}), "events"),
        (lambda: database.link("policy:cartpole@2", "trained_in", "run:1"), "edges"),
        (lambda: database.record_snapshot(taken), "snapshots"),
        (lambda: database.request_approval("run-1", "cartpole", "1"), "approvals"),
    ):
        with pytest.raises(ServiceError, match=rf"takes no row in {table}: [\s\S]*its tables were changed"):
            write()
    engine.dispose()


def refuse_rows(engine: Engine, table: str) -> None:
    """A trigger, as whoever may change tables can make one."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.execute(
                text(f"CREATE TRIGGER no_{table} BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END")
            )
            return
        body = "BEGIN RAISE EXCEPTION USING ERRCODE = 'unique_violation', MESSAGE = 'no'; END"
        connection.execute(text(f"CREATE FUNCTION no_{table}() RETURNS trigger AS $$ {body} $$ LANGUAGE plpgsql"))
        connection.execute(
            text(f"CREATE TRIGGER no_{table} BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION no_{table}()")
        )


def test_a_number_that_none_can_follow_is_named(database: LoomDB, database_url: str) -> None:
    database.share_evidence("cartpole", "1", "a", lambda _revision, _former: {})
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE monitor_evidence SET revision = {2**63 - 1}"))
    with pytest.raises(ServiceError):
        database.share_evidence("cartpole", "1", "a", lambda _revision, _former: {})
    engine.dispose()


def test_a_row_nested_deeper_than_python_reads_is_damaged(database: LoomDB, database_url: str) -> None:
    database.record_event("monitors", {})
    engine = create_engine(database_url)
    if engine.dialect.name == "sqlite":  # the others hold no such text
        with engine.begin() as connection:
            connection.execute(text("UPDATE events SET data = :data"), {"data": 200_000 * "["})
        with pytest.raises(DamagedRow, match="is no Event, it was changed"):
            database.events()
    engine.dispose()
