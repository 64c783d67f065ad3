"""Aliases and records move together, also when the process dies in between."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loomrl.errors import ArtifactError, ConfigError, GateRefused, ServiceError
from loomrl.promotion import promote, review
from loomrl.promotion.promote import PromotionOutcome
from loomrl.promotion.rules import ROLLED_BACK
from loomrl.promotion.signing_by_hand import sign_by_hand
from loomrl.serving.policy.last_verified import path_of
from loomrl.serving.policy.sources import RegistrySource
from loomrl.storage import ledger
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHALLENGER, CHAMPION, PREVIOUS, Registry
from loomrl.storage.registry.statements import ChampionStatement, RegisteredStatement
from loomrl.storage.run_record import RunRecord, list_runs, write_run
from loomrl.types import PromotionDecision, ShadowReport
from tasks.run import life_cycle
from tests.support import interrupted_promotions
from tests.support.champions import put_files
from tests.support.interrupted_promotions import die_before_write
from tests.support.policy_versions import config, graph, register, shadow_report
from tests.support.projects import copy_home
from tests.support.template_home import at_home


class House:
    """A registry, a LoomDB and versions that are registered and judged on demand."""

    def __init__(self, tmp: Path) -> None:
        self.tmp, self.registry, self.db = tmp, Registry(), LoomDB.open()

    def add(self, **options: Any) -> str:
        number = len(self.registry.versions("cartpole"))
        version = register(self.tmp, f"run-{number + 1}", self.registry, **{"bias": float(number), **options})
        promote.make_challenger(self.registry, version)
        return version.version

    def decide(self, version: str, **rules: Any) -> PromotionDecision:
        champion = self.registry.aliases("cartpole").get(CHAMPION)
        shadow = shadow_report(version, None if champion == version else champion)
        return review.review(self.registry, config(**rules), self.registry.require("cartpole", version), shadow)

    def apply(self, decision: PromotionDecision) -> PromotionOutcome:
        return promote.apply(decision, f"run-{decision.version}", self.registry, self.db)

    def promote(self, version: str) -> PromotionOutcome:
        return self.apply(self.decide(version))

    def rollback(self, to: str | None = None) -> PromotionOutcome:
        return promote.rollback("cartpole", "it oscillates", "Ada", to, "run-r", self.registry, self.db)

    @property
    def aliases(self) -> dict[str, str]:
        return self.registry.aliases("cartpole")

    @property
    def moves(self) -> list[tuple[str, str, str | None]]:
        return [(move["kind"], move["version"], move["before"]) for move in ledger.moves(self.db, "cartpole")]


Grown = Callable[[str], House]


def keep_run(decision: PromotionDecision, shadow: ShadowReport) -> None:
    """The record of a run that decided."""
    write_run(
        RunRecord(
            run_id=f"run-{decision.version}",
            policy="cartpole",
            state=decision.decision,
            started="2026",
            config={},
            version=decision.version,
            shadow=shadow,
            decision=decision,
        )
    )


@pytest.fixture
def house(ready_home: Path, tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture(scope="module")
def homes(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The homes of houses as they grow: what is in `1 waits` after version 1 came, in `1` after it was promoted."""
    folder = tmp_path_factory.mktemp("houses")
    home = folder / "home"
    with at_home(home, template_home):
        house = House(folder)
        for number in ("1", "2", "3"):
            version = house.add()
            copy_home(home, folder / f"{number} waits")
            house.promote(version)
            copy_home(home, folder / number)
    return folder


@pytest.fixture
def grown(homes: Path, loomrl_home: Path, tmp_path: Path) -> Grown:
    """A house of the test's own as one of `homes`."""

    def grow(name: str) -> House:
        copy_home(homes / name, loomrl_home)
        return House(tmp_path)

    return grow


def test_promotion_moves_three_aliases_and_records_it(house: House) -> None:
    house.promote(house.add())
    house.add()
    assert house.aliases == {CHAMPION: "1", CHALLENGER: "2"}
    outcome = house.promote("2")
    assert outcome.aliases == house.aliases == {CHAMPION: "2", PREVIOUS: "1"}
    assert house.moves == [("promotion", "1", None), ("promotion", "2", "1")]
    assert [(one.version, one.role, one.run_id) for one in house.db.deployments("cartpole")] == [
        ("2", "champion", "run-2"),
        ("1", "champion", "run-1"),
    ]
    edges = {(edge.subject, edge.predicate, edge.object) for edge in house.db.edges("policy:cartpole@2")}
    assert edges == {
        ("run:run-2", "promoted", "policy:cartpole@2"),
        ("policy:cartpole@2", "replaced", "policy:cartpole@1"),
    }
    assert house.registry.require("cartpole", "2").tags["loomrl.decision"] == "promoted"


def test_applying_twice_changes_nothing_more(grown: Grown) -> None:
    house = grown("2 waits")
    decision = house.decide("2")
    house.apply(decision)
    before = house.aliases, house.moves
    house.apply(decision)
    assert (house.aliases, house.moves) == before
    assert len(house.db.deployments("cartpole")) == 2


def test_a_refusal_leaves_the_champion_and_says_why(grown: Grown) -> None:
    house = grown("1")
    house.apply(house.decide(house.add(returns=[10.0] * 40)))
    assert house.aliases == {CHAMPION: "1"}
    tags = house.registry.require("cartpole", "2").tags
    assert tags["loomrl.decision"] == "refused"
    assert "worse than the champion: mean return 10" in tags["loomrl.reason"]
    assert [event.data["version"] for event in house.db.events("refusal")] == ["2"]


def test_a_decision_about_another_champion_is_not_carried_out(grown: Grown) -> None:
    house = grown("2 waits")
    stale = house.decide("2")
    house.promote(house.add())
    with pytest.raises(GateRefused, match="champion changed from 1 to 3"):
        house.apply(stale)
    assert house.aliases[CHAMPION] == "3"


def test_a_waiting_decision_asks(house: House) -> None:
    house.apply(house.decide(house.add(), approval="human"))
    asked = house.db.approval("run-1")
    assert asked is not None
    assert (asked.version, asked.state) == ("1", "waiting")
    assert house.aliases == {CHALLENGER: "1"}


def test_rollback_goes_back_and_a_second_one_further_back(grown: Grown) -> None:
    house = grown("3")
    assert house.rollback().version == "2"
    assert house.aliases == {CHAMPION: "2", PREVIOUS: "1"}
    assert "it oscillates, by Ada" in house.registry.require("cartpole", "3").tags[ROLLED_BACK]
    assert house.rollback().version == "1"
    assert house.aliases == {CHAMPION: "1"}
    with pytest.raises(ConfigError, match="no previous champion.*1, 2, 3.*--to"):
        house.rollback()
    house.rollback(to="3")
    assert house.aliases[CHAMPION] == "3"
    assert ROLLED_BACK not in house.registry.require("cartpole", "3").tags
    assert [move[0] for move in house.moves] == ["promotion"] * 3 + ["rollback"] * 3


def test_what_was_rolled_back_is_not_promoted_by_repeating_the_decision(grown: Grown) -> None:
    house = grown("2 waits")
    decision = house.decide("2")
    house.apply(decision)
    keep_run(decision, shadow_report("2", "1"))
    second = house.registry.require("cartpole", "2")
    assert review.recorded(house.registry, config(), second), "unchanged: the run that made it champion is found"
    assert review.recorded(house.registry, config(confidence=0.9), second) is None
    house.rollback()
    assert review.recorded(house.registry, config(), second) is None
    assert house.decide("2").decision == "refused"


def test_a_recorded_decision_is_examined_again_before_it_is_repeated(grown: Grown) -> None:
    """Its run died before it carried the decision out, and a byte in the store was changed since."""
    house = grown("2 waits")
    decision = house.decide("2")
    keep_run(decision, shadow_report("2", "1"))
    repeated = house.decide("2")
    assert (repeated.decision, repeated.reasons[0]) == ("promoted", "nothing changed since run run-2 decided")
    model = Path(house.registry.require("cartpole", "2").source) / "policy.onnx"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"cartpole@2: policy\.onnx"):
        house.decide("2")
    assert house.aliases[CHAMPION] == "1"


def test_a_repeated_champion_says_that_nothing_changed_and_is_refused_when_tampered_with(grown: Grown) -> None:
    house = grown("2 waits")
    decision = house.decide("2")
    house.apply(decision)
    keep_run(decision, shadow_report("2", "1"))
    second = house.registry.require("cartpole", "2")
    earlier = review.recorded(house.registry, config(), second)
    assert earlier is not None
    again = review.review(house.registry, config(), second, earlier.shadow)
    assert (again.decision, again.reasons[0]) == ("unchanged", "nothing changed since run run-2 decided")
    (Path(second.source) / "policy.onnx").write_bytes(graph(99.0))
    with pytest.raises(ArtifactError, match="cartpole@2"):
        review.review(house.registry, config(), second, earlier.shadow)


def test_other_files_under_the_number_of_a_version_that_waits_are_refused(grown: Grown) -> None:
    house = grown("2 waits")
    assert house.decide("2").decision == "promoted"
    put_files(house.registry, "1", "2")
    decision = house.decide("2")
    assert decision.decision == "refused"
    assert "the safety case cannot be trusted" in str(decision.reasons)
    assert "about other files" in str(decision.reasons)


def test_a_refused_champion_stays_and_keeps_its_own_tags(grown: Grown, loomrl_home: Path) -> None:
    house = grown("1")
    hidden = loomrl_home / "keys"
    hidden.rename(loomrl_home / "keys-elsewhere")
    decision = house.decide("1")
    assert (decision.decision, "trusted keys" in decision.reasons[0]) == ("refused", True)
    outcome = house.apply(decision)
    assert outcome.message.startswith("version 1 is champion but meets the rules no longer: ")
    assert house.aliases == {CHAMPION: "1"}
    assert house.registry.require("cartpole", "1").tags["loomrl.decision"] == "promoted"


def test_a_refusal_is_looked_at_anew(house: House, ready_home: Path) -> None:
    """The shadow report is kept where it passed; the rules are applied again once the cause was mended."""
    version = house.registry.require("cartpole", house.add())
    (ready_home / "keys").rename(ready_home / "keys-elsewhere")
    refused = house.decide("1")
    assert refused.decision == "refused"
    keep_run(refused, shadow_report("1", None, passed=False))
    assert review.recorded(house.registry, config(), version) is None, "shadow failed: it runs again"
    keep_run(refused, shadow_report("1", None, num_decisions=99))
    assert review.recorded(house.registry, config(), version) is None, "shadow saw too little: it runs again"
    keep_run(refused, shadow_report("1", None))
    assert review.recorded(house.registry, config(), version), "shadow passed: its report stands"
    assert house.decide("1").reasons[0] == "nothing changed since run run-1 decided"
    shutil.rmtree(ready_home / "keys", ignore_errors=True)
    (ready_home / "keys-elsewhere").rename(ready_home / "keys")
    mended = house.decide("1")
    assert (mended.decision, "nothing changed" in mended.reasons[0]) == ("promoted", False)


def test_a_report_about_another_champion_is_not_reused(grown: Grown) -> None:
    house = grown("2 waits")
    decision = house.decide("2")
    keep_run(decision, shadow_report("2", "7"))
    assert review.recorded(house.registry, config(), house.registry.require("cartpole", "2")) is None


def test_the_champion_is_never_its_own_challenger(grown: Grown) -> None:
    house = grown("2 waits")
    first, second = house.registry.require("cartpole", "1"), house.registry.require("cartpole", "2")
    assert house.aliases == {CHAMPION: "1", CHALLENGER: second.version}
    promote.make_challenger(house.registry, first)
    assert house.aliases == {CHAMPION: "1", CHALLENGER: second.version}


def test_whoever_waits_too_long_for_the_aliases_is_told_who_holds_them(house: House, ready_home: Path) -> None:
    script = (
        "import time; from loomrl.promotion import promote\n"
        "with promote.exclusive('cartpole'):\n    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(ServiceError, match=rf"process {holder.pid} .* for more than 0 s"),
            promote.exclusive("cartpole", timeout=0.1),
        ):
            raise AssertionError("held by two")
        with promote.exclusive("hopper", timeout=0):
            pass
        holder.kill()
    with promote.exclusive("cartpole", timeout=10):
        pass


def test_rollback_only_restores_what_was_champion_and_verifies(grown: Grown) -> None:
    house = grown("2")
    house.add(returns=[1.0] * 40)
    with pytest.raises(ConfigError, match="never was champion; versions that were: 1, 2"):
        house.rollback(to="3")
    with pytest.raises(ConfigError, match="is the champion already"):
        house.rollback(to="2")
    (Path(house.registry.require("cartpole", "1").source) / "policy.onnx").write_bytes(graph(99.0))
    with pytest.raises(ArtifactError, match="cartpole@1"):
        house.rollback()
    assert house.aliases[CHAMPION] == "2"


@pytest.mark.parametrize("statement", ["kept", "deleted"])
def test_a_rollback_restores_no_files_that_were_registered_under_another_number(grown: Grown, statement: str) -> None:
    house = grown("3")
    put_files(house.registry, "1", "2")
    if statement == "deleted":
        house.registry.delete_tag(house.registry.require("cartpole", "2"), RegisteredStatement.TAG)
    why = "restore the files or MLflow" if statement == "kept" else "registered under this number; restore MLflow"
    with pytest.raises(ArtifactError, match=why):
        house.rollback()
    assert (house.aliases[CHAMPION], followed(house)) == ("3", "3")


def test_rollback_needs_only_the_registry_and_is_recorded_later(
    grown: Grown, loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = grown("2")
    (loomrl_home / "torn.db").write_bytes(b"not a database" * 500)
    monkeypatch.setenv("LOOMRL_DATABASE_URL", f"sqlite:///{loomrl_home / 'torn.db'}")
    outcome = promote.rollback("cartpole", "it oscillates", "Ada", registry=house.registry)
    assert (outcome.recorded, outcome.aliases[CHAMPION]) == (False, "1")
    assert "LoomDB could not be reached" in outcome.message
    assert promote.settle("cartpole", house.registry, house.db) == ["finished the interrupted rollback of version 1"]
    assert house.moves[-1] == ("rollback", "1", "2")


def test_a_database_that_fails_during_promotion_is_said_and_made_good(grown: Grown, loomrl_home: Path) -> None:
    house = grown("2 waits")
    decision = house.decide("2")
    with sqlite3.connect(loomrl_home / "loom.db") as database:
        database.execute("ALTER TABLE events RENAME TO gone")
    database.close()
    with pytest.raises(ServiceError):
        house.apply(decision)
    with sqlite3.connect(loomrl_home / "loom.db") as database:
        database.execute("ALTER TABLE gone RENAME TO events")
    database.close()
    house.apply(decision)
    assert house.aliases == {CHAMPION: "2", PREVIOUS: "1"}
    assert house.moves[-1] == ("promotion", "2", "1")
    assert len(house.db.deployments("cartpole")) == 2


def test_a_promotion_whose_record_failed_is_finished_by_the_next_command(
    grown: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the flow does then: it takes the alias `challenger` away; every other alias is promotion's to finish."""
    house = grown("2 waits")
    decision = house.decide("2")

    def fail(*_: Any) -> None:
        raise ServiceError("LoomDB is away")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "record_move", fail)
        with pytest.raises(ServiceError):
            house.apply(decision)
    house.registry.set_aliases("cartpole", {CHALLENGER: None})
    assert promote.settle("cartpole", house.registry, house.db) == ["finished the interrupted promotion of version 2"]
    assert house.aliases == {CHAMPION: "2", PREVIOUS: "1"}
    assert house.moves == [("promotion", "1", None), ("promotion", "2", "1")]
    assert house.rollback().aliases == {CHAMPION: "1"}


@pytest.mark.parametrize("method", ["link", "record_deployment", "record_event"])
def test_a_move_that_was_half_recorded_is_recorded_once(
    grown: Grown, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    house = grown("2 waits")
    decision = house.decide("2")
    original = getattr(LoomDB, method)

    def write_and_die(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LoomDB, method, write_and_die)
        with pytest.raises(Killed):
            house.apply(decision)
    promote.settle("cartpole", house.registry, house.db)
    assert [one.version for one in house.db.deployments("cartpole")] == ["2", "1"]
    assert house.moves == [("promotion", "1", None), ("promotion", "2", "1")]


class Killed(BaseException):
    """Nothing in the library catches it, as nothing catches SIGKILL."""


NUM_WRITES = 12


def check_finished(house: House, decision: PromotionDecision) -> None:
    """Whatever the moment: before the alias moved nothing acted, afterwards the next run finishes everything."""
    champion = house.aliases[CHAMPION]
    assert champion in ("1", "2")
    house.apply(decision if champion == "1" else house.decide("2"))
    assert house.aliases == {CHAMPION: "2", PREVIOUS: "1"}
    assert house.moves == [("promotion", "1", None), ("promotion", "2", "1")]
    assert len(house.db.deployments("cartpole")) == 2
    assert house.rollback().version == "1"


@pytest.mark.parametrize("step", range(NUM_WRITES + 1))
@pytest.mark.long_cases("1", "2", "3", "5", "6", "7", "9", "10", "11", "12")
def test_interrupted_before_any_write_the_next_run_finishes(
    grown: Grown, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    house = grown("2 waits")
    decision = house.decide("2")

    def die() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        made = die_before_write(patch, step, die)
        if step < NUM_WRITES:
            with pytest.raises(Killed):
                house.apply(decision)
        else:
            house.apply(decision)
    assert len(made) == step
    check_finished(house, decision)


@pytest.mark.parametrize("step", range(1, NUM_WRITES))
@pytest.mark.long_cases("1", "2", "3", "4", "6", "7", "8", "9", "10", "11")
def test_rollback_straight_after_an_interrupted_promotion(
    grown: Grown, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Back to the champion before the one that acts now, whichever that is."""
    house = grown("3 waits")
    decision = house.decide("3")

    def die() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        die_before_write(patch, step, die)
        with pytest.raises(Killed):
            house.apply(decision)
    acting = house.aliases[CHAMPION]
    outcome = house.rollback()
    if acting == "3":
        assert (outcome.version, outcome.aliases) == ("2", {CHAMPION: "2", PREVIOUS: "1"})
        assert house.moves[2:] == [("promotion", "3", "2"), ("rollback", "2", "3")]
    else:
        assert (outcome.version, outcome.aliases) == ("1", {CHAMPION: "1", CHALLENGER: "3"})
        assert house.moves[2:] == [("rollback", "1", "2")]


def test_killed_between_alias_and_record_the_next_run_finishes(grown: Grown, tmp_path: Path) -> None:
    """The same with a process that is really killed, after the champion alias moved."""
    house = grown("2 waits")
    decision = house.decide("2")
    decision.write(tmp_path / "decision.json")
    command = [sys.executable, "-m", interrupted_promotions.__name__, str(tmp_path / "decision.json"), "run-2", "4"]
    killed = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert house.aliases[CHAMPION] == "2"
    assert house.moves == [("promotion", "1", None)]
    check_finished(house, decision)


# --- a champion whose alias is gone ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loomdb", ["remembers", "is new"])
def test_no_version_is_judged_as_the_first_while_the_champion_s_alias_is_gone(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loomdb: str
) -> None:
    house = grown("1")
    worse = house.add(returns=[10.0] * 40)
    house.registry.set_aliases("cartpole", {CHAMPION: None})
    if loomdb == "is new":
        monkeypatch.setenv("LOOMRL_DATABASE_URL", f"sqlite:///{tmp_path / 'another.db'}")
    with pytest.raises(GateRefused, match=r"alias champion is gone.*version 1 was champion last.*--to 1 .*promote"):
        house.decide(worse)
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(GateRefused, match=r"alias champion is gone"), life_cycle("cartpole", {}):
        pytest.fail("it began")
    assert list_runs() == []
    house.rollback(to="1")
    assert house.aliases[CHAMPION] == "1"
    assert house.decide(worse).decision == "refused"


@pytest.mark.parametrize("loomdb", ["is the same", "is new"])
def test_what_was_taken_back_is_not_named_as_the_last_champion(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loomdb: str
) -> None:
    house = grown("3")
    house.rollback()
    house.registry.set_aliases("cartpole", {CHAMPION: None})
    if loomdb == "is new":
        monkeypatch.setenv("LOOMRL_DATABASE_URL", f"sqlite:///{tmp_path / 'another.db'}")
    with pytest.raises(GateRefused, match=r"version 2 was champion last.*--to 2 "):
        promote.champion_of(house.registry, "cartpole")


def test_a_person_makes_a_champion_where_the_one_before_is_lost(grown: Grown) -> None:
    house = grown("2 waits")
    keep_run(house.decide("2"), shadow_report("2", None))
    house.registry.set_aliases("cartpole", {CHAMPION: None})
    shadow, version = shadow_report("2", None), house.registry.require("cartpole", "2")
    decision = review.review(house.registry, config(), version, shadow, by_hand="Ada")
    assert house.apply(decision).aliases[CHAMPION] == "2"


def test_a_first_promotion_that_died_is_no_champion_before(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    die_before_alias(house, monkeypatch, house.decide(house.add()))
    assert house.promote("1").aliases == {CHAMPION: "1"}


# --- what was signed and never happened ------------------------------------------------------------------------------


def die_before_alias(house: House, monkeypatch: pytest.MonkeyPatch, decision: PromotionDecision) -> str:
    """A promotion that is killed when its statement is signed and the alias still stands; the statement."""

    def die() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        die_before_write(patch, 3, die)
        with pytest.raises(Killed):
            house.apply(decision)
    version = house.registry.require("cartpole", decision.version)
    assert house.aliases.get(CHAMPION) != version.version
    return version.tags[ChampionStatement.TAG]


@pytest.mark.parametrize("is_first", [True, False])
def test_what_was_signed_of_a_promotion_that_never_happened_is_void_after_the_next_command(
    grown: Grown, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    champion, doomed = (None, "1") if is_first else ("1", "2")
    house = grown(f"{doomed} waits")
    kept = die_before_alias(house, monkeypatch, house.decide(doomed))
    promote.settle("cartpole", house.registry, house.db)
    version = house.registry.require("cartpole", doomed)
    assert ChampionStatement.TAG not in version.tags
    assert followed(house) == champion, "the champion that stays is followed by servers that know nothing"
    house.registry.set_tag(version, ChampionStatement.TAG, kept)
    house.registry.set_aliases("cartpole", {CHAMPION: doomed})
    assert followed(house) == champion
    house.registry.set_aliases("cartpole", {CHAMPION: champion})
    house.registry.delete_tag(version, ChampionStatement.TAG)
    house.promote(doomed)
    assert followed(house) == doomed


@pytest.mark.parametrize("alias", ["1", None])
def test_it_is_void_wherever_the_alias_was_moved_before(
    grown: Grown, monkeypatch: pytest.MonkeyPatch, alias: str | None
) -> None:
    house = grown("3 waits")
    kept = die_before_alias(house, monkeypatch, house.decide("3"))
    house.registry.set_aliases("cartpole", {CHAMPION: alias})
    promote.settle("cartpole", house.registry, house.db)
    assert followed(house) == "2", "which LoomDB knows as the last"
    put_back(house, "3", kept)
    assert followed(house) == "2"


def put_back(house: House, version: str, statement: str) -> None:
    house.registry.set_tag(house.registry.require("cartpole", version), ChampionStatement.TAG, statement)
    house.registry.set_aliases("cartpole", {CHAMPION: version})


def test_it_is_void_where_the_champion_has_no_statement(grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    house = grown("2 waits")
    kept = die_before_alias(house, monkeypatch, house.decide("2"))
    house.registry.delete_tag(house.registry.require("cartpole", "1"), ChampionStatement.TAG)
    promote.settle("cartpole", house.registry, house.db)
    assert followed(house) == "1", "LoomDB vouches for it, so it is stated again"
    put_back(house, "2", kept)
    assert followed(house) == "1"


def test_nothing_is_signed_of_a_champion_with_other_files(grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    house = grown("3 waits")
    kept = die_before_alias(house, monkeypatch, house.decide("3"))
    put_files(house.registry, "1", "2")
    promote.settle("cartpole", house.registry, house.db)
    assert followed(house) is None
    put_back(house, "3", kept)
    assert followed(house) is None


def test_a_champion_that_a_person_vouched_for_stays(grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    """LoomDB knows no move of it."""
    house = grown("2 waits")
    house.registry.set_aliases("cartpole", {CHAMPION: "2"})
    sign_by_hand("cartpole", "2", "Ada", "it was moved in MLflow, and is right", house.registry, house.db)
    die_before_alias(house, monkeypatch, house.decide(house.add()))
    promote.settle("cartpole", house.registry, house.db)
    assert followed(house) == "2"


def test_a_statement_is_void_once_however_often_it_is_tried(grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed again at each write of making it void."""
    house = grown("2 waits")
    die_before_alias(house, monkeypatch, house.decide("2"))

    def die() -> None:
        raise Killed

    for name in ("sign", "record_revocation", "delete_tag"):
        with monkeypatch.context() as patch:
            owner: Any = {"sign": ChampionStatement, "record_revocation": ledger, "delete_tag": Registry}[name]
            patch.setattr(owner, name, lambda *_: die())
            with pytest.raises(Killed):
                promote.settle("cartpole", house.registry, house.db)
        assert followed(house) == "1"
    promote.settle("cartpole", house.registry, house.db)
    assert ledger.newest_number(house.db, "cartpole") == 3, "one more than the statement that is void"
    assert (house.moves, followed(house)) == ([("promotion", "1", None)], "1")
    promote.settle("cartpole", house.registry, house.db)
    house.promote("2")
    assert (followed(house), house.aliases) == ("2", {CHAMPION: "2", PREVIOUS: "1"})


def followed(house: House) -> str | None:
    """By a server that has just started and knows nothing but LoomDB."""
    roles = RegistrySource("cartpole", house.registry.tracking_uri).roles()
    assert not path_of("cartpole").exists()
    return roles.get(CHAMPION)
