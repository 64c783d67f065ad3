"""What is kept of orders is neither lost unseen nor overwritten unread, whatever the disk does to file, copy and
reserve."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from loomrl.cli.main import app
from loomrl.errors import ArtifactError, ConfigError
from loomrl.serving.controls import controls as room
from loomrl.serving.controls.controls import Change, Controls
from loomrl.serving.controls.order_file import FORMAT, SavedControls, found_in
from loomrl.serving.controls.overrides import Override, OverrideOrder
from loomrl.serving.controls.plan import Fallback, KillSwitch, Plan, PlanOrder
from loomrl.storage.audit.history import records
from loomrl.storage.audit.log import AuditLog, AuditUnwritable, NotDurable
from loomrl.storage.audit.records import record
from loomrl.storage.audit.reserve import SLOT_BYTES, Reserve
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.loomdb.records import Control
from loomrl.system.files import canonical_json, sha256
from tests.support.failing_disks import failing, full
from tests.support.inside import wait_for

ADA = {"person": "Ada", "reason": "test"}
PATIENCE = 300.0  # seconds


def switched_on(controls: Controls) -> None:
    controls.set_kill_switch(KillSwitch(**ADA), "Ada", "test")


def full_log() -> NoReturn:
    raise AuditUnwritable("no space left on the disk", full=True)


def reads_fail(disk: pytest.MonkeyPatch, *unread: Path) -> None:
    """The disk gives none of these files."""
    read = Path.read_bytes
    disk.setattr(Path, "read_bytes", lambda path: failing() if path in unread else read(path))


# --- what cannot be written ----------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 0


@pytest.mark.parametrize("action", [2**64, -(2**63) - 1, [0.0, float("nan")], float("inf"), nested(300), {1: 2}, {1}])
def test_an_action_that_files_and_records_do_not_hold_alike_is_refused(loomrl_home: Path, action: Any) -> None:
    """One that a file takes, and the log does not, would keep all that is ordered later off the record."""
    with pytest.raises(ValidationError, match="an action is JSON, with finite numbers and integers of 64 bits"):
        OverrideOrder(action=action, **ADA)
    with pytest.raises(ValidationError, match="an action is JSON"):
        PlanOrder(fallback=Fallback(action=action), **ADA)
    controls = Controls("cartpole")
    with pytest.raises(ConfigError, match="an action is JSON"):
        controls.set_override(Override(action=action, **ADA), "Ada")
    with pytest.raises(ConfigError, match="an action is JSON"):
        controls.set_plan(Plan(fallback=Fallback(action=action), **ADA), "Ada")
    assert not controls.path.exists()


@pytest.mark.parametrize("depth", [252, 20_000])
def test_an_action_that_answers_cannot_tell_is_refused(loomrl_home: Path, depth: int) -> None:
    """They hold it some levels down, and go 254 deep."""
    text = "[" * depth + "]" * depth
    told = CliRunner().invoke(app, ["override", "set", "cartpole", "--action", text, "--reason", "test"])
    assert told.exit_code != 0
    assert isinstance(told.exception, ConfigError | SystemExit)
    assert not Controls("cartpole").orders.active_overrides()


def test_an_action_that_leaves_no_room_for_other_orders_is_refused(loomrl_home: Path) -> None:
    with pytest.raises(ValidationError, match="in 16384 bytes of JSON at most, found 20001"):
        OverrideOrder(action=[0] * 10_000, **ADA)


@pytest.mark.parametrize("action", [0, 2**64 - 1, 1e20, [0.1, -0.3], (0, 1), {"a": [True, None, "left"]}])
def test_any_other_action_may_be_ordered(loomrl_home: Path, action: Any) -> None:
    Controls("cartpole").set_override(OverrideOrder(action=action, **ADA).override(), "Ada")
    (kept,) = Controls("cartpole").orders.active_overrides()
    assert kept.action == (list(action) if isinstance(action, tuple) else action)


def test_an_override_from_before_that_would_be_refused_now_is_in_force_and_can_be_lifted(loomrl_home: Path) -> None:
    """It concerns one agent; what is ordered besides is on record as ever."""
    log = AuditLog("cartpole", "server-0", reserves=True)
    earlier = Controls("cartpole")
    earlier._set("override/a", Override(action=2**70, agent_id="a", **ADA), "Ada", "test")
    earlier._save()

    def recorded(changes: Sequence[Change]) -> None:
        log.queue_order([record("override", policy="cartpole", document=one.control.document) for one in changes])

    controls = Controls("cartpole", recorded, keep=log.keep_orders)
    assert [one.action for one in controls.orders.active_overrides()] == [2**70]
    assert (controls.missing, controls.damaged) == (None, None)
    switched_on(controls)
    controls.clear_overrides(None, "Ada", "over")
    assert controls.orders.active_overrides() == []
    log.close()
    assert verify_chain(log.folder).intact
    assert Controls("cartpole").orders == controls.orders


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
    smashed(reserve)
    found = [Controls("cartpole", patience_seconds=PATIENCE), Controls("cartpole")]
    assert found[0].missing is not None
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
    written, write = list[Path](), SavedControls.write

    def counted(self: SavedControls, path: Path) -> None:
        written.append(path)
        write(self, path)

    monkeypatch.setattr(SavedControls, "write", counted)
    with monkeypatch.context() as disk:
        disk.setattr(Reserve, "write", full)
        one, other = Controls("cartpole"), Controls("cartpole")
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


def smashed(reserve: Path) -> None:
    """A bit of each slot changed."""
    damaged = bytearray(reserve.read_bytes())
    for slot in (0, SLOT_BYTES):
        damaged[slot + 40] ^= 1
    reserve.write_bytes(damaged)


@pytest.mark.parametrize("why", ["newer", "unread"])
def test_a_damaged_reserve_has_nobody_overwrite_a_file_that_must_be_left_alone(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    reserve = with_one_order_in_the_reserve(monkeypatch)
    controls = Controls("cartpole")
    controls.follow()
    files = [controls.path, controls.path.with_suffix(".copy")]
    if why == "newer":
        newer = {"controls": [], "countdowns": {}, "format": FORMAT + 1, "ranks": []}
        for path in files:
            path.write_bytes(canonical_json({**newer, "digest": sha256(canonical_json(newer))}))
    before = [path.read_bytes() for path in files]
    smashed(reserve)
    with monkeypatch.context() as disk:
        if why == "unread":
            reads_fail(disk, *files)
        again = Controls("cartpole", patience_seconds=PATIENCE)
        for _ in range(3):
            with suppress(ArtifactError):
                again.follow()
        again.finish(PATIENCE)
        assert again.unknown is not None
        assert again.missing is not None
    assert [path.read_bytes() for path in files] == before


@pytest.mark.parametrize("is_full", [False, True])
def test_a_reserve_that_could_not_be_read_is_neither_emptied_nor_overwritten(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """It is read when the disk is well again, which may be a moment later."""
    with_one_order_in_the_reserve(monkeypatch)
    read, num_left = os.pread, [0]

    def at_times(*asked: Any) -> bytes:
        num_left[0] -= 1
        return failing() if num_left[0] >= 0 else read(*asked)

    with monkeypatch.context() as disk:
        disk.setattr(os, "pread", at_times)
        if is_full:
            disk.setattr(SavedControls, "write", full)
        for num_failing in range(1, 8):
            num_left[0] = num_failing
            controls = Controls("cartpole")
            controls.set_override(Override(action=1, **ADA), "Ada")
            num_left[0] = 0
            for one in (controls, Controls("cartpole")):
                with suppress(ArtifactError):
                    one.follow()
                assert one.orders.kill_switch is not None, num_failing
    assert Controls("cartpole").orders.kill_switch is not None


@pytest.mark.parametrize("damaged", ["reserve", "file and copy"])
def test_what_was_lost_is_said_after_a_restart_also_where_the_disk_was_full(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damaged: str
) -> None:
    reserve = with_one_order_in_the_reserve(monkeypatch)
    if damaged == "reserve":
        smashed(reserve)
    else:
        controls = Controls("cartpole")
        controls.follow()
        for path in (controls.path, controls.path.with_suffix(".copy")):
            path.write_bytes(b"{")
    with monkeypatch.context() as disk:
        disk.setattr(SavedControls, "write", full)
        for _ in range(2):
            one = Controls("cartpole")
            one.follow()
            assert "damaged" in (one.missing or "")
            assert "orders may be missing here" in (one.missing or "")
        one.set_override(Override(action=1, **ADA), "Ada")
    other = Controls("cartpole")
    for each in (one, other, Controls("cartpole")):
        each.follow()
        assert "orders may be missing here" in (each.missing or "")
        assert [given.action for given in each.orders.active_overrides()] == [1]
    one.exchange(LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}"))
    other.follow()
    assert (one.missing, other.missing, Controls("cartpole").missing) == (None, None, None)


def test_two_that_make_the_reserve_at_once_have_one(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is slower writes over nobody's order."""
    made, link = list[Path](), os.link

    def late(source: Any, target: Path) -> None:
        if not made:
            made.append(target)
            with_one_order_in_the_reserve(monkeypatch)
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert Controls("cartpole").orders.kill_switch is not None
    assert Controls("cartpole").orders.kill_switch is not None
    assert [path.name for path in made[0].parent.iterdir() if path.name.startswith(".")] == []


def test_a_reserve_that_was_cut_off_has_lost_what_was_in_it(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = with_one_order_in_the_reserve(monkeypatch)
    whole = reserve.read_bytes()
    for size in (0, 60, 1_000, SLOT_BYTES + 10, 2 * SLOT_BYTES - 1):
        reserve.write_bytes(whole[:size])
        again = Controls("cartpole")
        assert (again.orders.kill_switch is None) is ("damaged" in (again.missing or "")), size
        assert (again.orders.kill_switch is None) is (size < 1_000)
        for path in again.path.parent.glob("cartpole.[jc]*"):
            path.unlink()
        reserve.unlink()


def test_a_reserve_that_was_closed_is_not_opened_again(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve")
    reserve.write(b"text")
    reserve.close()
    reserve.close()
    with pytest.raises(ArtifactError, match="was closed"):
        reserve.read()
    assert not reserve.holds_last


def test_a_damaged_reserve_of_a_log_is_put_on_record_and_written_anew(loomrl_home: Path) -> None:
    log = AuditLog("cartpole", "server-0", reserves=True)
    log.append_order([record("kill_switch", policy="cartpole", on=True)])
    reserve = log.folder / "reserve"
    Reserve(reserve).write(b"lines of records that found no room\n")
    log.close()
    smashed(reserve)
    assert not verify_chain(log.folder).intact
    again = AuditLog("cartpole", "server-0", reserves=True)
    again.append_order([record("kill_switch", policy="cartpole", on=False)])
    again.close()
    (told,) = [one for one in records("cartpole") if one["kind"] == "damaged"]
    assert f"{reserve} is damaged: records of orders may be missing here" in told["reason"]
    assert verify_chain(log.folder).intact


def test_records_that_wait_are_kept_again_where_their_reserve_is_removed(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog("cartpole", "server-0", reserves=True)
    with monkeypatch.context() as disk:
        disk.setattr(log, "_write_whole", lambda _: full_log())
        log.append_order([record("kill_switch", policy="cartpole", on=True)])
        assert log.num_waiting_bytes > 0
        reserve = log.folder / "reserve"
        reserve.unlink()
        log.keep_orders()
        assert b"kill_switch" in Reserve(reserve).read()
        reserve.unlink()
        reserve.mkdir()  # none can be made in its place
        with pytest.raises(NotDurable, match="kept in memory alone"):
            log.sync()
        reserve.rmdir()
        log.sync()
        assert b"kill_switch" in Reserve(reserve).read()
    log.close()


def test_what_an_override_has_left_is_kept_also_in_the_reserve(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_KEPT_SECONDS", 0.0)
    controls = Controls("cartpole")
    monkeypatch.setattr(SavedControls, "write", full)
    controls.set_override(OverrideOrder(action=1, expires_in_seconds=600, **ADA).override(), "Ada")
    reserve = Reserve(controls.path.with_suffix(".reserve"))
    before = reserve.read()
    controls.follow()
    assert reserve.read() != before


def test_what_found_no_room_in_the_reserve_is_said_after_a_restart(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who knows all of it says why it would be lost, and that nothing is."""
    controls, database = Controls("cartpole"), LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}")
    with monkeypatch.context() as disk:
        disk.setattr(SavedControls, "write", full)
        for agent in "abcdefgh":
            controls.set_override(Override(action="x" * 16_000, agent_id=agent, **ADA), "Ada")
        for _ in range(3):
            controls.follow()
            assert (controls.unsaved is not None, controls.missing) == (True, None)
        again = Controls("cartpole")
        num_kept = len(again.orders.active_overrides())
        assert 0 < num_kept < 8
        assert f"had no room for {8 - num_kept} orders: orders may be missing here" in (again.missing or "")
    controls.follow()
    assert (controls.unsaved, controls.reserved, controls.missing) == (None, None, None)
    again = Controls("cartpole")
    assert (again.missing, len(again.orders.active_overrides())) == (None, 8)
    again.exchange(database)
    assert len(Controls("cartpole").orders.active_overrides()) == 8


def test_what_the_reserve_held_outlives_an_order_that_the_disk_does_not_take(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often that is tried; it is said until the disk has taken it."""
    controls = Controls("cartpole")
    monkeypatch.setattr(SavedControls, "write", full)
    for agent in "xyz":
        controls.set_override(Override(action=1, agent_id=agent, **ADA), "Ada")
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", failing)
        controls.set_override(Override(action=1, agent_id="w", **ADA), "Ada")
        for _ in range(3):
            assert "cannot be written" in (controls.unsaved or "")
            controls.follow()
        agents = {one.agent_id for one in Controls("cartpole").orders.active_overrides()}
        assert agents >= {"x", "y", "z"}
    controls.follow()
    assert controls.unsaved is None
    assert len(Controls("cartpole").orders.active_overrides()) == 4


def unreadable() -> Control:
    """An override of a version that knows other keys."""
    given = {"policy": "cartpole", "name": "override/a", "revision": 1, "actor": "Ada", "reason": "test"}
    return Control(document={"hold": "forever"}, created=datetime.now(UTC), **given)


def test_a_reserve_with_an_order_that_cannot_be_read_is_left_alone(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    switched_on(controls)
    reserve = Reserve(controls.path.with_suffix(".reserve"))
    (on,) = found_in(controls.path).saved.controls
    for path in (controls.path, controls.path.with_suffix(".copy")):
        path.unlink()
    reserve.write(SavedControls(controls=[unreadable(), on]).sealed())
    before = reserve.read()
    again = Controls("cartpole")
    again.follow()
    assert again.orders.kill_switch is not None, "what can be read is in force"
    assert "orders that cannot be read: override/a" in (again.unknown or "")
    assert "orders may be missing here" in (again.missing or "")
    assert reserve.read() == before


def test_a_reserve_that_was_removed_is_missed_by_nobody_but_who_has_to_write_to_it(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controls = Controls("cartpole")
    switched_on(controls)
    reserve = controls.path.with_suffix(".reserve")
    reserve.unlink()
    monkeypatch.setattr("loomrl.storage.audit.reserve._make", failing)
    controls.refresh(has_changed=True)
    controls.set_override(Override(action=1, **ADA), "Ada")
    assert (controls.unknown, controls.unsaved, controls.reserved) == (None, None, None)
    monkeypatch.setattr(SavedControls, "write", full)
    controls.set_override(Override(action=0, **ADA), "Ada")
    assert "no room can be reserved" in (controls.unsaved or "")


def test_a_log_whose_reserve_is_damaged_before_its_first_segment_keeps_what_is_ordered(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AuditLog, "_open_segment", lambda _: full_log())
    first = AuditLog("cartpole", "server-0", reserves=True)
    first.append_order([record("kill_switch", policy="cartpole", on=True)])
    first.close()
    smashed(first.folder / "reserve")
    again = AuditLog("cartpole", "server-0", reserves=True)
    again.append_order([record("kill_switch", policy="cartpole", on=False)])
    again.sync()
    again.close()
    assert b'"on":false' in Reserve(first.folder / "reserve").read()


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


@pytest.mark.parametrize("damaged", ["file", "copy", "both"])
@pytest.mark.parametrize("damage", ["order", "text", "gone"])
def test_what_is_known_of_damaged_files_outlives_a_full_disk(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, damaged: str, damage: str
) -> None:
    """They are set aside before anything is written in their place."""
    controls = Controls("cartpole")
    switched_on(controls)
    (on,) = found_in(controls.path).saved.controls
    paths = [controls.path, controls.path.with_suffix(".copy")]
    for path in {"file": paths[:1], "copy": paths[1:], "both": paths}[damaged]:
        if damage == "order":
            SavedControls(controls=[on, unreadable()]).write(path)
        elif damage == "text":
            path.write_bytes(b"{")
        else:
            path.unlink()
    is_known = damage == "order" or damaged != "both"
    with monkeypatch.context() as disk:
        disk.setattr(SavedControls, "write", full)
        for _ in range(3):  # who is killed at once has not looked again
            one = Controls("cartpole")
            assert (one.orders.kill_switch is not None) is is_known
            assert one.unsaved is None
    again = Controls("cartpole")
    assert (again.orders.kill_switch is not None) is is_known
    assert ("orders may be missing here" in (again.missing or "")) is (damaged == "both" and damage != "gone")


@pytest.mark.parametrize("why", ["newer", "unread"])
def test_a_copy_that_must_be_left_alone_is_not_overwritten_beside_a_whole_file(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """A newer LoomRL that was killed between the two has its order in the copy alone."""
    controls = Controls("cartpole")
    switched_on(controls)
    copy = controls.path.with_suffix(".copy")
    newer = {"controls": [], "countdowns": {}, "format": FORMAT + 1, "ranks": []}
    with monkeypatch.context() as disk:
        if why == "newer":
            copy.write_bytes(canonical_json({**newer, "digest": sha256(canonical_json(newer))}))
        else:
            reads_fail(disk, copy)
        before = copy.stat().st_ino
        again = Controls("cartpole")
        again.set_override(Override(action=1, **ADA), "Ada")
        assert (again.unsaved, again.reserved is not None) == (None, True)
        assert (again.unknown is not None) is (why == "newer")
        assert copy.stat().st_ino == before
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


def test_what_was_lost_before_stops_no_version_where_all_that_is_kept_is_known(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smashed(with_one_order_in_the_reserve(monkeypatch))
    controls = Controls("cartpole")
    controls.set_override(Override(action=1, agent_id="a", **ADA), "Ada")
    with monkeypatch.context() as disk:
        reads_fail(disk, controls.path)
        with pytest.raises(ArtifactError):
            controls.refresh(has_changed=True)
        assert controls.missing is not None
        assert controls.unknown is None, "the copy is whole"


# --- of one moment -------------------------------------------------------------------------------------------------


class WatchedLock:
    """A lock that says when somebody waits for it."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.is_waited_for = lock, threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_waited_for.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def watched_lock(controls: Controls) -> WatchedLock:
    lock = WatchedLock(controls._lock)
    controls._lock = lock  # type: ignore[assignment]
    return lock


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
    lock = watched_lock(server)
    server.set_override(first, "Bob")
    command.follow()
    command.set_override(second, "Eve")
    follower, goes_on = held_up(server, monkeypatch)
    lifted: list[Override] = []
    begins = threading.Event()

    def lift() -> None:
        begins.set()
        lifted.extend(server.lift_overrides(first.id, "Bob", "over"))

    lifting = threading.Thread(target=lift)
    lifting.start()
    assert begins.wait(PATIENCE)
    wait_for(lambda: lock.is_waited_for.is_set() or not lifting.is_alive())
    assert lifting.is_alive(), "it waits for what is about to be in force"
    goes_on.set()
    for one in (lifting, follower):
        one.join(PATIENCE)
    assert lifted == []
    assert [one.id for one in server.orders.active_overrides()] == [second.id]


def test_a_plan_and_its_revision_are_of_one_moment(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, command = Controls("cartpole"), Controls("cartpole")
    lock = watched_lock(server)
    server.set_plan(Plan(challengers=["1"], **ADA), "Bob")
    command.follow()
    command.set_plan(Plan(challengers=["2"], **ADA), "Eve")
    seen, make = list[tuple[list[str], int]](), room.orders_of

    def looked_at_meanwhile(standing: Any) -> Any:
        begins = threading.Event()

        def look() -> None:
            begins.set()
            described = server.describe_plan()
            seen.append((described["plan"]["challengers"], described["revision"]))

        looking = threading.Thread(target=look)
        looking.start()
        assert begins.wait(PATIENCE)
        wait_for(lambda: lock.is_waited_for.is_set() or not looking.is_alive())
        assert looking.is_alive(), "it waits for this"
        threads.append(looking)
        return make(standing)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(room, "orders_of", looked_at_meanwhile)
    server.refresh()
    for one in threads:
        one.join(PATIENCE)
    assert seen == [(["2"], 2)]
