"""One champion for all workers, whichever of them is first, last, dead or unable to load it."""

import errno
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from loomrl.serving.guardian.monitor import Trigger
from loomrl.serving.guardian.quarantine import Quarantined
from loomrl.serving.policy.roles import RoleKeeper
from loomrl.serving.policy.sources import FolderSource
from loomrl.serving.settings import ServerSettings
from loomrl.serving.workers.address import WorkerAddress
from loomrl.serving.workers.agreement import Agreement
from loomrl.storage.audit.records import timestamp
from loomrl.storage.registry import CHAMPION, PREVIOUS
from tests.support.inside import Inside, wait_for
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder

OBS = OBSERVATIONS[0].tolist()


def address(index: int, folder: Path) -> WorkerAddress:
    """Of one of two workers that share files."""
    shared = (folder / name for name in ("agreement", "limits", "asking"))
    return WorkerAddress(index, 2, "w", folder, 0, 0, 0, *shared)


@pytest.fixture
def agreement(tmp_path: Path) -> Agreement:
    return Agreement(tmp_path / "agreement", 3)


def test_the_last_to_vote_makes_the_champion(agreement: Agreement, tmp_path: Path) -> None:
    other = Agreement(tmp_path / "agreement", 3)
    assert [agreement.vote(worker, "", ()) for worker in range(3)] == ["", "", ""]
    assert [agreement.vote(0, "1", {"1"}), other.vote(1, "1", {"1"})] == ["", ""]
    before = other.revision
    assert other.vote(2, "1", {"1"}) == agreement.champion == "1"
    assert agreement.revision == before + 1


def test_who_does_not_hold_the_champion_has_no_vote(agreement: Agreement) -> None:
    agreement.vote(0, "1", {"1"})
    assert agreement.vote(1, "2", {"2"}) == "1"
    assert not agreement.has_vote(1)
    assert agreement.vote(0, "2", {"1", "2"}) == "2"  # nobody else counts


def test_a_vote_for_none_is_for_the_one_there_is(agreement: Agreement) -> None:
    agreement.vote(0, "1", {"1"})
    assert agreement.vote(1, None, {"1"}) == "1"
    assert agreement.vote(0, "2", {"1", "2"}) == "1"
    assert agreement.hindering() == [1]
    agreement.withdraw(1)
    assert agreement.hindering() == []
    assert agreement.vote(0, "2", {"1", "2"}) == "2"
    assert agreement.vote(0, "", {"2"}) == ""  # the registry names nobody any more


def test_a_vote_taken_back_is_no_vote(agreement: Agreement) -> None:
    for worker in range(2):
        agreement.vote(worker, "1", {"1"})
    agreement.vote(0, "2", {"1", "2"})
    agreement.vote(0, "3", {"1", "2", "3"})
    assert agreement.vote(1, "2", {"1", "2"}) == "1"
    assert agreement.vote(1, "3", {"1", "2", "3"}) == "3"


def test_who_has_most_connections_of_those_in_step(agreement: Agreement) -> None:
    assert not agreement.has_most(0, 5)
    for worker in (0, 1):
        agreement.vote(worker, "", ())
    assert agreement.has_most(0, 1)
    assert not agreement.has_most(1, 1)
    agreement.has_most(1, 4)
    assert not agreement.has_most(0, 4)
    agreement.withdraw(1)
    assert not agreement.has_most(0, 9)


def test_who_is_killed_while_it_writes_a_champion_leaves_the_one_before(
    agreement: Agreement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("9", "10", "9"):
        agreement.vote(0, version, {"9", "10"})
    killed = Agreement(tmp_path / "agreement", 3)
    monkeypatch.setattr(killed, "_words", killed._words.toreadonly())  # as if it came no further than the text
    with pytest.raises(TypeError, match="read-only"):
        killed._put("10")
    assert agreement.champion == Agreement(tmp_path / "agreement", 3).champion == "9"
    assert agreement.vote(0, "10", {"9", "10"}) == agreement.champion == "10"


def _announce(path: Path) -> None:
    joined = Agreement(path, 3)
    for _ in range(500):
        joined.announce()


def test_no_announcement_is_lost_between_processes(agreement: Agreement, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_announce, args=(tmp_path / "agreement",)) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert agreement.revision == 1_000


# --- roles ------------------------------------------------------------------------------------------------------


class Held(FolderSource):
    """Folders whose champion a test names; what is in `fails` cannot be fetched by this worker, `held` waits."""

    def __init__(self, champion: str) -> None:
        super().__init__("cartpole", {})
        self.champion, self.fails, self.held = champion, set(), threading.Event()
        self.held.set()

    def roles(self) -> dict[str, str]:
        return {CHAMPION: self.champion}

    def fetch(self, version: str) -> Path:
        self.held.wait(60)
        return super().fetch("nowhere" if version in self.fails else version)


class Worker:
    """A keeper of roles with a source of its own."""

    def __init__(self, index: int, path: Path, champion: str) -> None:
        self.source, agreement = Held(champion), Agreement(path, 3)
        self.keeper = RoleKeeper(
            self.source,
            lambda: {agreement.champion} - {""},
            vote=lambda version, held: agreement.vote(index, version, held),
        )

    def follow(self, champion: str) -> None:
        self.source.champion = champion
        self.keeper.refresh()

    @property
    def champion(self) -> str | None:
        self.keeper.obey_quarantine()  # as a request does where the revision moved
        champion = self.keeper.current.champion
        return None if champion is None else champion.version


@pytest.fixture
def versions(tmp_path: Path) -> list[str]:
    return [str(discrete_folder(tmp_path / f"v{number}", value=float(number))) for number in range(3)]


@pytest.fixture
def join(tmp_path: Path, agreement: Agreement, versions: list[str]) -> Callable[[int], Worker]:
    return lambda index: Worker(index, tmp_path / "agreement", versions[0])


@pytest.fixture
def workers(join: Callable[[int], Worker]) -> list[Worker]:
    both = [join(0), join(1)]
    for worker in both:
        worker.keeper.obey_quarantine()
        worker.keeper.refresh()
    return both


def test_all_change_together(workers: list[Worker], versions: list[str]) -> None:
    assert [worker.champion for worker in workers] == [versions[0]] * 2
    workers[0].follow(versions[1])
    assert [worker.champion for worker in workers] == [versions[0]] * 2
    workers[1].follow(versions[1])
    assert [worker.champion for worker in workers] == [versions[1]] * 2
    workers[1].follow(versions[0])
    workers[0].follow(versions[0])
    assert [worker.champion for worker in workers] == [versions[0]] * 2


def test_what_one_cannot_load_none_takes(workers: list[Worker], versions: list[str]) -> None:
    workers[1].source.fails = {versions[1]}
    for worker in workers:
        worker.follow(versions[1])
    assert [worker.champion for worker in workers] == [versions[0]] * 2
    assert list(workers[1].keeper.refused) == [versions[1]]
    for worker in workers:
        worker.follow(versions[2])  # a later version is not held up
    assert [worker.champion for worker in workers] == [versions[2]] * 2


def test_a_worker_that_starts_takes_the_champion_of_the_others(
    workers: list[Worker], versions: list[str], join: Callable[[int], Worker]
) -> None:
    for worker in workers:
        worker.source.fails = {versions[1]}
        worker.follow(versions[1])
    newcomer = join(1)  # in the place of one that ended
    newcomer.source.fails = {versions[1]}
    newcomer.follow(versions[1])
    wait_for(lambda: newcomer.champion == versions[0])
    assert list(newcomer.keeper.refused) == [versions[1]]
    assert workers[0].champion == versions[0]


# --- what one announces -------------------------------------------------------------------------------------------


@pytest.fixture
def timely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read and written in time, however busy the machine."""
    for name in ("_READ_SECONDS", "_WRITTEN_SECONDS"):
        monkeypatch.setattr(f"loomrl.serving.context.{name}", 1e6)


def test_a_quarantine_is_in_force_at_all_workers_at_once(loomrl_home: Path, tmp_path: Path, timely: None) -> None:
    folder = str(discrete_folder(tmp_path / "champion"))
    other = discrete_folder(tmp_path / "other", -BALANCING)
    Agreement(tmp_path / "agreement", 2)
    places = [address(index, tmp_path) for index in range(2)]
    settings = [
        ServerSettings("cartpole", folders={CHAMPION: Path(folder), PREVIOUS: other}, server=f"w-{index}")
        for index in range(2)
    ]
    with Inside(settings[0], worker_address=places[0]) as one, Inside(settings[1], worker_address=places[1]) as two:
        assert {server.decide("a", OBS).json()["version"] for server in (one, two)} == {folder}
        numbers = {"e_value": 200.0, "threshold": 100.0, "mean": 0.9, "limit": 0.1, "num_values": 9, "num_decisions": 9}
        trigger = Trigger(version=folder, monitor="violations.pole", **numbers)
        one.context.quarantine.put(
            Quarantined(policy="cartpole", trigger=trigger, server="w", to=None, time=timestamp())
        )
        assert two.decide("a", OBS).json()["version"] == str(other)
        assert one.decide("a", OBS).json()["version"] == str(other)
        assert two.context.guardian is None
        (entry,) = one.context.quarantine.folder.iterdir()
        whole = entry.read_bytes()
        entry.write_bytes(whole[:-10])
        one.context.quarantine.release("another")
        assert two.decide("a", OBS).json()["version"] == str(other)  # its name says which version it bars
        assert two.ask("GET", "/v2/health/live").status_code == 200  # else it would be killed for it
        assert two.ask("GET", "/status").status_code == 200
        entry.write_bytes(whole)
        assert two.decide("a", OBS).json()["version"] == str(other)


def test_orders_are_taken_while_what_was_set_last_cannot_be_read(
    loomrl_home: Path, tmp_path: Path, timely: None
) -> None:
    folder = discrete_folder(tmp_path / "champion")
    Agreement(tmp_path / "agreement", 2)
    places = [address(index, tmp_path) for index in range(2)]
    settings = [ServerSettings("cartpole", folders={CHAMPION: folder}, server=f"w-{index}") for index in range(2)]
    switch = {"on": True, "person": "Ada", "reason": "the pole falls"}
    order = {"action": 1, "person": "Ada", "reason": "by hand"}
    with Inside(settings[0], worker_address=places[0]) as one, Inside(settings[1], worker_address=places[1]) as two:
        assert one.ask("POST", "/override", order).status_code == 201
        path = one.context.controls.path
        whole = path.read_bytes()
        for unread in (path, path.with_suffix(".copy")):
            unread.unlink()
            unread.symlink_to(unread)  # nobody can follow it
        assert one.ask("DELETE", "/override").status_code == 200  # announced: two does not know all that was set
        refused = two.decide("a", OBS)
        assert (refused.status_code, "no version acts" in refused.json()["error"]) == (503, True)
        assert one.ask("PUT", "/kill-switch", switch).status_code == 200
        assert "kill switch is on" in two.decide("a", OBS).json()["error"]  # by the reserve
        plan = {"person": "Ada", "reason": "none", "fallback": {"action": 0}}
        assert two.ask("PUT", "/plan", plan).status_code == 200
        assert two.decide("a", OBS).json()["role"] == "kill_switch"
        assert two.ask("POST", "/override", order).status_code == 201
        assert two.ask("DELETE", "/override").status_code == 200
        assert two.ask("PUT", "/kill-switch", switch).status_code == 200
        assert two.context.controls.orders.kill_switch is not None
        path.unlink()
        path.write_bytes(whole)
        assert two.decide("a", OBS).json()["role"] == "kill_switch"
        assert two.context.controls.unknown is None


def test_no_version_acts_on_an_announcement_that_nobody_took(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timely: None
) -> None:
    """Whatever the reading of it fails with."""
    Agreement(tmp_path / "agreement", 2)
    settings = ServerSettings("cartpole", folders={CHAMPION: discrete_folder(tmp_path / "champion")})

    def broken(**_: object) -> None:
        raise RuntimeError("no thread")

    with Inside(settings, worker_address=address(0, tmp_path)) as server:
        assert server.decide("a", OBS).status_code == 200
        with monkeypatch.context() as patched:
            patched.setattr(server.context.controls, "refresh", broken)
            Agreement(tmp_path / "agreement", 2).announce()
            refused = server.decide("a", OBS)
            assert (refused.status_code, "no version acts" in refused.json()["error"]) == (503, True)
            assert "no thread" in refused.json()["error"]
        assert server.decide("a", OBS).status_code == 200


def announced_by_the_version_before(agreement: Agreement) -> None:
    agreement._words[0] += 1


@pytest.mark.parametrize("announce", [Agreement.announce, announced_by_the_version_before])
def test_another_champion_is_no_order_that_cannot_be_read(
    loomrl_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    timely: None,
    announce: Callable[[Agreement], None],
) -> None:
    """A promotion goes on where the files of orders do not; what was announced besides might be a kill switch."""
    Agreement(tmp_path / "agreement", 2)
    settings = ServerSettings("cartpole", folders={CHAMPION: discrete_folder(tmp_path / "champion")})
    with Inside(settings, worker_address=address(0, tmp_path)) as server, monkeypatch.context() as disk:
        server.context.controls.set_kill_switch(None, "Ada", "test")
        assert server.decide("a", OBS).status_code == 200
        agreement, read = Agreement(tmp_path / "agreement", 2), Path.read_bytes

        def failing(path: Path) -> bytes:
            if path.parent.name == "controls":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(path)

        disk.setattr(Path, "read_bytes", failing)
        agreement._put(agreement.champion)
        assert server.decide("a", OBS).status_code == 200
        announce(agreement)
        refused = server.decide("a", OBS)
        assert (refused.status_code, "orders may be missing here" in refused.json()["error"]) == (503, True)


def test_a_server_that_is_told_to_stop_is_not_ready(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "champion")
    with Inside(ServerSettings("cartpole", folders={"champion": folder})) as server:
        assert server.ask("GET", "/v2/health/ready").status_code == 200
        server.context.is_leaving = True
        assert server.ask("GET", "/v2/health/ready").status_code == 503
        assert server.decide("a", OBS).status_code == 200  # requests that still come are answered
