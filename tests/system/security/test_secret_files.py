"""No secret is in the tree, nor in what a life cycle leaves: artifacts, records, reports, databases with tags, logs."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from detect_secrets.core.scan import scan_file

from loomrl.system.security import secret_files
from loomrl.system.security.secret_files import suspects, suspicious_lines
from tests.support.planted import PLANTED, PLANTED_FILE

ROOT = Path(__file__).resolve().parents[3]
PRIVATE_KEY = b"PRIVATE KEY-----"


@pytest.mark.long_cases("kept results")
@pytest.mark.parametrize("are_results", [False, True], ids=["what people wrote", "kept results"])
def test_no_secret_is_in_the_tree(are_results: bool) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and name.startswith("benchmarks/results/") == are_results]
    assert len(names) > (100 if are_results else 1_000)
    assert suspicious_lines(ROOT / name for name in names) == []


@pytest.mark.parametrize(
    "line",
    [
        "token = 'ghp_0123456789abcdefghijABCDEFGHIJ012345'",  # pragma: allowlist secret
        "-----BEGIN EC PRIVATE KEY-----",  # pragma: allowlist secret
        "url = 'https://ada:difference-engine@example.org'",  # pragma: allowlist secret
        "aws = 'AKIAIOSFODNN7EXAMPLF'",  # pragma: allowlist secret
        "db_password: tr0ub4dor&3x",
        '"token": "9f8a7c6b5d4e"',
        "access_token: correct-horse",
        "pass: hunter2",
        "  smtp_pass: 'battery!staple',",
    ],
)
def test_a_secret_would_be_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"first: 1\n{line}\n")
    (tmp_path / "b.yaml").write_text("first: 1\n")
    found, *_ = suspicious_lines(sorted(tmp_path.iterdir()))
    assert found.startswith(f"{tmp_path / 'a.yaml'}, line 2: ")
    assert list(suspects(tmp_path.iterdir())) == [tmp_path / "a.yaml"]


@pytest.mark.parametrize(
    "encoding",
    [
        "latin-1",
        "utf-16",
        "utf-16-le",
        "utf-16-be",
        "utf-32",
        "utf-32-le",
        "utf-32-be",
        "utf-8-sig",
    ],
)
def test_a_secret_in_another_encoding_would_be_found(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.ini").write_bytes("[Größe]\ndb_password = tr0ub4dor&3x\n".encode(encoding))
    (tmp_path / "b.ini").write_bytes("[Größe]\n".encode(encoding))
    (found,) = suspects(sorted(tmp_path.iterdir())).items()
    assert found[0] == tmp_path / "a.ini"
    assert "Secret Keyword" in found[1]


def test_a_long_text_is_read_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_files, "_MOST_BINARY_BYTES", 100)  # within a character
    text = "a" + 99 * "é" + "\ndb_password = tr0ub4dor&3x\n"
    (tmp_path / "a.ini").write_text(text)
    (tmp_path / "b.ini").write_bytes(text.encode() + b"\xff")
    assert suspects(tmp_path.iterdir()) == {
        tmp_path / "a.ini": "line 2: Secret Keyword",
        tmp_path / "b.ini": "its text: Secret Keyword",
    }


def test_a_secret_in_a_binary_file_would_be_found(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(200_000)
    token = b"ghp_0123456789abcdefghijABCDEFGHIJ012345"  # pragma: allowlist secret
    (tmp_path / "a.bin").write_bytes(noise + b"\0" + token + b"\0" + noise)
    (tmp_path / "b.bin").write_bytes(noise)
    (tmp_path / "c.bin").write_bytes(token + b"\n")
    why = "its text: GitHub Token"
    assert suspects(tmp_path.iterdir()) == {tmp_path / "a.bin": why, tmp_path / "c.bin": why}


@pytest.mark.parametrize(
    "line",
    [
        'export LOOMRL_OPERATOR_TOKEN="8pXq-Lw3vT9z_Rb1"',  # pragma: allowlist secret
        "LOOMRL_TOKEN=8pXq-Lw3vT9z_Rb1",  # pragma: allowlist secret
        "os.environ['SMTP_PASS'] = 'battery2staple'",  # pragma: allowlist secret
        "PREFECT_API_AUTH_STRING=ada:engine-1843-x",  # pragma: allowlist secret
        'headers = {"Authorization": "Bearer 8pXq-Lw3vT9z_Rb1"}',  # pragma: allowlist secret
    ],
)
def test_a_variable_of_the_environment_in_code_would_be_found(line: str, tmp_path: Path) -> None:
    for name in ("a.sh", "a.py", "a.yaml"):
        (tmp_path / name).write_text(f"{line}\n")
    assert list(suspects(sorted(tmp_path.iterdir()))) == sorted(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("token = 'ghp_0123456789abcdefghijABCDEFGHIJ012345'  ", "GitHub Token"),  # pragma: allowlist secret
        ("KEY = '-----BEGIN EC PRIVATE KEY-----", "Private Key"),  # pragma: allowlist secret
        ("url = 'https://ada:difference-engine@example.org'", "Basic Auth Credentials"),  # pragma: allowlist secret
        ("aws = 'AKIAIOSFODNN7EXAMPLF'", "AWS Access Key"),  # pragma: allowlist secret
        ("    db_password = 'tr0ub4dor&3x'", "Secret Keyword"),  # pragma: allowlist secret
        ("db_password = \f'tr0ub4dor&3x'", "Secret Keyword"),  # pragma: allowlist secret
        ("secret = (", None),  # and a text in the next line
    ],
)
def test_in_python_what_a_line_says_is_found_among_many(line: str, kind: str | None, tmp_path: Path) -> None:
    """Detectors that find nothing in the whole text are not asked about its lines."""
    lines = [f"value_{number} = {number}  # nothing" for number in range(100)]
    (tmp_path / "a.py").write_text("\n".join([*lines, line, "'words'", *lines]))
    found = suspicious_lines([tmp_path / "a.py"])
    assert found == ([] if kind is None else [f"{tmp_path / 'a.py'}, line 101: {kind}"])
    with secret_files._using(secret_files._detectors()):
        assert len(found) == len([*scan_file(str(tmp_path / "a.py"))]), "what all detectors find"


def test_blank_lines_at_the_beginning_keep_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(10_000 * "\n" + "db_password = 'tr0ub4dor&3x'\n")  # pragma: allowlist secret
    assert suspicious_lines([tmp_path / "a.py"]) == [f"{tmp_path / 'a.py'}, line 10001: Secret Keyword"]


def test_logins_of_programs_are_known_by_their_folders(tmp_path: Path) -> None:
    files = [tmp_path / ".docker" / "config.json", tmp_path / ".kube" / "config", tmp_path / "here" / "config.json"]
    for file in files:
        file.parent.mkdir()
        file.write_text("{}\n")
    assert list(suspects(files)) == files[:2]


def test_words_that_are_no_secrets_are_not_suspected(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "token: ${TOKEN}\nmax_tokens: 4096000\npass: true\nunk_token: <unk>\nbos_token: [BOS-1]\n"
    )
    (tmp_path / "a.py").write_text("token = page.token\nper_token: Tensor\nNEXT_TOKEN = tokens[first_of_16]\n")
    (tmp_path / "a.sh").write_text('LOOMRL_TOKEN="$(cat token-of-2026)"\nMAX_TOKENS=4096000\n')
    assert suspicious_lines(tmp_path.iterdir()) == []


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
    kept = [path for path in state if path.parts[-3] == "runs" or "artifacts" in path.parts]
    once = {(path.name, path.read_bytes()): path for path in kept}  # most of it lies there three times
    assert suspicious_lines(once.values()) == []


def test_what_was_left_out_of_the_record_is_named(finished_project: Path) -> None:
    (record,) = (finished_project / ".loomrl" / "runs").glob("*/record.json")
    assert json.loads(record.read_bytes())["left_out"] == {PLANTED_FILE: "line 1: Secret Keyword"}
    assert f"{PLANTED_FILE} is left out of the run's diff.patch" in (finished_project.parent / "log").read_text()
