"""No secret is in the tree, nor in what a life cycle leaves: artifacts, records, reports, databases with tags, logs."""

import json
import subprocess
from pathlib import Path

import pytest
from planted import PLANTED, PLANTED_FILE

from loomrl.secret_files import suspects, suspicious_lines

ROOT = Path(__file__).resolve().parents[1]
PRIVATE_KEY = b"PRIVATE KEY-----"


def test_no_secret_is_in_the_tree() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    assert len(files) > 1_000
    assert suspicious_lines(files) == []


@pytest.mark.parametrize(
    "line",
    [
        "token = 'ghp_0123456789abcdefghijABCDEFGHIJ012345'",  # pragma: allowlist secret
        "-----BEGIN EC PRIVATE KEY-----",  # pragma: allowlist secret
        "url = 'https://ada:difference-engine@example.org'",  # pragma: allowlist secret
        "aws = 'AKIAIOSFODNN7EXAMPLF'",  # pragma: allowlist secret
        "db_password: tr0ub4dor&3x",
    ],
)
def test_a_secret_would_be_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"first: 1\n{line}\n")
    (tmp_path / "b.yaml").write_text("first: 1\n")
    (found,) = suspicious_lines(sorted(tmp_path.iterdir()))
    assert found.startswith(f"{tmp_path / 'a.yaml'}, line 2: ")
    assert list(suspects(tmp_path.iterdir())) == [tmp_path / "a.yaml"]


def test_a_life_cycle_that_knows_secrets_leaves_none(finished_project: Path) -> None:
    """In the home, where the databases hold tags, parameters and events, the artifacts, the project, and the log."""
    log = finished_project.parent / "log"
    state = [path for path in finished_project.rglob("*") if path.is_file() and not path.is_symlink()]
    left = [path.relative_to(finished_project) for path in state if PLANTED.encode() in path.read_bytes()]
    assert left == [Path("tests/support/planted.py")]
    assert PLANTED not in log.read_text()
    home = finished_project / ".loomrl"
    keys = [path for path in state if path.is_relative_to(home) and PRIVATE_KEY in path.read_bytes()]
    assert {path.parent.name for path in keys} == {"keys"}
    assert {path.stat().st_mode & 0o077 for path in keys} == {0}
    assert suspicious_lines(path for path in state if path.parts[-3] == "runs" or "artifacts" in path.parts) == []


def test_what_was_left_out_of_the_record_is_named(finished_project: Path) -> None:
    (record,) = (finished_project / ".loomrl" / "runs").glob("*/record.json")
    assert json.loads(record.read_bytes())["left_out"] == {PLANTED_FILE: "line 1: Secret Keyword"}
    assert f"{PLANTED_FILE} is left out of the run's diff.patch" in (finished_project.parent / "log").read_text()
