"""A file system without room, or without room for another file: nothing is decided unrecorded, and it goes on."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.main import app
from loomrl.errors import ArtifactError, ServiceError
from loomrl.serving.client import PolicyClient, Refused
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import records
from loomrl.storage.audit.log import AuditLog, AuditUnwritable
from loomrl.storage.audit.records import operation, record
from loomrl.storage.audit.reserve import SLOT_BYTES, Reserve, reserved_text
from loomrl.storage.audit.segments import complete_lines, segments
from loomrl.storage.audit.verification import Anchor, verify_chain
from tests.support.inside import wait_for
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.several_workers import connected, pids
from tests.support.small_disk import SmallDisk, small_disk

OBS = OBSERVATIONS[0].tolist()


@pytest.fixture
def disk(loomrl_home: Path) -> Iterator[SmallDisk]:
    """Where audit logs lie."""
    with small_disk(loomrl_home / "audit") as found:
        yield found


def server_of(tmp_path: Path, **options: object) -> ServerProcess:
    options = {"champion_folder": discrete_folder(tmp_path / "policy"), "rate": 1e6, "anchor_seconds": 1e6, **options}
    return ServerProcess("cartpole", **options)


def until_refused(client: PolicyClient, most: int = 1_000) -> tuple[list[str], Refused]:
    """The decisions there was room for, and what the first one got for which there was none."""
    decided: list[str] = []
    for _ in range(most):
        try:
            decided.append(client.decide("a", OBS).decision_id)
        except Refused as refused:
            return decided, refused
    raise AssertionError("the disk never was full")


def on_record() -> list[str]:
    return [entry["decision_id"] for entry in records("cartpole") if entry["kind"] == "decision"]


def test_without_a_byte_left_nothing_is_decided_until_there_is_room(disk: SmallDisk, tmp_path: Path) -> None:
    with server_of(tmp_path) as server, server.client() as client:
        first = client.decide("a", OBS).decision_id
        disk.fill()
        decided, refused = until_refused(client)
        assert (refused.status, "No space left" in str(refused) or "no space is left" in str(refused)) == (507, True)
        with pytest.raises(Refused, match="507"):
            client.feedback(first, 1.0)
        assert "space" in client.status()["audit"]["last_error"]
        disk.make_room()
        last = client.decide("a", OBS).decision_id
        client.feedback(first, 1.0)
    assert on_record() == [first, *decided, last]
    assert verify_chain(disk.folder / "cartpole" / "server-0").intact


def test_without_room_for_another_segment_nothing_is_decided_until_there_is(disk: SmallDisk, tmp_path: Path) -> None:
    with server_of(tmp_path, segment_bytes=20_000) as server, server.client() as client:
        disk.fill_names()
        decided, refused = until_refused(client)
        assert refused.status == 507
        assert "No space left" in str(refused)
        disk.make_room()
        last = client.decide("a", OBS).decision_id
    chain = disk.folder / "cartpole" / "server-0"
    assert on_record() == [*decided, last]
    assert len(segments(chain)) == 2
    assert verify_chain(chain).intact


def test_a_segment_begins_with_what_opens_it_also_where_there_was_no_room_for_that(disk: SmallDisk) -> None:
    log = AuditLog("cartpole", segment_bytes=2_000)
    while log.segment == "000001" and (log.folder / "000001.jsonl").stat().st_size < 2_000:
        log.append([record("decision", decision_id=None)])
    disk.fill()
    for _ in range(2):
        with pytest.raises(AuditUnwritable):
            log.append([record("decision", decision_id=None)])
    disk.make_room()
    log.append([record("decision", decision_id=None)])
    log.close()
    assert b'{"kind":"open"' in next(complete_lines(segments(log.folder)[-1]))
    assert verify_chain(log.folder).intact


def test_a_server_does_not_start_without_room_and_says_so(disk: SmallDisk, tmp_path: Path) -> None:
    disk.fill()
    with pytest.raises(ServiceError, match="No space left.*free some space"), server_of(tmp_path):
        pass
    disk.make_room()
    with server_of(tmp_path) as server, server.client() as client:
        client.decide("a", OBS)
    assert verify_chain(disk.folder / "cartpole" / "server-0").intact


@pytest.mark.parametrize("have_sockets", [True, False], ids=["as they ended", "the first of several"])
def test_several_workers_start_where_there_is_no_room_for_another_file(tmp_path: Path, have_sockets: bool) -> None:
    home, by = tmp_path / "home", {"person": "Ada", "reason": "test"}
    with small_disk(home, 64 * 2**20, 512) as disk:
        options = {"workers": 2, "wait_ready": False, "environment": {"LOOMRL_HOME": str(home)}}
        with server_of(tmp_path, **options) as server, server.client() as client:
            wait_for(client.is_ready)
            client.set_plan(fallback={"action": 0}, **by)
            former = pids(server)
            if not have_sockets:
                for path in home.glob("run/cartpole/*/*.sock"):
                    path.unlink()
            server.kill()
            wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in former))
            disk.fill_names()
            server.start()
            pids(server)
            for worker in range(2):
                with connected(server, worker) as one:
                    one.set_kill_switch(worker == 0, **by)
                    assert (client.plan()["kill_switch"] is not None) == (worker == 0)  # whichever of them answers
            assert server.stop() == 0
            assert "Traceback" not in server.log()


def test_several_workers_that_find_no_room_anywhere_say_so(tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    with small_disk(home) as disk, small_disk(temporary) as other:
        for one in (disk, other):
            one.fill_names()
        environment = {"LOOMRL_HOME": str(home), "TMPDIR": str(temporary)}
        with pytest.raises(ServiceError, match=r"code 3.*takes no files that several workers need.*--workers 1"):
            server_of(tmp_path, workers=2, environment=environment).__enter__()


def order(what: str) -> dict[str, object]:
    return operation("cartpole", what, "Ada", "test")


def test_a_server_does_not_start_in_a_home_that_is_read_only_and_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with small_disk(home) as disk:
        disk.turn_read_only()
        with pytest.raises(ServiceError, match=rf"code 3.*LOOMRL_HOME {home} is not writable; set LOOMRL_HOME to"):
            server_of(tmp_path, environment={"LOOMRL_HOME": str(home)}).__enter__()
        with server_of(tmp_path) as server, server.client() as client:
            ordered = ["kill", "on", "--policy", "cartpole", "--reason", "a fault", "--server", server.url]
            done = CliRunner(env={"LOOMRL_HOME": str(home)}).invoke(app, ordered)
            assert done.exit_code == 0, done.output
            with pytest.raises(Refused, match="503: the kill switch is on"):
                client.decide("a", OBS)


def test_records_of_orders_find_room_on_a_full_disk_and_stand_in_the_chain(disk: SmallDisk) -> None:
    log = AuditLog("cartpole", reserves=True)
    log.append([record("decision", decision_id=None)])
    disk.fill()
    with suppress(AuditUnwritable):
        for _ in range(1_000):  # what is left of the last page
            log.append([record("decision", decision_id=None)])
    sequences = log.append_order([order("first")]) + log.append_order([order("second")])
    head = log.head
    assert [entry.get("operation") for entry in records("cartpole")][-2:] == ["first", "second"]
    anchored = Anchor(head.sequence, head.digest, segment=head.segment)
    report = verify_chain(log.folder, [anchored])
    assert (report.intact, report.head_sequence) == (True, sequences[-1]), report.findings
    assert any("wait in reserve" in note for note in report.notes)
    (log.folder / "reserve").rename(disk.folder / "taken")
    assert not verify_chain(log.folder, [anchored]).intact  # it shows that they are gone
    (disk.folder / "taken").rename(log.folder / "reserve")
    disk.make_room()
    log.append([record("decision", decision_id=None)])
    log.close()
    assert b'"operation":"second"' in segments(log.folder)[-1].read_bytes()
    assert verify_chain(log.folder, [anchored]).intact
    assert log.num_waiting_bytes == 0


def test_a_chain_goes_on_over_restarts_without_room(disk: SmallDisk) -> None:
    AuditLog("cartpole", reserves=True).close()
    disk.fill()
    anchors = []
    for number in range(3):
        log = AuditLog("cartpole", reserves=True)
        with pytest.raises(AuditUnwritable):
            log.append([record("decision", decision_id=None) for _ in range(1_000)])
        log.append_order([order(str(number))])
        anchors.append(Anchor(log.head.sequence, log.head.digest, segment=log.head.segment))
        log.close()
        assert verify_chain(log.folder, anchors).intact
    disk.make_room()
    log = AuditLog("cartpole", reserves=True)
    log.append([record("decision", decision_id=None)])
    log.close()
    report = verify_chain(log.folder, anchors)
    assert report.intact, report.findings
    done = [entry["operation"] for entry in records("cartpole") if entry["kind"] == "operation"]
    assert done == ["0", "1", "2"]
    assert all(next(complete_lines(path)).startswith(b'{"kind":"open"') for path in segments(log.folder))


def test_what_a_reserve_held_outlives_who_is_killed_while_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first slot, or in the second: the text before it, or itself, is whole."""
    reserve, states = Reserve(tmp_path / "reserve"), [b""]
    for text in (b"first", b"second", b"third"):
        reserve.write(text)
    write = os.pwrite

    def seen(handle: int, data: bytes, place: int) -> int:
        states.append((tmp_path / "reserve").read_bytes())
        return write(handle, data, place)

    with monkeypatch.context() as watched:
        watched.setattr(os, "pwrite", seen)
        reserve.write(b"fourth")
    states = [*states[1::2], (tmp_path / "reserve").read_bytes()]  # what is written between is the mark of use
    for expected, before, after in ((b"third", states[0], states[1]), (b"fourth", states[1], states[2])):
        changed = [index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        start = changed[0] // SLOT_BYTES * SLOT_BYTES
        assert max(changed) < start + SLOT_BYTES
        for cut in (1, 20, 45):  # bytes of it that came to the disk
            (tmp_path / "torn").write_bytes(before[:start] + after[start : start + cut] + before[start + cut :])
            torn = Reserve(tmp_path / "torn")
            assert reserved_text(tmp_path / "torn") == torn.read() == expected
            assert not torn.has_lost
    assert reserve.read() == b"fourth"
    with pytest.raises(ArtifactError, match="more than is reserved"):
        reserve.write(bytes(SLOT_BYTES))
    assert reserve.read() == b"fourth"
