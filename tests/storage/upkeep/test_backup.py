"""A backup is whole and verified or not there, holds what cannot be rebuilt, and restores."""

import json
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from loomrl.cli import upkeep as commands
from loomrl.errors import ArtifactError, ConfigError
from loomrl.promotion import envelope
from loomrl.storage.audit.heads import anchor
from loomrl.storage.audit.history import find_decision
from loomrl.storage.audit.log import AuditLog, audit_folder
from loomrl.storage.audit.records import record
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION, Registry
from loomrl.storage.run_record import RunRecord, read_run, run_folder, write_run
from loomrl.system.files import verify_sums
from tests.support.policy_versions import graph, register


def backup(folder: Path, *arguments: str) -> Result:
    app = typer.Typer()
    commands.register(app)
    return CliRunner().invoke(app, ["backup", str(folder), *arguments])


@pytest.fixture
def house(ready_home: Path, tmp_path: Path) -> Path:
    """A home with two versions, a champion, a run, an audit log and a lineage edge."""
    for number in (1, 2):
        register(tmp_path, f"run-{number}", bias=float(number))
    Registry().set_aliases("cartpole", {CHAMPION: "2"})
    write_run(RunRecord(run_id="run-2", policy="cartpole", state="promoted", started="2026", config={}, version="2"))
    (run_folder("run-2") / "artifacts").mkdir()
    (run_folder("run-2") / "artifacts" / "big.bin").write_bytes(bytes(1_000))
    with LoomDB.open() as db:
        db.link("run:run-2", "produced", "policy:cartpole@2")
    log = AuditLog("cartpole")
    log.append([record("decision", decision_id="d-1", policy="cartpole", version="2")])
    log.close()
    return ready_home


def test_a_backup_restores_everything_that_cannot_be_rebuilt(house: Path, tmp_path: Path) -> None:
    done = backup(tmp_path / "backup", "--json")
    assert done.exception is None, done.exception
    report = json.loads(done.stdout)
    assert (report["num_versions"], report["notes"], report["damaged"]) == (2, [], [])
    verify_sums(tmp_path / "backup")
    assert not (tmp_path / "backup" / "runs" / "run-2" / "artifacts").exists(), "made again by `dvc repro`"
    house.rename(tmp_path / "lost")
    shutil.copytree(tmp_path / "backup", house)
    registry = Registry()
    champion = registry.require("cartpole", CHAMPION)
    folder = registry.download(champion, tmp_path / "restored")
    assert (folder / "policy.onnx").read_bytes() == graph(2.0)
    envelope.verify(folder)  # the keys are there too
    assert (house / "keys" / "signing.pem").stat().st_mode & 0o077 == 0
    assert read_run("run-2").version == "2"
    assert find_decision("d-1") is not None
    with LoomDB.open() as db:
        assert [edge.object for edge in db.edges("run:run-2")] == ["policy:cartpole@2"]


def test_a_backup_while_the_server_decides_and_runs_write(house: Path, tmp_path: Path) -> None:
    log = AuditLog("cartpole", "busy")
    stop = threading.Event()

    def work() -> None:
        with LoomDB.open() as db:
            while not stop.is_set():
                log.append([record("decision", decision_id=None, policy="cartpole", version="2")])
                anchor(db, log.head)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        done = backup(tmp_path / "backup", "--json")
    finally:
        stop.set()
        worker.join()
        log.close()
    assert done.exception is None, done.exception
    copied = verify_chain(tmp_path / "backup" / "audit" / "cartpole" / "busy")
    assert copied.intact
    assert 0 < copied.num_records <= verify_chain(audit_folder("cartpole") / "busy").num_records


def test_databases_are_copied_whatever_their_urls_say_beside_the_file(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{house / 'mlflow.db'}?timeout=5")
    monkeypatch.chdir(house.parent)
    monkeypatch.setenv("LOOMRL_DATABASE_URL", f"sqlite:///{house.name}/loom.db")
    report = json.loads(backup(tmp_path / "backup", "--json").stdout)
    assert (report["num_versions"], report["notes"]) == (2, [])
    assert {"loom.db", "mlflow.db"} <= {path.name for path in (tmp_path / "backup").iterdir()}


def test_a_folder_with_something_in_it_is_not_touched(house: Path, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    assert backup(tmp_path / "backup").exception is None, "an empty folder is fine"
    before = sorted(path.name for path in (tmp_path / "backup").iterdir())
    assert isinstance(backup(tmp_path / "backup").exception, ConfigError)
    assert sorted(path.name for path in (tmp_path / "backup").iterdir()) == before
    assert "inside LOOMRL_HOME" in str(backup(house / "backup").exception)


def test_damage_is_named_and_the_rest_is_saved(house: Path, tmp_path: Path) -> None:
    (Path(Registry().require("cartpole", "1").source) / "policy.onnx").write_bytes(b"torn")
    segment = next((audit_folder("cartpole") / "server-0").glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes().replace(b'"d-1"', b'"d-2"'))
    done = backup(tmp_path / "backup")
    assert isinstance(done.exception, ArtifactError)
    assert "cartpole@1" in str(done.exception)
    assert "edited or torn" in str(done.exception)
    verify_sums(tmp_path / "backup")
    assert (tmp_path / "backup" / "keys" / "signing.pem").is_file()


def test_a_corrupt_database_leaves_no_backup(house: Path, tmp_path: Path) -> None:
    data = bytearray((house / "loom.db").read_bytes())
    data[100:4_000] = b"\xff" * 3_900
    (house / "loom.db").write_bytes(data)
    for name in ("loom.db-wal", "loom.db-shm"):
        (house / name).unlink(missing_ok=True)
    assert "loom.db" in str(backup(tmp_path / "backup").exception)
    assert not (tmp_path / "backup").exists()
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".backup")] == []


def test_a_database_elsewhere_is_said(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOMRL_DATABASE_URL", "postgresql+psycopg://loom:secret@db.internal/loom")
    done = backup(tmp_path / "backup")
    assert "LoomDB is at db.internal/loom: back it up with its own tool" in done.stdout
    assert "secret" not in done.stdout
    with sqlite3.connect(tmp_path / "backup" / "mlflow.db") as database:
        assert database.execute("SELECT COUNT(*) FROM model_versions").fetchone() == (2,)
    database.close()
