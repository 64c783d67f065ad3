"""Copy what cannot be rebuilt into one folder, while servers and runs go on, and verify the copy.

Databases first, through SQLite's online backup; then what they refer to: a version's files never change, audit logs
only grow, so whatever a copied database names is in the copy.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.storage.audit.anchors import read_statements
from loomrl.storage.audit.compaction import uncompacted
from loomrl.storage.audit.history import chains
from loomrl.storage.audit.verification import Anchor, verify_chain
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import PolicyVersion, Registry, local_source, verify_version
from loomrl.storage.sqlite import file_of
from loomrl.system.files import files_below, private_database, verify_sums, write_sums
from loomrl.system.home import home, inside, loomdb_url, tracking_uri
from loomrl.system.schema import Document

_RUN_FILES = ("record.json", "dvc.lock", "config.yaml", "diff.patch", "report.html", "report.json")


class BackupReport(Document):
    """What a backup holds, what it leaves out, and which of the originals were damaged already."""

    folder: str
    num_files: int
    num_bytes: int  # of all files
    num_versions: int  # of policies, whole and verified
    notes: list[str]  # what it does not hold, and what to do about it
    damaged: list[str]  # what was corrupt in the original already; the rest of the backup is good


def back_up(folder: Path) -> BackupReport:
    """Back up this installation's state; the folder appears whole and verified, or not at all.

    Raises:
        ConfigError: when the folder exists and is not empty, or lies inside LOOMRL_HOME.
        ArtifactError: when a database is corrupt. Corrupt versions and audit logs are reported in `damaged`.
        ServiceError: when a database cannot be copied or reached.
    """
    folder = folder.resolve()
    _check_target(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        copy, notes = Path(temporary) / "backup", []
        copy.mkdir(mode=0o700)
        notes += _copy_database("LoomDB", loomdb_url(), copy / "loom.db")
        notes += _copy_database("MLflow", tracking_uri(), copy / "mlflow.db")
        versions, damaged = _copy_versions(copy)
        anchored, unanchored = _anchored()
        notes += unanchored
        with uncompacted(chains()):
            _copy_state(copy)
        write_sums(copy)
        damaged += _verify(copy, versions, anchored)
        report = BackupReport(
            folder=str(folder),
            num_files=len(files_below(copy)),
            num_bytes=sum(path.stat().st_size for path in files_below(copy)),
            num_versions=len(versions),
            notes=notes,
            damaged=damaged,
        )
        if folder.exists():
            folder.rmdir()
        os.replace(copy, folder)
    return report


def _check_target(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty; name a new folder for each backup")
    if folder.is_relative_to(home()):
        raise ConfigError(f"{folder} lies inside LOOMRL_HOME {home()}; name a folder on another disk")


def _copy_database(name: str, url: str, target: Path) -> list[str]:
    source = file_of(url)
    if source is None:
        return [f"{name} is at {url.partition('@')[2] or url}: back it up with its own tool (pg_dump, for example)"]
    if not source.is_file():
        return [f"{name} has no database yet"]
    private_database(target)
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as reader,
            closing(sqlite3.connect(target)) as writer,
        ):
            reader.backup(writer)
            writer.execute("PRAGMA journal_mode=DELETE")  # one file, no write-ahead log beside it
            (verdict,) = writer.execute("PRAGMA integrity_check").fetchone()
    except sqlite3.Error as error:
        raise ServiceError(f"{name}: {source} cannot be copied: {error}; restore it from an earlier backup") from error
    if verdict != "ok":
        raise ArtifactError(f"{name}: {source} is corrupt: {verdict}; restore it from an earlier backup")
    return []


def _copy_versions(copy: Path) -> tuple[list[tuple[Path, PolicyVersion]], list[str]]:
    """Every version of the copied registry, verified; where the store is under the home, at its own place."""
    uri = f"sqlite:///{copy / 'mlflow.db'}" if (copy / "mlflow.db").is_file() else tracking_uri()
    if (source := file_of(uri)) is not None and not source.is_file():
        return [], []
    registry, done, damaged = Registry(uri), [], []
    for version in (version for policy in registry.policies() for version in registry.versions(policy)):
        try:
            done.append((registry.download(version, copy / _place(version)), version))
        except ArtifactError as error:
            damaged.append(str(error))
    return done, damaged


def _place(version: PolicyVersion) -> Path:
    source = local_source(version)
    if source is not None and source.is_relative_to(home()):
        return source.relative_to(home())
    return inside("versions", version.policy, version.version).relative_to(home())


def _copy_state(copy: Path) -> None:
    for path in _state_files():
        target = copy / path.relative_to(home())
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".jsonl":
            data = path.read_bytes()
            target.write_bytes(data[: data.rfind(b"\n") + 1])  # a server may be in the middle of a record
        else:
            shutil.copy2(path, target)


def _state_files() -> Iterator[Path]:
    for run in sorted((home() / "runs").glob("*")):
        yield from (run / name for name in _RUN_FILES if (run / name).is_file())
    for snapshot in sorted((home() / "snapshots").glob("*")):
        yield from (path for path in sorted(snapshot.glob("*")) if path.is_file())
    for name in ("audit", "keys", "controls", "quarantine"):
        yield from (path for path in sorted((home() / name).rglob("*")) if path.is_file() and path.suffix != ".lock")


def _verify(copy: Path, versions: list[tuple[Path, PolicyVersion]], anchored: dict[Path, list[Anchor]]) -> list[str]:
    """Read the copy back; returns what is wrong with audit logs."""
    verify_sums(copy)
    for place, version in versions:
        verify_version(place, version)
    damaged = []
    for chain, heads in anchored.items():
        report = verify_chain(copy / chain.relative_to(home()), heads)
        damaged += [f"audit log {chain}: {finding}" for finding in report.findings]
    return damaged


def _anchored() -> tuple[dict[Path, list[Anchor]], list[str]]:
    """Chain -> the heads LoomDB holds now, before the logs are copied: the copies must reach them."""
    found: dict[Path, list[Anchor]] = {chain: [] for chain in chains()}
    if not found:
        return found, []
    try:
        with LoomDB.open() as db:
            known = read_statements(db).by_chain
        for chain in found:
            found[chain] = known.get(f"{chain.parent.name}/{chain.name}", [])
    except ServiceError as error:
        return found, [f"the ends of the audit logs were not checked against LoomDB: {error}"]
    return found, []
