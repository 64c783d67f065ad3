"""Reading a chain while it is written."""

import os
from pathlib import Path

import pytest

from loomrl.storage.audit.following import ChainFollower
from loomrl.storage.audit.log import AuditLog, segments
from tests.support.live import decide


@pytest.fixture
def log(loomrl_home: Path) -> AuditLog:
    return AuditLog("cartpole", segment_bytes=2_000)


def test_records_come_once_and_in_order_over_all_segments(log: AuditLog) -> None:
    follower = ChainFollower(log.folder, log.head.sequence)
    assert follower.read() == []
    found: list[dict] = []
    for step in range(20):
        decide(log, "a", None, [step])
        found += follower.read()
    while entries := follower.read():
        found += entries
    assert len(segments(log.folder)) > 3
    assert [entry["sequence"] for entry in found] == list(range(1, log.head.sequence + 1))
    assert [entry["observation"] for entry in found if entry["kind"] == "decision"] == [[step] for step in range(20)]
    assert follower.backlog_bytes == 0


@pytest.mark.parametrize("after", [0, 7, 19, 25])
def test_it_begins_behind_any_record(log: AuditLog, after: int) -> None:
    for step in range(20):
        decide(log, "a", None, [step])
    follower, found = ChainFollower(log.folder, after), []
    while follower.backlog_bytes:
        found += follower.read()
    assert [entry["sequence"] for entry in found] == list(range(after + 1, log.head.sequence + 1))


def test_what_was_read_before_a_restart_is_no_backlog(loomrl_home: Path) -> None:
    log = AuditLog("cartpole")
    for step in range(1_000):  # several times what is read at once
        decide(log, "a", None, [step] * 100)
    follower = ChainFollower(log.folder, 998)
    (path,) = segments(log.folder)
    assert 0 < follower.backlog_bytes < path.stat().st_size / 400
    assert [entry["sequence"] for entry in follower.read()] == [999, 1_000]


def test_a_chain_may_begin_later_than_its_follower(loomrl_home: Path) -> None:
    follower = ChainFollower(loomrl_home / "audit" / "cartpole" / "server-0", -1)
    assert (follower.read(), follower.backlog_bytes) == ([], 0)
    log = AuditLog("cartpole")
    decide(log, "a", None, [1.0])
    assert [entry["kind"] for entry in follower.read()] == ["open", "decision"]


def test_half_a_record_is_left_until_it_is_whole_or_cut(loomrl_home: Path) -> None:
    log = AuditLog("cartpole")
    decide(log, "a", None, [1.0])
    follower = ChainFollower(log.folder, 0)
    assert len(follower.read()) == 1
    (path,) = segments(log.folder)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"kind":"decision","agent_id":"torn')
    assert follower.read() == []
    os.truncate(path, size)  # what the server does after a short write
    decide(log, "b", None, [2.0])
    assert [entry["agent_id"] for entry in follower.read()] == ["b"]


def test_a_record_may_be_larger_than_what_is_read_at_once(loomrl_home: Path) -> None:
    log = AuditLog("cartpole")
    follower = ChainFollower(log.folder, 0)
    image = list(range(300_000))
    decide(log, "a", None, image)
    decide(log, "a", None, [1])
    assert [entry["observation"] for entry in follower.read() + follower.read()] == [image, [1]]
