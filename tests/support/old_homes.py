"""Homes that earlier commits of LoomRL wrote, for tests of an upgrade in place: see `old_homes/README.md`."""

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

FOLDER = Path(__file__).parent / "old_homes"
COMMITS = ("cc7093e", "0375cfd", "f2ebf1e")
_WRITTEN_AT = "/home/ada/project/.loomrl"  # what the kept registries name as their place
_PLACES = (
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("runs", "artifact_uri"),
    ("experiments", "artifact_location"),
)


def unpack(commit: str, home: Path) -> None:
    """Put the home that a commit wrote at another place: MLflow's tables name absolute paths."""
    with tarfile.open(FOLDER / f"{commit}.tar.xz") as archive:
        archive.extractall(home)  # of our own making; `filter` came with Python 3.11.4
    move(home / "mlflow.db", _WRITTEN_AT, str(home))


def move(database: Path, before: str, after: str) -> None:
    """Rewrite where a registry's files lie."""
    with closing(sqlite3.connect(database)) as connection, connection:
        for table, column in _PLACES:
            connection.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (before, after))
