"""Controls: the newest is in force everywhere, whatever was heard first, and on record before it is."""

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from filelock import FileLock
from pydantic import ValidationError

from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.serving.controls import elapsed
from loomrl.serving.controls.controls import LAPSED, Change, Controls
from loomrl.serving.controls.elapsed import Countdown
from loomrl.serving.controls.order_file import FORMAT, SavedControls, found_in
from loomrl.serving.controls.order_store import Kept, OrderStore
from loomrl.serving.controls.orders import KILL_SWITCH, OVERRIDE, not_replaced
from loomrl.serving.controls.overrides import Override
from loomrl.serving.controls.plan import KillSwitch, Plan
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import records
from loomrl.storage.audit.log import AuditLog, AuditUnwritable
from loomrl.storage.audit.records import operation, record
from loomrl.storage.audit.reserve import SLOT_BYTES, Reserve
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.loomdb.records import Control
from loomrl.system.files import canonical_json, sha256
from tests.support.failing_disks import failing, full
from tests.support.inside import wait_for
from tests.support.jumping_clock import JumpingClock
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.small_disk import small_disk

ADA = {"person": "Ada", "reason": "test"}
PATIENCE = 60.0  # seconds


def override(action: int, agent_id: str | None = None) -> Override:
    return Override(action=action, agent_id=agent_id, **ADA)


def told(changes: Sequence[Change]) -> list[dict[str, object]]:
    """Records of them."""
    return [operation("cartpole", change.control.name, change.control.actor, "test") for change in changes]


def actions(controls: Controls) -> list[object]:
    return [entry.action for entry in controls.orders.active_overrides()]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Controls]:
    """Of two hosts, each with a home of its own."""
    made = []
    for name in ("one", "other"):
        monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / name))
        made.append(Controls("cartpole"))
    return made


@pytest.fixture
def database(tmp_path: Path) -> LoomDB:
    return LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}")


def test_what_was_set_survives_a_restart(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    controls.set_override(override(1), "test")
    controls.set_override(override(0, "a"), "test")
    controls.set_plan(Plan(split={"2": 0.25}, fallback={"action": 0}, **ADA), "test")
    controls.set_kill_switch(KillSwitch(**ADA), "test", "test")
    assert Controls("cartpole").orders == controls.orders
    assert controls.orders.override_for("a").action == 0
    assert controls.orders.override_for("b").action == 1


def test_a_late_reader_does_not_undo_what_was_set_meanwhile(loomrl_home: Path) -> None:
    first, second = Controls("cartpole"), Controls("cartpole")
    first.set_override(override(0), "test")
    old = first.path.read_bytes()
    second.set_override(override(1), "test")
    first.path.write_bytes(old)  # what a slow reader still holds
    second.refresh()
    assert actions(second) == [1]


def test_hosts_agree_whoever_speaks_first(hosts: list[Controls], database: LoomDB) -> None:
    one, other = hosts
    one.set_override(override(0), "test")
    one.set_kill_switch(KillSwitch(**ADA), "test", "test")
    other.set_override(override(1), "test")  # later, and of neither is anything known to the other
    for controls in (one, other, one):
        controls.exchange(database)
    assert one.orders == other.orders
    assert actions(one) == [1]
    assert one.orders.kill_switch is not None
    one.clear_overrides(None, "test", "over")
    for controls in (one, other):
        controls.exchange(database)
    assert actions(other) == []
    assert [(control.name, control.reason) for control in database.controls("cartpole")] == [
        (KILL_SWITCH, "test"),
        (OVERRIDE, "over"),
    ]


def test_where_nothing_changed_nothing_is_read(hosts: list[Controls], database: LoomDB) -> None:
    one = hosts[0]
    one.set_override(override(0), "test")
    one.exchange(database)
    one.exchange(database)  # it counted its own
    stamp = one.path.stat().st_mtime_ns
    database.controls = None  # whoever calls it fails
    one.exchange(database)
    assert one.path.stat().st_mtime_ns == stamp


def test_a_host_without_loomdb_goes_its_own_way_and_tells_later(hosts: list[Controls], database: LoomDB) -> None:
    one, other = hosts
    for controls in hosts:
        controls.exchange(database)
    other.set_override(override(1, "a"), "test")
    assert actions(other) == [1]  # LoomDB was not asked
    other.exchange(database)
    one.exchange(database)
    assert actions(one) == [1]


def test_an_order_from_a_host_whose_clock_was_ahead_can_be_replaced(hosts: list[Controls], database: LoomDB) -> None:
    one, other = hosts
    one.set_override(override(0), "test")
    one.exchange(database)
    (set_now,) = database.controls("cartpole")
    ahead = {"revision": 4_000_000_000_000_000, "document": override(0, None).to_json()}  # as numbered by its clock
    assert database.add_control(set_now.model_copy(update=ahead))
    for controls in (one, other):
        controls.exchange(database)
    other.set_override(override(1), "test")
    for controls in (other, one):
        controls.exchange(database)
    assert (actions(one), actions(other)) == ([1], [1])


def test_a_clock_that_is_ahead_undoes_no_later_kill_switch(
    hosts: list[Controls], database: LoomDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(days=1)

    one, other = hosts
    with monkeypatch.context() as ahead:
        ahead.setattr("loomrl.serving.controls.controls.datetime", Tomorrow)
        switched(one, is_on=True)
        switched(one, is_on=False)
    settle(hosts, database)
    switched(other, is_on=True)
    settle(hosts, database)
    for controls in (*hosts, sibling_of(one)):
        assert controls.orders.kill_switch is not None


# --- hosts that were apart --------------------------------------------------------------------------------------


def sibling_of(controls: Controls) -> Controls:
    """Another process of its host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOMRL_HOME", str(controls.path.parents[1]))
        return Controls(controls.policy)


def settle(hosts: Sequence[Controls], database: LoomDB) -> None:
    """Each hears of what all have ordered."""
    for controls in (*hosts, *hosts):
        controls._compared = float("-inf")
        controls.follow()
        controls.exchange(database)


def lasting(seconds: float, version: str | None = None) -> Override:
    """An override with an end."""
    now = time.time()
    return Override(action=1 if version is None else None, version=version, created=now, expires=now + seconds, **ADA)


def switched(controls: Controls, is_on: bool) -> None:
    controls.set_kill_switch(KillSwitch(**ADA) if is_on else None, "test", "test")


@pytest.mark.parametrize("is_killer_first", [True, False])
def test_of_two_that_were_set_apart_the_kill_switch_stands(
    hosts: list[Controls], database: LoomDB, is_killer_first: bool
) -> None:
    killer, releaser = hosts
    told: list[Change] = []
    releaser._record = told.extend
    switched(killer, True)
    for controls in (killer, releaser):
        controls.exchange(database)
    switched(killer, False)
    killer.exchange(database)  # off, by everyone who is connected
    for number in range(3):  # the releaser is not, and has a longer history
        switched(releaser, bool(number % 2))
    switched(killer, True)
    for controls in (killer, releaser) if is_killer_first else (releaser, killer):
        controls.exchange(database)
    for controls in hosts:
        controls.exchange(database)
        assert controls.orders.kill_switch is not None
    assert told[-1].control.document is not None
    switched(releaser, False)  # with knowledge of it
    for controls in (releaser, killer):
        controls.exchange(database)
        assert controls.orders.kill_switch is None


def test_the_kill_switch_stands_beside_an_order_that_was_set_later_and_apart(
    hosts: list[Controls], database: LoomDB
) -> None:
    killer, releaser = hosts
    switched(killer, is_on=True)
    settle(hosts, database)
    switched(killer, is_on=False)
    switched(killer, is_on=True)
    switched(releaser, is_on=False)  # who knows of the first alone
    settle(hosts, database)
    for controls in hosts:
        assert controls.orders.kill_switch is not None


def test_an_order_that_gives_way_is_named_by_the_one_that_stands(hosts: list[Controls], database: LoomDB) -> None:
    one, other = hosts
    told: list[Change] = []
    other._record = told.extend
    for action, controls in ((None, one), (0, other)):
        controls.set_override(Override(action=action, version="2" if action is None else None, **ADA), "test")
    one.set_override(Override(fallback=True, **ADA), "test")
    other.set_override(Override(version="3", **ADA), "Bob")
    for controls in (one, other):
        controls.exchange(database)
    assert one.orders == other.orders
    assert one.orders.overrides[None].fallback
    assert (told[-1].gave_way.actor, told[-1].gave_way.document["version"]) == ("Bob", "3")


def test_an_order_is_numbered_once_also_where_its_host_died_before_it_knew(
    hosts: list[Controls], database: LoomDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    switched(one, True)
    kept = one.path.read_bytes()
    one.exchange(database)
    other.exchange(database)
    switched(other, False)
    other.exchange(database)
    one.path.write_bytes(kept)
    monkeypatch.setenv("LOOMRL_HOME", str(one.path.parents[1]))
    again = Controls("cartpole")
    assert again.orders.kill_switch is not None
    again.exchange(database)
    assert again.orders.kill_switch is None  # it was known to who turned it off
    assert database.num_controls("cartpole") == 2


@pytest.mark.parametrize("num_orders", [1, 3])
def test_an_order_that_a_restored_loomdb_has_lost_is_not_undone_by_one_of_its_number(
    hosts: list[Controls], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_orders: int
) -> None:
    monkeypatch.setattr("loomrl.serving.controls.controls._COMPARED_SECONDS", 0.0)
    killer, other = hosts
    with LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}") as database:
        for is_on in (True, False):
            switched(killer, is_on)
            killer.exchange(database)
        other.exchange(database)
    shutil.copy(tmp_path / "loom.db", tmp_path / "restored.db")
    with LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}") as database:
        switched(killer, True)
        killer.exchange(database)
    told: list[Change] = []
    killer._record = told.extend
    with LoomDB.open(f"sqlite:///{tmp_path / 'restored.db'}") as database:
        for _ in range(num_orders):
            switched(other, False)
            other.exchange(database)
        for controls in (killer, other, killer, other):
            controls.exchange(database)
            assert controls.orders.kill_switch is not None
    assert told == []


def restored(tmp_path: Path, name: str) -> Path:
    """A copy of LoomDB as it is now."""
    shutil.copy(tmp_path / "loom.db", tmp_path / name)
    return tmp_path / name


def say(controls: Controls, what: str, is_strict: bool) -> None:
    if what == KILL_SWITCH:
        switched(controls, is_strict)
    elif is_strict:
        controls.set_override(override(1), "test")
    else:
        controls.clear_overrides(None, "test", "test")


def is_strict(controls: Controls) -> bool:
    return controls.orders.kill_switch is not None or controls.orders.overrides != {}


@pytest.mark.parametrize("what", [KILL_SWITCH, OVERRIDE])
@pytest.mark.parametrize("is_numbered", [True, False])
def test_what_was_lifted_before_a_restore_lifts_nothing_that_was_set_after_it(
    hosts: list[Controls], tmp_path: Path, what: str, is_numbered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loomrl.serving.controls.controls._COMPARED_SECONDS", 0.0)
    lifter, other = hosts
    with LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}") as database:
        backup = restored(tmp_path, "restored.db")
        for number in range(6):  # the last one lifts
            say(lifter, what, number % 2 == 0)
            if number < 5 or is_numbered:
                lifter.exchange(database)
    with LoomDB.open(f"sqlite:///{backup}") as database:
        say(other, what, True)
        for controls in (other, lifter, other, lifter):
            controls.exchange(database)
        assert is_strict(lifter)
        assert is_strict(other)
        monkeypatch.setenv("LOOMRL_HOME", str(lifter.path.parents[1]))
        again = Controls("cartpole")
        again.exchange(database)
        assert is_strict(again)
        say(lifter, what, False)  # with knowledge of it
        for controls in (lifter, other, again):
            controls.exchange(database)
            assert not is_strict(controls)


def test_what_was_lifted_stays_so_where_a_restored_loomdb_holds_it_still(
    hosts: list[Controls], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    with LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}") as database:
        switched(one, True)
        one.exchange(database)
    backup = restored(tmp_path, "restored.db")
    with LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}") as database:
        switched(one, False)
        one.exchange(database)
    monkeypatch.setenv("LOOMRL_HOME", str(one.path.parents[1]))
    with LoomDB.open(f"sqlite:///{backup}") as database:
        for controls in (Controls("cartpole"), one, other):
            controls.exchange(database)
            assert controls.orders.kill_switch is None


def lift_while_loomdb_numbers(controls: Controls, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every order that is no end is lifted as soon as LoomDB has it, before who gave it to LoomDB knows."""
    add_control = LoomDB.add_control

    def lifted_meanwhile(self: LoomDB, control: Control) -> bool:
        is_added = add_control(self, control)
        if control.document is not None:
            say(controls, what, False)
        return is_added

    monkeypatch.setattr(LoomDB, "add_control", lifted_meanwhile)


@pytest.mark.parametrize("what", [KILL_SWITCH, OVERRIDE])
def test_what_is_lifted_while_loomdb_numbers_it_stays_lifted(
    hosts: list[Controls], database: LoomDB, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    lift_while_loomdb_numbers(one, what, monkeypatch)
    say(one, what, True)
    for controls in (one, one, other, one):
        controls.exchange(database)
    assert not is_strict(one)
    assert not is_strict(other)


@pytest.mark.parametrize("what", [KILL_SWITCH, OVERRIDE])
def test_what_another_process_lifts_while_loomdb_numbers_it_stays_lifted(
    loomrl_home: Path, database: LoomDB, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Controls("cartpole"), Controls("cartpole")
    lift_while_loomdb_numbers(other, what, monkeypatch)
    say(one, what, True)
    stays_lifted(one, other, database)


@pytest.mark.parametrize("what", [KILL_SWITCH, OVERRIDE])
def test_what_is_numbered_while_it_is_written_is_not_set_again_on_top_of_its_end(
    loomrl_home: Path, database: LoomDB, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Controls("cartpole"), Controls("cartpole")
    write = one._store.write

    def numbered_meanwhile(*wanted: Any) -> Kept:
        kept = write(*wanted)
        monkeypatch.setattr(one._store, "write", write)  # once
        with monkeypatch.context() as slow:  # who exchanges waits for the file, which is held
            slow.setattr(one, "_save", lambda: None)
            one.exchange(database)
        return kept

    monkeypatch.setattr(one._store, "write", numbered_meanwhile)
    say(one, what, True)
    other.refresh()
    assert is_strict(other)
    say(other, what, False)
    one.refresh(has_changed=True)
    assert not is_strict(one)
    stays_lifted(one, other, database)


@pytest.mark.parametrize("what", [KILL_SWITCH, OVERRIDE])
def test_what_is_lifted_before_its_number_is_written_stays_lifted(
    loomrl_home: Path, database: LoomDB, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Controls("cartpole"), Controls("cartpole")
    say(one, what, True)
    with monkeypatch.context() as slow:  # the disk takes it later
        slow.setattr(other, "_save", lambda: None)
        say(other, what, False)
    one.exchange(database)
    assert is_strict(one)
    other.follow()
    assert not is_strict(other)
    one.refresh(has_changed=True)
    stays_lifted(one, other, database)


def stays_lifted(one: Controls, other: Controls, database: LoomDB) -> None:
    """At both processes of a host, and in LoomDB, in whichever order they hear of it."""
    for controls in (one, other, other, one):
        controls.exchange(database)
        controls.follow()
    assert not is_strict(one)
    assert not is_strict(other)
    assert not is_strict(Controls("cartpole"))


@pytest.mark.parametrize("num_changes", [65, 200])
@pytest.mark.long_cases("200")
def test_a_host_that_was_away_for_many_changes_learns_that_its_order_is_over(
    hosts: list[Controls], database: LoomDB, num_changes: int
) -> None:
    """More than LoomDB is asked for at a time; the file tells a sibling that exchanges nothing."""
    one, other = hosts
    sibling = sibling_of(other)
    switched(one, True)
    for controls in hosts:
        controls.exchange(database)
    sibling.follow()
    for number in range(num_changes):
        switched(one, number % 2 == 0 and number < num_changes - 1)
        one.exchange(database)
    other.exchange(database)
    sibling.follow()
    other.exchange(database)
    one.exchange(database)
    for controls in (*hosts, sibling):
        assert not is_strict(controls)
    (newest,) = database.controls("cartpole")
    assert newest.document is None


def test_an_order_that_loomdb_refuses_keeps_no_other_from_being_shared(
    hosts: list[Controls], database: LoomDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    one.set_override(override(1, "a"), "test")
    one.set_plan(Plan(challengers=["9"], **ADA), "test")
    switched(other, True)
    other.exchange(database)
    add = database.add_control

    def refusing(control: Control) -> bool:
        if control.name == f"{OVERRIDE}/a":
            raise ServiceError("LoomDB: this text cannot be kept")
        return add(control)

    monkeypatch.setattr(database, "add_control", refusing)
    for _ in range(2):  # it is said as long as it is so
        with pytest.raises(ServiceError, match="cannot be kept"):
            one.exchange(database)
    assert is_strict(one)
    other.exchange(database)
    assert other.orders.plan.challengers == ["9"]


def test_no_text_keeps_an_order_from_being_in_force_and_shared(hosts: list[Controls], database: LoomDB) -> None:
    """PostgreSQL keeps no NUL, and nothing keeps bytes of a command line that are no UTF-8."""
    one, other = hosts
    one.set_kill_switch(KillSwitch(**ADA), "caf\udce9", "a\0b")
    assert is_strict(one)
    one.exchange(database)
    other.exchange(database)
    assert is_strict(other)
    (order,) = database.controls("cartpole")
    assert (order.actor, order.reason) == ("caf?", "a?b")


def test_no_agent_is_called_by_what_cannot_be_printed() -> None:
    with pytest.raises(ValidationError, match="printable"):
        override(1, "a\0b")


@pytest.mark.parametrize("seed", range(4))
def test_hosts_that_come_and_go_agree_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: LoomDB, seed: int
) -> None:
    rng, hosts = np.random.default_rng(seed), []
    for number in range(3):
        monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / str(number)))
        hosts.append(Controls("cartpole"))
    for _ in range(30):
        controls, act = hosts[rng.integers(3)], rng.integers(4)
        if act == 0:
            switched(controls, True)
        elif act == 1:
            switched(controls, False)
        elif act == 2:
            controls.set_override(override(int(rng.integers(2)), "ab"[rng.integers(2)]), "test")
        controls.exchange(database) if rng.random() < 0.3 else None
    for controls in (*hosts, *hosts):
        controls.exchange(database)
    assert hosts[0].orders == hosts[1].orders == hosts[2].orders


# --- elapsed time -----------------------------------------------------------------------------------------------


def test_an_override_lapses_by_elapsed_time_and_says_so(loomrl_home: Path) -> None:
    told: list[Change] = []
    controls = Controls("cartpole", told.extend)
    now = time.time()
    controls.set_override(Override(action=1, created=now - 9e8, expires=now - 9e8 + 0.05, **ADA), "test")
    wait_for(lambda: (controls.follow(), actions(controls) == [])[1])
    assert [(change.control.actor, change.control.document is None) for change in told] == [
        ("test", False),
        ("elapsed time", True),
    ]
    assert actions(Controls("cartpole")) == []


@pytest.mark.parametrize("jump_seconds", [86_400.0, -86_400.0])
def test_a_wall_clock_that_jumps_moves_no_countdown(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, jump_seconds: float
) -> None:
    """Neither here nor in a process that starts after it, nor that of an override which is set then."""
    wall_clock, started = time.time, time.clock_gettime(time.CLOCK_BOOTTIME)
    controls = Controls("cartpole")
    controls.set_override(lasting(600.0), "test")
    monkeypatch.setattr(time, "time", lambda: wall_clock() + jump_seconds)
    later = lasting(600.0).model_copy(update={"agent_id": "a"})
    controls.set_override(later, "test")
    for seconds, number in ((550.0, 2), (650.0, 0)):
        monkeypatch.setattr(time, "clock_gettime", lambda _, now=started + seconds: now)
        for one in (controls, Controls("cartpole")):
            one.follow()
            assert len(one.orders.active_overrides()) == number


def test_orders_are_taken_whatever_year_the_clock_shows(loomrl_home: Path, tmp_path: Path) -> None:
    clock, by = JumpingClock(tmp_path / "clock"), {"person": "Ada", "reason": "test"}
    options = {"champion_folder": discrete_folder(tmp_path / "policy"), "environment": clock.environment}
    with ServerProcess("cartpole", **options) as server, server.client() as client:
        clock.jump(100 * 365.25 * 86_400)
        client.set_override(action=1, agent_id="a", **by)
        lasting_override = client.set_override(action=1, agent_id="b", expires_in_seconds=600, **by)
        assert lasting_override["created"] > 2**32
        client.set_kill_switch(True, **by)
        assert [client.decide(agent_id, OBSERVATIONS[0].tolist()).role for agent_id in ("a", "b")] == ["override"] * 2
    assert len(Controls("cartpole").orders.active_overrides()) == 2  # as the file has it
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    at_the_end = Override(action=1, created=last, expires=last + 600, person="Ada", reason="test")
    assert "until 9999-12-31 23:59:59Z" in at_the_end.describe()


def test_of_many_overrides_whose_time_is_over_nothing_is_kept_but_that_they_are_over(loomrl_home: Path) -> None:
    controls, now = Controls("cartpole"), time.time()
    for number in range(40):
        agent = {"person": "Ada", "reason": "a wheel is changed", "agent_id": f"cart-{number}"}
        controls.set_override(Override(action=1, created=now, expires=now + 0.05, **agent), "test")
    wait_for(lambda: (controls.follow(), controls.orders.active_overrides() == [])[1])
    kept = json.loads(controls.path.read_bytes())
    assert (kept["countdowns"], {one["document"] for one in kept["controls"]}) == ({}, {None})


def test_after_a_month_nothing_is_kept_of_an_override_that_lapsed_and_loomdb_does_not_bring_it_back(
    hosts: list[Controls], database: LoomDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    one.set_override(override(1, "cart-3"), "test")
    one.clear_overrides(None, "test", "over")  # by a person: that stays
    for number in range(3):
        one.set_override(lasting(0.05).model_copy(update={"agent_id": f"cart-{number}"}), "test")
    wait_for(lambda: (one.follow(), len(one.orders.overrides) == 0)[1])
    settle(hosts, database)
    names = {f"override/cart-{number}" for number in range(4)}
    assert one._known.keys() == other._known.keys() == names
    monkeypatch.setattr("loomrl.serving.controls.controls._LAPSE_KEPT", timedelta(0))
    one.set_override(override(1, "cart-0"), "test")
    settle(hosts, database)
    for controls in hosts:
        kept = found_in(controls.path).saved.controls
        assert {order.name for order in kept} == controls._known.keys() == {"override/cart-0", "override/cart-3"}
        assert actions(controls) == [1]
        before, controls._compared = controls._known, float("-inf")
        controls.exchange(database)
        assert controls._known is before
    one.clear_overrides(None, "test", "over")
    settle(hosts, database)
    assert actions(one) == actions(other) == []


def test_a_lapse_that_loomdb_has_not_numbered_is_never_forgotten(
    hosts: list[Controls], database: LoomDB, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """LoomDB would bring the override back. That the clock is a month ahead, it seems long over."""
    one, other = hosts
    one.set_override(lasting(0.5), "test")
    settle(hosts, database)
    wait_for(lambda: (one.follow(), actions(one) == [])[1])
    monkeypatch.setattr("loomrl.serving.controls.controls._LAPSE_KEPT", timedelta(days=-1))
    one.set_override(override(0, "cart-0"), "test")
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "one"))
    for controls in (one, Controls("cartpole")):
        controls.exchange(database)
        assert actions(controls) == [0]
    other.exchange(database)
    assert actions(other) == [0]


def test_a_lapse_leaves_in_force_what_another_host_set_apart(
    hosts: list[Controls], database: LoomDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    other.set_override(Override(version="3", **ADA), "test")
    one.set_override(lasting(3_600.0), "test")
    settle(hosts, database)
    assert actions(one) == actions(other) == [1]  # the stricter one
    later = elapsed._now() + 3_601.0
    monkeypatch.setattr(elapsed, "_now", lambda: later)

    def is_over() -> bool:
        settle(hosts, database)
        return actions(one) == actions(other) == [None]

    wait_for(is_over)
    for controls in hosts:
        assert [found.version for found in controls.orders.active_overrides()] == ["3"]
    assert [found.version for found in Controls("cartpole").orders.active_overrides()] == ["3"]


def test_a_lapse_leaves_in_force_what_renewed_the_override_at_the_last_moment(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, command = Controls("cartpole"), Controls("cartpole")
    server.set_override(lasting(0.2), "test")
    command.follow()
    look = OrderStore.look

    def renewed_meanwhile(self: OrderStore) -> object:
        """It has looked at the file, and is about to lift what is over."""
        found = look(self)
        if self is server._store:
            monkeypatch.setattr(OrderStore, "look", look)
            wait_for(lambda: next(iter(server._countdowns.values())).seconds_left <= 0.0)
            command._set(OVERRIDE, lasting(3_600.0), "test", "renewed")
            command._save()
        return found

    monkeypatch.setattr(OrderStore, "look", renewed_meanwhile)
    server.refresh()
    server.follow()
    for controls in (server, command, Controls("cartpole")):
        controls.follow()
        assert actions(controls) == [1]


def test_an_override_that_a_stricter_one_covers_is_counted_down_by_elapsed_time(
    hosts: list[Controls], database: LoomDB, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where the wall clock of a host that hears of both is a day ahead."""
    one, other = hosts
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "third"))
    third = Controls("cartpole")
    other.set_override(lasting(3_600.0, version="3"), "test")
    one.set_override(lasting(3_600.0), "test")
    for controls in hosts:
        controls.exchange(database)
    wall_clock = time.time
    monkeypatch.setattr(time, "time", lambda: wall_clock() + 86_400.0)
    third.exchange(database)
    third.set_override(override(0, "z"), "test")
    one.clear_overrides(None, "test", "done")  # it has not heard of the other one
    one.exchange(database)
    third.exchange(database)
    third.follow()
    monkeypatch.setattr(time, "time", wall_clock)
    settle([third, *hosts], database)
    for controls in (*hosts, third):
        assert controls.orders.overrides[None].version == "3"


def test_what_is_left_survives_a_restart_and_a_reboot(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    controls.set_override(Override(action=1, created=0.0, expires=60.0, **ADA), "test")
    saved = found_in(controls.path).saved
    ((override_id, countdown),) = saved.countdowns.items()
    assert 0 < Countdown.of(1.0).seconds_left <= 1.0 < countdown.seconds_left <= 60.0
    rebooted = countdown.model_copy(update={"boot": "another", "left": 20.0, "at": countdown.at + 1e6})
    saved.model_copy(update={"countdowns": {override_id: rebooted}}).write(controls.path)
    again = Controls("cartpole")
    assert actions(again) == [1]
    assert 0 < found_in(again.path).saved.countdowns[override_id].seconds_left <= 20.0
    over = rebooted.model_copy(update={"left": 0.0})
    saved.model_copy(update={"countdowns": {override_id: over}}).write(controls.path)
    assert actions(Controls("cartpole")) == []


def test_a_file_from_before_there_were_countdowns_is_read(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    now = time.time()
    controls.set_override(Override(action=1, created=now - 50.0, expires=now + 10.0, **ADA), "test")
    document = json.loads(controls.path.read_bytes())
    del document["countdowns"], document["format"], document["digest"]
    for control in document["controls"]:
        del control["made_from"]
    controls.path.write_text(json.dumps(document))
    again = Controls("cartpole")
    assert actions(again) == [1]
    again.follow()
    again.set_override(override(0, "a"), "test")
    (countdown,) = found_in(again.path).saved.countdowns.values()
    assert 0 < countdown.seconds_left <= 10.0


def test_an_order_is_on_record_before_it_is_in_force(loomrl_home: Path) -> None:
    told: list[Change] = []

    def record(changes: Sequence[Change]) -> None:
        assert actions(controls) == []
        told.extend(changes)

    controls = Controls("cartpole", record)
    controls.set_override(override(1), "token Ada")
    assert actions(controls) == [1]
    (change,) = told
    assert (change.control.name, change.control.actor, change.control.reason) == (OVERRIDE, "token Ada", "test")
    again: list[Change] = []
    Controls("cartpole", again.extend)  # a server that starts says what it found
    assert again == told


def test_what_cannot_be_recorded_is_in_force_all_the_same(loomrl_home: Path, caplog: pytest.LogCaptureFixture) -> None:
    def record(changes: Sequence[Change]) -> None:
        raise AuditUnwritable("no space", full=True)

    Controls("cartpole", record).set_override(override(1), "token Ada")
    assert "not on record" in caplog.text
    assert actions(Controls("cartpole")) == [1]


def test_a_plan_is_changed_by_one_person_at_a_time(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    seen = controls.describe_plan()["revision"]
    controls.set_plan(Plan(challengers=["2"], **ADA), "test", seen)
    with pytest.raises(ConfigError, match="was changed meanwhile"):
        controls.set_plan(Plan(challengers=["3"], **ADA), "test", seen)
    assert controls.orders.plan.challengers == ["2"]


def test_orders_that_name_nothing_they_replace_go_by_their_numbers(hosts: list[Controls], database: LoomDB) -> None:
    one, other = hosts
    switched(one, True)
    one.exchange(database)
    (on,) = database.controls("cartpole")
    old = {"replaces": None, "created": on.created + timedelta(seconds=1)}
    assert database.add_control(on.model_copy(update={**old, "revision": 2, "document": None}))  # by an older release
    for controls in (one, other):
        controls.exchange(database)
        assert controls.orders.kill_switch is None
    assert database.add_control(on.model_copy(update={**old, "revision": 3}))
    for controls in (other, one):
        controls.exchange(database)
        assert controls.orders.kill_switch is not None
    switched(other, False)
    for controls in (other, one):
        controls.exchange(database)
        assert controls.orders.kill_switch is None
    assert database.num_controls("cartpole") == 4


def test_a_file_that_names_beside_the_orders_what_they_replaced_is_read(loomrl_home: Path, database: LoomDB) -> None:
    controls = Controls("cartpole")
    switched(controls, True)
    controls.exchange(database)
    switched(controls, False)
    saved = json.loads(controls.path.read_bytes())
    saved["replaced"] = {KILL_SWITCH: saved["controls"][0].pop("replaces")}
    controls.path.write_text(json.dumps(saved))
    again = Controls("cartpole")
    again.exchange(database)
    assert again.orders.kill_switch is None
    assert [one.document for one in database.controls("cartpole")] == [None]


def test_what_gave_way_stands_again_after_an_end_that_did_not_know_it(hosts: list[Controls], database: LoomDB) -> None:
    one, other = hosts
    one.set_override(Override(fallback=True, **ADA), "test")
    one.exchange(database)
    other.set_override(override(1), "test")
    one.clear_overrides(None, "test", "over")
    for controls in (one, other, one):
        controls.exchange(database)
    assert actions(one) == actions(other) == [1]
    one.clear_overrides(None, "test", "over")  # now it is known
    for controls in (one, other):
        controls.exchange(database)
        assert actions(controls) == []


def test_what_a_newer_loomrl_set_is_left_alone(
    hosts: list[Controls], database: LoomDB, caplog: pytest.LogCaptureFixture
) -> None:
    one = hosts[0]
    one.set_plan(Plan(challengers=["2"], **ADA), "test")
    one.set_override(override(1), "test")
    one.exchange(database)
    (plan,) = (control for control in database.controls("cartpole") if control.name == "plan")
    newer = plan.model_copy(
        update={"revision": plan.revision + 1, "document": {"moods": 3}, "replaces": [plan.identity]}
    )
    assert database.add_control(newer)
    one.exchange(database)
    one.clear_overrides(None, "test", "test")
    assert "plan of cartpole, by test, stays as it was" in caplog.text
    assert (one.orders.plan.challengers, actions(one)) == (["2"], [])


@pytest.mark.parametrize("damage", [b"", b"{", b"\x00garbage{", b"[" * 100_000, b'{"controls": 3}', b"5"])
def test_a_damaged_file_is_set_aside_and_changes_nothing(loomrl_home: Path, damage: bytes) -> None:
    controls, another = Controls("cartpole"), Controls("cartpole")
    controls.set_override(override(1), "test")
    another.follow()
    controls.path.write_bytes(damage)
    controls.refresh(has_changed=True)
    another.set_kill_switch(KillSwitch(**ADA), "test", "test")
    aside = controls.path.with_name("cartpole.json.damaged-1")
    assert aside.read_bytes() == damage
    assert another.damaged is not None
    assert another.damaged.endswith("it is kept as cartpole.json.damaged-1")
    controls.follow()
    for one in (controls, another, Controls("cartpole")):
        assert (one.orders.kill_switch is not None, actions(one), one.unsaved) == (True, [1], None)
    assert len(list(controls.path.parent.glob("*.damaged-*"))) == 1


def written_by_a_newer_version(path: Path) -> bytes:
    """It is whole, and an older server does not know all that it says."""
    newer = {key: value for key, value in json.loads(path.read_bytes()).items() if key != "digest"}
    newer |= {"format": FORMAT + 1, "ranks": []}
    text = canonical_json(newer | {"digest": sha256(canonical_json(newer))})
    path.write_bytes(text)
    return text


def test_a_copy_that_cannot_be_looked_at_hinders_no_order(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    switched(controls, True)
    copy = controls.path.with_suffix(".copy")
    copy.unlink()
    copy.symlink_to("x" * 300)  # a name that no file can have
    controls.set_override(override(1), "test")
    again = Controls("cartpole")
    assert (again.orders.kill_switch is not None, actions(again), controls.unsaved) == (True, [1], None)


def test_a_file_of_a_newer_version_is_left_as_it_is_and_orders_go_on(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    controls.set_override(override(1), "test")
    newer = written_by_a_newer_version(controls.path)
    controls.refresh(has_changed=True)
    switched(controls, True)
    assert (controls.unsaved, controls.unknown, actions(controls)) == (None, None, [1])
    assert "a newer LoomRL wrote it" in (controls.reserved or "")
    another = Controls("cartpole")
    assert another.orders == controls.orders
    assert "a newer LoomRL wrote it" in (another.unknown or ""), "what it holds of orders before is not known there"
    for one in (controls, another):
        assert (one.missing or "").endswith("orders may be missing here")
    switched(another, False)
    controls.follow()
    assert controls.orders.kill_switch is None
    assert controls.path.read_bytes() == newer
    assert list(controls.path.parent.glob("*.damaged-*")) == []


def test_a_reserve_of_a_newer_version_is_left_as_it_is(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    controls.set_override(override(1), "test")
    newer = canonical_json({"format": 99})
    controls._store._reserve.write(canonical_json({"format": 99, "digest": sha256(newer)}))
    another = Controls("cartpole")
    switched(another, True)
    assert actions(another) == [1]
    assert "orders may be missing here" in (another.missing or "")
    assert another.unsaved is None
    assert Controls("cartpole").orders == another.orders
    assert controls._store._reserve.read() == canonical_json({"format": 99, "digest": sha256(newer)})


def test_no_flipped_bit_of_the_file_loses_or_changes_an_order(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    controls.set_override(override(1, "a"), "test")
    switched(controls, True)
    whole = controls.path.read_bytes()
    for place in range(0, len(whole), 7):
        for bit in (1, 4):
            damaged = bytearray(whole)
            damaged[place] ^= bit
            controls.path.write_bytes(damaged)
            another = Controls("cartpole")
            assert another.orders == controls.orders, bytes(damaged[max(0, place - 20) : place + 20])
            assert "is damaged" in (another.damaged or "")
            assert another.missing is None
            assert controls.path.read_bytes() == whole
    aside = list(controls.path.parent.glob("*.damaged-*"))
    assert len(aside) == 2 * len(range(0, len(whole), 7))


def test_a_file_that_was_deleted_is_written_anew_from_its_copy(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    switched(controls, True)
    controls.path.unlink()
    another = Controls("cartpole")
    assert is_strict(another)
    assert (another.damaged or "").endswith("is gone")
    assert is_strict(Controls("cartpole"))


def test_where_file_and_copy_are_damaged_it_is_said_until_loomdb_has_told_what_it_knows(
    hosts: list[Controls], database: LoomDB, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = hosts[0]
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "one"))
    switched(one, True)
    one.exchange(database)
    one.path.write_bytes(b"")
    one.path.with_suffix(".copy").write_bytes(b"{")
    another = Controls("cartpole")
    assert not is_strict(another)
    assert "there is no whole copy of it: orders may be missing here" in (another.missing or "")
    another.exchange(database)
    assert is_strict(another)
    assert another.missing is None
    assert {path.name for path in one.path.parent.glob("*.damaged-*")} == {
        "cartpole.json.damaged-1",
        "cartpole.copy.damaged-1",
    }


def test_a_damaged_copy_is_written_anew(loomrl_home: Path) -> None:
    controls = Controls("cartpole", patience_seconds=PATIENCE)
    switched(controls, True)
    copy = controls.path.with_suffix(".copy")
    copy.write_bytes(b"{")
    again = Controls("cartpole", patience_seconds=PATIENCE)
    wait_for(lambda: (again.follow(), copy.exists() and copy.read_bytes() == controls.path.read_bytes())[1])
    assert copy.with_name("cartpole.copy.damaged-1").read_bytes() == b"{"


def test_a_copy_that_is_damaged_while_a_server_runs_is_written_anew_by_who_has_the_lock(loomrl_home: Path) -> None:
    controls = Controls("cartpole", patience_seconds=PATIENCE)
    switched(controls, True)
    copy = controls.path.with_suffix(".copy")
    copy.write_bytes(b"{")
    with FileLock(f"{controls.path}.lock"):
        another = Controls("cartpole")
        assert is_strict(another)
        assert copy.read_bytes() == b"{"
    wait_for(lambda: (controls.follow(), copy.exists() and copy.read_bytes() == controls.path.read_bytes())[1])
    assert copy.with_name("cartpole.copy.damaged-1").read_bytes() == b"{"


BY_AN_EARLIER_VERSION = (
    b'{"controls":[{"actor":"test","created":"2026-01-02T03:04:05Z","document":{"person":"Ada","reason":"test"},'
    b'"made_from":0,"name":"kill_switch","policy":"cartpole","reason":"test","replaces":[],"revision":1},'
    b'{"actor":"test","created":"2026-01-02T03:04:05Z","document":{"action":1,"agent_id":"a","created":1.0,'
    b'"expires":null,"fallback":false,"id":"0123abcd","person":"Ada","reason":"test","version":null},"made_from":0,'
    b'"name":"override/a","policy":"cartpole","reason":"test","replaces":[],"revision":1}],"countdowns":{}}\n'
)


def test_a_file_of_an_earlier_version_is_read_and_gets_a_digest_and_a_copy(loomrl_home: Path) -> None:
    path = loomrl_home / "controls" / "cartpole.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(BY_AN_EARLIER_VERSION)
    server = Controls("cartpole", patience_seconds=PATIENCE)
    assert (is_strict(server), actions(server), server.damaged, server.missing) == (True, [1], None, None)
    wait_for(lambda: (server.follow(), b'"digest"' in path.read_bytes())[1])
    assert path.with_suffix(".copy").read_bytes() == path.read_bytes()
    assert Controls("cartpole").orders == server.orders


def test_of_a_damaged_file_of_an_earlier_version_what_can_be_read_is_in_force_and_it_is_said(loomrl_home: Path) -> None:
    path = loomrl_home / "controls" / "cartpole.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(BY_AN_EARLIER_VERSION.replace(b'"kill_switch"', b'"kill_swiuch"'))
    controls = Controls("cartpole")
    assert actions(controls) == [1]
    assert "orders that cannot be read: kill_swiuch" in (controls.damaged or "")
    assert "orders may be missing here" in (controls.missing or "")
    assert path.with_name("cartpole.json.damaged-1").is_file()


def test_what_a_silent_worker_knows_is_asked_for_again(loomrl_home: Path) -> None:
    controls, answers = Controls("cartpole"), [None, SavedControls()]
    controls.connect({1: lambda _: answers.pop(0)})
    controls.ask_workers()
    assert controls.unconfirmed == [1]
    controls.follow()
    assert (controls.unconfirmed, answers) == ([], [])


def test_what_is_not_said_to_be_written_is_found_to_be(loomrl_home: Path) -> None:
    """Another process wrote it meanwhile."""
    controls = Controls("cartpole")
    switched(controls, True)
    controls.unsaved = "the file was held"
    controls.follow()
    assert controls.unsaved is None


def test_what_could_not_be_written_is_written_at_the_end(loomrl_home: Path) -> None:
    controls = Controls("cartpole", patience_seconds=1e-9)
    with FileLock(f"{controls.path}.lock"):
        switched(controls, True)
        assert controls.unsaved is not None
    controls.finish(300.0)
    assert [one.name for one in found_in(controls.path).saved.controls] == ["kill_switch"]


def test_whoever_starts_sets_a_damaged_file_aside(loomrl_home: Path) -> None:
    path = Controls("cartpole").path
    for number in (1, 2):
        path.write_bytes(b"{")
        controls = Controls("cartpole")
        assert "is damaged" in (controls.damaged or "")
        assert path.with_name(f"cartpole.json.damaged-{number}").is_file()
        switched(controls, True)
    assert is_strict(Controls("cartpole"))


def test_a_damaged_file_that_cannot_be_set_aside_stops_no_order(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ordered is in the reserve then."""
    controls = Controls("cartpole")
    controls.path.write_bytes(b"{")
    monkeypatch.setattr(Path, "rename", failing)
    switched(controls, True)
    assert controls.unsaved is None
    assert "is damaged" in (controls.reserved or "")
    assert is_strict(Controls("cartpole"))


def test_orders_of_other_hosts_arrive_where_the_file_is_damaged_or_cannot_be_read(
    hosts: list[Controls], database: LoomDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = hosts
    one.path.write_bytes(b"")
    switched(other, True)
    other.exchange(database)
    one.exchange(database)
    assert one.orders.kill_switch is not None
    with monkeypatch.context() as broken:
        broken.setattr(os, "pread", failing)
        switched(other, False)
        other.exchange(database)
        one.exchange(database)
    assert one.orders.kill_switch is None


def test_an_override_lapses_while_another_process_holds_the_file(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited for it would wait longer than this test does."""
    monkeypatch.setattr("loomrl.serving.controls.order_store._LOCK_SECONDS", 1e6)
    controls = Controls("cartpole", patience_seconds=0.01)
    with FileLock(f"{controls.path}.lock"):
        controls.set_override(lasting(0.2), "test")
        assert "is not written after" in (controls.unsaved or "")
        wait_for(lambda: written(controls) == [] and actions(controls) == [])
    wait_for(lambda: written(controls) == [LAPSED] and controls.unsaved is None)


def written(controls: Controls) -> list[str]:
    with suppress(ArtifactError):  # a busy disk is not read within its patience
        controls.follow()
    return [one.actor for one in found_in(controls.path).saved.controls] if controls.path.is_file() else []


def test_workers_are_told_before_any_file_is_written_and_those_that_do_not_confirm_again(loomrl_home: Path) -> None:
    there, answers = Controls("cartpole"), [False, True]

    def give(orders: SavedControls) -> SavedControls | None:
        assert "kill_switch" not in (one.name for one in found_in(controls.path).saved.controls)
        return there.take(orders) if answers.pop(0) else None

    told: list[Change] = []
    controls = Controls("cartpole", told.extend)
    controls.set_override(lasting(60.0), "test")
    there.refresh()
    with FileLock(f"{controls.path}.lock"):
        controls.connect({1: give})
        order = threading.Thread(target=switched, args=(controls, True))
        order.start()
        wait_for(lambda: controls.unconfirmed == [1])
        assert there.orders.kill_switch is None
        again = threading.Thread(target=controls.follow)
        again.start()
        wait_for(lambda: controls.unconfirmed == [])
        assert there.orders == controls.orders
    order.join()
    again.join()
    assert answers == []


def test_a_worker_whose_telling_fails_has_not_confirmed(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loomrl.serving.controls.controls._CONFIRMED_SECONDS", 1e6)
    controls, there = Controls("cartpole"), Controls("cartpole")
    answers = iter([failing, there.take])

    def give(orders: SavedControls) -> SavedControls:
        return next(answers)(orders)

    controls.connect({1: give})
    switched(controls, True)
    assert controls.unconfirmed == [1]
    controls.follow()
    assert (controls.unconfirmed, is_strict(there)) == ([], True)


def test_a_worker_that_starts_takes_what_only_the_others_know(loomrl_home: Path) -> None:
    others, told = Controls("cartpole"), list[Change]()
    started = Controls("cartpole", told.extend)
    others.take(SavedControls(controls=[given(others.policy, lasting(60.0))], countdowns={}))
    started.connect({0: others.take, 1: lambda _: None})
    started.ask_workers()
    assert started.orders == others.orders
    assert [change.control.actor for change in told] == ["Ada"]
    (mine,), (theirs,) = (one._countdowns.values() for one in (started, others))
    assert mine.seconds_left == pytest.approx(theirs.seconds_left, abs=1.0)


def given(policy: str, pinned: Override) -> Control:
    now = datetime.now(UTC)
    document = pinned.to_json()
    return Control(
        policy=policy, name=OVERRIDE, revision=1, document=document, actor="Ada", reason="test", created=now,
        made_from=0, replaces=[],
    )  # fmt: skip


def test_an_order_is_in_force_while_another_process_holds_the_file(loomrl_home: Path) -> None:
    controls, other = Controls("cartpole"), Controls("cartpole")
    order = threading.Thread(target=switched, args=(controls, True))
    with FileLock(f"{controls.path}.lock"):
        order.start()
        wait_for(lambda: controls.orders.kill_switch is not None)
        controls.refresh(has_changed=True)  # who decides does not wait
        assert order.is_alive()
    order.join()
    other.refresh()
    assert other.orders == controls.orders


@pytest.mark.parametrize("is_full", [False, True])
def test_who_decides_waits_for_no_disk_that_takes_an_order(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """With the disk full, what hangs is the reserve."""
    log = AuditLog("cartpole", reserves=True)
    controls = Controls("cartpole", lambda changes: log.queue_order(told(changes)), keep=log.keep_orders)
    hangs, goes_on, fsync, write = threading.Event(), threading.Event(), os.fsync, os.write

    def hanging(handle: int) -> None:
        hangs.set()
        assert goes_on.wait(PATIENCE)
        fsync(handle)

    def full(handle: int, data: bytes) -> int:
        if data.startswith(b'{"kind"'):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data)

    if is_full:
        monkeypatch.setattr(os, "write", full)
    with monkeypatch.context() as slow:
        slow.setattr(os, "fsync", hanging)
        order = threading.Thread(target=switched, args=(controls, True))
        order.start()
        assert hangs.wait(PATIENCE)
        look = threading.Thread(target=controls.refresh, args=(True,))
        look.start()
        look.join(PATIENCE)
        is_waiting = look.is_alive()
        with suppress(AuditUnwritable):
            log.append([record("decision", decision_id=None)])
        assert controls.orders.kill_switch is not None
        assert order.is_alive()  # who ordered is answered when it is kept
        goes_on.set()
        order.join()
        look.join()
    assert not is_waiting
    assert [entry["operation"] for entry in records("cartpole") if entry["kind"] == "operation"] == [KILL_SWITCH]
    assert Controls("cartpole").orders.kill_switch is not None
    log.close()
    assert verify_chain(log.folder).intact


def test_what_is_ordered_while_another_order_is_written_is_written_too(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controls, fsync, during = Controls("cartpole"), os.fsync, list[threading.Thread]()

    def ordering(handle: int) -> None:
        if not during:
            during.append(threading.Thread(target=controls.set_override, args=(override(1), "test")))
            during[0].start()
            wait_for(lambda: actions(controls) == [1])
        fsync(handle)

    monkeypatch.setattr(os, "fsync", ordering)
    switched(controls, True)
    during[0].join()
    again = Controls("cartpole")
    assert (again.orders.kill_switch is not None, actions(again)) == (True, [1])


def test_an_order_waits_for_no_file_that_is_read(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does who takes one from another worker."""
    controls, goes_on, read = Controls("cartpole", patience_seconds=0.01), threading.Event(), OrderStore.read
    reads = threading.Semaphore(0)

    def hanging(self: OrderStore) -> Kept:
        reads.release()
        assert goes_on.wait(4 * PATIENCE)
        return read(self)

    monkeypatch.setattr(OrderStore, "read", hanging)
    follower = threading.Thread(target=controls.refresh, args=(True,))
    order = threading.Thread(target=switched, args=(controls, True))
    apart = SavedControls(controls=[given("cartpole", override(1))])
    taken = threading.Thread(target=controls.take, args=(apart,))
    follower.start()
    assert reads.acquire(timeout=PATIENCE)
    for one in (order, taken):
        one.start()
        one.join(PATIENCE)
    in_force = (controls.orders.kill_switch is not None, actions(controls), follower.is_alive())
    goes_on.set()
    for one in (order, taken, follower):
        one.join()
    assert in_force == (True, [1], True)
    controls.finish(300.0)
    assert is_strict(Controls("cartpole"))


@pytest.mark.parametrize("is_late", [False, True])
def test_an_order_replaces_what_the_file_held_where_that_is_read_in_time(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, database: LoomDB, is_late: bool
) -> None:
    """What is found later counts as set apart: of equally strict ones the one with the higher number stands."""
    monkeypatch.setattr("loomrl.serving.controls.controls._FRESH_SECONDS", -1.0 if is_late else 1e6)
    changes: list[Change] = []
    server, command = Controls("cartpole", changes.extend), Controls("cartpole")
    for action in (0, 1):
        command.set_override(override(action), "test")
    server.put_override(override(0), "Ada")
    server.refresh()
    assert actions(server) == [int(is_late)]
    assert [change.control.actor for change in changes] == (["Ada", "test"] if is_late else ["Ada"])
    server.finish(300.0)
    settle([server, command], database)
    for controls in (server, command, Controls("cartpole")):
        assert actions(controls) == actions(server)
        assert is_late or actions(controls) == [0]


@pytest.mark.parametrize("what", [KILL_SWITCH, OVERRIDE])
def test_what_is_let_go_undoes_nothing_that_is_ordered_after_it(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("loomrl.serving.controls.controls._FRESH_SECONDS", 1e6)
    server, command = Controls("cartpole"), Controls("cartpole")
    if what == KILL_SWITCH:
        server.put_kill_switch(None, "Ada", "test")
        switched(command, True)
    else:
        server.set_override(override(0), "Ada")
        server.lift_overrides(None, "Ada", "test")
        command.set_override(override(1), "test")
    server.refresh()
    server.finish(300.0)
    for controls in (server, command, Controls("cartpole")):
        controls.follow()
        assert is_strict(controls)


def test_who_turns_the_kill_switch_off_has_read_the_file(loomrl_home: Path) -> None:
    server, command = Controls("cartpole"), Controls("cartpole")
    switched(command, True)
    switched(server, False)
    for controls in (server, command, Controls("cartpole")):
        controls.follow()
        assert not is_strict(controls)


def test_who_lifts_one_override_leaves_one_that_it_did_not_know(loomrl_home: Path) -> None:
    server, command = Controls("cartpole"), Controls("cartpole")
    server.set_override(override(0), "test")
    (first,) = server.orders.active_overrides()
    command.set_override(override(1), "test")
    assert server.lift_overrides(first.id, "test", "test") == [first]
    server.follow()
    assert actions(server) == actions(Controls("cartpole")) == [1]


def test_who_lifts_all_overrides_lifts_those_that_only_the_file_names(loomrl_home: Path) -> None:
    server, command = Controls("cartpole"), Controls("cartpole")
    server.set_override(override(0), "test")
    command.set_override(override(1, "b"), "test")
    assert [one.action for one in server.clear_overrides(None, "test", "test")] == [0, 1]
    command.set_override(override(1, "b"), "test")
    (unread,) = command.orders.active_overrides()
    assert [one.id for one in server.clear_overrides(unread.id, "test", "test")] == [unread.id]
    assert actions(Controls("cartpole")) == []


def test_two_orders_that_name_each_other_are_both_known_and_the_stricter_stands() -> None:
    one, other = (given("cartpole", override(action)) for action in (0, 1))
    apart = [
        one.model_copy(update={"replaces": [other.identity]}),
        other.model_copy(update={"replaces": [one.identity]}),
    ]
    assert {order.identity for order in not_replaced(apart)} == {one.identity, other.identity}


def test_a_worker_that_does_not_answer_keeps_no_other_from_being_told(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ordered while it is told is told to it together."""
    monkeypatch.setattr("loomrl.serving.controls.controls._CONFIRMED_SECONDS", 0.01)
    controls, there, goes_on = Controls("cartpole"), Controls("cartpole"), threading.Event()
    given_to_silent: list[list[str]] = []

    def silent(orders: SavedControls) -> SavedControls | None:
        given_to_silent.append([one.name for one in orders.controls])
        assert goes_on.wait(4 * PATIENCE)
        return SavedControls()

    controls.connect({1: silent, 2: there.take})
    controls.set_override(override(1, "0"), "test")
    assert 1 in controls.unconfirmed
    wait_for(lambda: len(given_to_silent) == 1)
    for agent in "12":
        controls.set_override(override(1, agent), "test")
    switched(controls, True)
    wait_for(lambda: there.orders == controls.orders)
    assert 1 in controls.unconfirmed
    goes_on.set()
    wait_for(lambda: controls.follow() or controls.unconfirmed == [])
    names = [f"override/{agent}" for agent in "012"]
    assert [sorted(found) for found in given_to_silent[:2]] == [names[:1], [KILL_SWITCH, *names[1:]]]


def test_two_processes_that_order_at_once_settle_as_two_hosts_do(loomrl_home: Path) -> None:
    one, other = Controls("cartpole"), Controls("cartpole")
    order = threading.Thread(target=switched, args=(one, True))
    with FileLock(f"{one.path}.lock"):
        order.start()
        wait_for(lambda: one.orders.kill_switch is not None)
        kept = SavedControls(controls=[], countdowns={})
        switch = one._standing[KILL_SWITCH].model_copy(update={"document": None, "actor": "Bob"})
        kept.model_copy(update={"controls": [switch]}).write(one.path)  # by a third, who did not know of it
    order.join()
    other.refresh(has_changed=True)
    assert one.orders.kill_switch is not None
    assert other.orders == one.orders


def test_there_must_be_such_an_override(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    controls.set_override(override(1), "test")
    with pytest.raises(ConfigError, match="no override 'nope'; in force: "):
        controls.clear_overrides("nope", "test", "test")


@pytest.mark.parametrize("expires", [1e17, float("inf"), float("nan"), 1.0])
def test_an_override_lasts_ten_years_at_most(expires: float) -> None:
    with pytest.raises(ValidationError, match="expires within ten years"):
        Override(action=1, created=1_000.0, expires=expires, **ADA)


def test_an_override_describes_itself() -> None:
    pinned = Override(fallback=True, agent_id="a", created=0.0, expires=60.0, **ADA)
    assert pinned.describe() == "the fallback for agent a until 1970-01-01 00:01:00Z, by Ada: test"
    with pytest.raises(ValidationError, match="either an `action`, a `version` or the `fallback`"):
        Override(fallback=True, action=1, **ADA)


@pytest.mark.parametrize("broken", ["reserve", "file", "file and copy"])
def test_a_disk_that_cannot_be_read_keeps_no_order_from_being_in_force(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Nor a server from starting; whether a version may act, `unknown` says."""
    controls, read = Controls("cartpole"), Path.read_bytes
    controls.set_override(override(1), "test")
    unread = {controls.path, controls.path.with_suffix(".copy")} if broken == "file and copy" else {controls.path}

    def failing_read(path: Path) -> bytes:
        return failing() if path in unread else read(path)

    with monkeypatch.context() as disk:
        if broken == "reserve":
            disk.setattr(os, "pread", failing)
        else:
            disk.setattr(Path, "read_bytes", failing_read)
        controls.set_kill_switch(KillSwitch(**ADA), "test", "test")
        assert controls.orders.kill_switch is not None
        assert controls.unsaved is None
        assert controls.reserved is not None
        with pytest.raises(ArtifactError, match="cannot be read"):
            controls.refresh(has_changed=True)
        another = Controls("cartpole")
        assert is_strict(another)
        assert actions(another) == [1]  # what could not be written there is in the reserve
        for one in (controls, another):
            assert ("orders may be missing here" in (one.unknown or "")) == (broken != "file")
            assert one.missing == one.unknown
    for one in (controls, another):
        one.follow()
        assert (one.unknown, one.missing, one.unsaved, one.reserved, actions(one)) == (None, None, None, None, [1])
    assert Controls("cartpole").orders == controls.orders


@pytest.mark.parametrize("is_announced", [True, False])
def test_loomdb_settles_what_could_not_be_read_at_the_start_and_no_announcement(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, database: LoomDB, is_announced: bool
) -> None:
    """Nor is LoomDB asked for everything each time."""
    before = Controls("cartpole")
    before.set_override(override(1), "test")
    before.exchange(database)
    with monkeypatch.context() as disk:
        if is_announced:
            controls = Controls("cartpole")
        disk.setattr(Path, "read_bytes", failing)
        if is_announced:
            with pytest.raises(ArtifactError):
                controls.refresh(has_changed=True)
        else:
            controls = Controls("cartpole")
        assert "orders may be missing here" in (controls.unknown or "")
        controls.exchange(database)
        assert (controls.unknown is not None) is is_announced
        disk.setattr(database, "controls", failing)
        controls.exchange(database)
    controls.refresh()
    assert (controls.unknown, actions(controls)) == (None, [1])


def test_no_flipped_bit_of_the_reserve_loses_an_order(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controls = Controls("cartpole")
    path = controls.path.with_suffix(".reserve")
    with monkeypatch.context() as disk:
        disk.setattr(SavedControls, "write", full)
        switched(controls, True)
        assert controls.reserved is not None
        whole = path.read_bytes()
        for slot in (0, SLOT_BYTES):
            for place in (0, 40, 60):  # in the digest, in the length, in the text
                damaged = bytearray(whole)
                damaged[slot + place] ^= 1
                path.write_bytes(damaged)
                assert is_strict(Controls("cartpole"))
                path.write_bytes(whole)


def test_a_server_starts_and_reads_where_the_disk_does_not_say_when_the_reserve_was_written(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: Path) -> tuple[int, int]:
        raise OSError(errno.ESTALE, "stale file handle")

    switched(Controls("cartpole"), True)
    monkeypatch.setattr("loomrl.serving.controls.order_store._stamp_of", stale)
    controls, another = Controls("cartpole"), Controls("cartpole")
    assert is_strict(controls)
    another.set_override(override(1), "test")
    controls.follow()
    assert actions(controls) == [1]


def test_a_read_that_fails_in_whatever_way_is_no_success(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controls = Controls("cartpole", patience_seconds=PATIENCE)

    def broken(*_: object) -> SavedControls:
        raise MemoryError("no room")

    monkeypatch.setattr(OrderStore, "read", broken)
    controls._stamp = None
    with pytest.raises(ArtifactError, match="no room"):
        controls.follow()


@pytest.mark.parametrize("has_room", [True, False])
def test_what_is_lifted_on_a_full_disk_stays_lifted(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    """The file still says that it is on; where the reserve has little room, that it was replaced stays known."""
    controls, another = Controls("cartpole"), Controls("cartpole")
    switched(controls, True)
    another.follow()
    monkeypatch.setattr(SavedControls, "write", full)
    if not has_room:
        whole = Reserve.write

        def small(self: Reserve, text: bytes) -> None:
            if len(text) > 800:
                raise ArtifactError("no room")
            whole(self, text)

        monkeypatch.setattr(Reserve, "write", small)
    for on in (False, True, False, True, False):
        switched(controls, on)
    assert controls.unsaved is None
    another.follow()
    for one in (another, Controls("cartpole")):
        assert not is_strict(one)


def test_a_plan_that_cannot_be_written_is_in_force_and_announced(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[bool] = []
    controls = Controls("cartpole", announce=lambda: announced.append(True))
    with monkeypatch.context() as failing:
        failing.setattr(SavedControls, "write", full)
        failing.setattr(Reserve, "write", full)
        controls.set_plan(Plan(challengers=["2"], **ADA), "test")
    assert controls.orders.plan.challengers == ["2"]
    assert announced
    assert controls.unsaved == "no space left"
    controls.follow()
    assert controls.unsaved is None
    assert Controls("cartpole").orders.plan.challengers == ["2"]


def test_the_first_order_is_kept_where_no_file_can_be_made(loomrl_home: Path) -> None:
    """A server has made all it needs when it starts."""
    with small_disk(loomrl_home / "controls") as disk:
        controls = Controls("cartpole")
        disk.fill_names()
        switched(controls, True)
        assert controls.unsaved is None
        assert is_strict(Controls("cartpole"))


def test_the_kill_switch_finds_room_where_overrides_of_agents_have_taken_all(
    loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controls, another = Controls("cartpole"), Controls("cartpole")
    monkeypatch.setattr(SavedControls, "write", full)
    number = 0
    while controls.unsaved is None:
        pinned = Override(action=0, agent_id=f"agent-{number}", person="Ada", reason="a wheel is being changed" * 40)
        controls.set_override(pinned, "test")
        number += 1
    controls.set_kill_switch(KillSwitch(**ADA), "test", "test")
    assert len(controls.orders.overrides) == number
    assert controls.unsaved is not None  # not all would outlive this process
    another.follow()
    for other in (another, Controls("cartpole")):
        assert other.orders.kill_switch is not None
        assert len(other.orders.overrides) > number // 2
