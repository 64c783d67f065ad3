"""Following a chain while it is written."""

from pathlib import Path

import pytest

from loomrl.storage.audit.following import ChainPosition, Tail
from loomrl.storage.audit.log import AuditLog, segments
from tests.support.live import decide

pytestmark = pytest.mark.usefixtures("loomrl_home")


def ids(tail: Tail) -> list[str]:
    return [entry["decision_id"] for found in iter(lambda: tail.read(("decision",)), []) for entry in found]


def test_each_record_is_read_once_over_segments_and_restarts() -> None:
    log, made, read, position = AuditLog("cartpole", segment_bytes=2_000), [], [], ChainPosition()
    for _ in range(5):
        tail = Tail(log.folder, position)
        for _ in range(3):
            made += [decide(log, "a", None, [0.0]) for _ in range(4)]
            read += ids(tail)
        position = ChainPosition.model_validate(tail.position.to_json())
        tail.close()
    assert read == made
    assert len(segments(log.folder)) > 5


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "000001.jsonl"
    line = b'{"kind":"decision","sequence":2,"decision_id":"long","observation":"' + b"x" * 3 * 2**20 + b'"}\n'
    tail = Tail(tmp_path, ChainPosition())
    assert ids(tail) == []
    path.write_bytes(
        b'{"kind":"open","sequence":0}\n{"kind":"decision","sequence":1,"decision_id":"first"}\n' + line[:-1]
    )
    assert ids(tail) == ["first"]
    with path.open("ab") as file:
        file.write(b"\n")
    assert ids(tail) == ["long"]
    assert ids(tail) == []


def test_where_its_segment_is_gone_it_goes_on_with_the_next() -> None:
    log = AuditLog("cartpole", segment_bytes=2_000)
    made = [decide(log, "a", None, [0.0]) for _ in range(20)]
    first, *later = segments(log.folder)
    first.unlink()
    read = ids(Tail(log.folder, ChainPosition(segment=first.stem, offset=700)))
    assert read == made[-len(read) :]
    assert len(read) >= 3 * (len(later) - 1)
