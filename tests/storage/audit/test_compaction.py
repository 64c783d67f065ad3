"""Closed segments as Parquet: the same lines, typed columns, and damage found as in the plain file."""

import os
from pathlib import Path

import pyarrow.compute
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from loomrl.cli.audit import audit_app
from loomrl.errors import ArtifactError
from loomrl.storage.audit import verification
from loomrl.storage.audit.compaction import compact
from loomrl.storage.audit.heads import anchors
from loomrl.storage.audit.history import find_decision, join, read_lines, records
from loomrl.storage.audit.keeper import AuditKeeper
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import decisions
from loomrl.storage.audit.segments import lines, segments
from loomrl.storage.audit.verification import Anchor, verify_chain
from loomrl.storage.loomdb.database import LoomDB
from tests.support.live import decide, reward


def several(log: AuditLog) -> list[str]:
    """One record of three decisions."""
    dtypes = {"observation": "float32", "action": "float32"}
    shared = {"count": 3, "policy": "cartpole", "version": "2", "dtypes": dtypes, "route": "decide", "override": None}
    columns = {"agent_id": ["a", "b", "c"], "episode_id": [None] * 3, "observation": [[0.1], [0.2], [0.3]]}
    columns |= {"action": [[0.5, -0.5]] * 2 + [[0.25, 1.0]], "value": [1.0, 2.0, 3.0], "exploration_flag": [False] * 3}
    entry = decisions(shared, columns)
    log.append([entry])
    return [f"{entry['decision_id']}.{row}" for row in range(3)]


@pytest.fixture
def log(loomrl_home: Path) -> AuditLog:
    """Decisions of one and of several, rewards, in several segments."""
    log = AuditLog("cartpole", segment_bytes=6_000)
    for number in range(30):
        decision = decide(log, f"agent-{number % 3}", "e\u2028\u00e4", [0.1 * number, 0.0, 0.0, 0.0])
        reward(log, decision, f"agent-{number % 3}", "e\u2028\u00e4", float(number))
        several(log)
    log.close()
    return log


def all_lines(log: AuditLog) -> list[bytes]:
    return [line for path in segments(log.folder) for line in lines(path)]


@pytest.mark.parametrize("anchored", [True, False])
def test_a_compacted_file_that_cannot_be_read_is_found_and_the_rest_verified(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch, anchored: bool
) -> None:
    first = compact(log.folder)[0]
    digest = verification.sha256_file

    def refused(path: Path) -> str:
        return digest(path if path != first else path.with_name("gone"))

    monkeypatch.setattr(verification, "sha256_file", refused)
    monkeypatch.setattr(verification, "different_column", lambda path: None if path != first else "row 0: is another")
    file = Anchor(kind="compacted", segment=first.stem, digest="0" * 64)
    report = verify_chain(log.folder, [file] if anchored else [])
    (finding,) = report.findings
    assert finding.startswith("cannot read ")
    assert report.num_segments == len(segments(log.folder))
    assert report.head_sequence == log.head.sequence


def test_every_line_and_every_reader_sees_the_same(log: AuditLog) -> None:
    paths = segments(log.folder)
    os.utime(paths[0], (1e9, 1e9))
    paths[0].chmod(0o600)
    before = all_lines(log), list(records()), join(records()), read_lines(log.folder, 9, 7, ("decision", "feedback"))
    report = verify_chain(log.folder)
    compacted = compact(log.folder)
    assert len(compacted) == len(paths) - 1 > 2
    assert [path.suffix for path in segments(log.folder)] == [".parquet"] * len(compacted) + [".jsonl"]
    assert not any(path.exists() for path in paths[:-1])
    assert before == (
        all_lines(log), list(records()), join(records()), read_lines(log.folder, 9, 7, ("decision", "feedback"))
    )  # fmt: skip
    with LoomDB.open() as db:
        files = anchors(db, log.server)
    assert len(files) == len(compacted)
    assert verify_chain(log.folder, [Anchor(report.head_sequence, report.head_digest), *files]) == report.__class__(
        **{**vars(report), "num_anchors": 1}
    )
    assert (compacted[0].stat().st_mtime, compacted[0].stat().st_mode & 0o777) == (1e9, 0o600)
    decision = before[1][5]["decision_id"]
    assert find_decision(decision)["decision_id"] == decision
    assert compact(log.folder) == []


def test_columns_are_typed_and_can_be_asked(log: AuditLog) -> None:
    table = parquet.read_table(compact(log.folder)[0])
    decided = table.filter(pyarrow.compute.equal(table["kind"], "decision"))
    assert table["timestamp"].type == pyarrow.timestamp("us", "UTC")
    by_version = decided.group_by("version").aggregate([("value", "mean"), ("value", "count")]).to_pylist()
    assert {one["version"]: one["value_mean"] for one in by_version} == {"1": 0.5, "2": 2.0}
    assert {tuple(action) for action in decided["action"].to_pylist()} == {(1.0,), (0.5, -0.5), (0.25, 1.0)}
    assert table.filter(pyarrow.compute.equal(table["kind"], "feedback"))["reward"].to_pylist()[:2] == [0.0, 1.0]


def test_a_changed_line_is_found_after_compaction_as_before(log: AuditLog) -> None:
    path = segments(log.folder)[1]
    found = path.read_bytes()
    path.write_bytes(found.replace(b'"action":1', b'"action":0', 1))
    before = verify_chain(log.folder).findings
    assert "000002.jsonl" in before[0]
    compact(log.folder)
    assert [finding.replace(".jsonl", ".parquet") for finding in before] == verify_chain(log.folder).findings


def test_a_damaged_file_is_a_finding_not_a_crash(log: AuditLog) -> None:
    path = compact(log.folder)[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    assert any(path.name in finding for finding in verify_chain(log.folder).findings)
    path.write_bytes(b"PAR1")
    findings = verify_chain(log.folder).findings
    assert any("cannot be read" in finding and "restore it" in finding for finding in findings)


def test_what_cannot_be_read_stays_as_it_is(log: AuditLog) -> None:
    path = segments(log.folder)[1]
    path.write_bytes(path.read_bytes().replace(b'{"kind"', b"{kind", 1))
    with pytest.raises(ArtifactError, match=r"000002\.jsonl:1 is damaged"):
        compact(log.folder)
    assert path.exists()
    assert not path.with_suffix(".parquet").exists()


def test_what_a_crash_left_in_both_forms_is_compacted_again(log: AuditLog) -> None:
    first = segments(log.folder)[0]
    plain = first.read_bytes()
    compact(log.folder)
    first.write_bytes(plain[: len(plain) // 2])  # not what was compacted: the plain file is the one that counts
    assert segments(log.folder)[0] == first
    first.write_bytes(plain)
    assert compact(log.folder) == [first.with_suffix(".parquet")]
    assert verify_chain(log.folder).intact


def test_the_next_server_goes_on_from_a_compacted_chain(log: AuditLog) -> None:
    compact(log.folder)
    segments(log.folder)[-1].unlink()  # so that what it goes on from is compacted
    again = AuditLog("cartpole")
    again.close()
    assert verify_chain(log.folder).intact


def test_by_command_and_by_the_server(log: AuditLog) -> None:
    written = AuditLog("cartpole", "busy", segment_bytes=2_000)
    for _ in range(10):
        several(written)
    AuditKeeper(written).compact()
    assert not list(written.folder.glob("*.parquet"))  # too young: somebody may follow the log
    closed = segments(written.folder)[:-1]
    for path in closed:
        os.utime(path, (1e9, 1e9))
    AuditKeeper(written).compact()
    several(written)
    written.close()
    assert segments(written.folder)[: len(closed)] == [path.with_suffix(".parquet") for path in closed]
    result = CliRunner().invoke(audit_app, ["compact"], catch_exceptions=False)
    assert "segments compacted" in result.stdout
    assert [path.suffix for path in segments(log.folder)[:-1]] == [".parquet"] * (len(segments(log.folder)) - 1)
    assert verify_chain(log.folder).intact
    assert verify_chain(written.folder).intact


def test_a_server_says_what_it_cannot_compact(log: AuditLog) -> None:
    path = segments(log.folder)[0]
    path.write_bytes(path.read_bytes().replace(b'{"kind"', b"{kind", 1))
    os.utime(path, (1e9, 1e9))
    with pytest.raises(ArtifactError, match=r"not compacted: .*000001\.jsonl:1 is damaged"):
        AuditKeeper(log).compact()
