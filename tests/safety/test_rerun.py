"""A case examined again comes out the same; one that was made up does not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from loomrl.cli.safety import app
from loomrl.errors import ArtifactError
from loomrl.safety import rerun
from loomrl.safety.case.decision import decide
from loomrl.safety.replay import replay
from loomrl.system.files import read_json, sha256_file, write_json
from loomrl.types import SafetyCase
from tests.support.policy_versions import config as policy_config
from tests.support.trained import CONSTRAINTS, SAFETY, Policy, examine

QUICK = SAFETY.model_copy(update={"checks": {"falsification": {"num_leads": 16, "num_lines": 64, "max_failures": 4}}})


@pytest.fixture(scope="module")
def quickly_examined(barely_trained: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A case whose searches are short, beside what it is about. Never change it: copy it."""
    root = tmp_path_factory.mktemp("quick") / "policy"
    shutil.copytree(barely_trained.root, root, ignore=shutil.ignore_patterns("home", "safety"))
    examine(Policy(root), root / "safety", QUICK)
    return root


@pytest.fixture
def case(quickly_examined: Path, tmp_path: Path) -> Path:
    """A copy of a case and of what it is about."""
    shutil.copytree(quickly_examined, tmp_path / "policy")
    return tmp_path / "policy" / "safety"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The config the case was made with."""
    document = policy_config().model_dump(mode="json") | {"safety": QUICK.model_dump(mode="json")}
    path = tmp_path / f"{document['name']}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def call(case: Path, config: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["check", str(case), "--config", str(config), *more])


def change(case: Path, claim: str, **values: Any) -> None:
    document = read_json(case / "case.json")
    (found,) = [one for one in document["claims"] if one["id"] == claim]
    found.update(values)
    write_json(case / "case.json", document)


def test_an_honest_case_comes_out_identical(case: Path, config: Path) -> None:
    done = call(case, config, "--json")
    assert done.exit_code == 0, done.output
    claims = json.loads(done.stdout)["claims"]
    assert len(claims) == len(read_json(case / "case.json")["claims"])
    assert all(claim["identical"] and claim["verdict"] == claim["again"] for claim in claims)


@pytest.mark.long
def test_as_many_episodes_as_it_took_come_out_identical_and_replay(case: Path, config: Path) -> None:
    policy = Policy(case.parent)
    limits = [limit.model_copy(update={"max_probability": 0.15}) for limit in CONSTRAINTS]
    checks = {"statistical_limits": {"max_episodes": 400}}
    settings = QUICK.model_copy(update={"num_episodes": 4, "constraints": limits, "checks": {**QUICK.checks, **checks}})
    claims = [claim for claim in examine(policy, case, settings).claims if claim.stage == "statistical limits"]
    assert max(claim.num_samples or 0 for claim in claims) > 4
    (broken,) = [claim.id for claim in claims if claim.counterexample and claim.id != "minimum_return"]
    document = yaml.safe_load(config.read_text()) | {"safety": settings.model_dump(mode="json")}
    config.write_text(yaml.safe_dump(document))
    again = json.loads(call(case, config, "--json").stdout)["claims"]
    assert all(claim["identical"] for claim in again)
    played = replay(case, broken, policy.environment, policy.training)
    assert (played.reproduced, played.identical) == (True, True)


def test_a_verdict_that_was_made_up_is_named(case: Path, config: Path) -> None:
    change(case, "minimum_return", verdict="statistically_supported")
    done = call(case, config)
    assert isinstance(done.exception, ArtifactError)
    assert "minimum_return was supported, is refuted" in str(done.exception)


def test_the_projects_config_is_found(
    case: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    monkeypatch.chdir(tmp_path)
    without = CliRunner().invoke(app, ["check", str(case), "--json"])
    assert "configs/policy.yaml; name the policy's config" in json.loads(without.stdout)["not_examined_because"]
    (tmp_path / "configs").mkdir()
    document = yaml.safe_load(config.read_text()) | {"name": "policy"}
    (tmp_path / "configs" / "policy.yaml").write_text(yaml.safe_dump(document))
    found = json.loads(CliRunner().invoke(app, ["check", str(case), "--json"]).stdout)
    assert all(claim["identical"] for claim in found["claims"])
    quick = json.loads(CliRunner().invoke(app, ["check", str(case), "--digests-only", "--json"]).stdout)
    assert (quick["claims"], quick["not_examined_because"]) == (None, "--digests-only")


@pytest.mark.long
def test_a_finding_that_was_made_up_is_seen(case: Path, config: Path) -> None:
    change(case, "minimum_return", finding="all is well")
    done = call(case, config, "--json")
    claims = {claim["claim"]: claim for claim in json.loads(done.stdout)["claims"]}
    assert not claims["minimum_return"]["identical"]
    assert claims["finiteness"]["identical"]
    assert "minimum_return: finding is another one" in str(done.exception)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("part", ["measured", "evidence", "changed evidence", "tools"])
@pytest.mark.long_cases(
    "measured-True", "evidence-True", "tools-False", "changed evidence-True", "changed evidence-False"
)
def test_numbers_and_evidence_that_were_made_up_are_named(
    case: Path, config: Path, part: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the processor the case was made on, and on another one, where last digits may differ."""
    if not exact:
        monkeypatch.setattr(rerun, "processor_family", lambda: "another")
    document = read_json(case / "case.json")
    (claim,) = [one for one in document["claims"] if one["id"] == "minimum_return"]
    if part == "measured":
        claim["bound"]["measured"] += 0.3
    elif part == "evidence":
        claim["evidence"] = []
    elif part == "tools":
        document["tools"]["torch"] = "9.9"
    else:
        write_json(case / "evidence" / "minimum_return.json", {"kind": "minimum_return"})
        claim["evidence"][0]["sha256"] = sha256_file(case / "evidence" / "minimum_return.json")
    write_json(case / "case.json", document)
    if part == "changed evidence" and not exact:
        assert call(case, config).exit_code == 0  # its bytes hold numbers; the claim itself was examined again
    else:
        assert part.removeprefix("changed ") in str(call(case, config).exception)


@pytest.mark.long
def test_last_digits_may_differ_on_another_processor(case: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = read_json(case / "case.json")
    (claim,) = [one for one in document["claims"] if one["id"] == "minimum_return"]
    claim["bound"]["measured"] *= 1.001
    write_json(case / "case.json", document)
    assert "minimum_return: measured is another one" in str(call(case, config).exception)
    monkeypatch.setattr(rerun, "processor_family", lambda: "another")
    assert call(case, config).exit_code == 0


def test_a_case_nothing_vouches_for_is_no_success(case: Path, config: Path) -> None:
    shutil.rmtree(case.parent / "evaluation")
    assert "nothing vouches for it" in str(call(case, config).exception)
    assert call(case, config, "--digests-only").exit_code == 0


def test_a_number_that_is_none_is_named(case: Path, config: Path) -> None:
    text = (case / "case.json").read_text()
    place = text.index('"measured":') + len('"measured":')
    (case / "case.json").write_text(text[:place] + "NaN" + text[text.index(",", place) :])
    assert isinstance(call(case, config).exception, ArtifactError)


def test_a_claim_that_was_left_out_is_named(case: Path, config: Path) -> None:
    document = read_json(case / "case.json")
    document["claims"] = [claim for claim in document["claims"] if claim["id"] != "minimum_return"]
    write_json(case / "case.json", document)
    done = call(case, config)
    assert "minimum_return was missing, is refuted" in str(done.exception)


def test_another_policy_is_refused(case: Path, config: Path, good: Policy) -> None:
    shutil.rmtree(case.parent / "training")
    shutil.copytree(good.training, case.parent / "training")
    done = call(case, config)
    assert isinstance(done.exception, ArtifactError)
    assert str(case.parent / "training") in str(done.exception)


@pytest.mark.long
def test_a_claim_that_is_no_longer_mandatory_is_named(case: Path, config: Path) -> None:
    """What blocks is declared optional, and the decision made anew: every verdict is as it was."""
    found = SafetyCase.read(case / "case.json")
    blocking = found.decision.blocking
    claims = [one.model_copy(update={"mandatory": one.mandatory and one.id not in blocking}) for one in found.claims]
    found.model_copy(update={"claims": claims, "decision": decide(claims)}).write(case / "case.json")
    assert decide(claims).passed
    done = call(case, config)
    assert isinstance(done.exception, ArtifactError)
    assert "minimum_return: mandatory is another one" in str(done.exception)
    assert "decision is not what the claims give" in str(done.exception)


@pytest.mark.parametrize("part", ["statement", "limit", "controls"])
@pytest.mark.long_cases("limit", "controls")
def test_what_was_promised_cannot_be_weakened(case: Path, config: Path, part: str) -> None:
    document = read_json(case / "case.json")
    if part == "controls":
        document["controls"] = {"everything": ["finiteness"]}
    else:
        (claim,) = [one for one in document["claims"] if one["id"] == "minimum_return"]
        claim.update(statement="it does something") if part == "statement" else claim["bound"].update(limit=0.1)
    write_json(case / "case.json", document)
    assert part in str(call(case, config).exception)


def test_an_expired_waiver_is_named(case: Path, config: Path) -> None:
    waiver = {"claim": "minimum_return", "person": "Ada", "reason": "test", "expires": "2020-01-01"}
    change(case, "minimum_return", waiver=waiver)
    assert "the waiver of minimum_return by Ada expired on 2020-01-01" in str(call(case, config).exception)
