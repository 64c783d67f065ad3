"""A start without the registry: the roles verified last are taken, verified again, and the server says so."""

import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from loomrl.errors import ArtifactError, ServiceError
from loomrl.promotion import promote
from loomrl.serving.policy.last_verified import LastVerified, path_of
from loomrl.serving.policy.model import GRAPH
from loomrl.serving.policy.roles import RoleKeeper
from loomrl.serving.policy.sources import RegistrySource
from loomrl.serving.settings import ServerSettings
from loomrl.storage.audit.history import records
from loomrl.storage.registry import CHALLENGER, CHAMPION, Registry
from tests.support.champions import make_champion, promoted
from tests.support.inside import Inside, wait_for
from tests.support.policies import OBSERVATIONS, discrete_folder

OBS = OBSERVATIONS[0].tolist()
BY = {"person": "Ada", "reason": "test"}


class HeldSource(RegistrySource):
    """A registry's, which can go away, and in which versions arrive when a test lets them."""

    def __init__(self, *held: str) -> None:
        super().__init__("cartpole")
        self.is_away, self.held = False, {version: threading.Event() for version in held}

    def roles(self) -> Mapping[str, str]:
        if self.is_away:
            raise ServiceError("the registry is away")
        return super().roles()

    def fetch(self, version: str) -> Path:
        folder = super().fetch(version)
        if version in self.held:
            assert self.held[version].wait(60)
        return folder


def arrived(keeper: RoleKeeper) -> list[str]:
    """The versions that the latest look began to load, once they are there, the registry being away since."""
    begun = keeper.look()
    source = keeper._source
    assert isinstance(source, HeldSource)
    source.is_away = True
    for event in source.held.values():
        event.set()
    for loading in begun:
        loading.join()
    return [loading.version for loading in begun]


def kept_champion() -> str:
    return LastVerified.read(path_of("cartpole")).roles[CHAMPION]


@pytest.fixture
def versions(ready_home: Path, tmp_path: Path) -> list[str]:
    """Champion and challenger, as a keeper of roles found them in the registry once."""
    registry = Registry()
    found = [
        registry.register("cartpole", discrete_folder(tmp_path / f"{number}", value=float(number)), f"run-{number}")
        for number in (1, 2)
    ]
    make_champion(registry, found[0].version, challenger=found[1].version)
    keeper = RoleKeeper(RegistrySource("cartpole"))
    for _ in range(2):
        keeper.refresh()
    assert keeper.last is None
    return [one.version for one in found]


@pytest.fixture
def away() -> Iterator[pytest.MonkeyPatch]:
    """No registry answers, until this is undone."""

    def unreachable(self: Registry, *given: object) -> None:
        raise ServiceError("MLflow at http://127.0.0.1:9 failed: connection refused; start the server")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("aliases", "require"):
            patch.setattr(Registry, name, unreachable)
        yield patch


def test_the_champion_that_was_verified_last_decides_and_it_is_said(
    versions: list[str], away: pytest.MonkeyPatch
) -> None:
    with Inside(ServerSettings("cartpole")) as server:
        status = server.ask("GET", "/status").json()
        assert status["roles_source"]["source"] == "last verified"
        assert "connection refused" in status["registry_error"]
        assert "loomrl_roles_last_verified 1.0" in server.ask("GET", "/metrics").text
        assert server.decide("a", OBS).json()["version"] == versions[0]
        assert server.context.roles.current.challenger.version == versions[1]
    (told,) = (entry for entry in records("cartpole") if entry["kind"] == "roles")
    assert (told["source"], told["roles"][CHAMPION]) == ("last verified", versions[0])


def test_the_registry_is_followed_again_when_it_is_back(versions: list[str], away: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    keeper = RoleKeeper(RegistrySource("cartpole"), on_last=lambda last, why: told.append(last is not None))
    keeper.refresh()
    keeper.refresh()
    assert (keeper.current.champion.version, told) == (versions[0], [True])
    away.undo()
    make_champion(Registry(), versions[1], challenger=None)
    keeper.refresh()
    assert (keeper.current.champion.version, keeper.last, told) == (versions[1], None, [True, False])
    assert LastVerified.read(path_of("cartpole")).roles[CHAMPION] == versions[1]


def test_a_registry_that_was_lost_or_emptied_takes_no_champion_away(
    versions: list[str], ready_home: Path, template_home: Path, tmp_path: Path
) -> None:
    """The file is not there, then an empty one stands in its place, then the real one is there again."""
    file = ready_home / "mlflow.db"
    file.rename(tmp_path / "away.db")
    with Inside(ServerSettings("cartpole")) as server:

        def refreshed() -> tuple[str, str | None]:
            server.context.roles.refresh()
            status = server.ask("GET", "/status").json()
            assert server.decide("a", OBS).json()["version"] == versions[0]
            return status["roles_source"]["source"], status["registry_error"]

        assert refreshed() == (
            "last verified",
            f"{file} is not there any more; restore it (`loomrl backup` keeps copies)",
        )
        shutil.copy(template_home / "mlflow.db", file)
        source, error = refreshed()
        assert (source, "does not know cartpole@1, the champion that it named last" in str(error)) == (
            "last verified",
            True,
        )
        (tmp_path / "away.db").rename(file)
        assert refreshed() == ("registry", None)
        shutil.copy(template_home / "mlflow.db", tmp_path / "empty.db")
        (tmp_path / "empty.db").rename(file)
        assert "does not know cartpole@1" in str(refreshed()[1])


@pytest.mark.parametrize("was_verified", [True, False])
def test_a_version_that_was_rolled_back_does_not_come_back_without_the_registry(
    ready_home: Path, tmp_path: Path, was_verified: bool
) -> None:
    """No server saw the rollback; LoomDB knows of it, and this home the version before, or not."""
    registry = Registry()
    for number in (1, 2):
        promoted(registry, discrete_folder(tmp_path / f"{number}", value=float(number)))
    keeper = RoleKeeper(RegistrySource("cartpole"))
    for _ in range(2):
        keeper.refresh()
    last = LastVerified.read(path_of("cartpole"))
    assert (last.roles[CHAMPION], set(last.versions)) == ("2", {"1", "2"})
    if not was_verified:
        last.model_copy(update={"versions": {"2": last.versions["2"]}}).write(path_of("cartpole"))
    promote.rollback("cartpole", "2 is dangerous", "Ada", registry=registry)
    (ready_home / "mlflow.db").unlink()
    with Inside(ServerSettings("cartpole")) as server:
        answer = server.decide("a", OBS)
        assert (answer.json()["version"] if was_verified else answer.status_code) == ("1" if was_verified else 503)
        assert "is not there any more" in server.ask("GET", "/status").json()["registry_error"]


def test_files_that_were_changed_are_not_taken_and_a_person_decides_all_the_same(
    versions: list[str], away: pytest.MonkeyPatch, ready_home: Path
) -> None:
    for version in versions:
        (ready_home / "versions" / "cartpole" / version / GRAPH).write_bytes(b"changed")
    (ready_home / "mlartifacts").rename(ready_home / "gone")  # else they are fetched again
    with Inside(ServerSettings("cartpole")) as server:
        assert server.context.roles.current.champion is None
        assert {entry["version"] for entry in server.ask("GET", "/status").json()["refused"]} == set(versions)
        assert server.decide("a", OBS).status_code == 503
        assert server.ask("POST", "/override", {"action": 7, **BY}).status_code == 400  # there is no such action
        assert server.ask("POST", "/override", {"action": 1, "agent_id": "a", **BY}).status_code == 201
        answer = server.decide("a", OBS).json()
        assert (answer["action"], answer["role"], answer["version"]) == (1, "override", versions[0])
        fallback = {"fallback": {"action": 0}, **BY}
        assert server.ask("PUT", "/plan", fallback).status_code == 200
        assert server.ask("PUT", "/kill-switch", {"on": True, **BY}).status_code == 200
        assert server.decide("b", OBS).json()["role"] == "kill_switch"
    assert not [entry for entry in records("cartpole") if entry["kind"] == "loaded"]


def test_without_anything_verified_it_is_said_what_is_missing(ready_home: Path, away: pytest.MonkeyPatch) -> None:
    with Inside(ServerSettings("cartpole")) as server:
        assert server.ask("POST", "/override", {"action": 1, **BY}).status_code == 201
        answer = server.decide("a", OBS)
        assert answer.status_code == 503
        assert "no roles of verified versions are kept in this home" in answer.json()["error"]
        assert "have the registry answer until a server of this home is ready" in answer.json()["error"]


def test_a_new_home_without_the_registry_says_that_it_is_away_until_it_answers(
    ready_home: Path, away: pytest.MonkeyPatch
) -> None:
    with Inside(ServerSettings("cartpole")) as server:
        refused = server.decide("a", OBS)
        assert refused.status_code == 503
        assert "the registry does not say which it is: MLflow at http://127.0.0.1:9 failed" in refused.json()["error"]
        away.undo()
        server.context.roles.refresh()
        assert "cartpole has no champion yet" in server.decide("a", OBS).json()["error"]


def test_a_silent_registry_is_not_waited_for(versions: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = RegistrySource("cartpole")
    source._answers = False  # it was asked, and has not answered
    keeper = RoleKeeper(source)
    for loading in keeper.use_last("no answer"):
        loading.join()
    assert keeper.current.champion.version == versions[0]


# --- when roles are kept ---------------------------------------------------------------------------------------------


def test_roles_are_kept_though_the_registry_dies_while_the_first_champion_is_loaded(
    ready_home: Path, tmp_path: Path
) -> None:
    version = promoted(Registry(), discrete_folder(tmp_path / "1"))
    assert arrived(RoleKeeper(HeldSource(version))) == [version]
    assert kept_champion() == version


def test_roles_are_kept_though_the_registry_dies_while_the_next_champion_is_loaded(
    ready_home: Path, tmp_path: Path
) -> None:
    """Also where the server dies before that is loaded: the next one follows the registry as before."""
    first = promoted(Registry(), discrete_folder(tmp_path / "1"))
    keeper = RoleKeeper(HeldSource("2"))
    keeper.refresh()
    second = promoted(Registry(), discrete_folder(tmp_path / "2", value=2.0))
    keeper.look()
    assert kept_champion() == first
    killed_here = RoleKeeper(RegistrySource("cartpole"))
    killed_here.refresh()
    assert killed_here.current.champion.version == second
    path_of("cartpole").unlink()
    assert (arrived(keeper), kept_champion()) == ([second], second)


def test_a_server_is_ready_when_its_roles_are_kept_and_not_before(
    ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted(Registry(), discrete_folder(tmp_path / "1"))
    written, write = threading.Event(), LastVerified.write

    def slowly(self: LastVerified, path: Path) -> None:
        assert written.wait(60)
        write(self, path)

    monkeypatch.setattr(LastVerified, "write", slowly)
    with Inside(ServerSettings("cartpole"), threads=True) as server:
        assert server.decide("a", OBS).status_code == 200
        assert server.ask("GET", "/v2/health/ready").status_code == 503
        assert server.ask("GET", "/status").json()["ready"] is False
        written.set()
        wait_for(lambda: server.ask("GET", "/v2/health/ready").status_code == 200)
        assert kept_champion() == "1"


def test_roles_that_cannot_be_written_stop_nothing_and_are_kept_by_a_later_look(
    ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry, too, is away by then."""
    version = promoted(Registry(), discrete_folder(tmp_path / "1"))
    keeper = RoleKeeper(HeldSource(version))

    def full(self: LastVerified, path: Path) -> None:
        raise ArtifactError(f"cannot write {path}: No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(LastVerified, "write", full)
        arrived(keeper)
    assert (keeper.current.champion.version, keeper.is_ready) == (version, True)
    assert "No space left" in str(keeper.unkept)
    keeper.look()
    assert (kept_champion(), keeper.unkept) == (version, None)


def test_what_is_still_being_loaded_stays_as_it_was_kept(versions: list[str]) -> None:
    """A restart whose champion is there before its challenger, at a moment at which the registry dies."""
    source = HeldSource(versions[1])
    keeper = RoleKeeper(source)
    begun = {loading.version: loading for loading in keeper.look()}
    begun[versions[0]].join()
    source.is_away = True
    last = LastVerified.read(path_of("cartpole"))
    assert (keeper.is_ready, last.roles[CHALLENGER], set(last.versions)) == (True, versions[1], set(versions))
    source.held[versions[1]].set()
    begun[versions[1]].join()


def test_a_start_without_the_registry_takes_nothing_off_what_is_kept(
    versions: list[str], away: pytest.MonkeyPatch
) -> None:
    before = path_of("cartpole").read_bytes()
    keeper = RoleKeeper(RegistrySource("cartpole"))
    keeper.refresh()
    assert (keeper.is_ready, path_of("cartpole").read_bytes()) == (True, before)


def test_actions_that_were_kept_are_known_before_the_registry_is_asked(versions: list[str]) -> None:
    keeper = RoleKeeper(RegistrySource("cartpole"))
    assert keeper.current.whose_actions().version == versions[0]


def test_a_promotion_alone_keeps_nothing_and_a_server_that_was_ready_does(ready_home: Path, tmp_path: Path) -> None:
    """No server of this home has yet looked at the version: 503, and why."""
    promoted(Registry(), discrete_folder(tmp_path / "1"))
    (ready_home / "mlflow.db").rename(tmp_path / "away.db")
    with Inside(ServerSettings("cartpole")) as server:
        assert server.decide("a", OBS).status_code == 503
        assert server.ask("POST", "/override", {"action": 1, **BY}).status_code == 201
        assert "no roles of verified versions are kept in this home" in server.decide("a", OBS).json()["error"]
        (tmp_path / "away.db").rename(ready_home / "mlflow.db")
        server.context.roles.refresh()
        assert server.ask("GET", "/v2/health/ready").status_code == 200
    (ready_home / "mlflow.db").unlink()
    with Inside(ServerSettings("cartpole")) as server:
        assert server.decide("a", OBS).json()["role"] == "override"
        assert server.context.roles.current.champion is not None
