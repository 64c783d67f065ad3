"""Writing the audit log: order, rotation, full disks, torn tails."""

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from loomrl.errors import ArtifactError
from loomrl.storage.audit.chain import unseal
from loomrl.storage.audit.history import records
from loomrl.storage.audit.keeper import AuditKeeper
from loomrl.storage.audit.log import AuditLog, AuditUnwritable, NotDurable
from loomrl.storage.audit.records import record
from loomrl.storage.audit.segments import segments
from loomrl.storage.audit.verification import verify_chain

pytestmark = pytest.mark.usefixtures("loomrl_home")


def decision(**fields: object) -> dict[str, object]:
    return record("decision", decision_id=None, **fields)


def lines_of(folder: Path) -> list[bytes]:
    return [line for path in segments(folder) for line in path.read_bytes().splitlines(keepends=True)]


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """As on a full disk, writes come up short, then fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_records_have_the_keys_of_the_specification() -> None:
    log = AuditLog("cartpole")
    log.append([decision()])
    entries = [unseal(line) for line in lines_of(log.folder)]
    for entry in entries:
        assert {"timestamp", "agent_id", "action_hash", "reward", "q_value", "exploration_flag"} <= entry.keys()
    assert [entry["sequence"] for entry in entries] == [0, 1]
    log.close()


def test_a_record_is_in_the_file_when_append_returns() -> None:
    log = AuditLog("cartpole")
    (sequence,) = log.append([decision(action=3)])
    assert unseal(lines_of(log.folder)[-1])["sequence"] == sequence
    log.close()


def test_a_chain_whose_writer_is_about_to_end_is_waited_for() -> None:
    first = AuditLog("cartpole", "orders")
    ending = threading.Timer(0.3, first.close)
    ending.start()
    AuditLog("cartpole", "orders", patience_seconds=60.0).close()
    ending.join()


def test_a_closed_log_writes_into_no_file_that_was_opened_since(tmp_path: Path) -> None:
    log = AuditLog("cartpole")
    log.append([decision()])
    before = lines_of(log.folder)
    log.close()
    with (tmp_path / "another").open("wb") as another:  # gets the number of the segment's file
        with pytest.raises(AuditUnwritable, match="is closed"):
            log.append([decision()])
        log.close()
        another.write(b"its own")
    assert (tmp_path / "another").read_bytes() == b"its own"
    assert lines_of(log.folder) == before


def test_two_servers_have_chains_of_their_own() -> None:
    first, second = AuditLog("cartpole"), AuditLog("cartpole")
    assert first.folder != second.folder
    with pytest.raises(ArtifactError, match="belongs to a running server"):
        AuditLog("cartpole", first.folder.name)
    first.close()
    third = AuditLog("cartpole")
    assert third.folder == first.folder
    second.close()
    third.close()
    assert verify_chain(third.folder).intact


def by_four_at_once(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_share_one_chain() -> None:
    log = AuditLog("cartpole", segment_bytes=20_000)

    def write() -> None:
        for _ in range(100):
            log.append([decision(), decision()])

    by_four_at_once(write)
    log.close()
    report = verify_chain(log.folder)
    assert report.intact
    assert report.num_records == 800 + report.num_segments


def test_a_short_write_leaves_the_chain_as_it_was_and_says_so() -> None:
    log = AuditLog("cartpole")
    log.append([decision()])
    path = segments(log.folder)[-1]
    size, before = path.stat().st_size, log.head
    with file_size_limit(size + 50), pytest.raises(AuditUnwritable, match="no space") as refused:
        log.append([decision()])
    assert refused.value.full
    assert path.stat().st_size == size
    assert log.head == before
    with file_size_limit(size), pytest.raises(AuditUnwritable) as again:
        log.append([decision()])
    assert again.value.full
    log.append([decision()])  # space came back
    log.close()
    assert verify_chain(log.folder).intact


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_torn_tail_is_cut_and_kept(cut: int) -> None:
    log = AuditLog("cartpole")
    for _ in range(5):
        log.append([decision()])
    log.close()
    path = segments(log.folder)[-1]
    whole = path.read_bytes()
    os.truncate(path, len(whole) - cut)
    again = AuditLog("cartpole")
    assert again.repaired is not None
    assert path.with_suffix(".torn").read_bytes() == whole.splitlines(keepends=True)[-1][:-cut]
    again.close()
    report = verify_chain(log.folder)
    assert report.intact
    assert "half-written" in report.notes[0]


def test_a_torn_tail_that_is_deleted_or_edited_afterwards_is_found() -> None:
    log = AuditLog("cartpole")
    log.append([decision()])
    log.close()
    path = segments(log.folder)[-1]
    torn = path.with_suffix(".torn")
    torn.write_bytes(b"of an earlier crash")
    with path.open("ab") as file:
        file.write(b'{"kind":"half')
    again = AuditLog("cartpole")
    again.append([decision()])
    again.close()
    assert torn.read_bytes() == b"of an earlier crash"
    kept = path.with_suffix(".2.torn")
    assert kept.read_bytes() == b'{"kind":"half'
    assert verify_chain(log.folder).intact
    kept.write_bytes(b'{"kind":"hale')
    (finding,) = verify_chain(log.folder).findings
    assert finding.startswith(f"{kept.name}: is not what was cut, as 000002.jsonl:1 says: edited or damaged (found: ")
    kept.unlink()
    assert verify_chain(log.folder).findings == [
        f"000002.jsonl:1: names {kept.name}, which a crash left: it is missing"
    ]


def test_an_edited_last_record_is_not_cut_as_if_a_crash_had_torn_it() -> None:
    log = AuditLog("cartpole")
    for number in range(3):
        log.append([decision(action=number)])
    log.close()
    path = segments(log.folder)[-1]
    edited = path.read_bytes().replace(b'"action":2', b'"action":0')
    path.write_bytes(edited)
    for _ in range(2):  # and trying again launders nothing either
        with pytest.raises(ArtifactError, match=r"000001\.jsonl:4: .*`loomrl audit verify`.*--server NAME"):
            AuditLog("cartpole")
    assert segments(log.folder) == [path]
    assert path.read_bytes() == edited
    assert not path.with_suffix(".torn").exists()
    assert "000001.jsonl:4" in verify_chain(log.folder).findings[0]
    AuditLog("cartpole", "new").close()


def test_a_chain_goes_on_over_restarts() -> None:
    for _ in range(3):
        log = AuditLog("cartpole")
        log.append([decision()])
        log.close()
    report = verify_chain(log.folder)
    assert (report.num_segments, report.num_records, report.intact) == (3, 6, True)


def test_a_segment_that_is_being_synced_is_written_on_and_ended_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    log, begun, goes_on, sync = (
        AuditLog("cartpole", segment_bytes=600),
        threading.Event(),
        threading.Event(),
        os.fdatasync,
    )
    log.append([decision()])

    def slow(handle: int) -> None:
        begun.set()
        assert goes_on.wait(120)
        sync(handle)

    monkeypatch.setattr(os, "fdatasync", slow)
    syncing = threading.Thread(target=log.sync)
    syncing.start()
    assert begun.wait(120)
    log.append([decision(), decision(), decision()])
    log.append([decision()])  # past its size, and nothing waits
    assert len(segments(log.folder)) == 1
    goes_on.set()
    syncing.join()
    log.append([decision()])
    assert len(segments(log.folder)) == 2
    log.close()
    assert not verify_chain(log.folder).findings


def test_of_several_that_find_a_failing_disk_at_once_one_puts_it_on_record(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, there = AuditLog("cartpole", "server-0"), threading.Barrier(4)
    keeper = AuditKeeper(log)

    def failing() -> None:
        there.wait()
        raise NotDurable("the disk fails", full=False)

    def look() -> None:
        with suppress(NotDurable):
            keeper.sync()

    with monkeypatch.context() as disk:
        disk.setattr(log, "sync", failing)
        by_four_at_once(look)
    keeper.sync()
    keeper.sync()
    kinds = [one["kind"] for one in records("cartpole")]
    assert (kinds.count("not durable"), kinds.count("durable again")) == (1, 1)
    log.close()
