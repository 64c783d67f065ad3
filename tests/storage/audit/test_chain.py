"""The hash chain, and what verification finds."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomrl.errors import ArtifactError
from loomrl.storage.audit.chain import GENESIS, BrokenRecord, seal, unseal
from loomrl.storage.audit.compacted import write_compacted
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record
from loomrl.storage.audit.reserve import SLOT_BYTES, Reserve
from loomrl.storage.audit.segments import segments
from loomrl.storage.audit.verification import REMOVAL, Anchor, verify_chain


@given(
    st.dictionaries(st.text(min_size=1), st.one_of(st.text(), st.integers(-(2**53), 2**53), st.none(), st.booleans()))
)
def test_what_is_sealed_unseals(fields: dict[str, object]) -> None:
    fields = {"kind": "decision", "sequence": 7, **fields}
    line, digest = seal(fields, GENESIS)
    opened = unseal(line)
    assert opened["hash"] == digest
    assert opened["previous_hash"] == GENESIS
    assert fields.items() <= {**opened, **{k: fields[k] for k in fields.keys() & {"hash", "previous_hash"}}}.items()


def test_every_changed_byte_is_found() -> None:
    line, _ = seal({"kind": "decision", "sequence": 0, "action": 1, "agent_id": "a\nb"}, GENESIS)
    assert unseal(line)
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


@pytest.mark.parametrize("anchored", [True, False], ids=["anchored", "between heads"])
def test_records_that_were_moved_to_the_next_segment_are_found(chain: Path, anchored: bool) -> None:
    """Order and content stay as they were, so that the hashes do not show it."""
    former, following = segments(chain)[1:3]
    lines, further = (path.read_bytes().splitlines(keepends=True) for path in (former, following))
    last = unseal(lines[-1])
    heads = [Anchor(last["sequence"], last["hash"], segment=former.stem)] if anchored else []
    assert verify_chain(chain, heads).intact
    former.write_bytes(b"".join(lines[:-1]))
    following.write_bytes(b"".join([lines[-1], *further]))
    findings = verify_chain(chain, heads).findings
    assert any(f"{following.name}:1: is not the record that opens a segment" in finding for finding in findings)
    moved = f"{following.name}:1: record {last['sequence']} was anchored in segment {former.stem}: it was moved"
    assert any(finding.startswith(moved) for finding in findings) == anchored


def test_a_segment_that_was_split_is_found(chain: Path) -> None:
    anchor = replace(head(chain), segment=segments(chain)[-1].stem)
    path = segments(chain)[-1]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    behind = path.with_stem(f"{int(path.stem) + 1:06d}")
    behind.write_bytes(b"".join(lines[1:]))
    findings = verify_chain(chain, [anchor]).findings
    assert any(f"was anchored in segment {path.stem}: it was moved" in finding for finding in findings), findings


def test_records_that_were_swapped_between_segments_are_not_said_to_be_missing(chain: Path) -> None:
    anchor = head(chain)
    former, last = segments(chain)[-2:]
    lines, further = (path.read_bytes().splitlines(keepends=True) for path in (former, last))
    former.write_bytes(b"".join([*lines[:-1], further[-1]]))
    last.write_bytes(b"".join([*further[:-1], lines[-1]]))
    findings = verify_chain(chain, [anchor]).findings
    assert any("does not follow" in finding for finding in findings)
    assert not any("truncated" in finding for finding in findings), findings
    former.write_bytes(b"".join(lines[:-1]))
    assert any("truncated" in finding for finding in verify_chain(chain, [anchor]).findings)


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


@pytest.mark.parametrize("stem", ["1\u00b2", "\u0661", "2", "0000002", "000000", "-1", "x"])
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_file_that_no_server_would_name_so_is_found(chain: Path, stem: str, suffix: str) -> None:
    (chain / f"{stem}{suffix}").write_bytes(b"")
    assert verify_chain(chain).findings == [f"{stem}{suffix} is no segment of a server: it was put here"]
    AuditLog("cartpole").close()  # a server goes on


def test_a_segment_far_beyond_the_others_is_told_without_counting_up_to_it(chain: Path) -> None:
    (chain / f"{'9' * 30}.jsonl").write_bytes(b"")
    assert any("missing, and no removal is on record" in finding for finding in verify_chain(chain).findings)


@pytest.mark.parametrize(
    "told",
    [
        {"segment": "", "first_segment": ""},
        {"segment": "x"},
        {"segment": "000000"},
        {"first_segment": "1\u00b2"},
        {"sequence": -1},
        {"first_sequence": 99},
    ],
)
def test_a_removal_that_names_no_segments_is_found(chain: Path, told: dict[str, Any]) -> None:
    place = {"kind": "removal", "segment": "000001", "first_segment": "000001", "sequence": 3, "first_sequence": 0}
    (finding,) = verify_chain(chain, [Anchor(**{**place, **told})]).findings
    assert "cannot be relied on: it names no segments and records" in finding


def test_removals_that_lead_nowhere_end(chain: Path) -> None:
    first = segments(chain)[0]
    last = orjson.loads(first.read_bytes().splitlines()[-1])["sequence"]
    first.unlink()
    wide = {"segment": "9" * 30, "first_segment": "000001", "sequence": last, "first_sequence": 0}
    assert not verify_chain(chain, [Anchor(kind="removal", digest="0" * 64, **wide)]).intact


def test_a_parquet_file_beside_a_segment_must_hold_its_lines(chain: Path, tmp_path: Path) -> None:
    one, other = segments(chain)[:2]
    forged = one.with_suffix(".parquet")
    write_compacted(one)
    assert verify_chain(chain).intact, "as a crash leaves both"
    write_compacted(other).rename(forged)
    (finding,) = verify_chain(chain).findings
    assert finding.startswith(
        f"{forged.name}: does not hold the lines of {one.name}: put here, edited or damaged (found"
    )
    forged.write_bytes(b"nothing")
    assert f"{forged} cannot be read" in verify_chain(chain).findings[0]
    forged.unlink()
    forged.mkdir()
    assert verify_chain(chain).findings == [f"{forged.name} is no file: it was put here"]


def waiting(chain: Path, *records: dict[str, object]) -> list[bytes]:
    """Lines that follow the chain's last one, as a server keeps them where the disk has no room."""
    report, lines = verify_chain(chain), []
    sequence, digest = report.head_sequence, report.head_digest
    for one in records:
        sequence += 1
        line, digest = seal({**one, "sequence": sequence}, digest)
        lines.append(line)
    return lines


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"open" broken\n',
        b'{"kind":"open"}\n',
        b'{"kind":"open","segment":"x","sequence":"y"}\n',
        b"broken\n",
        b"[]\n",
        b'{"sequence":0}\n',
    ],
)
def test_a_damaged_line_in_the_reserve_is_found(chain: Path, line: bytes) -> None:
    first, last = waiting(chain, {"kind": "operation"}, {"kind": "operation"})
    reserve = Reserve(chain / "reserve")
    reserve.write(first + last)
    assert verify_chain(chain).intact
    reserve.write(first + last + line)
    assert any(finding.startswith("reserve:3: ") for finding in verify_chain(chain).findings)
    reserve.write(first + line)
    assert any(finding.startswith("reserve:2: ") for finding in verify_chain(chain).findings)


@pytest.mark.parametrize("segment", ["1\u00b2", "9" * 5_000])
def test_a_record_in_the_reserve_that_opens_what_is_no_segment_is_found(chain: Path, segment: str) -> None:
    Reserve(chain / "reserve").write(waiting(chain, {"kind": "open", "segment": segment, "server": "x"})[0])
    assert any(f"was written as segment {segment}" in finding for finding in verify_chain(chain).findings)


def test_a_line_that_no_server_wrote_is_named_by_whoever_goes_on_from_it(chain: Path) -> None:
    path = segments(chain)[-1]
    lines = path.read_bytes().splitlines(keepends=True)
    forged, _ = seal({}, unseal(lines[-1])["hash"])
    path.write_bytes(b"".join([*lines, forged]))
    place = f"{path.name}:{len(lines) + 1}: not a record of a server"
    assert any(finding.startswith(place) for finding in verify_chain(chain).findings)
    with pytest.raises(ArtifactError, match=place):
        AuditLog("cartpole", chain.name)
    path.write_bytes(b"".join(lines))
    Reserve(chain / "reserve").write(forged)
    with pytest.raises(ArtifactError, match="reserve:1: not a record of a server"):
        AuditLog("cartpole", chain.name, reserves=True)


def test_a_folder_that_cannot_be_read_is_found(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "iterdir", refuse)
    (finding,) = verify_chain(chain).findings
    assert finding == f"{chain} cannot be read: Permission denied; verify as a user who may read it"


def test_a_line_in_the_reserve_that_is_another_record_than_the_logs_is_found(chain: Path) -> None:
    written = segments(chain)[-1].read_bytes().splitlines(keepends=True)[-1]
    Reserve(chain / "reserve").write(written)
    assert verify_chain(chain).intact, "as a crash leaves it in both"
    record = orjson.loads(written)
    forged, _ = seal({"kind": "operation", "sequence": record["sequence"]}, record["previous_hash"])
    Reserve(chain / "reserve").write(forged)
    (finding,) = verify_chain(chain).findings
    found = orjson.loads(forged)["hash"][:16]
    assert finding == f"reserve:1: is not the record {record['sequence']} of the log: it was put here (found: {found})"


def test_an_empty_segment_behind_the_last_one_is_shown(chain: Path) -> None:
    path = chain / f"{int(segments(chain)[-1].stem) + 1:06d}.jsonl"
    path.touch()
    report = verify_chain(chain)
    assert (report.intact, report.notes) == (
        True,
        [f"{path.name}: is empty: there was no room for a line, or it was put here"],
    )


def test_a_line_in_the_reserve_of_a_record_that_was_removed_is_vouched_for_by_what_follows(chain: Path) -> None:
    first, *rest = segments(chain)
    removed = [unseal(line) for line in first.read_bytes().splitlines(keepends=True)]
    written = first.read_bytes().splitlines(keepends=True)[-2:]
    anchor = Anchor(
        removed[-1]["sequence"], removed[-1]["hash"], kind=REMOVAL, segment=first.stem, first_segment=first.stem
    )
    first.unlink()
    assert rest
    reserve = Reserve(chain / "reserve")
    reserve.write(b"".join(written))
    assert verify_chain(chain, [anchor]).intact, "as a crash leaves it, and later the segment is removed"
    record = unseal(written[0])
    forged, digest = seal({"kind": "operation", "sequence": record["sequence"]}, record["previous_hash"])
    reserve.write(forged)
    (finding,) = verify_chain(chain, [anchor]).findings
    assert finding == (
        f"reserve:1: record {record['sequence']} is not in the log, and nothing says that it was: it was put here "
        f"(found: {digest[:16]})"
    )


def test_a_damaged_reserve_is_found_and_one_that_was_cut_loses_no_whole_text(chain: Path) -> None:
    path = chain / "reserve"
    reserve = Reserve(path)
    (line,) = waiting(chain, {"kind": "operation"})
    for _ in range(3):
        reserve.write(line)
        assert verify_chain(chain).intact
    whole = path.read_bytes()
    for place in (0, 40, 100, SLOT_BYTES + 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert verify_chain(chain).findings == [
            "reserve holds a damaged text, the newest one perhaps: records of orders may be missing"
        ]
    path.write_bytes(whole[:SLOT_BYTES])
    assert "is no file of" in verify_chain(chain).findings[0]
    assert Reserve(path).read() == line
    path.unlink()
    path.mkdir()
    assert "is no file of" in verify_chain(chain).findings[0]
