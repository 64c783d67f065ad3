"""A safety case is trusted only with its signature, its digests and the case before it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from policy_versions import graph, make_artifacts, register

from loomrl.errors import ArtifactError
from loomrl.files import sha256_file, write_json
from loomrl.promotion import envelope
from loomrl.promotion.envelope import RunFacts
from loomrl.promotion.package import build_package
from loomrl.registry import Registry
from loomrl.signing import sign_envelope

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


def _flip(name: str) -> Callable[[Path], None]:
    def attack(package: Path) -> None:
        data = bytearray((package / name).read_bytes())
        data[len(data) // 2] ^= 1
        (package / name).write_bytes(data)

    return attack


def _other_policy(package: Path) -> None:
    (package / "policy.onnx").write_bytes(graph(5.0))


def _other_type(package: Path) -> None:
    payload = envelope.verify(package)[0].to_bytes()
    sign_envelope(payload, "application/json").write(package / "envelope.json")


def _other_layout(package: Path) -> None:
    sign_envelope(b'{"schema_version":1}', envelope.PAYLOAD_TYPE).write(package / "envelope.json")


@pytest.mark.parametrize(
    "attack",
    [
        _flip("case.json"),
        _flip("manifest.json"),
        _flip("parity.json"),
        _flip("episodes.parquet"),
        _flip("evaluation.json"),
        _other_policy,
        _other_type,
        _other_layout,
    ],
)
def test_a_tampered_package_is_refused(package: Path, attack: Callable[[Path], None]) -> None:
    attack(package)
    with pytest.raises(ArtifactError):
        envelope.verify(package)


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
