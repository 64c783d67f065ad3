"""A safety case is trusted only with its signature, its digests and the case before it."""

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.safety import app
from loomrl.errors import ArtifactError
from loomrl.promotion import envelope
from loomrl.promotion.envelope import RunFacts
from loomrl.promotion.package import build_package
from loomrl.storage.registry import Registry
from loomrl.system.files import read_json, sha256_file, write_json, write_sums
from loomrl.system.security.signing import sign_envelope
from tests.support.policy_versions import graph, make_artifacts, register

FACTS = RunFacts(policy="cartpole", run_id="run-1", created="2026-11-20T00:00:00+00:00", git_commit="abc")


@pytest.fixture
def package(loomrl_home: Path, tmp_path: Path) -> Path:
    return build_package(make_artifacts(tmp_path / "artifacts"), tmp_path / "package", FACTS)


def test_a_package_holds_everything_and_verifies(package: Path) -> None:
    names = {path.name for path in package.iterdir()}
    assert names == {
        "policy.onnx",
        "manifest.json",
        "parity.json",
        "SHA256SUMS",
        "envelope.json",
        "case.json",
        "episodes.parquet",
        "evaluation.json",
    }
    statement, case = envelope.verify(package)
    assert case.decision.passed
    assert statement.onnx_sha256 == sha256_file(package / "policy.onnx")
    assert (statement.run_id, statement.git_commit, statement.previous) == ("run-1", "abc", None)


def test_the_command_checks_the_signature_of_a_version(package: Path) -> None:
    done = CliRunner().invoke(app, ["check", str(package), "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 0, done.output
    assert found["signature"].startswith(f"holds, of {envelope.verify(package)[0].policy}, run run-1, ")
    assert found["evidence_files"] == 0  # a version's folder holds none
    assert found["not_examined_because"].startswith("there is no ")
    _flip("policy.onnx")(package)
    broken = CliRunner().invoke(app, ["check", str(package), "--json"])
    assert "policy.onnx is not the file the envelope was signed for" in str(broken.exception)
    assert json.loads(broken.stdout)["signature"] == "does not hold"


def test_the_signature_is_found_with_the_version_that_was_fetched(loomrl_home: Path, tmp_path: Path) -> None:
    artifacts = make_artifacts(tmp_path / "artifacts")
    none = json.loads(CliRunner().invoke(app, ["check", str(artifacts / "safety"), "--json"]).stdout)
    assert none["signature"].startswith("none found")
    build_package(make_artifacts(tmp_path / "other", bias=2.0), loomrl_home / "versions" / "cartpole" / "1", FACTS)
    build_package(artifacts, loomrl_home / "versions" / "cartpole" / "2", FACTS)
    found = json.loads(CliRunner().invoke(app, ["check", str(artifacts / "safety"), "--json"]).stdout)
    assert found["signature"].startswith("holds, of cartpole, run run-1")


def _flip(name: str) -> Callable[[Path], None]:
    def attack(package: Path) -> None:
        data = bytearray((package / name).read_bytes())
        data[len(data) // 2] ^= 1
        (package / name).write_bytes(data)

    return attack


def _other_policy(package: Path) -> None:
    (package / "policy.onnx").write_bytes(graph(5.0))


def _case_of_another(package: Path) -> None:
    other = make_artifacts(package.parent / "other", bias=5.0)
    shutil.copy(other / "safety" / "case.json", package / "case.json")


def _other_type(package: Path) -> None:
    payload = envelope.verify(package)[0].to_bytes()
    sign_envelope(payload, "application/json").write(package / "envelope.json")


def _other_layout(package: Path) -> None:
    sign_envelope(b'{"schema_version":1}', envelope.PAYLOAD_TYPE).write(package / "envelope.json")


def _signature(package: Path, change: Callable[[list[dict[str, str]]], None]) -> None:
    document = read_json(package / "envelope.json")
    change(document["signatures"])
    write_json(package / "envelope.json", document)


def _flip_signature(package: Path) -> None:
    def change(signatures: list[dict[str, str]]) -> None:
        raw = bytearray(base64.b64decode(signatures[0]["sig"]))
        raw[10] ^= 1
        signatures[0]["sig"] = base64.b64encode(raw).decode()

    _signature(package, change)


def _unsigned(package: Path) -> None:
    _signature(package, lambda signatures: signatures.clear())


def _signed_by_a_stranger(package: Path) -> None:
    def change(signatures: list[dict[str, str]]) -> None:
        signatures[0]["keyid"] = "0" * 64

    _signature(package, change)


def _flip_payload(package: Path) -> None:
    document = read_json(package / "envelope.json")
    payload = bytearray(base64.b64decode(document["payload"]))
    payload[len(payload) // 2] ^= 1
    write_json(package / "envelope.json", document | {"payload": base64.b64encode(payload).decode()})


@pytest.mark.parametrize(
    ("attack", "told"),
    [
        (_flip("case.json"), r"case\.json is not the file the envelope was signed for"),
        (_flip("policy.onnx"), r"policy\.onnx is not the file the envelope was signed for"),
        (_flip("manifest.json"), r"manifest\.json is not the file"),
        (_flip("parity.json"), r"parity\.json is not the file"),
        (_flip("episodes.parquet"), r"episodes\.parquet is not the file"),
        (_flip("evaluation.json"), r"evaluation\.json is not the file"),
        (_other_policy, r"policy\.onnx is not the file"),
        (_case_of_another, r"case\.json is not the file"),
        (_other_type, "the envelope holds 'application/json'"),
        (_other_layout, "signed by another version of LoomRL"),
        (_flip_signature, "signature does not match its payload"),
        (_flip_payload, "signature does not match its payload"),
        (_unsigned, r"envelope\.json is not a valid Envelope: signatures: List should have at least 1 item"),
        (_signed_by_a_stranger, "signed by 0000000000000000, which is not among the 1 trusted keys"),
    ],
)
def test_a_tampered_package_is_refused_and_the_message_says_what_was_changed(
    package: Path, attack: Callable[[Path], None], told: str
) -> None:
    attack(package)
    with pytest.raises(ArtifactError, match=told):
        envelope.verify(package)


def test_evidence_that_was_changed_is_not_packaged(loomrl_home: Path, tmp_path: Path) -> None:
    artifacts = make_artifacts(tmp_path / "artifacts")
    (artifacts / "safety" / "evidence").mkdir()
    (artifacts / "safety" / "evidence" / "noise.json").write_text("{}")
    write_sums(artifacts / "safety")
    (artifacts / "safety" / "evidence" / "noise.json").write_text('{"rate": 0}')
    with pytest.raises(ArtifactError, match=r"noise\.json is changed"):
        build_package(artifacts, tmp_path / "package", FACTS)


def test_outputs_of_different_runs_are_not_signed_together(loomrl_home: Path, tmp_path: Path) -> None:
    first = make_artifacts(tmp_path / "first")
    second = make_artifacts(tmp_path / "second", bias=1.0)
    for name in ("case.json", "SHA256SUMS"):
        (first / "safety" / name).write_bytes((second / "safety" / name).read_bytes())
    with pytest.raises(ArtifactError, match="run the stages again"):
        build_package(first, tmp_path / "package", FACTS)


def test_an_evaluation_the_case_was_not_made_on_is_not_packaged(loomrl_home: Path, tmp_path: Path) -> None:
    first = make_artifacts(tmp_path / "first", returns=[10.0] * 40)
    second = make_artifacts(tmp_path / "second")
    shutil.rmtree(first / "evaluation")
    shutil.copytree(second / "evaluation", first / "evaluation")
    with pytest.raises(ArtifactError, match="the safety case was made on"):
        build_package(first, tmp_path / "package", FACTS)


def test_a_changed_stage_output_is_not_packaged(loomrl_home: Path, tmp_path: Path) -> None:
    artifacts = make_artifacts(tmp_path / "artifacts")
    write_json(artifacts / "evaluation" / "evaluation.json", {"mean_return": 500})
    with pytest.raises(ArtifactError, match=r"evaluation\.json is changed"):
        build_package(artifacts, tmp_path / "package", FACTS)


def test_cases_form_a_chain(ready_home: Path, tmp_path: Path) -> None:
    registry = Registry()
    first = register(tmp_path, "run-1", registry)
    second = register(tmp_path, "run-2", registry, bias=1.0)
    statement, _ = envelope.verify(registry.download(second, tmp_path / "second"))
    assert statement.previous is not None
    assert statement.previous.version == first.version
    assert statement.previous.case_sha256 == sha256_file(Path(first.source) / "case.json")
    envelope.check_chain(registry, "cartpole", statement)
    registry.set_tag(first, envelope.ENVELOPE_TAG, "0" * 64)
    with pytest.raises(ArtifactError, match="chain of cases is broken"):
        envelope.check_chain(registry, "cartpole", statement)
