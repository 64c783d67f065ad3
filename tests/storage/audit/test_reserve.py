"""Room that is reserved keeps the last text the disk took, whatever the disk does next."""

import os
from pathlib import Path

import pytest

from loomrl.errors import ArtifactError
from loomrl.storage.audit.history import records
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record
from loomrl.storage.audit.reserve import SLOT_BYTES, Reserve, TooLong, damage
from loomrl.storage.audit.verification import verify_chain
from tests.support.failing_disks import failing

LONGEST = 65_488


def test_a_text_that_the_disk_did_not_take_is_never_written_over_the_last_that_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read meanwhile the disk may not hold: it is in the memory of the system alone."""
    reserve = Reserve(tmp_path / "reserve")
    for number in range(3):
        reserve.write(b"kept %d" % number)
        with monkeypatch.context() as disk:
            disk.setattr(os, "fsync", failing)
            for failed in range(4):
                with pytest.raises(ArtifactError, match="cannot be written"):
                    reserve.write(b"failed %d" % failed)
                assert (reserve.holds_last, reserve.has_failed) == (False, True)
                slots = (tmp_path / "reserve").read_bytes()
                assert b"kept %d" % number in slots
    reserve.write(b"kept")
    assert (reserve.holds_last, reserve.has_failed, reserve.read()) == (True, False, b"kept")
    assert damage(tmp_path / "reserve") is None


def test_a_text_that_is_too_long_leaves_the_former(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve")
    reserve.write(b"x" * LONGEST)
    with pytest.raises(TooLong, match="are more than is reserved"):
        reserve.write(b"y" * (LONGEST + 1))
    assert reserve.read() == b"x" * LONGEST


@pytest.mark.parametrize("text", [b"", b"text"])
def test_zeros_in_place_of_a_reserve_are_damage(tmp_path: Path, text: bytes) -> None:
    """Also where none was written yet: who made it wrote an empty one."""
    path = tmp_path / "reserve"
    reserve = Reserve(path)
    if text:
        reserve.write(text)
    assert (reserve.has_lost, damage(path)) == (False, None)
    path.write_bytes(bytes(path.stat().st_size))
    assert Reserve(path).has_lost
    assert damage(path) is not None


@pytest.mark.parametrize("size", [0, 100, SLOT_BYTES + 5])
def test_a_reserve_that_was_cut_off_has_all_its_room_again_when_it_is_written(tmp_path: Path, size: int) -> None:
    path = tmp_path / "reserve"
    reserve = Reserve(path)
    num_bytes = path.stat().st_size
    os.truncate(path, size)
    reserve.write(b"text")
    assert (path.stat().st_size, damage(path), reserve.read(), Reserve(path).read()) == (
        num_bytes,
        None,
        b"text",
        b"text",
    )
    assert path.stat().st_blocks * 512 >= num_bytes
    assert [one.name for one in tmp_path.iterdir()] == ["reserve"]


def test_records_that_waited_behind_what_the_log_lost_are_put_on_record(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk took them and not the end of the log, and the machine fell."""
    log = AuditLog("cartpole", "server-0", reserves=True)
    log.sync()
    (segment,) = log.folder.glob("*.jsonl")
    size = segment.stat().st_size
    log.append([record("note", policy="cartpole")])
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", failing)
        log.append_order([record("kill_switch", policy="cartpole", on=True)])
    log.close()
    os.truncate(segment, size)
    assert not verify_chain(log.folder).intact
    AuditLog("cartpole", "server-0", reserves=True).close()
    (told,) = [one for one in records("cartpole") if one["kind"] == "damaged"]
    assert "the log was cut off behind record 0" in told["reason"]
    (line,) = told["lines"]
    assert '"kind":"kill_switch"' in line
    assert '"on":true' in line
    assert verify_chain(log.folder).intact
    assert Reserve(log.folder / "reserve").read() == b""
