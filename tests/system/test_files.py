import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from loomrl.errors import ArtifactError
from loomrl.system.files import (
    canonical_json,
    closed_with,
    digest_folder,
    private_database,
    read_json,
    verify_sums,
    write_atomic,
    write_sums,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.json").write_text("1")
    (tmp_path / "deep" / "b").write_bytes(b"\x00\x01")
    write_sums(tmp_path)
    return tmp_path


def test_canonical_json_is_sorted_and_refuses_what_json_cannot_say() -> None:
    assert canonical_json({"b": 1, "a": "ä"}) == '{"a":"ä","b":1}\n'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


def test_sums_are_what_sha256sum_reads(folder: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda folder: (folder / "a.json").write_text("2"), r"a\.json is changed"),
        (lambda folder: (folder / "deep" / "b").unlink(), r"b is missing"),
        (lambda folder: (folder / "extra").write_text(""), r"extra is not in the manifest"),
        (lambda folder: (folder / "SHA256SUMS").unlink(), r"SHA256SUMS is missing"),
        (
            lambda folder: (folder / "SHA256SUMS").write_bytes(b"\xff\x00\xfe"),
            r"SHA256SUMS cannot be read as a manifest",
        ),
    ],
)
def test_verify_names_what_was_tampered_with(folder: Path, tamper: object, message: str) -> None:
    verify_sums(folder)
    tamper(folder)  # type: ignore[operator]
    with pytest.raises(ArtifactError, match=message):
        verify_sums(folder)


def test_a_folder_digest_depends_on_names_and_contents(folder: Path) -> None:
    before = digest_folder(folder)
    (folder / "a.json").rename(folder / "c.json")
    assert digest_folder(folder) != before


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomic(target, b"old")
    with pytest.raises(TypeError):
        write_atomic(target, "not bytes")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_writing_where_a_file_stands_in_the_way_is_an_artifact_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write"):
        write_atomic(tmp_path / "file" / "below", b"")


def test_torn_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"a": ')
    with pytest.raises(ArtifactError, match=r"torn\.json cannot be read as JSON"):
        read_json(tmp_path / "torn.json")
    with pytest.raises(ArtifactError, match=r"none\.json is missing"):
        read_json(tmp_path / "none.json")


def test_a_file_descriptor_is_closed_with_its_owner_or_before() -> None:
    class Owner: ...

    owner = Owner()
    reads, writes = os.pipe()
    close = closed_with(owner, reads)
    closed_with(owner, writes)
    close()
    close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reads)
    os.fstat(writes)
    del owner
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writes)


def test_a_database_that_is_there_keeps_its_locks(tmp_path: Path) -> None:
    """A process that closes a descriptor of a file gives up all its locks on it: two would write at once then."""
    path = tmp_path / "loom.db"
    private_database(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE kept (number INTEGER)")
        connection.execute("BEGIN IMMEDIATE")
        private_database(path)
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0, isolation_level=None).execute('BEGIN IMMEDIATE')"
        found = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
        assert "database is locked" in found.stderr
