"""Controls: the newest is in force everywhere, whatever was heard first, and on record before it is."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from filelock import FileLock
from pydantic import ValidationError

from loomrl.errors import ArtifactError, ConfigError
from loomrl.loomdb.database import LoomDB
from loomrl.loomdb.records import Control
from loomrl.serving.audit import AuditUnwritable
from loomrl.serving.controls import KILL_SWITCH, OVERRIDE, Controls
from loomrl.serving.overrides import Override
from loomrl.serving.plan import KillSwitch, Plan

ADA = {"person": "Ada", "reason": "test"}


def override(action: int, agent_id: str | None = None) -> Override:
    return Override(action=action, agent_id=agent_id, **ADA)


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


def test_a_host_whose_clock_is_behind_can_still_change_what_it_knows(hosts: list[Controls], database: LoomDB) -> None:
    one, other = hosts
    one.set_override(override(0), "test")
    one.exchange(database)
    (set_now,) = database.controls("cartpole")
    ahead = {"revision": set_now.revision + 3_600_000_000, "document": override(0, None).to_json()}
    assert database.add_control(set_now.model_copy(update=ahead))  # by a host an hour ahead
    for controls in (one, other):
        controls.exchange(database)
    other.set_override(override(1), "test")
    for controls in (other, one):
        controls.exchange(database)
    assert (actions(one), actions(other)) == ([1], [1])


def test_nothing_is_in_force_before_it_is_on_record(loomrl_home: Path) -> None:
    full, told = True, []

    def record(changed: Sequence[Control]) -> None:
        if full:
            raise AuditUnwritable("no space", full=True)
        told.extend(changed)

    controls = Controls("cartpole", record)
    with pytest.raises(AuditUnwritable):
        controls.set_override(override(1), "token Ada")
    with pytest.raises(AuditUnwritable):
        controls.refresh()
    assert actions(controls) == []
    full = False
    controls.refresh()
    assert actions(controls) == [1]
    assert [(control.name, control.actor, control.reason) for control in told] == [(OVERRIDE, "token Ada", "test")]
    again: list[Control] = []
    Controls("cartpole", again.extend)  # a server that starts says what it found
    assert again == told


def test_a_plan_is_changed_by_one_person_at_a_time(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    seen = controls.describe_plan()["revision"]
    controls.set_plan(Plan(challengers=["2"], **ADA), "test", seen)
    with pytest.raises(ConfigError, match="was changed meanwhile"):
        controls.set_plan(Plan(challengers=["3"], **ADA), "test", seen)
    assert controls.orders.plan.challengers == ["2"]


def test_what_a_newer_loomrl_set_is_left_alone(
    hosts: list[Controls], database: LoomDB, caplog: pytest.LogCaptureFixture
) -> None:
    one = hosts[0]
    one.set_plan(Plan(challengers=["2"], **ADA), "test")
    one.set_override(override(1), "test")
    one.exchange(database)
    (plan,) = (control for control in database.controls("cartpole") if control.name == "plan")
    newer = plan.model_copy(update={"revision": plan.revision + 1, "document": {"moods": 3}})
    assert database.add_control(newer)
    one.exchange(database)
    one.clear_overrides(None, "test", "test")
    assert "plan of cartpole, by test, stays as it was" in caplog.text
    assert (one.orders.plan.challengers, actions(one)) == (["2"], [])


def test_a_damaged_file_changes_nothing(loomrl_home: Path) -> None:
    controls = Controls("cartpole")
    controls.set_override(override(1), "test")
    controls.path.write_bytes(b"{")
    with pytest.raises(ArtifactError, match="cartpole.json"):
        controls.refresh()
    assert actions(controls) == [1]


def test_who_decides_does_not_wait_while_another_process_holds_the_file(loomrl_home: Path) -> None:
    controls, switch = Controls("cartpole"), KillSwitch(**ADA)
    order = threading.Thread(target=controls.set_kill_switch, args=(switch, "test", "test"))
    controls.path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{controls.path}.lock"):
        order.start()
        time.sleep(0.2)  # for it to come as far as it can
        controls.refresh(has_changed=True)
        assert order.is_alive()
        assert controls.orders.kill_switch is None
    order.join()
    assert controls.orders.kill_switch == switch


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
