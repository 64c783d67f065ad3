"""`loomrl safety` on the case of a barely trained policy."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner, Result

from loomrl.cli.safety import app
from loomrl.errors import ArtifactError, ConfigError
from loomrl.safety.case.document import SCHEMA, schema, schema_bytes
from loomrl.safety.case.evidence import EvidenceWriter
from loomrl.safety.registry import find_checks
from loomrl.safety.replay import replay
from loomrl.system.files import read_json, write_json
from loomrl.types import Counterexample, SafetyCase
from tests.support.trained import SAFETY, Policy, examine

CART = "statistical_limits.cart_stays_on_track"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def document(*arguments: object) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def case(barely_trained: Policy, tmp_path: Path) -> Path:
    """A copy of a case and of what it is about."""
    shutil.copytree(barely_trained.root, tmp_path / "policy", ignore=shutil.ignore_patterns("home"))
    return tmp_path / "policy" / "safety"


def test_show(case: Path) -> None:
    assert document("show", case) == read_json(case / "case.json")
    assert document("show", case / "case.json") == read_json(case / "case.json")
    shown = call("show", case).stdout
    assert "gate: blocked: minimum_return is refuted" in shown
    assert f"replay: loomrl safety replay . {CART}" in shown


def test_check_of_a_whole_case(case: Path) -> None:
    found = document("check", case, "--digests-only")
    assert found["whole"]
    assert found["problems"] == []
    assert found["evidence_files"] >= 14
    assert not found["passed"]


@pytest.mark.parametrize("what", ["changed", "missing", "decision", "spaces"])
def test_check_of_a_case_that_is_not_whole(case: Path, what: str) -> None:
    file = case / "evidence" / "minimum_return.json"
    content = read_json(case / "case.json")
    if what == "changed":
        file.write_text("{}")
    elif what == "missing":
        file.unlink()
    elif what == "decision":
        write_json(
            case / "case.json", {**content, "decision": {"passed": True, "blocking": [], "reason": "it is fine"}}
        )
    else:
        (case / "case.json").write_text(json.dumps(content, indent=2))
    result = call("check", case, "--json")
    assert isinstance(result.exception, ArtifactError)
    (problem,) = json.loads(result.stdout)["problems"]
    expected = {
        "changed": "minimum_return.json was changed",
        "missing": "minimum_return.json is missing",
        "decision": "does not follow from the claims",
        "spaces": "not canonical JSON",
    }
    assert expected[what] in problem


@pytest.mark.parametrize("claim", ["minimum_return", CART])
def test_replay_shows_the_violation_again(case: Path, claim: str) -> None:
    found = document("replay", case, claim)
    assert found["reproduced"]
    assert found["identical"]
    recorded = next(each for each in read_json(case / "case.json")["claims"] if each["id"] == claim)
    assert found["seed"] == recorded["counterexample"]["seed"]
    assert found["finding"] == recorded["counterexample"]["description"]
    assert "identical to the recorded one" in call("replay", case, claim).stdout


def test_the_replay_command_of_a_case_works_as_it_stands(case: Path) -> None:
    """As a person would run it: in a shell, in the case's folder outside a project."""
    claims = {claim["id"]: claim for claim in read_json(case / "case.json")["claims"]}
    command = claims[CART]["counterexample"]["replay_command"].split()
    executable = Path(sys.executable).with_name(command[0])
    done = subprocess.run([executable, *command[1:]], cwd=case, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "observation[0] is" in done.stdout


@pytest.mark.long
def test_replay_of_noise(barely_trained: Policy, tmp_path: Path) -> None:
    checks = {"disturbed_return": {"noise": 3.0, "num_episodes": 12, "max_return_drop": 0.01}}
    examine(barely_trained, tmp_path, SAFETY.model_copy(update={"num_episodes": 12, "checks": checks}))
    outcome = replay(tmp_path, "disturbed_return", barely_trained.environment, barely_trained.training)
    assert outcome.reproduced
    assert outcome.identical


def test_replay_refuses_what_the_case_is_not_about(case: Path, good: Policy) -> None:
    result = call("replay", case, CART, "--policy", good.training)
    assert isinstance(result.exception, ArtifactError)
    assert "the case is about" in str(result.exception)
    for name, message in (("finiteness", "has no counterexample"), ("nothing", "no claim 'nothing'; claims: prov")):
        result = call("replay", case, name)
        assert isinstance(result.exception, ConfigError)
        assert message in str(result.exception)


def test_replay_refuses_changed_evidence(case: Path) -> None:
    with (case / "evidence" / f"{CART}.counterexample.parquet").open("ab") as file:
        file.write(b" ")
    result = call("replay", case, CART)
    assert isinstance(result.exception, ArtifactError)
    assert "was changed" in str(result.exception)


def test_schema_file_is_generated_and_describes_a_real_case(case: Path) -> None:
    assert SCHEMA.read_bytes() == schema_bytes(), "run: loomrl safety schema > src/loomrl/safety/case.schema.json"
    assert call("schema").stdout.encode() == schema_bytes()
    jsonschema.Draft202012Validator.check_schema(schema())
    content = read_json(case / "case.json")
    jsonschema.validate(content, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**content, "claims": [{"id": "a"}]}, schema())
    assert SafetyCase.model_validate(content).to_bytes() == (case / "case.json").read_bytes()


def test_checks_are_listed() -> None:
    found = {check["name"]: check for check in document("checks")}
    assert found["statistical_limits"]["stage"] == "statistical limits"
    assert found["robustness"]["settings"]["noise"] == 0.05
    assert "minimum_return" in call("checks").stdout


# --- discovery ---

PLUGIN = '''
"""A check of somebody else's."""
from loomrl.safety.check import STATISTICAL, CheckConfig
NAME, STAGE, LOCAL = "plugged_in", STATISTICAL, False
class Config(CheckConfig):
    pass
def examine(context, config):
    return []
'''


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Put a package with an entry point on the path, as pip would: metadata beside a module."""
    described = tmp_path / "site" / "theirs-1.0.dist-info"
    described.mkdir(parents=True)
    (described.parent / "their_check.py").write_text(source)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[loomrl.safety_checks]\nplugged_in = their_check\n")
    monkeypatch.syspath_prepend(str(described.parent))
    monkeypatch.delitem(sys.modules, "their_check", raising=False)


def test_a_check_is_found_through_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, PLUGIN)
    assert find_checks()["plugged_in"].STAGE == "statistical limits"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("LOCAL =", "OTHER ="), "their_check has no LOCAL"),
        (("STATISTICAL, False", "'wishes', False"), "STAGE 'wishes'; stages: provenance and parity"),
        (("plugged_in", "robustness"), "two safety checks are named 'robustness'"),
    ],
)
def test_a_check_that_breaks_the_contract_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], message: str
) -> None:
    install(tmp_path, monkeypatch, PLUGIN.replace(*change))
    with pytest.raises(ConfigError, match=message):
        find_checks()


REPLAYS = """
from loomrl.safety.case.counterexample import Replayed

def replay(failure):
    return Replayed(reproduced=failure.seed == 7, finding=f"shown again: {failure.document['shown']}")
"""


def plugged_in_case(case: Path) -> None:
    """Let the case hold a refuted claim of a check that is not LoomRL's own."""
    writer = EvidenceWriter(None)
    evidence = writer.json("plugged_in", {"shown": "a failure"})
    write_json(case / evidence.uri, {"shown": "a failure"})
    found = SafetyCase.read(case / "case.json")
    shown = Counterexample(description="it fails", seed=7, evidence=None, replay_command=None)
    changes = {"id": "plugged_in.deep", "evidence": [evidence], "counterexample": shown}
    claim = next(each for each in found.claims if each.id == CART).model_copy(update=changes)
    found.model_copy(update={"claims": [*found.claims, claim]}).write(case / "case.json")


def test_replay_of_a_check_that_came_with_a_package(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugged_in_case(case)
    for source in (None, PLUGIN):
        if source:
            install(tmp_path, monkeypatch, source)
        result = call("replay", case, "plugged_in.deep")
        assert isinstance(result.exception, ConfigError)
        assert "'plugged_in' offers no replay" in str(result.exception)


def test_a_check_that_came_with_a_package_replays_its_own_failures(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugged_in_case(case)
    install(tmp_path, monkeypatch, PLUGIN + REPLAYS)
    found = document("replay", case, "plugged_in.deep")
    assert (found["reproduced"], found["identical"], found["seed"]) == (True, None, 7)
    assert found["finding"] == "shown again: a failure"


def test_a_new_file_in_the_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loomrl.safety import checks

    (tmp_path / "plugged_in.py").write_text(PLUGIN)
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "loomrl.safety.checks.plugged_in", raising=False)
    assert "plugged_in" in find_checks()
