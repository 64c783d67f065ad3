"""Roles follow the latest look at the source: nothing waits for a download that hangs, nothing old comes back."""

import gc
import threading
import weakref
from pathlib import Path

import pytest

from loomrl.errors import ArtifactError, ServiceError
from loomrl.serving.context import ServerContext
from loomrl.serving.controls.controls import Controls
from loomrl.serving.controls.overrides import Override
from loomrl.serving.policy import roles
from loomrl.serving.policy.model import GRAPH
from loomrl.serving.policy.roles import RoleKeeper
from loomrl.serving.policy.sources import FolderSource
from loomrl.serving.settings import ServerSettings
from loomrl.storage.registry import CHALLENGER, CHAMPION
from tests.support.inside import wait_for
from tests.support.policies import OBSERVATIONS, discrete_folder


class SlowSource(FolderSource):
    """Folders whose roles a test moves, and whose download a test holds up until it lets go."""

    def __init__(self, folder: Path, num_versions: int) -> None:
        self.versions = [
            str(discrete_folder(folder / f"v{number}", value=float(number))) for number in range(num_versions)
        ]
        super().__init__("cartpole", {CHAMPION: Path(self.versions[0])})
        self.held: dict[str, threading.Event] = {}
        self.unreachable = False
        self.fetched: list[str] = []

    def move(self, **roles: str) -> None:
        self._folders = {role: Path(version) for role, version in roles.items()}

    def hold(self, version: str) -> threading.Event:
        self.held[version] = threading.Event()
        return self.held[version]

    def roles(self) -> dict[str, str]:
        if self.unreachable:
            raise ServiceError("the registry does not answer")
        return dict(super().roles())

    def fetch(self, version: str) -> Path:
        self.fetched.append(version)
        if version in self.held:
            assert self.held[version].wait(60)
        return super().fetch(version)


@pytest.fixture
def source(tmp_path: Path) -> SlowSource:
    return SlowSource(tmp_path, 4)


def champion(keeper: RoleKeeper) -> str | None:
    policy = keeper.current.champion
    return None if policy is None else policy.version


def test_the_newest_wins_when_the_alias_moves_during_a_download(source: SlowSource) -> None:
    first, second, third, _ = source.versions
    keeper = RoleKeeper(source)
    keeper.refresh()
    slow = source.hold(second)
    source.move(champion=second)
    (loading,) = keeper.look()
    assert (champion(keeper), keeper.loading) == (first, [second])
    source.move(champion=third)
    keeper.look()
    wait_for(lambda: champion(keeper) == third)
    slow.set()
    loading.join()
    assert (champion(keeper), keeper.current.by_version(second), keeper.refused) == (third, None, {})
    assert keeper.num_swaps == 2


def test_back_to_the_old_version_while_the_new_one_is_on_its_way(source: SlowSource) -> None:
    first, second = source.versions[:2]
    keeper = RoleKeeper(source)
    keeper.refresh()
    before = keeper.current.champion
    slow = source.hold(second)
    source.move(champion=second)
    (loading,) = keeper.look()
    source.move(champion=first)
    keeper.look()
    slow.set()
    loading.join()
    assert keeper.current.champion is before
    assert source.fetched == [first, second]


def test_one_version_is_fetched_once_however_often_it_is_looked_for(source: SlowSource) -> None:
    slow = source.hold(source.versions[0])
    keeper = RoleKeeper(source)
    looks = [keeper.look() for _ in range(5)]
    assert len({id(loading) for loadings in looks for loading in loadings}) == 1
    slow.set()
    keeper.refresh()
    assert source.fetched == source.versions[:1]


def test_a_pin_does_not_wait_for_the_champions_download(source: SlowSource) -> None:
    first, second, third, _ = source.versions
    keeper = RoleKeeper(source)
    keeper.refresh()
    slow = source.hold(second)
    source.move(champion=second)
    (loading,) = keeper.look()
    keeper.ensure({third})
    assert keeper.current.by_version(third) is not None
    keeper.look()  # before the override is in force: the pin stays
    assert keeper.current.by_version(third) is not None
    assert champion(keeper) == first
    slow.set()
    loading.join()
    assert champion(keeper) == second


def test_an_override_is_in_force_while_a_new_champion_is_downloaded(source: SlowSource, loomrl_home: Path) -> None:
    """One look after the file changed, as the server's threads take it."""
    first, second = source.versions[:2]
    context = ServerContext(ServerSettings("cartpole", folders={CHAMPION: Path(first)}))
    context.roles = RoleKeeper(source, context.controls.versions)
    context.roles.refresh()
    slow = source.hold(second)
    source.move(champion=second)
    context.refresh()
    Controls("cartpole").set_override(Override(action=1, person="Ada", reason="it falls"), "test")
    context.follow_orders()
    assert context.roles.loading == [second]
    assert [override.action for override in context.controls.orders.active_overrides()] == [1]
    slow.set()
    context.roles.refresh()
    context.audit.close()
    assert champion(context.roles) == second


def test_pins_are_loaded_without_the_sources_roles(source: SlowSource) -> None:
    keeper = RoleKeeper(source, lambda: {source.versions[3]})
    source.unreachable = True
    keeper.look()
    keeper.load_pinned()
    wait_for(lambda: keeper.current.by_version(source.versions[3]) is not None)
    assert keeper.unreachable == "the registry does not answer"


def test_a_registry_that_comes_late_is_followed(source: SlowSource) -> None:
    keeper = RoleKeeper(source)
    source.unreachable = True
    keeper.refresh()
    assert (champion(keeper), keeper.unreachable) == (None, "the registry does not answer")
    source.unreachable = False
    keeper.refresh()
    assert (champion(keeper), keeper.unreachable) == (source.versions[0], None)


def test_a_role_that_can_be_filled_does_not_wait_for_one_that_cannot(source: SlowSource) -> None:
    first, second, third, _ = source.versions
    keeper = RoleKeeper(source)
    keeper.refresh()
    slow = source.hold(third)
    source.move(champion=second, challenger=third)
    keeper.look()
    wait_for(lambda: champion(keeper) == second)
    assert keeper.current.challenger is None
    slow.set()
    keeper.refresh()
    assert keeper.current.challenger is not None
    challenger = keeper.current.challenger
    source.move(champion=third)
    keeper.refresh()
    assert keeper.current.champion is challenger, "what is loaded already is not loaded again"
    assert keeper.current.challenger is None


@pytest.mark.parametrize("role", [CHAMPION, CHALLENGER])
def test_whatever_a_bad_file_makes_a_parser_raise_is_a_refusal(source: SlowSource, role: str) -> None:
    first, second = source.versions[:2]
    keeper = RoleKeeper(source)
    keeper.refresh()
    before = keeper.current.champion
    (Path(second) / "manifest.json").write_bytes(b"\xff\xfe not text")
    source.move(**{CHAMPION: first} | {role: second})
    keeper.refresh()
    assert keeper.current.champion is before
    assert list(keeper.refused) == [second]
    assert keeper.refused[second].reason


def test_a_refused_version_is_tried_again_when_asked_to(source: SlowSource) -> None:
    first, second = source.versions[:2]
    keeper = RoleKeeper(source)
    keeper.refresh()
    graph = (Path(second) / GRAPH).read_bytes()
    (Path(second) / GRAPH).write_bytes(graph[:-1])
    source.move(champion=second)
    keeper.refresh()
    (Path(second) / GRAPH).write_bytes(graph)
    keeper.refresh()
    assert (champion(keeper), source.fetched.count(second)) == (first, 1)
    keeper.refresh(retry_refused=True)
    assert (champion(keeper), keeper.refused) == (second, {})


def test_a_version_that_cannot_be_pinned_is_named(source: SlowSource) -> None:
    keeper = RoleKeeper(source)
    with pytest.raises(ArtifactError, match="version /nowhere cannot be pinned: no policy folder"):
        keeper.ensure({"/nowhere"})
    keeper.refresh()
    assert keeper.refused == {}


def test_an_order_waits_neither_for_a_source_that_is_silent_nor_for_a_long_download(
    source: SlowSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, _ = source.versions
    monkeypatch.setattr(roles, "_LOAD_SECONDS", 0.1)
    keeper = RoleKeeper(source)
    keeper.refresh()
    slow, asked = source.hold(second), threading.Event()
    monkeypatch.setattr(source, "look_up", lambda version: version == third and asked.wait(60))
    assert keeper.ensure({first, second, third}) == {
        second: "it is still being loaded",
        third: "it could not be looked up: the registry gave no answer for 0.5 s",
    }
    slow.set()
    asked.set()
    wait_for(lambda: {second, third} <= keeper.current.versions())

    def fails(version: str) -> None:
        raise ServiceError("the registry does not answer")

    monkeypatch.setattr(source, "look_up", fails)
    assert keeper.ensure({source.versions[3]}) == {
        source.versions[3]: "it could not be looked up: the registry does not answer"
    }


def test_a_request_in_flight_ends_on_the_version_it_began_with_and_then_releases_it(
    source: SlowSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "_NAMING_SECONDS", -1.0)
    keeper = RoleKeeper(source)
    keeper.refresh()
    in_flight = keeper.current
    replaced = weakref.ref(keeper.current.champion)
    source.move(champion=source.versions[1])
    keeper.refresh()
    assert champion(keeper) == source.versions[1]
    assert in_flight.champion is not None
    assert in_flight.champion.answer(OBSERVATIONS).action.shape == (8,)
    del in_flight
    gc.collect()
    assert replaced() is None
