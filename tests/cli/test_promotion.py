"""`loomrl policy ...` as a person or a script uses it."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner, Result

from loomrl.cli.promotion import app
from loomrl.errors import ArtifactError, ConfigError, GateRefused
from loomrl.promotion import promote, replay, review
from loomrl.promotion.approvals import answer
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHALLENGER, CHAMPION, PREVIOUS, Registry, start_run
from loomrl.storage.run_record import RunRecord, StageRecord, read_run, run_folder, write_run
from loomrl.system.home import tracking_uri
from tests.support.policy_versions import SNAPSHOT, config, register, shadow_report


@pytest.fixture(autouse=True)
def _outside_a_project(ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def add(tmp: Path, number: int, approval: str = "none", **options: object) -> RunRecord:
    """A run up to its decision, as the flow leaves it."""
    registry = Registry()
    version = register(tmp, f"run-{number}", registry, bias=float(number), **options)
    champion = registry.aliases("cartpole").get(CHAMPION)
    rules = config(approval=approval)
    shadow = shadow_report(version.version, champion)
    decision = review.review(registry, rules, version, shadow)
    lock = {"cmd": "python -m x", "outs": [{"path": "artifacts/cartpole/export", "md5": "abc.dir"}]}
    made = RunRecord(
        run_id=f"run-{number}",
        policy="cartpole",
        state=decision.decision,
        started="2026-11-20T00:00:00+00:00",
        config=rules.model_dump(mode="json"),
        overrides={"training.seed": number},
        git_commit="c0ffee",
        git_dirty=True,
        stages=[StageRecord(name="export", status="ran", seconds=1, verdict="", digest="d", lock=lock)],
        version=version.version,
        shadow=shadow,
        decision=decision,
    )
    write_run(made)
    (run_folder(made.run_id) / "diff.patch").write_text("diff")
    with LoomDB.open() as db:
        db.link(f"run:run-{number}", "produced", f"policy:cartpole@{version.version}")
        db.link(f"policy:cartpole@{version.version}", "trained_in", f"snapshot:{SNAPSHOT}")
    promote.make_challenger(registry, version)
    promote.apply(decision, made.run_id, registry)
    return made


def test_an_empty_registry_lists_nothing() -> None:
    assert json.loads(run("list", "--json").stdout) == []
    assert "no versions yet" in run("list").stdout


def test_list_and_show(tmp_path: Path) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2, returns=[3.0] * 40)
    rows = json.loads(run("list", "cartpole", "--json").stdout)
    assert [(row["version"], row["aliases"], row["decision"]) for row in rows] == [
        ("2", [], "refused"),
        ("1", [CHAMPION], "promoted"),
    ]
    assert "champion" in run("list").stdout
    shown = json.loads(run("show", "cartpole@2", "--json").stdout)
    assert "worse than the champion" in shown["reason"]
    assert "worse than the champion" in run("show", "cartpole@2").stdout
    assert isinstance(run("show", "cartpole@9").exception, ConfigError)


def test_promoting_by_hand_obeys_the_rules(tmp_path: Path) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2, returns=[3.0] * 40)
    refused = run("promote", "cartpole", "2", "--by", "Ada", "--reason", "I insist")
    assert isinstance(refused.exception, GateRefused)
    assert "worse than the champion" in refused.stdout
    told, claim = replay._newest(Registry().require("cartpole", "2"), "not_worse")
    assert told.when > read_run("run-2").started, "what a person was told last is what is played again"
    assert (told.champion, claim.counterexample is not None) == ("1", True)
    assert Registry().aliases("cartpole") == {CHAMPION: "1"}
    again = run("promote", "cartpole", "champion")
    assert (again.exit_code, "version 1" in again.stdout) == (0, True)


def test_rollback_and_back_by_hand(tmp_path: Path) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2)
    done = run("rollback", "cartpole", "--reason", "it oscillates", "--by", "Ada")
    assert (done.exit_code, "version 1 is champion again, version 2 was taken back" in done.stdout) == (0, True)
    assert isinstance(run("promote", "cartpole", "2").exception, GateRefused)
    assert run("promote", "cartpole", "2", "--by", "Ada", "--reason", "fixed the sensor").exit_code == 0
    assert Registry().aliases("cartpole") == {CHAMPION: "2", PREVIOUS: "1"}
    assert isinstance(run("rollback", "nosuch", "--reason", "x", "--by", "y").exception, ConfigError)


def test_a_person_approves(tmp_path: Path) -> None:
    add(tmp_path, 1, approval="human")
    assert Registry().aliases("cartpole") == {CHALLENGER: "1"}
    assert isinstance(run("promote", "cartpole", "1").exception, GateRefused), "a nameless wish is no approval"
    done = run("approve", "run-1", "--by", "Ada", "--reason", "looks good")
    assert done.exit_code == 0
    found = read_run("run-1")
    assert found.decision is not None
    assert (found.state, found.decision.approved_by) == ("promoted", "Ada")
    assert Registry().aliases("cartpole") == {CHAMPION: "1"}
    assert isinstance(run("reject", "run-1", "--by", "Bob", "--reason", "no").exception, ConfigError)


def test_a_person_rejects(tmp_path: Path) -> None:
    add(tmp_path, 1, approval="human")
    assert run("reject", "run-1", "--by", "Ada", "--reason", "too soon").exit_code == 0
    assert read_run("run-1").state == "refused"
    assert Registry().aliases("cartpole") == {}
    assert "rejected by Ada: too soon" in Registry().require("cartpole", "1").tags["loomrl.reason"]


def test_an_approval_after_the_champion_changed_refuses(tmp_path: Path) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2, approval="human")
    add(tmp_path, 3)
    done = run("approve", "run-2", "--by", "Ada", "--reason", "looks good")
    assert isinstance(done.exception, GateRefused)
    assert "the champion is 3 now" in str(done.exception)
    assert Registry().aliases("cartpole")[CHAMPION] == "3"


def test_an_answer_whose_process_died_is_finished_by_asking_again(tmp_path: Path) -> None:
    add(tmp_path, 1, approval="human")
    with LoomDB.open() as db:
        db.decide_approval("run-1", True, "Ada", "looks good")
    with pytest.raises(ConfigError, match="approved by Ada already"):
        answer("run-1", False, "Bob", "no")
    assert answer("run-1", True, "Ada", "looks good").state == "promoted"


def test_an_answer_ends_the_mlflow_run(tmp_path: Path) -> None:
    for number, approved in ((1, False), (2, True)):
        add(tmp_path, number, approval="human")
        record = read_run(f"run-{number}")
        started = start_run("cartpole", f"flow-{number}")
        write_run(record.model_copy(update={"mlflow_run_id": started}))
        answer(record.run_id, approved, "Ada", "because")
        found = MlflowClient(tracking_uri()).get_run(started)
        assert found.info.status == ("FINISHED" if approved else "FAILED")
        assert found.data.tags["loomrl.state"] == ("promoted" if approved else "refused")


def test_a_decision_that_was_not_carried_out_is_examined_again(tmp_path: Path) -> None:
    """The process died between deciding and moving; since then a file of the version was changed."""
    made = add(tmp_path, 1, approval="human")
    with LoomDB.open() as db:
        db.decide_approval("run-1", True, "Ada", "looks good")
    assert made.decision is not None
    decided = made.decision.model_copy(update={"decision": "promoted", "approved_by": "Ada"})
    write_run(made.model_copy(update={"decision": decided}))
    (Path(Registry().require("cartpole", "1").source) / "policy.onnx").write_bytes(b"another")
    with pytest.raises(ArtifactError, match="cartpole@1"):
        answer("run-1", True, "Ada", "looks good")
    assert Registry().aliases("cartpole") == {CHALLENGER: "1"}


def test_an_answer_whose_process_died_after_the_alias_moved_says_promoted(tmp_path: Path) -> None:
    made = add(tmp_path, 1, approval="human")
    with LoomDB.open() as db:
        db.decide_approval("run-1", True, "Ada", "looks good")
    assert made.decision is not None
    decided = made.decision.model_copy(update={"decision": "promoted", "approved_by": "Ada"})
    write_run(made.model_copy(update={"decision": decided}))
    promote.apply(decided, "run-1")
    assert answer("run-1", True, "Ada", "looks good").state == "promoted"


def test_lineage_leads_from_the_alias_to_everything(tmp_path: Path) -> None:
    add(tmp_path, 1)
    found = json.loads(run("lineage", "cartpole@champion", "--json").stdout)
    assert (found["version"], found["aliases"]) == ("1", [CHAMPION])
    assert (found["run"]["run_id"], found["run"]["overrides"]) == ("run-1", {"training.seed": 1})
    assert found["config"]["environment"]["id"] == "CartPole-v1"
    assert (found["commit"]["commit"], found["commit"]["diff"]) == ("c0ffee", "runs/run-1/diff.patch")
    assert found["dvc"]["export"]["outs"][0]["md5"] == "abc.dir"
    assert found["snapshot_digest"] == SNAPSHOT
    assert "run:run-1 produced policy:cartpole@1" in found["edges"]
    assert [move["kind"] for move in found["moves"]] == ["promotion"]
    shown = run("lineage", "cartpole").stdout
    assert "commit c0ffee with changes" in shown
    assert "export: artifacts/cartpole/export abc.dir" in shown


def test_lineage_without_the_run_on_this_machine_says_so(tmp_path: Path) -> None:
    add(tmp_path, 1)
    (run_folder("run-1") / "record.json").unlink()
    found = json.loads(run("lineage", "cartpole@1", "--json").stdout)
    assert "no record of run run-1 on this machine" in found["run"]["missing"]


def test_lineage_starts_from_a_decision(tmp_path: Path) -> None:
    add(tmp_path, 1)
    log = AuditLog("cartpole")
    log.append([record("decision", decision_id="d-1", policy="cartpole", version="1", action=[0.0])])
    log.append([record("decision", decision_id="d-2", policy="cartpole", version=None, override="by Ada")])
    log.close()
    found = json.loads(run("lineage", "--decision", "d-1", "--json").stdout)
    assert (found["decision"]["decision_id"], found["version"]) == ("d-1", "1")
    assert "decision d-1" in run("lineage", "--decision", "d-1").stdout
    assert "no version: by Ada" in str(run("lineage", "--decision", "d-2").exception)
    assert isinstance(run("lineage", "--decision", "d-3").exception, ConfigError)
    assert isinstance(run("lineage").exception, ConfigError)


def test_lineage_goes_forward_from_a_snapshot(tmp_path: Path) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2)
    found = json.loads(run("lineage", f"snapshot:{SNAPSHOT}", "--json").stdout)
    assert found["found"] == ["policy:cartpole@1", "policy:cartpole@2"]
    made = json.loads(run("lineage", "run:run-2", "--json").stdout)
    assert made["found"] == ["policy:cartpole@2"]
    assert isinstance(run("lineage", "snapshot:unknown").exception, ConfigError)


def test_what_a_run_promoted_refused_or_went_back_to_did_not_come_of_it(tmp_path: Path) -> None:
    add(tmp_path, 1)
    with LoomDB.open() as db:
        db.link("run:run-1", "used", "plugin:descent@1")
        for predicate in ("rolled back to", "promoted", "refused"):
            db.link("run:by-hand", predicate, "policy:cartpole@1")
            db.link("run:run-1", predicate, "policy:cartpole@7")
        db.link("policy:cartpole@1", "replaced", "policy:cartpole@7")
    assert isinstance(run("lineage", "run:by-hand").exception, ConfigError)
    made = json.loads(run("lineage", "plugin:descent@1", "--json").stdout)
    assert made["found"] == ["run:run-1", "policy:cartpole@1"]
    assert made["edges"] == ["run:run-1 used plugin:descent@1", "run:run-1 produced policy:cartpole@1"]
