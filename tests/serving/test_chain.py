"""The hash chain, and what verification finds."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomrl.serving.audit import AuditLog
from loomrl.serving.chain import GENESIS, BrokenRecord, seal, unseal
from loomrl.serving.records import record
from loomrl.serving.segments import segments
from loomrl.serving.verification import Anchor, verify_chain


@given(
    st.dictionaries(st.text(min_size=1), st.one_of(st.text(), st.integers(-(2**53), 2**53), st.none(), st.booleans()))
)
def test_what_is_sealed_unseals(fields: dict[str, object]) -> None:
    line, digest = seal(fields, GENESIS)
    opened = unseal(line)
    assert opened["hash"] == digest
    assert opened["previous_hash"] == GENESIS
    assert fields.items() <= {**opened, **{k: fields[k] for k in fields.keys() & {"hash", "previous_hash"}}}.items()


def test_every_changed_byte_is_found() -> None:
    line, _ = seal({"action": 1, "agent_id": "a\nb"}, GENESIS)
    for index in range(len(line)):
        changed = line[:index] + bytes([line[index] ^ 1]) + line[index + 1 :]
        with pytest.raises(BrokenRecord):
            unseal(changed)


@pytest.fixture
def chain(loomrl_home: Path) -> Path:
    """Forty records in several segments, the log closed."""
    log = AuditLog("cartpole", segment_bytes=4_000)
    for number in range(40):
        log.append([record("decision", decision_id=None, action=number)])
    log.close()
    assert len(segments(log.folder)) > 2
    return log.folder


def head(folder: Path) -> Anchor:
    report = verify_chain(folder)
    return Anchor(report.head_sequence, report.head_digest)


def test_an_untouched_chain_is_whole(chain: Path) -> None:
    report = verify_chain(chain, [head(chain)])
    assert report.intact
    assert report.num_records == 40 + report.num_segments
    assert report.first_sequence == 0


def change(path: Path, edit) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(edit(lines)))


def test_an_edited_record_is_found(chain: Path) -> None:
    change(segments(chain)[0], lambda lines: [*lines[:2], lines[2].replace(b'"action":', b'"action": '), *lines[3:]])
    assert "000001.jsonl:3" in verify_chain(chain).findings[0]


def test_an_edited_record_with_a_new_hash_is_found(chain: Path) -> None:
    def forge(lines: list[bytes]) -> list[bytes]:
        entry = unseal(lines[2])
        previous = entry.pop("previous_hash")
        del entry["hash"]
        return [*lines[:2], seal({**entry, "action": 999}, previous)[0], *lines[3:]]

    change(segments(chain)[0], forge)
    assert any("does not follow" in finding for finding in verify_chain(chain).findings)


def test_a_deleted_record_is_found(chain: Path) -> None:
    change(segments(chain)[1], lambda lines: lines[:1] + lines[2:])
    assert any("deleted" in finding for finding in verify_chain(chain).findings)


def test_reordered_records_are_found(chain: Path) -> None:
    change(segments(chain)[1], lambda lines: [lines[1], lines[0], *lines[2:]])
    assert any("reordered" in finding for finding in verify_chain(chain).findings)


def test_a_deleted_segment_is_found(chain: Path) -> None:
    segments(chain)[1].unlink()
    assert not verify_chain(chain).intact


def test_a_truncated_end_is_found_by_the_anchored_head(chain: Path) -> None:
    anchor = head(chain)
    change(segments(chain)[-1], lambda lines: lines[:-1])
    assert verify_chain(chain).intact  # the chain alone cannot show it
    assert any("truncated" in finding for finding in verify_chain(chain, [anchor]).findings)


def test_a_rewritten_log_is_found_by_the_anchored_head(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anchor = head(chain)
    for path in segments(chain):
        path.unlink()
    log = AuditLog("cartpole")
    for number in range(60):
        log.append([record("decision", decision_id=None, action=-number)])
    log.close()
    assert verify_chain(chain).intact
    assert any("rewritten" in finding for finding in verify_chain(chain, [anchor]).findings)


def test_old_segments_may_go_only_when_their_removal_is_on_record(chain: Path) -> None:
    first = segments(chain)[0]
    last = unseal(first.read_bytes().splitlines(keepends=True)[-1])
    first.unlink()
    head = Anchor(last["sequence"], last["hash"], segment="000001")
    findings = verify_chain(chain, [head]).findings
    assert findings[0] == "segment 000001 missing, and no removal is on record"
    assert f"records 0 to {head.sequence} (of segment 000001) are missing" in findings[1]
    removal = replace(head, kind="removal", first_segment="000001", by="gc", reason="old")
    report = verify_chain(chain, [head, removal])
    assert report.intact
    assert report.notes == [f"records 0 to {head.sequence} are no longer kept: removed by gc: old"]
    for lie in ({"digest": "0" * 64}, {"sequence": head.sequence + 1}, {"first_sequence": 1}):
        assert not verify_chain(chain, [head, replace(removal, **lie)]).intact
