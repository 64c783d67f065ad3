"""The whole life cycle, run as its users run it: the command line, the real DVC, MLflow, Prefect and policy server."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from loomrl.cli.main import app
from loomrl.system.files import sha256_file
from tests.support.event_files import scalars
from tests.support.prefect_api import prefect_api
from tests.support.projects import copy_project, copy_state, git, records, run, run_json, start, until

ORDER = ["environment", "training", "evaluation", "safety", "export", "shadow", "promotion"]
CARTPOLE = ("loomrl", "run", "configs/cartpole.yaml")


def policy_digest(project: Path) -> str:
    return sha256_file(project / "artifacts" / "cartpole" / "training" / "policy.safetensors")


def champion(project: Path) -> str:
    version: str = run_json(project, "loomrl", "policy", "show", "cartpole@champion")["version"]
    return version


def aliases(project: Path) -> dict[str, list[str]]:
    return {row["version"]: row["aliases"] for row in run_json(project, "loomrl", "policy", "list", "cartpole")}


def would_run(project: Path) -> list[str]:
    """The stages that `dvc repro` runs; it always lists the code, and compares it with the last list."""
    return re.findall(r"Running stage '([^']+)'", run(project, "dvc", "repro", "--dry", "export@cartpole"))


def lock_entries(project: Path) -> dict[str, object]:
    entries: dict[str, object] = yaml.safe_load((project / "dvc.lock").read_text())["stages"]
    return entries


def attempt(record: dict[str, Any]) -> str:
    """What a first attempt to pass the gate is held to, as its record says."""
    confidence = record["config"]["safety"]["confidence"]
    return f"attempt 1 since the last promotion, each claim held to an error of {(1 - confidence) / 2:.3g}"


@pytest.fixture
def project(finished_project: Path, tmp_path: Path) -> Path:
    return copy_state(finished_project, tmp_path / "project")


@pytest.fixture
def challenged(project_with_challenger: Path, tmp_path: Path) -> Path:
    return copy_state(project_with_challenger, tmp_path / "challenged")


def test_a_first_run_goes_through_all_seven_stages_and_promotes(finished_project: Path) -> None:
    (record,) = records(finished_project)
    assert [stage["name"] for stage in record["stages"]] == ORDER
    assert {stage["status"] for stage in record["stages"]} == {"ran"}
    assert record["state"] == "promoted"
    assert record["shadow"]["bitwise_equal"] is True
    assert attempt(record) in next(stage["verdict"] for stage in record["stages"] if stage["name"] == "safety")
    assert attempt(record) in record["decision"]["reasons"][0]
    assert "champion: cartpole version 1\n" in (finished_project.parent / "log").read_text()
    report = finished_project / ".loomrl" / "runs" / record["run_id"] / "report.html"
    assert "cartpole" in report.read_text()


def test_after_a_run_dvc_has_nothing_to_do(project: Path) -> None:
    assert would_run(project) == ["code@cartpole"]


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_running_again_does_nothing_twice(project: Path) -> None:
    output = run(project, *CARTPOLE)
    record = records(project)[-1]
    statuses = {stage["name"]: stage["status"] for stage in record["stages"]}
    assert statuses == {**dict.fromkeys(ORDER[:5], "unchanged"), "shadow": "repeated", "promotion": "repeated"}
    assert record["state"] == "unchanged"
    assert [version["version"] for version in run_json(project, "loomrl", "policy", "list")] == ["1"]
    assert "report:" in output
    assert would_run(project) == ["code@cartpole"]


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_a_change_of_an_algorithm_that_the_policy_does_not_learn_with_runs_nothing(project: Path) -> None:
    with (project / "src" / "loomrl" / "algorithms" / "sac" / "learner.py").open("a") as file:
        file.write("# changed\n")
    run(project, *CARTPOLE)
    assert {stage["status"] for stage in records(project)[-1]["stages"]} == {"unchanged", "repeated"}
    assert "training.json" in str(lock_entries(project)["training@cartpole"])


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_a_challenger_that_acts_otherwise_is_refused_by_shadow_and_by_no_one_else(challenged: Path) -> None:
    output = run(challenged, *CARTPOLE, "--set", "training.seed=2", "--set", "shadow.min_agreement=0.999", expect=1)
    refused = records(challenged)[-1]
    assert (refused["version"], refused["champion_before"], refused["state"]) == ("2", "1", "refused")
    statuses = {stage["name"]: stage["status"] for stage in refused["stages"]}
    restored = dict.fromkeys(ORDER[1:5], "restored")
    assert statuses == {"environment": "unchanged", **restored, "shadow": "ran", "promotion": "ran"}
    rules = {rule["id"]: rule["verdict"] for rule in refused["decision"]["rules"]}
    assert rules["gate_passed"] == "proved"
    assert rules["shadow_passed"] == "refuted", output
    assert aliases(challenged) == {"1": ["champion"], "2": []}


@pytest.mark.usefixtures("shared_prefect")
@pytest.mark.long
def test_a_challenger_is_compared_and_a_barely_trained_one_refused(challenged: Path) -> None:
    run(challenged, *CARTPOLE, "--set", "training.seed=2")
    challenger = records(challenged)[-1]
    assert (challenger["version"], challenger["champion_before"], challenger["state"]) == ("2", "1", "promoted")
    assert next(rule for rule in challenger["decision"]["rules"] if rule["id"] == "not_worse")["bound"] is not None
    assert aliases(challenged) == {"1": ["previous"], "2": ["champion"]}
    acting = champion(challenged)

    boards = str(challenged / "boards")
    output = run(challenged, *CARTPOLE, "--set", "training.total_env_steps=2048", expect=1, LOOMRL_TENSORBOARD=boards)
    curves = json.loads((challenged / "artifacts" / "cartpole" / "training" / "curves.json").read_text())
    [validation] = curves["validations"]
    points = scalars(challenged / "boards" / "cartpole")
    rate = ("training/validation_success_rate", validation["step"], validation["success_rate"])
    assert rate in points
    assert {"training/policy_loss", "training/value_loss", "training/entropy", "training/approx_kl"} <= {
        name for name, _, _ in points
    }
    refused = records(challenged)[-1]
    assert refused["state"] == "refused"
    examined = next(stage["verdict"] for stage in refused["stages"] if stage["name"] == "safety")
    assert attempt(refused) in examined  # the first since the promotion of seed 2, on record although it did not pass
    assert [stage["status"] for stage in refused["stages"]][-1] == "refused"
    case = json.loads((challenged / "artifacts" / "cartpole" / "safety" / "case.json").read_text())
    broken = [claim for claim in case["claims"] if claim["verdict"] == "refuted" and claim["mandatory"]]
    assert broken, output
    assert all(claim["bound"]["measured"] is not None for claim in broken)
    replayable = [claim for claim in broken if claim["counterexample"]]
    assert replayable
    replayed = run(challenged, "loomrl", "safety", "replay", "artifacts/cartpole/safety", replayable[0]["id"])
    assert str(replayable[0]["counterexample"]["seed"]) in replayed
    assert champion(challenged) == acting


@pytest.mark.long
def test_dvc_repro_elsewhere_with_an_empty_cache_gives_the_same_lock(finished_project: Path, tmp_path: Path) -> None:
    other = copy_project(tmp_path / "elsewhere" / "deep" / "clone")
    (other / "dvc.lock").unlink(missing_ok=True)
    run(other, "dvc", "repro", "export@cartpole")
    mine = {name: entry for name, entry in lock_entries(finished_project).items() if name.endswith("@cartpole")}
    assert lock_entries(other) == mine
    assert len(mine) == 6  # the list of the code, and five stages


def killed_in_training(folder: Path) -> Path:
    """A project whose first life cycle was killed when training had saved something."""
    project = copy_project(folder / "project")
    config = project / "configs" / "cartpole.yaml"  # every checkpoint is saved; the policy does not depend on it
    config.write_text(config.read_text().replace("  seed: 1\n", "  seed: 1\n  checkpoint_interval_seconds: 0\n"))

    flow = start(project, *CARTPOLE)
    until(lambda: bool(training_processes(project)), "the training stage", every=0.02)
    while not any((project / ".loomrl" / "checkpoints").glob("*/step-*")):  # step by step, however fast the machine
        send(training_processes(project), signal.SIGCONT)
        time.sleep(0.02)
        send(training_processes(project), signal.SIGSTOP)
    kill_flow(flow)
    send(training_processes(project), signal.SIGKILL)
    assert flow.communicate()[0] is not None
    until(lambda: not training_processes(project), "the stage's end")
    assert not (project / "artifacts" / "cartpole" / "training" / "SHA256SUMS").exists()
    return project


def check_crashed(record: dict[str, Any], prefect: str) -> None:
    """It is so in its own record and in Prefect's."""
    assert record["state"] == "crashed"
    with prefect_api(prefect) as api:
        flow_run = api.get(f"/flow_runs/{record['prefect_flow_run_id']}").json()
    assert flow_run["state"]["type"] == "CRASHED"


@pytest.mark.long
def test_a_killed_life_cycle_is_on_record_as_crashed(tmp_path: Path, shared_prefect: str) -> None:
    project = killed_in_training(tmp_path)
    run(project, "python", "-c", "from tasks.closing import mark_crashed_runs; mark_crashed_runs()")  # as the next does
    (crashed,) = records(project)
    check_crashed(crashed, shared_prefect)


@pytest.mark.long
def test_killed_in_training_the_same_command_resumes_to_the_same_policy(
    finished_project: Path, tmp_path: Path, shared_prefect: str
) -> None:
    project = killed_in_training(tmp_path)
    run(project, *CARTPOLE)
    assert policy_digest(project) == policy_digest(finished_project)
    crashed, finished = records(project)
    check_crashed(crashed, shared_prefect)
    assert finished["state"] == "promoted"
    assert finished["stages"][1]["status"] == "ran"


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_two_life_cycles_at_once_both_end_well(project: Path) -> None:
    first = start(project, *CARTPOLE, "--set", "training.seed=3")
    runs = project / ".loomrl" / "runs"
    until(lambda: len(list(runs.glob("*/events/training.jsonl"))) == 2, "the first of them to train")
    second = start(project, *CARTPOLE, "--set", "training.seed=1")
    outputs = [process.communicate()[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], "\n".join(outputs)
    assert "waiting for it to end" in outputs[1]
    by_seed = {record["config"]["training"]["seed"]: record for record in records(project)[1:]}
    assert {record["state"] for record in by_seed.values()} <= {"promoted", "unchanged"}
    assert by_seed[1]["version"] == "1"
    assert by_seed[3]["version"] == "2"


def lineage(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["policy", "lineage", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_lineage_leads_from_a_decision_and_a_version_to_code_data_and_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("LOOMRL_HOME", str(project / ".loomrl"))
    of_version = lineage("cartpole@champion")
    record = records(project)[-1]
    snapshot = json.loads((project / "artifacts" / "cartpole" / "environment" / "snapshot.json").read_text())
    for fact in (record["run_id"], git(project, "rev-parse", "HEAD").strip(), snapshot["digest"]):
        assert fact in of_version
    for entry in record["stages"][:5]:
        assert entry["lock"]["outs"][0]["md5"] in of_version

    of_decision = lineage("--decision", decisions(project)[0]["decision_id"])
    assert record["run_id"] in of_decision
    assert snapshot["digest"] in of_decision


@pytest.mark.long
def test_evidence_travels_through_a_dvc_remote(finished_project: Path, tmp_path: Path) -> None:
    sender = copy_state(finished_project, tmp_path / "sender")
    run(sender, "dvc", "remote", "add", "--default", "--local", "storage", str(tmp_path / "storage"))
    run(sender, "dvc", "push", "export@cartpole", "--with-deps")
    receiver = copy_project(tmp_path / "receiver")
    (receiver / "dvc.lock").write_bytes((sender / "dvc.lock").read_bytes())
    run(receiver, "dvc", "remote", "add", "--default", "--local", "storage", str(tmp_path / "storage"))
    run(receiver, "dvc", "pull", "export@cartpole", "--with-deps")
    for name in (
        "export/policy.onnx",
        "safety/case.json",
        "training/policy.safetensors",
        "evaluation/episodes.parquet",
    ):
        assert sha256_file(receiver / "artifacts" / "cartpole" / name) == sha256_file(
            sender / "artifacts" / "cartpole" / name
        )
    assert would_run(receiver) == ["code@cartpole"]


def kill_flow(command: subprocess.Popen[str]) -> None:
    """`kill -9` the flow's own process, the child of the `loomrl` command."""
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    assert children


def training_processes(project: Path) -> list[int]:
    """The stage's own process, and a child of it that has not become another program yet."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if {b"loomrl.runs.stages", b"training"} <= set(arguments) and (
                process / "cwd"
            ).resolve() == project.resolve():
                found.append(int(process.name))
    return found


def send(processes: list[int], number: signal.Signals) -> None:
    assert processes
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def decisions(project: Path) -> list[dict[str, str]]:
    run(project, "loomrl", "audit", "export", "decisions.jsonl", "--policy", "cartpole")
    return [json.loads(line) for line in (project / "decisions.jsonl").read_text().splitlines()]
