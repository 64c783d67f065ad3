"""A bad version leaves service by itself, in a real server; what follows is done once, whatever dies or is away."""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import TypeAdapter

from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.monitoring.take_back import take_back
from loomrl.serving.client import PolicyClient, Refused
from loomrl.serving.controls.controls import Controls
from loomrl.serving.controls.plan import Plan
from loomrl.serving.guardian.child import Watcher
from loomrl.serving.guardian.config import MonitorsConfig
from loomrl.serving.guardian.consequences import ConsequenceWorker, Steps
from loomrl.serving.guardian.evidence import VersionEvidence
from loomrl.serving.guardian.guardian import Guardian, GuardianHooks
from loomrl.serving.guardian.monitor import Trigger
from loomrl.serving.guardian.quarantine import MONITORS, Quarantine, Quarantined
from loomrl.serving.guardian.sharing import merged_evidence
from loomrl.serving.guardian.tokens import LEAST_REQUESTS
from loomrl.serving.guardian.watch import Watch
from loomrl.serving.policy.model import MANIFEST
from loomrl.serving.policy.roles import RoleKeeper
from loomrl.serving.policy.sources import FolderSource, RegistrySource
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import records
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import timestamp
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION, PREVIOUS, Registry
from loomrl.system.files import write_sums
from loomrl.system.http.tokens import add
from loomrl.types import PolicyManifest
from tests.support.champions import promoted
from tests.support.live import decide
from tests.support.policies import BALANCING, discrete_folder
from tests.support.projects import until

EVIDENCE: TypeAdapter[VersionEvidence] = TypeAdapter(VersionEvidence)
NEVER_RIGHT = {
    "name": "never_right",
    "quantity": "action",
    "low": None,
    "high": 0.5,
    "per": "episode",
    "max_probability": 0.01,
    "mandatory": True,
    "enforce": False,  # else the shield would keep it
}
TOKENS = (("fleet", "decide"), ("stranger", "decide"), ("Ada", "observe"))
LEFT = [-0.1, -0.1, -0.1, -0.1]  # the pole leans to the left: BALANCING pushes there, its opposite to the right


def limited_folder(folder: Path, weights: Any = BALANCING, value: float = 1.0) -> Path:
    """A policy that may not push to the right."""
    discrete_folder(folder, weights, value)
    manifest = PolicyManifest.read(folder / MANIFEST)
    manifest.model_copy(update={"constraints": [NEVER_RIGHT]}).write(folder / MANIFEST)
    write_sums(folder)
    return folder


def rollbacks() -> list[dict[str, Any]]:
    return [entry for entry in records("cartpole") if entry["kind"] == "rollback"]


def monitors(server: ServerProcess) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/monitors", trust_env=False).json()
    return found


def trigger(version: str = "2", monitor: str = "violations.never_right") -> Trigger:
    numbers = {"e_value": 300.0, "threshold": 50.0, "mean": 1.0, "limit": 0.01, "num_values": 3, "num_decisions": 3}
    return Trigger(version=version, monitor=monitor, **numbers)


def quarantined(server: str = "server-0", **changes: Any) -> Quarantined:
    return Quarantined(policy="cartpole", trigger=trigger(**changes), server=server, to="1", time=timestamp())


# --- in a real server -------------------------------------------------------------------------------------------


def test_a_violating_champion_is_rolled_back_within_100_of_its_decisions(ready_home: Path, tmp_path: Path) -> None:
    registry = Registry()
    good, numbers = promoted(registry, limited_folder(tmp_path / "good")), itertools.count()
    with ServerProcess("cartpole", refresh_seconds=0.1) as server, server.client() as client:
        assert {decide_at(client, number).version for number in range(30)} == {good}
        bad = promoted(registry, limited_folder(tmp_path / "bad", -BALANCING))
        source = RegistrySource("cartpole")
        source.fetch(bad)
        assert source.settings(bad).monitors.spacing == 5  # as its config said
        until(lambda: decide_at(client, next(numbers)).version == bad, "the swap")
        until(lambda: decide_at(client, next(numbers)).version == good, "the rollback")
        until(lambda: registry.aliases("cartpole") == {CHAMPION: good}, "the aliases to follow")
        until(lambda: client.status()["quarantined"] == [], "what follows to be done")
        assert decide_at(client, 2).version == good
        assert good in monitors(server)["versions"]
        assert f'loomrl_monitor_evidence{{monitor="latency",version="{good}"}}' in metrics(server)
    by_bad = [entry for entry in records("cartpole") if entry["kind"] == "decision" and entry["version"] == bad]
    assert len(by_bad) <= 100
    (found,) = rollbacks()
    assert (found["version"], found["to"], found["trigger"]["monitor"]) == (bad, good, "violations.never_right")
    assert found["trigger"]["num_decisions"] <= len(by_bad)
    assert found["reason"].startswith("violations.never_right: 100.0% of ")
    with LoomDB.open() as db:
        (event,), (move,) = db.events("monitors"), db.events("rollback")
        assert [one.version for one in db.deployments("cartpole")] == [good, bad, good]
    assert (event.data["trigger"], event.data["to"]) == (found["trigger"], good)
    assert (move.data["version"], move.data["before"], move.data["person"]) == (good, bad, "the monitors")
    assert move.data["reason"] == found["reason"]


@pytest.mark.long
def test_a_violating_version_on_trial_loses_its_share_of_the_agents(ready_home: Path, tmp_path: Path) -> None:
    registry = Registry()
    good = promoted(registry, limited_folder(tmp_path / "good"))
    bad = registry.register("cartpole", limited_folder(tmp_path / "bad", -BALANCING), "run-bad").version
    # an experiment without a name draws who is dealt what: one in 256 deals the trial to none of the 8 agents
    plan = Plan(split={bad: 0.5}, experiment="a trial", person="grace", reason="a trial")
    Controls("cartpole").set_plan(plan, "grace")
    with ServerProcess("cartpole", refresh_seconds=0.1) as server, server.client() as client:
        until(lambda: bad in {decide_at(client, number).version for number in range(8)}, "the split")
        until(lambda: bad not in {decide_at(client, number).version for number in range(8)}, "the end of the split")
        until(lambda: Controls("cartpole").orders.plan.split == {}, "the plan to follow")
        assert {decide_at(client, number).version for number in range(20)} == {good}
        until(lambda: client.status()["quarantined"] == [], "what follows to be done")
    assert Controls("cartpole").orders.plan.reason.startswith("violations.never_right: ")
    assert registry.aliases("cartpole") == {CHAMPION: good}
    (found,) = rollbacks()
    assert (found["version"], found["to"], found["trigger"]["control"]) == (bad, good, None)
    by_bad = [entry for entry in records("cartpole") if entry["kind"] == "decision" and entry["version"] == bad]
    assert len(by_bad) <= 100


@pytest.mark.long  # `test_tokens.py` shows what is counted, without a server
def test_one_token_under_many_names_takes_no_champion_out(
    ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The champion pushes to where the pole leans; a stranger says it leans to the right, where it must not push."""
    path = tmp_path / "tokens"
    fleet, stranger, person = (add(path, name, [role]) for name, role in TOKENS)
    monkeypatch.setenv("LOOMRL_TOKENS_FILE", str(path))
    good = promoted(Registry(), limited_folder(tmp_path / "good"))
    with ServerProcess("cartpole", refresh_seconds=0.1, rate=1e6) as server, contextlib.ExitStack() as open_clients:
        agents, odd, operator = (
            open_clients.enter_context(server.client(token=one)) for one in (fleet, stranger, person)
        )
        for number in range(8 * LEAST_REQUESTS):
            assert decide_at(agents, number).action == 0
        for number in range(300):
            assert odd.decide(f"name-{number}", -np.array(LEFT)).action == 1
        until(lambda: operator.status()["guardian"]["suspicions"] != [], "the suspicion")
        assert decide_at(agents, 1).version == good
        shown = httpx.get(f"{server.url}/monitors", headers={"Authorization": f"Bearer {person}"}, trust_env=False)
        assert {one["token"] for one in shown.json()["versions"][good]["suspicions"]} == {"stranger"}
        assert shown.json()["quarantined"] == []
        for number in range(300):
            odd.decide(f"agent-{number % 8}", -np.array(LEFT))  # in the names of the fleet's agents
        assert decide_at(agents, 1).version == good
        until(lambda: operator.status()["guardian"]["pid"] is not None, "the monitors")
    found = [entry for entry in records("cartpole") if entry["kind"] == "suspicion"]
    assert {(one["version"], one["suspicion"]["token"]) for one in found} == {(good, "stranger")}
    assert len(found) == len({one["suspicion"]["monitor"] for one in found})
    assert rollbacks() == []
    by = {entry["by_token"] for entry in records("cartpole") if entry["kind"] == "decision"}
    assert by == {"fleet", "stranger"}


def decide_at(client: PolicyClient, number: int) -> Any:
    """One decision; at most 200 a second, so that the test says the same on a slow machine."""
    time.sleep(0.005)
    return client.decide(f"agent-{number % 8}", LEFT)


def first_refusal(client: PolicyClient) -> Refused | None:
    """Of 100 decisions."""
    for number in range(100):
        try:
            decide_at(client, number)
        except Refused as error:
            return error
    return None


def metrics(server: ServerProcess) -> str:
    return httpx.get(f"{server.url}/metrics", trust_env=False).text


def test_without_a_version_to_go_back_to_who_violates_decides_no_more(loomrl_home: Path, tmp_path: Path) -> None:
    folder = limited_folder(tmp_path / "bad", -BALANCING)
    with ServerProcess("cartpole", champion_folder=folder) as server, server.client() as client:
        refused = first_refusal(client)
        assert refused is not None
        assert (refused.status, "none to go back to: see /monitors; no fallback is set" in str(refused)) == (503, True)
        os.kill(server.process.pid, signal.SIGKILL)
    with ServerProcess("cartpole", champion_folder=folder, wait_ready=False) as server, server.client() as client:
        until(lambda: client.status()["quarantined"] != [], "the file to be read")
        until(lambda: bool(rollbacks()), "the record that the killed server may not have written")
        assert not client.is_ready()
        assert "violations.never_right" in client.status()["quarantined"][0]["reason"]
        client.set_override(version=str(folder), person="grace", reason="the wheels are off the ground")
        assert client.decide("a", LEFT).action == 1


def test_who_only_fails_to_answer_goes_on_for_want_of_a_better(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "bad", BALANCING * 1e37)
    with ServerProcess("cartpole", champion_folder=folder) as server, server.client() as client:
        for number in range(40):
            with pytest.raises(Refused, match="not finite"):
                client.decide(f"agent-{number % 8}", [1e3] * 4)
        until(lambda: bool(monitors(server)["quarantined"]), "the trigger")
        (entry,) = monitors(server)["quarantined"]
        assert (entry["trigger"]["monitor"], entry["to"]) == ("unanswered", None)
        assert client.decide("a", [1e-3] * 4).version == str(folder)
    assert {entry["kind"] for entry in records("cartpole")} >= {"unanswered", "rollback"}


# --- across restarts --------------------------------------------------------------------------------------------


class House:
    """A log that the test writes and a guardian that watches it, with its server's part played by the test."""

    def __init__(self, tmp: Path, server: str = "server-0") -> None:
        self.log, self.server = AuditLog("cartpole", server), server
        self.manifest = PolicyManifest.read(limited_folder(tmp / "policy") / MANIFEST)
        self.taken_out: list[str] = []

    def guardian(self) -> Guardian:
        hooks = GuardianHooks(
            watch=lambda version: Watch.of(self.manifest, np.dtype(np.float32), MonitorsConfig()),
            is_ready=lambda: True,
            take_out=self.take_out,
            is_named=lambda version: True,
            append=self.log.append,
            drop=lambda entry: None,
            has_registry=False,
        )
        return Guardian("cartpole", self.server, lambda: [self.log.folder], Quarantine("cartpole"), hooks)

    def take_out(self, version: str) -> str:
        self.taken_out.append(version)
        return "1"

    def watch(self, until_true: Callable[[Guardian], bool]) -> Guardian:
        """One process' life: until something holds."""
        guardian = self.guardian()
        guardian.start()
        until(lambda: until_true(guardian), "the guardian")
        guardian.stop()
        return guardian

    def decide(self, action: int, count: int, agents: Sequence[int] = range(8)) -> None:
        """One agent after the other."""
        for number in range(count):
            agent = f"agent-{agents[number % len(agents)]}"
            decide(self.log, agent, None, LEFT, "2", action=action, shield=None, seconds=1e-5)


@pytest.fixture
def house(loomrl_home: Path, tmp_path: Path) -> House:
    return House(tmp_path)


def seen(count: int) -> Callable[[Guardian], bool]:
    return lambda guardian: guardian.shown.get("2", {}).get("num_decisions") == count


def counted(shown: dict[str, Any]) -> dict[str, tuple[int, float]]:
    return {name: (one["num_values"], one["mean"]) for name, one in shown["monitors"].items()}


@pytest.mark.long
def test_evidence_survives_a_restart_and_is_gathered_anew_where_its_file_is_lost(
    house: House, loomrl_home: Path
) -> None:
    house.decide(0, 30)
    house.decide(1, 1)
    house.watch(seen(31))
    house.decide(0, 9)
    before = counted(house.watch(seen(40)).shown["2"])
    (kept,) = (loomrl_home / "monitors" / "cartpole").glob("*.json")
    for damage in (kept.unlink, lambda: kept.write_text("{"), lambda: kept.write_text('{"stream":{"versions":3}}')):
        damage()
        assert counted(house.watch(seen(40)).shown["2"]) == before
    assert house.taken_out == []
    house.decide(1, 40)
    house.watch(lambda guardian: bool(house.taken_out))
    assert house.taken_out == ["2"]
    assert len(rollbacks()) == 1


class Awaited:
    """A lock that tells when somebody waits for it."""

    def __init__(self) -> None:
        self._lock, self.is_awaited = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_awaited.set()
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_nothing_follows_before_it_is_known_who_decides_instead(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    guardian = house.guardian()
    early: list[bool] = []
    entering = Awaited()
    monkeypatch.setattr(guardian._consequences, "entering", entering)

    def take_out(version: str) -> str:
        guardian._consequences.draw()
        assert entering.is_awaited.wait(60)  # what follows has come as far as it can
        early.append(bool(rollbacks()))
        return "1"

    monkeypatch.setattr(guardian, "_hooks", replace(guardian._hooks, take_out=take_out))
    guardian.start()
    house.decide(1, 40)
    until(lambda: bool(rollbacks()), "the record")
    guardian.stop()
    assert (early, rollbacks()[0]["to"]) == ([False], "1")


def test_a_process_that_is_killed_comes_back_and_counts_each_decision_once(house: House) -> None:
    house.decide(0, 30)
    guardian = house.guardian()
    guardian.start()
    until(lambda: seen(30)(guardian), "the first decisions", seconds=60)
    former = guardian.pid
    assert former is not None
    os.kill(former, signal.SIGKILL)
    house.decide(0, 10)
    until(lambda: seen(40)(guardian), "those made meanwhile", seconds=60)
    told = guardian.describe()["process"]
    assert (told["num_restarts"], told["last_error"]) == (1, "its process ended with exit code -9")
    assert told["pid"] not in (None, former)
    house.decide(1, 40)
    until(lambda: bool(house.taken_out), "the trigger", seconds=60)
    os.kill(told["pid"], signal.SIGKILL)
    until(lambda: guardian.num_restarts == 2 and guardian.pid is not None, "another process", seconds=60)
    guardian.stop()
    assert house.taken_out == ["2"]
    assert guardian.shown["2"]["num_decisions"] <= 80
    assert guardian.pid is None


def test_a_disk_that_takes_no_evidence_stops_no_watching(loomrl_home: Path, caplog: pytest.LogCaptureFixture) -> None:
    hearing, told = os.pipe()
    watcher = Watcher("cartpole", "server-0", hearing)
    kept = loomrl_home / "monitors" / "cartpole" / "server-0.json"
    kept.with_suffix(".new").mkdir(parents=True)
    os.write(told, b'{"kept":"2"}\n{"end":true}\n')
    watcher.run()  # it saves when told so, and at its end
    assert caplog.text.count("is not kept") == 2
    kept.with_suffix(".new").rmdir()
    again = Watcher("cartpole", "server-0", hearing)
    os.write(told, b'{"end":true}\n')
    again.run()
    assert kept.is_file()
    os.close(told)


def test_a_trigger_that_no_server_lived_to_keep_comes_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.decide(1, 40)
    with monkeypatch.context() as patch:
        patch.setattr(Quarantine, "put", lambda quarantine, entry: None)  # as if it was killed before
        killed = house.guardian()
        patch.setattr(killed, "_send", lambda told, tell=killed._send: None if "kept" in told else tell(told))
        killed.start()
        until(lambda: bool(house.taken_out), "the trigger", seconds=60)
        os.kill(killed.pid or 0, signal.SIGKILL)
        killed.stop()
    house.watch(lambda guardian: len(house.taken_out) == 2)
    assert house.taken_out == ["2", "2"]


def test_a_trigger_counts_as_kept_once_its_quarantine_is_on_the_disk(
    house: House, loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guardian, said = house.guardian(), []
    take_out = guardian._take_out
    monkeypatch.setattr(guardian, "_take_out", lambda trigger: (take_out(trigger), said.append(trigger)))
    in_the_way = loomrl_home / "quarantine"
    in_the_way.write_text("as if the disk was full")
    house.decide(1, 40)
    guardian.start()
    until(lambda: len(said) == 1, "the trigger", seconds=60)
    os.kill(guardian.pid or 0, signal.SIGKILL)
    until(lambda: len(said) == 2, "the trigger again", seconds=60)
    in_the_way.unlink()
    until((loomrl_home / "monitors" / "cartpole" / "server-0.json").is_file, "the evidence", seconds=60)
    assert Quarantine("cartpole").find("2") is not None
    guardian.stop()
    assert house.taken_out == ["2"]


def test_a_version_that_left_quarantine_begins_anew(house: House) -> None:
    house.decide(1, 40)
    house.watch(lambda guardian: bool(house.taken_out))
    Quarantine("cartpole").release("2")  # by another server, or before a crash
    house.decide(0, 3)
    assert house.watch(seen(3)).shown["2"]["trigger"] is None


def test_a_version_in_quarantine_triggers_once(house: House) -> None:
    house.decide(1, 40)
    house.watch(lambda guardian: bool(house.taken_out))
    house.decide(1, 40)
    until(lambda: len(rollbacks()) == 1, "the record")
    house.watch(seen(house.watch(lambda guardian: "2" in guardian.shown).shown["2"]["num_decisions"]))
    assert (house.taken_out, len(rollbacks())) == (["2"], 1)


def test_servers_that_share_loomdb_judge_together_and_one_that_is_killed_counts_nothing_twice(
    loomrl_home: Path, tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMRL_DATABASE_URL", postgresql_url)
    first, second = (House(tmp_path / server, server) for server in ("server-0", "server-1"))
    killed, other = first.guardian(), second.guardian()
    with LoomDB.open(postgresql_url) as db, contextlib.ExitStack() as running:

        def rows() -> list[VersionEvidence]:
            return [EVIDENCE.validate_python(row.document) for row in db.shared_evidence("cartpole")]

        def shared(*counts: int) -> None:
            wanted = list(counts)
            until(lambda: [one.num_decisions for one in rows()] == wanted, f"{wanted} in LoomDB")

        killed.start()
        first.decide(0, 20, range(4))
        shared(20)
        other.start()
        running.callback(other.stop)
        second.decide(0, 20, range(4, 8))
        shared(20, 20)
        os.kill(killed.pid or 0, signal.SIGKILL)
        killed.stop()
        first.decide(0, 12, range(4))  # it is on record, and nobody watches
        second.decide(0, 8, range(4))  # its agents go to the other one
        shared(20, 28)
        again = first.guardian()
        again.start()
        running.callback(again.stop)
        first.decide(0, 8, range(4))
        shared(40, 28)
        known = merged_evidence(rows())
        each = {agent: sum(known.requests.of(agent)) for agent in known.unnamed}
        assert each == {f"agent-{number}": 10 if number < 4 else 5 for number in range(8)}
        first.decide(1, 100, [0])  # to each server but one or two of its agents are odd
        second.decide(1, 200, [4, 5])
        until(lambda: first.taken_out == second.taken_out == ["2"], "the trigger at both")


# --- what follows -----------------------------------------------------------------------------------------------


def test_what_fails_is_tried_again_and_holds_nothing_else_up(loomrl_home: Path) -> None:
    done: list[str] = []
    answers = {"aliases": False, "named": True}

    def move(entry: Quarantined) -> None:
        if not answers["aliases"]:
            raise ServiceError("the registry does not answer")
        done.append("aliases")

    steps: Steps = {
        "audit": lambda entry: done.append("audit"),
        "aliases": move,
        "prefect": lambda entry: done.append("prefect"),
    }
    quarantine = Quarantine("cartpole")
    quarantine.put(quarantined())
    first = ConsequenceWorker(quarantine, steps, lambda version: answers["named"])
    first.start()
    until(lambda: first.errors == {"aliases": "the registry does not answer"}, "the failure")
    until(lambda: done == ["audit", "prefect"], "the other steps")
    first.stop()
    answers["aliases"] = True
    again = ConsequenceWorker(Quarantine("cartpole"), steps, lambda version: answers["named"])
    again.start()
    until(lambda: done == ["audit", "prefect", "aliases"], "the failed step, in another process")
    quarantine.refresh()
    assert quarantine.find("2") is not None  # the registry names it still
    answers["named"] = False
    until(lambda: again.released == ["2"], "its release")
    again.stop()
    quarantine.refresh()
    assert quarantine.find("2") is None
    assert again.errors == {}


def test_aliases_move_only_while_the_version_is_champion(ready_home: Path, tmp_path: Path) -> None:
    registry = Registry()
    first = promoted(registry, discrete_folder(tmp_path / "first", value=1.0))
    with pytest.raises(ConfigError, match="no previous champion to go back to"):
        take_back("cartpole", first, "it violates", MONITORS)
    second = promoted(registry, discrete_folder(tmp_path / "second", value=2.0))
    third = promoted(registry, discrete_folder(tmp_path / "third", value=3.0))
    assert take_back("cartpole", second, "it violates", MONITORS) == f"version {second} is not champion, {third} is"
    assert take_back("cartpole", third, "it violates", MONITORS).startswith(f"version {second} is champion again")
    assert take_back("cartpole", third, "another server says so too", MONITORS).endswith(f"{second} is")
    assert registry.aliases("cartpole") == {CHAMPION: second, PREVIOUS: first}


def test_the_champion_before_stands_by_until_the_registry_names_it(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion moves `champion` first and `previous` after it: what violates in between goes back all the same."""
    good, bad = (limited_folder(tmp_path / name, value=value) for name, value in (("good", 1.0), ("bad", 2.0)))
    roles = {CHAMPION: good}
    source, quarantine = FolderSource("cartpole", {}), Quarantine("cartpole")
    monkeypatch.setattr(source, "roles", lambda: {role: str(folder) for role, folder in roles.items()})
    keeper = RoleKeeper(source, quarantine=quarantine)
    keeper.refresh()
    roles[CHAMPION] = bad
    keeper.refresh()
    quarantine.put(quarantined(version=str(bad)))
    assert keeper.take_out(str(bad)) == str(good)
    roles[CHAMPION] = good  # as the aliases follow: what was taken back is nothing to go back to
    keeper.refresh()
    quarantine.release(str(bad))
    keeper.refresh()
    assert (keeper.current.versions(), keeper.current.previous) == ({str(good)}, None)


def test_a_champion_that_was_taken_back_by_a_person_does_not_stand_by(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (limited_folder(tmp_path / name, value=value) for name, value in (("first", 1.0), ("second", 2.0)))
    roles = {CHAMPION: second, PREVIOUS: first}
    source = FolderSource("cartpole", {})
    monkeypatch.setattr(source, "roles", lambda: {role: str(folder) for role, folder in roles.items()})
    keeper = RoleKeeper(source)
    keeper.refresh()
    roles.clear()
    roles[CHAMPION] = first
    keeper.refresh()
    assert keeper.current.versions() == {str(first)}


def test_servers_of_one_home_follow_each_others_quarantine(loomrl_home: Path, tmp_path: Path) -> None:
    folders = {role: limited_folder(tmp_path / role, value=value) for role, value in ((CHAMPION, 1.0), (PREVIOUS, 2.0))}
    quarantine, others = Quarantine("cartpole"), Quarantine("cartpole")
    keeper = RoleKeeper(FolderSource("cartpole", folders), quarantine=quarantine)
    keeper.refresh()
    bad, good = (str(folders[role]) for role in (CHAMPION, PREVIOUS))
    assert keeper.current.champion is not None
    assert keeper.current.champion.version == bad
    others.put(quarantined(server="server-1", version=bad))
    quarantine.refresh()
    for follow in (keeper.obey_quarantine, keeper.refresh, lambda: keeper.ensure({bad})):
        follow()
        assert (keeper.current.champion.version, keeper.is_named(bad)) == (good, True)
    others.put(quarantined(server="server-1", version=good))
    quarantine.refresh()
    keeper.refresh()
    assert keeper.current.champion is None  # both violate
    others.release(bad)
    quarantine.refresh()
    keeper.refresh()
    assert keeper.current.champion.version == bad


def test_a_damaged_file_bars_the_version_it_is_about_and_no_other(loomrl_home: Path, tmp_path: Path) -> None:
    """A server starts with one, too; and goes on when it is whole again."""
    folders = {role: limited_folder(tmp_path / role, value=value) for role, value in ((CHAMPION, 1.0), (PREVIOUS, 2.0))}
    bad, good = (str(folders[role]) for role in (CHAMPION, PREVIOUS))
    first = Quarantine("cartpole")
    first.put(quarantined(version=bad))
    path = first._path(bad)
    whole = path.read_bytes()
    path.write_bytes(b"\0{")
    path.with_name("0123456789abcdef.json").write_bytes(b"")  # about no version that is known
    quarantine = Quarantine("cartpole")
    keeper = RoleKeeper(FolderSource("cartpole", folders), quarantine=quarantine)
    keeper.refresh()
    assert keeper.current.champion is not None
    assert keeper.current.champion.version == good
    assert keeper.current.quarantined == {bad}
    with pytest.raises(ArtifactError, match=f"0123456789abcdef.json, {path.name}: cannot be read"):
        quarantine.refresh()
    path.write_bytes(whole)
    path.with_name("0123456789abcdef.json").unlink()
    quarantine.refresh()
    assert quarantine.find(bad) is not None
    first.release(bad)
    quarantine.refresh()
    keeper.obey_quarantine()
    assert keeper.current.champion.version == bad


def test_where_the_folder_of_the_quarantine_cannot_be_read_that_is_known(loomrl_home: Path, tmp_path: Path) -> None:
    folder = loomrl_home / "quarantine" / "cartpole"
    folder.parent.mkdir()
    folder.symlink_to("cartpole")  # a loop of links
    quarantine = Quarantine("cartpole")
    keeper = RoleKeeper(FolderSource("cartpole", {CHAMPION: limited_folder(tmp_path / "1")}), quarantine=quarantine)
    keeper.refresh()
    assert keeper.current.unknown is not None
    with pytest.raises(ArtifactError, match="cannot be read"):
        quarantine.refresh()
    folder.unlink()
    quarantine.refresh()
    keeper.obey_quarantine()
    assert keeper.current.unknown is None


def test_a_file_that_names_another_version_than_its_own_name_frees_none(loomrl_home: Path) -> None:
    quarantine = Quarantine("cartpole")
    quarantine.put(quarantined())
    (path,) = quarantine.folder.iterdir()
    path.write_bytes(path.read_bytes().replace(b'"version":"2"', b'"version":"7"'))
    again = Quarantine("cartpole")
    assert (again.bars("2"), again.bars("7")) == (True, False)
    with pytest.raises(ArtifactError, match=f"{path.name}: cannot be read"):
        again.refresh()


@pytest.mark.parametrize("where", ["quarantine", "quarantine/cartpole"])
def test_a_file_in_place_of_the_folder_is_no_empty_quarantine(loomrl_home: Path, where: str) -> None:
    path = loomrl_home / where
    path.parent.mkdir(exist_ok=True)
    path.write_text("in the way")
    quarantine = Quarantine("cartpole")
    assert "cannot be read" in (quarantine.unknown or "")
    path.unlink()
    quarantine.refresh()
    assert quarantine.unknown is None


def test_a_file_that_cannot_be_written_keeps_nothing_in_service(loomrl_home: Path) -> None:
    (loomrl_home / "quarantine").write_text("in the way")
    quarantine = Quarantine("cartpole")
    consequences = ConsequenceWorker(quarantine, {}, lambda version: True)
    quarantine.hold(quarantined())
    assert not consequences.keep(quarantined())
    assert "cannot write" in consequences.errors["quarantine"]
    with pytest.raises(ArtifactError, match="cannot be read"):
        quarantine.refresh()
    assert quarantine.find("2") is not None
