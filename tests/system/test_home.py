"""Who may enter the home, and read what lies there. These tests look at modes, which bind root as little as anybody."""

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from loomrl.environment.sources.source import build_archive, extract_archive
from loomrl.language.trajectory.storage.store import Store
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry.mlflow_database import ensure_tables
from loomrl.storage.upkeep.backup import back_up
from loomrl.system.files import sha256, tighten
from loomrl.system.home import home, without_folders


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_home_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "new" / "home"))
    assert mode(home()) == 0o700


@pytest.mark.parametrize("before", [0o755, 0o775, 0o777, 0o750])
def test_a_home_of_an_earlier_version_is_tightened(before: int, loomrl_home: Path) -> None:
    loomrl_home.chmod(before)
    assert mode(home()) == 0o700


def test_what_is_everybodys_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names /tmp as the home does not lock others out of it."""
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path))
    assert stat.S_IMODE(home().stat().st_mode) == 0o1777
    tmp_path.chmod(0o700)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Which everybody may enter: those of pytest are its owner's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_who_does_not_own_it_uses_it_as_it_is(open_folder: Path) -> None:
    """As on a volume that an administrator gave to a group."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to somebody")
    shared = open_folder / "shared"
    shared.mkdir()
    os.chown(shared, 4321, 4322)
    shared.chmod(0o770)
    program = """
import os, sys
from loomrl.system.files import private_database
from loomrl.system.home import home, without_folders
os.setgroups([4322]); os.setgid(4322); os.setuid(4323)
private_database(home() / "loom.db")
print(oct(home().stat().st_mode & 0o777), oct((home() / "loom.db").stat().st_mode & 0o777))
"""
    environment = {**os.environ, "LOOMRL_HOME": str(shared)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0o770 0o600\n"


def databases() -> dict[str, str]:
    return {name: f"sqlite:///{home() / name}" for name in ("loom.db", "mlflow.db", "hub.db")}


def open_all() -> None:
    urls = databases()
    LoomDB.open(urls["loom.db"]).close()
    ensure_tables(urls["mlflow.db"])
    Store.open(urls["hub.db"]).close()


def test_databases_are_their_owners(loomrl_home: Path) -> None:
    open_all()
    assert {path.name: oct(mode(path)) for path in loomrl_home.glob("*.db")} == dict.fromkeys(databases(), "0o600")


def test_databases_of_earlier_versions_are_tightened_with_what_lies_beside_them(loomrl_home: Path) -> None:
    open_all()
    with closing(sqlite3.connect(loomrl_home / "loom.db")) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("CREATE TABLE kept (value)")
        other.commit()
        beside = [loomrl_home / f"loom.db{ending}" for ending in ("-wal", "-shm")]
        for path in (*beside, *(loomrl_home / name for name in databases())):
            path.chmod(0o644)
        open_all()
        assert {oct(mode(path)) for path in loomrl_home.glob("*.db*") if path.suffix != ".lock"} == {"0o600"}
        assert all(path.exists() for path in beside)


def test_a_database_elsewhere_is_its_owners_as_well(tmp_path: Path, loomrl_home: Path) -> None:
    LoomDB.open(f"sqlite:///{tmp_path / 'elsewhere' / 'loom.db'}").close()
    assert (mode(tmp_path / "elsewhere"), mode(tmp_path / "elsewhere" / "loom.db")) == (0o700, 0o600)


@pytest.fixture
def extracted(tmp_path: Path, loomrl_home: Path) -> Path:
    code = tmp_path / "robots"
    (code / "deep").mkdir(parents=True)
    for path in (code / "__init__.py", code / "deep" / "__init__.py"):
        path.write_text("GRAVITY = 9.81\n")
    return extract(code)


def extract(code: Path) -> Path:
    archive = build_archive({"robots": code})
    return extract_archive(archive, sha256(archive), ["robots"], home() / "sources" / sha256(archive))


def modes_below(folder: Path) -> set[str]:
    return {f"{'folder' if path.is_dir() else 'file'} {oct(mode(path))}" for path in (folder, *folder.rglob("*"))}


def test_sources_are_their_owners(extracted: Path) -> None:
    assert modes_below(extracted.parent) == {"folder 0o700", "file 0o600"}


def test_sources_of_earlier_versions_are_tightened(extracted: Path, tmp_path: Path) -> None:
    for path in (extracted.parent, extracted, *extracted.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert extract(tmp_path / "robots") == extracted
    assert modes_below(extracted.parent) == {"folder 0o700", "file 0o600"}


def test_a_backup_is_its_owners(loomrl_home: Path, tmp_path: Path) -> None:
    open_all()
    folder = tmp_path / "backup"
    back_up(folder)
    assert mode(folder) == 0o700
    assert {oct(mode(path)) for path in folder.glob("*.db")} == {"0o600"}


def test_nothing_is_tightened_that_is_not_there(tmp_path: Path) -> None:
    tighten(tmp_path / "none")


def test_a_message_for_other_hosts_keeps_all_but_the_folders_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, user = tmp_path / "John Smith" / "project", tmp_path / "John Smith"
    (project / "configs").mkdir(parents=True)
    (project / "dvc.yaml").touch()
    monkeypatch.chdir(project / "configs")
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = (
        f"{tmp_path}/state/versions/x/policy.onnx is not ok, nor {project}/a.yaml, nor {user}-2/b; {user}: no folder; "
    )
    rest = "see https://host/a/b and/or v1/2"
    found = without_folders(text + rest)
    assert str(user) not in found
    assert found.startswith("…/versions/x/policy.onnx is not ok, nor …/a.yaml, nor …")
    assert found.endswith(f"; …: no folder; {rest}")
