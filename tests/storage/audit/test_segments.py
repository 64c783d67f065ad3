"""A chain's lines: forwards, backwards, and from whichever file holds them."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomrl.errors import ArtifactError
from loomrl.storage.audit import history
from loomrl.storage.audit import segments as module
from loomrl.storage.audit.compaction import compact
from loomrl.storage.audit.following import ChainFollower
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record
from loomrl.storage.audit.segments import last_record, lines, lines_backwards, newest_records, segments, segments_after

pytestmark = pytest.mark.usefixtures("loomrl_home")


@given(st.lists(st.binary(max_size=40).map(lambda text: text.replace(b"\n", b"")), max_size=12), st.booleans())
def test_backwards_is_forwards_reversed(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], torn: bool
) -> None:
    path = tmp_path_factory.mktemp("chain") / "000001.jsonl"
    whole = b"\n".join(texts) + (b"" if torn else b"\n")
    path.write_bytes(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 7)  # a line spans several reads, and a read several lines
        assert list(lines_backwards(path))[::-1] == list(lines(path))
    assert b"".join(lines(path)) == whole


def chain(num_records: int = 40) -> AuditLog:
    log = AuditLog("cartpole", segment_bytes=4_000)
    for number in range(num_records):
        log.append([record("decision", decision_id=None, action=number)])
    log.close()
    assert len(segments(log.folder)) > 2
    return log


def test_reading_back_stops_where_enough_was_read() -> None:
    log = chain()
    segments(log.folder)[0].write_bytes(b"not read\n")
    newest = list(newest_records(log.folder, 2_000))
    assert newest[-1]["sequence"] == log.head.sequence
    assert [entry["sequence"] for entry in newest] == list(
        range(log.head.sequence - len(newest) + 1, log.head.sequence + 1)
    )
    with pytest.raises(ArtifactError, match=r"000001\.jsonl:1: not a whole record.*--server NAME"):
        list(newest_records(log.folder, 10**6))


def test_segments_before_a_record_are_left_out() -> None:
    log = chain()
    for path in segments(log.folder):
        first = next(iter(module.checked_records(path)))["sequence"]
        assert segments_after(log.folder, first)[0] == path
        assert segments_after(log.folder, first - 1)[0] == path
    assert segments_after(log.folder, -1) == segments(log.folder)


def test_a_segment_that_was_compacted_after_it_was_listed_is_still_read() -> None:
    log = chain()
    listed = segments(log.folder)
    before = [list(lines(path)) for path in listed]
    compact(log.folder)
    assert [list(lines(path)) for path in listed] == before
    assert [list(lines_backwards(path))[::-1] for path in listed] == before
    assert last_record(log.folder) == (log.head.sequence, log.head.digest)


def test_a_segment_in_both_forms_counts_once(tmp_path: Path) -> None:
    for name in ("000001.jsonl", "000001.parquet", "000002.parquet", "000003.jsonl", "000003.torn"):
        (tmp_path / name).touch()
    assert [path.name for path in segments(tmp_path)] == ["000001.jsonl", "000002.parquet", "000003.jsonl"]


@pytest.mark.parametrize(
    "damage",
    [
        b'{"kind":"decision", torn}\n',
        b'{"kind":"decision"}\n',
        b'{"kind":"decision","sequence":true}\n',
        b'{"kind":"decisions","sequence":9}\n',
        b'{"sequence":9}\n',
        b"[]\n",
    ],
)
def test_readers_name_a_line_that_is_no_record(loomrl_home: Path, damage: bytes) -> None:
    log = AuditLog("cartpole")
    log.append([record("decision", decision_id=None)])
    log.close()
    (path,) = segments(log.folder)
    first, *others = path.read_bytes().splitlines(keepends=True)
    told = f"{path.name}:{{}} is damaged; see `loomrl audit verify`"
    path.write_bytes(b"".join([first, *others, damage]))
    place = re.escape(told.format(1 + len([first, *others])))
    with pytest.raises(ArtifactError, match=place):
        list(history.records("cartpole"))
    if damage.startswith(b'{"kind":"decision'):
        with pytest.raises(ArtifactError, match=place):
            history.count_decisions("cartpole")
        with pytest.raises(ArtifactError, match=place):
            history.read_lines(log.folder, -1, 10, ["decision"])
    if b'"decisions"' in damage:
        return  # it is a record, whose parts are missing
    with pytest.raises(ArtifactError, match=r"000001\.jsonl is damaged"):
        ChainFollower(log.folder, -1).read()
    path.write_bytes(b"".join([damage, *others]))
    with pytest.raises(ArtifactError, match=re.escape(told.format(1))):
        segments_after(log.folder, 0)
