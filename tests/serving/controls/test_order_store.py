"""What is kept of orders is neither lost unseen nor overwritten unread, whatever the disk does to file, copy and
reserve."""

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pydantic import ValidationError

from loomrl.errors import ArtifactError
from loomrl.serving.controls import controls as room
from loomrl.serving.controls.controls import Controls
from loomrl.serving.controls.order_file import SavedControls
from loomrl.serving.controls.overrides import Override, OverrideOrder
from loomrl.serving.controls.plan import Fallback, KillSwitch, Plan
from loomrl.storage.audit.history import records
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record
from loomrl.storage.audit.reserve import SLOT_BYTES, Reserve
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.loomdb.database import LoomDB
from tests.support.inside import wait_for

ADA = {"person": "Ada", "reason": "test"}
PATIENCE = 300.0  # seconds


def full(*_: object) -> NoReturn:
    raise ArtifactError("no space left on the disk")


def failing(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def switched_on(controls: Controls) -> None:
    controls.set_kill_switch(KillSwitch(**ADA), "Ada", "test")


def reads_fail(disk: pytest.MonkeyPatch, *unread: Path) -> None:
    """The disk gives none of these files."""
    read = Path.read_bytes
    disk.setattr(Path, "read_bytes", lambda path: failing() if path in unread else read(path))


# --- what cannot be written ----------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 0


@pytest.mark.parametrize("action", [2**64, -(2**63) - 1, [0.0, float("nan")], float("inf"), nested(300), {1: 2}, {1}])
def test_an_action_that_files_and_records_do_not_hold_alike_is_refused(action: Any) -> None:
    """One that a file takes, and the log does not, would keep all that is ordered later off the record."""
    for made in (Override, OverrideOrder):
        with pytest.raises(ValidationError, match="an action is JSON, with finite numbers and integers of 64 bits"):
            made(action=action, **ADA)
    with pytest.raises(ValidationError, match="an action is JSON"):
        Fallback(action=action)


@pytest.mark.parametrize("action", [0, 2**64 - 1, 1e20, [0.1, -0.3], (0, 1), {"a": [True, None, "left"]}])
def test_any_other_action_may_be_ordered(action: Any) -> None:
    assert Override(action=action, **ADA).action == action


def test_an_order_that_the_log_cannot_hold_stands_in_it_as_text(loomrl_home: Path) -> None:
    """As another version may have made it; what follows is on record as ever."""
    log = AuditLog("cartpole", "server-0", reserves=True)
    log.queue_order([record("override", policy="cartpole", action=2**64, person="Ada")])
    log.append_order([record("kill_switch", policy="cartpole", on=True)])
    log.close()
    kept = [one for one in records("cartpole") if one["kind"] in ("override", "kill_switch")]
    assert [(one["kind"], one.get("action"), one.get("person")) for one in kept] == [
        ("override", str(2**64), "Ada"),
        ("kill_switch", None, None),
    ]
    assert verify_chain(log.folder).intact


@pytest.mark.parametrize("patience", [None, PATIENCE])
def test_what_the_log_does_not_take_is_written_all_the_same(loomrl_home: Path, patience: float | None) -> None:
    def broken() -> NoReturn:
        raise TypeError("it cannot be sealed")

    controls = Controls("cartpole", keep=broken, patience_seconds=patience)
    switched_on(controls)
    assert controls.unsaved is None
    controls.set_plan(Plan(challengers=["2"], **ADA), "Ada")
    again = Controls("cartpole")
    assert again.orders.kill_switch is not None
    assert again.orders.plan.challengers == ["2"]


def test_what_cannot_be_written_for_any_reason_is_said(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controls = Controls("cartpole", patience_seconds=PATIENCE)
    with monkeypatch.context() as broken:
        broken.setattr(SavedControls, "sealed", lambda _: {}["format"])
        switched_on(controls)
        assert "is not written: KeyError" in (controls.unsaved or "")
    controls.follow()
    wait_for(lambda: controls.unsaved is None)
    assert Controls("cartpole").orders.kill_switch is not None


# --- the reserve ---------------------------------------------------------------------------------------------------


def with_one_order_in_the_reserve(monkeypatch: pytest.MonkeyPatch) -> Path:
    controls = Controls("cartpole")
    with monkeypatch.context() as disk:
        disk.setattr(SavedControls, "write", full)
        switched_on(controls)
    assert controls.reserved is not None
    return controls.path.with_suffix(".reserve")


def test_a_reserve_without_a_whole_text_is_said_to_be_damaged_until_loomdb_has_told(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By every process, and after a restart."""
    reserve = with_one_order_in_the_reserve(monkeypatch)
    damaged = bytearray(reserve.read_bytes())
    for slot in (0, SLOT_BYTES):
        damaged[slot + 40] ^= 1
    reserve.write_bytes(damaged)
    found = [Controls("cartpole", patience_seconds=PATIENCE), Controls("cartpole")]
    found[0].follow()
    wait_for(lambda: not Reserve(reserve).has_lost)  # it is written anew, and was damaged all the same
    for one in (*found, Controls("cartpole")):
        assert f"{reserve} is damaged: orders may be missing here" in (one.missing or "")
        assert one.unknown is None
    found[0].exchange(LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}"))
    assert found[0].missing is None
    assert Controls("cartpole").missing is None


def test_a_reserve_that_was_never_written_has_lost_nothing(loomrl_home: Path) -> None:
    """Also one that an earlier version made, which did not note whether texts were written."""
    controls = Controls("cartpole")
    reserve = controls.path.with_suffix(".reserve")
    assert (Reserve(reserve).has_lost, controls.missing) == (False, None)
    os.truncate(reserve, 2 * SLOT_BYTES)
    assert (Reserve(reserve).has_lost, Controls("cartpole").missing) == (False, None)
    earlier = Reserve(reserve)
    earlier.write(b"text")
    assert Reserve(reserve).read() == b"text"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_reserve_that_is_removed_while_it_is_open_is_made_anew(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    controls = Controls("cartpole")
    reserve = controls.path.with_suffix(".reserve")
    reserve.unlink()
    if is_replaced:
        Reserve(reserve)
    with monkeypatch.context() as disk:
        disk.setattr(SavedControls, "write", full)
        switched_on(controls)
        assert (controls.reserved is not None, controls.unsaved) == (True, None)
        assert Controls("cartpole").orders.kill_switch is not None
        reserve.unlink()
        controls.follow()  # it lies in memory still
        assert Controls("cartpole").orders.kill_switch is not None


def test_where_no_reserve_can_be_made_anew_it_is_said(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controls = Controls("cartpole")
    reserve = controls.path.with_suffix(".reserve")
    reserve.unlink()
    reserve.mkdir()
    with monkeypatch.context() as disk:
        disk.setattr(SavedControls, "write", full)
        switched_on(controls)
        assert "no room can be reserved" in (controls.unsaved or "")
        reserve.rmdir()
        controls.follow()
        assert (controls.unsaved, controls.reserved is not None) == (None, True)


def test_a_reserve_that_cannot_be_emptied_has_nobody_write_the_file_again_and_again(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_one_order_in_the_reserve(monkeypatch)
    one, other = Controls("cartpole"), Controls("cartpole")
    written, write = list[Path](), SavedControls.write

    def counted(self: SavedControls, path: Path) -> None:
        written.append(path)
        write(self, path)

    monkeypatch.setattr(SavedControls, "write", counted)
    with monkeypatch.context() as disk:
        disk.setattr(Reserve, "write", full)
        one.set_kill_switch(None, "Ada", "over")
        other.follow()
        written.clear()
        for _ in range(5):
            one.follow()
            other.follow()
        assert written == []
        assert "the reserve cannot be emptied" in (one.reserved or "")
        assert [each.orders.kill_switch for each in (one, other)] == [None, None]
    one.follow()
    other.follow()
    assert (one.reserved, other.reserved) == (None, None)


# --- file and copy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), Path.unlink], ids=["damaged", "gone"])
def test_a_copy_that_cannot_be_read_is_left_alone_where_the_file_is_damaged(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object]
) -> None:
    """It may be whole: nothing is known, so that no version acts, and what is ordered goes to the reserve."""
    controls = Controls("cartpole")
    switched_on(controls)
    copy = controls.path.with_suffix(".copy")
    damage(controls.path)
    with monkeypatch.context() as disk:
        reads_fail(disk, copy)
        again = Controls("cartpole", patience_seconds=PATIENCE)
        assert "orders may be missing here" in (again.unknown or "")
        again.set_override(Override(action=1, **ADA), "Ada")
        assert again.reserved is not None
        with suppress(ArtifactError):
            again.follow()
        assert again.unknown is not None
    again.follow()
    assert again.orders.kill_switch is not None
    assert again.unknown is None
    assert Controls("cartpole").orders == again.orders


def test_what_a_save_reads_is_known(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the files first when the disk is well again."""
    controls = Controls("cartpole")
    switched_on(controls)
    with monkeypatch.context() as disk:
        reads_fail(disk, controls.path, controls.path.with_suffix(".copy"))
        again = Controls("cartpole", patience_seconds=PATIENCE)
        with pytest.raises(ArtifactError):
            again.refresh(has_changed=True)
        assert again.unknown is not None
    again.set_plan(Plan(challengers=["2"], **ADA), "Ada")
    assert (again.unknown, again.missing) == (None, None)
    assert again.orders.kill_switch is not None


# --- of one moment -------------------------------------------------------------------------------------------------


def held_up(controls: Controls, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Thread, threading.Event]:
    """A thread that takes what the file says, and is about to have it in force; and what lets it go on."""
    is_there, goes_on = threading.Event(), threading.Event()

    def recording(changes: Any) -> None:
        is_there.set()
        assert goes_on.wait(PATIENCE)

    monkeypatch.setattr(controls, "_record", recording)
    follower = threading.Thread(target=controls.refresh)
    follower.start()
    assert is_there.wait(PATIENCE)
    return follower, goes_on


def test_who_lifts_an_override_does_not_lift_what_replaces_it_meanwhile(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, command = Controls("cartpole"), Controls("cartpole")
    first, second = Override(version="1", agent_id="a", **ADA), Override(action=1, agent_id="a", **ADA)
    server.set_override(first, "Bob")
    command.follow()
    command.set_override(second, "Eve")
    follower, goes_on = held_up(server, monkeypatch)
    lifted: list[Override] = []
    lifting = threading.Thread(target=lambda: lifted.extend(server.lift_overrides(first.id, "Bob", "over")))
    lifting.start()
    lifting.join(0.2)
    goes_on.set()
    for one in (lifting, follower):
        one.join(PATIENCE)
    assert lifted == []
    assert [one.id for one in server.orders.active_overrides()] == [second.id]


def test_a_plan_and_its_revision_are_of_one_moment(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, command = Controls("cartpole"), Controls("cartpole")
    server.set_plan(Plan(challengers=["1"], **ADA), "Bob")
    command.follow()
    command.set_plan(Plan(challengers=["2"], **ADA), "Eve")
    seen, make = list[tuple[list[str], int]](), room.orders_of

    def looked_at_meanwhile(standing: Any) -> Any:
        def look() -> None:
            described = server.describe_plan()
            seen.append((described["plan"]["challengers"], described["revision"]))

        looking = threading.Thread(target=look)
        looking.start()
        looking.join(0.2)  # it waits for this
        threads.append(looking)
        return make(standing)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(room, "orders_of", looked_at_meanwhile)
    server.refresh()
    for one in threads:
        one.join(PATIENCE)
    assert seen == [(["2"], 2)]
