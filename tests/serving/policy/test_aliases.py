"""Whoever may write to MLflow moves no server: aliases and tags count where a signature says so."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from loomrl.errors import ArtifactError, ConfigError, GateRefused
from loomrl.promotion import promote
from loomrl.promotion.signing_by_hand import sign_by_hand
from loomrl.serving.config import SERVING
from loomrl.serving.policy.last_verified import path_of
from loomrl.serving.policy.roles import RoleKeeper
from loomrl.serving.policy.sources import RegistrySource
from loomrl.serving.settings import ServerSettings
from loomrl.storage.ledger import Move, record_move
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHALLENGER, CHAMPION, PREVIOUS, Registry, files, versions
from loomrl.storage.registry.statements import ChampionStatement, RegisteredStatement, ServingStatement, state_serving
from loomrl.storage.run_record import now
from loomrl.system.home import home
from tests.support.champions import make_champion, promoted, promotion, put_files
from tests.support.inside import Inside
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.projects import copy_home

ALWAYS = {"exploration": {"kind": "epsilon", "epsilon": 1.0, "share": 0.99}}
STATEMENT = ChampionStatement.TAG


@pytest.fixture(scope="module")
def promoted_home(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of it each test gets a copy."""
    made, folders = tmp_path_factory.mktemp("promoted"), tmp_path_factory.mktemp("versions")
    copy_home(template_home, made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOMRL_HOME", str(made))
        registry = Registry()
        for number in (1, 2):
            promoted(registry, discrete_folder(folders / f"{number}", value=float(number)))
        registry.register("cartpole", discrete_folder(folders / "3", value=3.0), "run-3")
    return made


@pytest.fixture
def registry(promoted_home: Path, loomrl_home: Path) -> Registry:
    """Versions 1 and 2 were promoted, one after the other; 3 was not."""
    copy_home(promoted_home, loomrl_home)
    return Registry()


@pytest.fixture
def keeper(registry: Registry) -> RoleKeeper:
    """A server's, which has served version 2."""
    keeper = RoleKeeper(RegistrySource("cartpole"))
    keeper.refresh()
    assert champion(keeper) == "2"
    return keeper


def champion(keeper: RoleKeeper) -> str | None:
    for _ in range(2):  # roles are kept by the look after the one that loads a version
        keeper.refresh(retry_refused=True)
    return None if keeper.current.champion is None else keeper.current.champion.version


def fresh() -> RoleKeeper:
    """Of another server, in a home that knows nothing but LoomDB."""
    path_of("cartpole").unlink(missing_ok=True)
    return RoleKeeper(RegistrySource("cartpole"))


def copy_statement(registry: Registry, source: str, target: str, tag: str = STATEMENT) -> None:
    registry.set_tag(registry.require("cartpole", target), tag, registry.require("cartpole", source).tags[tag])


def by_hand(registry: Registry, version: str) -> None:
    registry.set_aliases("cartpole", {CHAMPION: version})


# --- aliases --------------------------------------------------------------------------------------------------------


def test_promotions_and_rollbacks_are_followed(registry: Registry, keeper: RoleKeeper) -> None:
    assert keeper.current.previous is not None
    assert keeper.current.previous.version == "1"
    promote.rollback("cartpole", "it drifts", "Ada", registry=registry)
    assert (champion(keeper), champion(fresh())) == ("1", "1")
    statement = ChampionStatement.of(registry.require("cartpole", CHAMPION))
    assert statement is not None
    assert (statement.number, statement.kind, statement.before) == (3, "rollback", "2")
    assert (statement.person, statement.reason) == ("Ada", "it drifts")
    make_champion(registry, "3")
    assert champion(keeper) == "3"


def test_an_alias_that_was_moved_by_hand_is_not_followed(registry: Registry, keeper: RoleKeeper) -> None:
    by_hand(registry, "3")
    assert champion(keeper) == "2"
    assert "no signed statement says that it became champion" in keeper.refused["3"].reason
    assert champion(fresh()) == "2"
    with Inside(ServerSettings("cartpole")) as server:
        assert server.decide("a", OBSERVATIONS[0].tolist()).json()["version"] == "2"
        (refused,) = server.ask("GET", "/status").json()["refused"]
        assert (refused["version"], "no signed statement" in refused["reason"]) == ("3", True)
    by_hand(registry, "2")
    assert champion(keeper) == "2"
    assert keeper.refused == {}


def test_an_alias_that_was_moved_back_by_hand_is_not_followed(registry: Registry, keeper: RoleKeeper) -> None:
    by_hand(registry, "1")
    for one in (keeper, RoleKeeper(RegistrySource("cartpole")), fresh()):
        assert champion(one) == "2"
        assert "it became champion by move 1, and move 2 came after it" in one.refused["1"].reason


def test_deleting_what_came_after_does_not_help(registry: Registry, keeper: RoleKeeper) -> None:
    registry.delete_tag(registry.require("cartpole", "2"), STATEMENT)
    by_hand(registry, "1")
    assert (champion(keeper), champion(fresh())) == ("2", None)
    registry.delete_tag(registry.require("cartpole", "1"), STATEMENT)
    assert (champion(keeper), champion(fresh())) == ("2", None)


def test_a_statement_about_another_version_or_other_files_does_not_hold(registry: Registry, keeper: RoleKeeper) -> None:
    copy_statement(registry, "2", "3")
    by_hand(registry, "3")
    assert champion(keeper) == "2"
    assert "is about cartpole@2" in keeper.refused["3"].reason
    version = registry.require("cartpole", "2")
    other = version.model_copy(update={"tags": version.tags | {"loomrl.sums_sha256": "0" * 64}})
    with pytest.raises(ArtifactError, match="or about other files"):
        ChampionStatement.of(other)


def test_a_stranger_s_signature_does_not_hold(
    registry: Registry, keeper: RoleKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("LOOMRL_HOME", str(tmp_path / "elsewhere"))
        elsewhere.setenv("MLFLOW_TRACKING_URI", registry.tracking_uri)
        make_champion(registry, "3")
    assert champion(keeper) == "2"
    assert "not among the 1 trusted keys" in keeper.refused["3"].reason


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "\0", json.dumps({"payloadType": "x", "payload": "", "signatures": []})]
)
def test_what_is_no_statement_does_not_hold(registry: Registry, keeper: RoleKeeper, text: str) -> None:
    registry.set_tag(registry.require("cartpole", "3"), STATEMENT, text)
    by_hand(registry, "3")
    assert champion(keeper) == "2"
    assert f"its tag {STATEMENT} does not hold" in keeper.refused["3"].reason


def test_what_never_was_champion_is_nothing_to_fall_back_to(registry: Registry, keeper: RoleKeeper) -> None:
    registry.set_aliases("cartpole", {PREVIOUS: "3"})
    assert champion(keeper) == "2"
    assert keeper.current.previous is None
    assert "3" in keeper.refused


def test_a_server_that_demands_no_signature_follows_the_aliases(registry: Registry) -> None:
    by_hand(registry, "3")
    assert champion(RoleKeeper(RegistrySource("cartpole", require_signature=False))) == "3"


def test_a_person_vouches_for_the_champion_as_it_is(registry: Registry, keeper: RoleKeeper) -> None:
    by_hand(registry, "3")
    sign_by_hand("cartpole", "3", "Ada", "it was moved in MLflow, and is right")
    assert (champion(keeper), champion(fresh())) == ("3", "3")
    statement = ChampionStatement.of(registry.require("cartpole", "3"))
    assert statement is not None
    assert (statement.number, statement.kind, statement.person) == (3, "signing by hand", "Ada")


@pytest.mark.parametrize("statement", [RegisteredStatement.TAG, ServingStatement.TAG, STATEMENT])
def test_a_person_cannot_vouch_for_files_where_others_were_stated(registry: Registry, statement: str) -> None:
    put_files(registry, "3", "1")
    for tag in {RegisteredStatement.TAG, ServingStatement.TAG, STATEMENT} - {statement}:
        registry.delete_tag(registry.require("cartpole", "1"), tag)
    before = registry.require("cartpole", "1").tags
    with pytest.raises(ArtifactError, match=rf"{statement} is .* about other files; restore the files or MLflow"):
        sign_by_hand("cartpole", "1", "Ada", "it looks right")
    assert registry.require("cartpole", "1").tags == before


def test_a_deleted_alias_takes_no_champion_out(registry: Registry, keeper: RoleKeeper) -> None:
    registry.set_aliases("cartpole", {CHAMPION: None})
    assert champion(keeper) == "2"
    assert "no alias champion in the registry" in keeper.refused["2"].reason


@pytest.mark.parametrize("home_knows", [True, False])
def test_a_server_that_starts_without_the_alias_takes_the_champion_that_was_signed_last(
    registry: Registry, keeper: RoleKeeper, home_knows: bool
) -> None:
    registry.set_aliases("cartpole", {CHAMPION: None})
    if not home_knows:
        path_of("cartpole").unlink()
    with Inside(ServerSettings("cartpole")) as server:
        assert server.decide("a", OBSERVATIONS[0].tolist()).json()["version"] == "2"
        server.context.roles.refresh()
        (refused,) = server.ask("GET", "/status").json()["refused"]
        assert "no alias champion in the registry: 2, champion last, stays" in refused["reason"]
        assert server.context.roles.current.previous.version == "1"
        by_hand(registry, "2")
        server.context.roles.refresh()
        assert server.ask("GET", "/status").json()["refused"] == []


@pytest.mark.parametrize("alias", ["2", None])
@pytest.mark.parametrize("statement", ["", None])
def test_it_is_found_in_what_this_home_verified_where_the_statement_is_gone(
    registry: Registry, keeper: RoleKeeper, alias: str | None, statement: str | None
) -> None:
    registry.set_aliases("cartpole", {CHAMPION: alias})
    registry.delete_tag(registry.require("cartpole", "2"), STATEMENT)
    if statement is not None:
        registry.set_tag(registry.require("cartpole", "2"), STATEMENT, statement)
    assert champion(RoleKeeper(RegistrySource("cartpole"))) == "2"
    put_files(registry, "1", "2")
    assert champion(RoleKeeper(RegistrySource("cartpole"))) is None


def test_a_version_that_could_not_be_loaded_without_the_alias_is_tried_again(
    registry: Registry, keeper: RoleKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.set_aliases("cartpole", {CHAMPION: None})
    shutil.rmtree(home() / "versions")
    stored = Path(registry.require("cartpole", "2").source)
    stored.rename(stored.with_name("away"))
    started = RoleKeeper(RegistrySource("cartpole"))
    started.refresh()
    assert started.current.champion is None
    assert "does not hold what was registered" in started.refused["2"].reason
    stored.with_name("away").rename(stored)
    assert champion(started) == "2"


def test_the_champion_before_decides_at_once_though_loomdb_was_asked_a_moment_ago(registry: Registry) -> None:
    """A server asks it when it starts without the registry; then that is back, with an alias moved by hand."""
    by_hand(registry, "3")
    path_of("cartpole").unlink(missing_ok=True)
    source = RegistrySource("cartpole")
    assert source.last_verified() is None
    assert source.roles()[CHAMPION] == "2"


def test_a_policy_without_a_champion_has_none(ready_home: Path, tmp_path: Path) -> None:
    Registry().register("cartpole", discrete_folder(tmp_path / "1"), "run-1")
    assert champion(fresh()) is None


def test_other_files_under_the_number_of_a_champion_are_not_loaded(registry: Registry, keeper: RoleKeeper) -> None:
    make_champion(registry, "3")
    source = RegistrySource("cartpole")
    assert source.roles()[CHAMPION] == "3"
    registry.set_tag(
        registry.require("cartpole", "3"), "loomrl.sums_sha256", registry.require("cartpole", "1").sums_sha256
    )
    with pytest.raises(ArtifactError, match="its files are others than those"):
        source.fetch("3")


def test_a_rollback_makes_no_champion_of_what_never_was_one(registry: Registry, keeper: RoleKeeper) -> None:
    registry.set_tag(registry.require("cartpole", "3"), promote.CHAMPION_SINCE, now())
    registry.set_aliases("cartpole", {PREVIOUS: "3"})
    with pytest.raises(ConfigError, match="version 3 never was champion"):
        promote.rollback("cartpole", "it drifts", "Ada", registry=registry)
    assert champion(keeper) == "2"


def test_a_rollback_is_followed_though_statements_were_deleted(registry: Registry, keeper: RoleKeeper) -> None:
    registry.delete_tag(registry.require("cartpole", "2"), STATEMENT)
    promote.rollback("cartpole", "it drifts", "Ada", registry=registry)
    assert (champion(keeper), champion(fresh())) == ("1", "1")


def test_a_statement_that_was_put_back_after_a_rollback_is_not_followed(registry: Registry) -> None:
    version = registry.require("cartpole", "2")
    registry.delete_tag(version, STATEMENT)
    promote.rollback("cartpole", "it drifts", "Ada", registry=registry)
    registry.set_tag(version, STATEMENT, version.tags[STATEMENT])
    by_hand(registry, "2")
    assert champion(fresh()) == "1"


def test_a_server_that_missed_a_short_promotion_does_not_follow_it_later(registry: Registry) -> None:
    asleep = RoleKeeper(RegistrySource("cartpole"))
    assert champion(asleep) == "2"
    promote.apply(promotion("3", "2"), "run-3", registry)
    promote.rollback("cartpole", "it is worse", "Ada", registry=registry)
    assert registry.aliases("cartpole")[CHAMPION] == "2"
    by_hand(registry, "3")
    for one in (asleep, RoleKeeper(RegistrySource("cartpole")), fresh()):
        assert champion(one) == "2"


def test_the_newest_move_is_the_one_with_the_highest_number(registry: Registry, keeper: RoleKeeper) -> None:
    """Two rollbacks that LoomDB missed were recorded in the order of their versions."""
    make_champion(registry, "3")  # move 3
    kept = registry.require("cartpole", "3").tags[STATEMENT]
    make_champion(registry, "1")  # move 4
    about: dict[str, Any] = {"kind": "rollback", "policy": "cartpole", "before": None, "run_id": "r", "reason": ""}
    with LoomDB.open() as db:
        for version, number in (("1", 4), ("3", 3)):
            record_move(db, Move(version=version, number=number, time=now(), **about))
    registry.set_tag(registry.require("cartpole", "3"), STATEMENT, kept)
    by_hand(registry, "3")
    assert champion(fresh()) == "1"


@pytest.mark.parametrize("text", ["no move", "{}", "a forged one"])
def test_a_forged_announcement_of_a_move_changes_and_blocks_nothing(
    registry: Registry, keeper: RoleKeeper, text: str
) -> None:
    move = {"kind": "promotion", "policy": "cartpole", "version": "3", "before": "2", "run_id": "r", "reason": ""}
    text = json.dumps(move | {"time": "2999", "number": 10**9}) if text == "a forged one" else text
    for version in ("2", "3"):
        registry.set_tag(registry.require("cartpole", version), promote.MOVE, text)
    with LoomDB.open() as db:
        before = db.events()
        assert promote.settle("cartpole", registry, db) == []
        assert db.events() == before
    promote.rollback("cartpole", "it drifts", "Ada", registry=registry)
    assert (champion(keeper), champion(fresh())) == ("1", "1")


def test_other_files_than_those_that_were_judged_are_not_promoted(registry: Registry) -> None:
    decision = promotion("3", "2").model_copy(update={"sums_sha256": registry.require("cartpole", "1").sums_sha256})
    with pytest.raises(GateRefused, match="are others than those that were judged"):
        promote.apply(decision, "run-3", registry)


# --- from before there were statements ------------------------------------------------------------------------------


@pytest.fixture
def old(ready_home: Path, tmp_path: Path) -> Registry:
    """Version 1 became champion and 2 did not; LoomDB knows, and nothing was signed."""
    registry = Registry()
    for number in (1, 2):
        registry.register("cartpole", discrete_folder(tmp_path / f"{number}", value=float(number)), f"run-{number}")
    by_hand(registry, "1")
    with LoomDB.open() as db:
        record_move(
            db, Move(kind="promotion", policy="cartpole", version="1", before=None, run_id="r", reason="", time=now())
        )
    return registry


def test_a_champion_from_before_is_followed_where_loomdb_recorded_it(old: Registry) -> None:
    keeper = fresh()
    assert champion(keeper) == "1"
    by_hand(old, "2")
    assert (champion(keeper), champion(fresh())) == ("1", "1")


def test_a_champion_from_before_is_followed_where_this_home_served_it(
    old: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert champion(fresh()) == "1"
    shutil.rmtree(home() / "versions")
    monkeypatch.setenv("LOOMRL_DATABASE_URL", "postgresql+psycopg://loom:x@127.0.0.1:1/loom")
    assert champion(RoleKeeper(RegistrySource("cartpole"))) == "1"
    by_hand(old, "2")
    assert champion(RoleKeeper(RegistrySource("cartpole"))) == "1"


# --- which files a number means -------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", ["kept", "deleted", "of the other version"])
def test_other_files_under_the_number_of_any_version_are_not_loaded(registry: Registry, statement: str) -> None:
    put_files(registry, "1", "3")
    if statement == "deleted":
        registry.delete_tag(registry.require("cartpole", "3"), RegisteredStatement.TAG)
    elif statement == "of the other version":
        copy_statement(registry, "1", "3", RegisteredStatement.TAG)
    registry.set_aliases("cartpole", {CHALLENGER: "3"})
    why = "no signed statement says that these files were registered" if statement == "deleted" else "about other files"
    pinned = RoleKeeper(RegistrySource("cartpole", pinned={CHAMPION: "3"}))
    assert champion(pinned) is None
    assert why in pinned.refused["3"].reason
    keeper = fresh()
    assert champion(keeper) == "2"
    assert keeper.current.challenger is None
    assert why in keeper.refused["3"].reason
    with pytest.raises(ArtifactError, match=f"cannot be pinned: .*{why}"):
        keeper.ensure({"3"})
    assert champion(RoleKeeper(RegistrySource("cartpole", pinned={CHAMPION: "3"}, require_signature=False))) == "3"


def test_each_registered_version_is_loaded(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    for number in ("1", "2", "3"):
        assert champion(RoleKeeper(RegistrySource("cartpole", pinned={CHAMPION: number}))) == number
    assert "from before statements said which files a number means" not in caplog.text


def test_a_version_that_was_registered_before_is_loaded_with_a_warning(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as before:
        before.setattr(files, "STATED", "none yet")
        version = registry.register("cartpole", discrete_folder(tmp_path / "4", value=4.0), "run-4")
    registry.delete_tag(version, RegisteredStatement.TAG)
    assert champion(RoleKeeper(RegistrySource("cartpole", pinned={CHAMPION: "4"}))) == "4"
    assert "cartpole@4: from before statements said which files a number means" in caplog.text
    sign_by_hand("cartpole", "4", "Ada", "it is what I registered")
    caplog.clear()
    assert champion(RoleKeeper(RegistrySource("cartpole", pinned={CHAMPION: "4"}))) == "4"
    assert "from before statements said" not in caplog.text
    put_files(registry, "3", "4")
    assert champion(RoleKeeper(RegistrySource("cartpole", pinned={CHAMPION: "4"}))) is None


def test_what_this_home_has_served_under_a_number_it_knows(old: Registry) -> None:
    """Also where all statements are gone, and the files are from before there were any."""
    assert champion(fresh()) == "1"
    put_files(old, "2", "1")
    pinned = RoleKeeper(RegistrySource("cartpole", pinned={CHAMPION: "1"}))
    assert champion(pinned) is None
    assert "others than those that were served here before" in pinned.refused["1"].reason


def test_a_registration_that_died_before_its_statement_is_made_again(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        pass

    def die(*_: object) -> None:
        raise Died

    folder = discrete_folder(tmp_path / "4", value=4.0)
    with monkeypatch.context() as dying:
        dying.setattr(versions, "state_registered", die)
        with pytest.raises(Died):
            registry.register("cartpole", folder, "run-4")
    assert registry.register("cartpole", folder, "run-4").version == "5"
    assert registry.register("cartpole", folder, "run-4").version == "5"
    assert champion(RoleKeeper(RegistrySource("cartpole", pinned={CHAMPION: "5"}))) == "5"


# --- how a version is served ----------------------------------------------------------------------------------------


def test_a_tag_that_nobody_signed_explores_nothing(
    registry: Registry, keeper: RoleKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    registry.set_tag(registry.require("cartpole", "2"), SERVING, json.dumps(ALWAYS))
    with Inside(ServerSettings("cartpole", seed=0)) as server:
        answers = [server.decide(f"agent-{number}", OBSERVATIONS[0].tolist()).json() for number in range(200)]
    assert [answer["version"] for answer in answers] == ["2"] * 200
    assert sum(answer["exploration"] for answer in answers) == 0
    registry.delete_tag(registry.require("cartpole", "3"), SERVING)
    registry.set_tag(registry.require("cartpole", "3"), SERVING, json.dumps(ALWAYS))
    make_champion(registry, "3")
    source = RegistrySource("cartpole")
    source.fetch("3")
    assert source.settings("3").exploration.share == 0.0
    assert "its tag loomrl.serving is not signed" in caplog.text


def test_what_was_signed_counts_and_nothing_older(registry: Registry) -> None:
    state_serving(registry, registry.require("cartpole", "2"), ALWAYS)
    older = registry.require("cartpole", "2").tags[ServingStatement.TAG]
    keeper = fresh()
    assert champion(keeper) == "2"
    assert keeper.current.champion is not None
    assert keeper.current.champion.exploration.share == 0.99
    state_serving(registry, registry.require("cartpole", "2"), {"exploration": {"share": 0.01}})
    newest = RoleKeeper(RegistrySource("cartpole"))
    assert champion(newest) == "2"
    assert newest.current.champion is not None
    assert newest.current.champion.exploration.share == 0.01
    registry.set_tag(registry.require("cartpole", "2"), ServingStatement.TAG, older)
    replayed = RoleKeeper(RegistrySource("cartpole"))
    assert champion(replayed) == "2"
    assert replayed.current.champion is not None
    assert replayed.current.champion.exploration.share == 0.01, "what was verified last counts"


def test_where_the_section_was_deleted_the_one_of_the_promotion_counts(registry: Registry) -> None:
    registry.delete_tag(registry.require("cartpole", "2"), ServingStatement.TAG)
    source = RegistrySource("cartpole")
    source.fetch("2")
    assert source.settings("2").monitors.spacing == 5


def test_a_person_signs_the_section_of_a_version_from_before(old: Registry) -> None:
    old.set_tag(old.require("cartpole", "1"), SERVING, json.dumps(ALWAYS))
    sign_by_hand("cartpole", "1", "Ada", "it was served so for a year")
    source = RegistrySource("cartpole")
    source.fetch("1")
    assert source.settings("1").exploration.share == 0.99
