"""From the trained policy to a graph that is proved to act alike, or to a refusal."""

import shutil
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from loomrl.algorithms.policies.loading import load_policy
from loomrl.errors import ArtifactError, GateRefused
from loomrl.export.admission import admit
from loomrl.export.export import export_policy
from loomrl.runs.config import PolicyConfig
from loomrl.serving.policy.model import GRAPH, MANIFEST, ServedPolicy
from loomrl.system.files import sha256_file
from loomrl.types import Bound, Claim, GateDecision, ParityReport, SafetyCase, Verdict, Waiver
from tests.support.trained import Policy


def export(config: PolicyConfig, policy: Policy, safety: Path, output: Path):
    return export_policy(config, policy.environment, policy.training, policy.evaluation, safety, output)


@pytest.fixture(scope="module")
def exported(admitted: Policy, config: PolicyConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of `admitted`."""
    output = tmp_path_factory.mktemp("export")
    export(config, admitted, admitted.root / "safety", output)
    return output


def test_the_manifest_names_what_it_came_from(exported: Path, admitted: Policy, safety: Path) -> None:
    manifest = ServedPolicy.load(exported).manifest
    assert manifest.onnx_sha256 == sha256_file(exported / GRAPH)
    assert manifest.policy_digest == sha256_file(admitted.training / "policy.safetensors")
    assert manifest.case_sha256 == sha256_file(safety / "case.json")
    assert manifest.inputs == {"observation": {"dtype": "float32", "shape": [-1, 4]}}
    assert manifest.outputs["logits"] == {"dtype": "float32", "shape": [-1, 2]}
    assert manifest.out_of_distribution is not None
    assert [limit["name"] for limit in manifest.constraints] == ["cart_is_somewhere"]
    assert len(manifest.probe_actions) == len(manifest.probe_observations) >= 16


def test_parity_and_the_rechecked_claims_are_recorded(exported: Path, config: PolicyConfig) -> None:
    report = ParityReport.read(exported / "parity.json")
    assert report.passed
    assert report.num_random == config.export.parity_random
    assert report.num_observations == report.num_visited + report.num_random
    assert (report.action_mismatches, report.limit) == (0, config.export.parity_limit)
    assert 0 < report.max_abs_difference["logits"] < report.limit
    assert set(report.rechecked_claims) >= {"action_bounds", "finiteness"}


def test_the_graph_acts_like_the_network(exported: Path, admitted: Policy) -> None:
    observations = np.random.default_rng(1).normal(size=(1_000, 4)).astype(np.float32)
    network, graph = load_policy(admitted.training), ServedPolicy.load(exported)
    np.testing.assert_array_equal(network(observations), graph(observations))


def test_the_graph_names_no_place_and_is_valid(exported: Path) -> None:
    onnx.checker.check_model(onnx.load(exported / GRAPH), full_check=True)
    data = (exported / GRAPH).read_bytes()
    for trace in (b"/src/", b".py", b"site-packages", str(exported).encode()):
        assert trace not in data


def test_equal_inputs_give_equal_bytes_in_another_folder(
    exported: Path, config: PolicyConfig, admitted: Policy, tmp_path: Path
) -> None:
    moved = Policy(tmp_path / "elsewhere")
    shutil.copytree(admitted.root, moved.root)
    export(config, moved, moved.root / "safety", tmp_path / "again")
    for name in (GRAPH, MANIFEST, "parity.json"):
        assert (tmp_path / "again" / name).read_bytes() == (exported / name).read_bytes()


def test_failing_parity_leaves_the_measurement_and_no_graph(
    config: PolicyConfig, admitted: Policy, safety: Path, tmp_path: Path
) -> None:
    tight = config.model_copy(update={"export": config.export.model_copy(update={"parity_limit": 1e-12})})
    (tmp_path / GRAPH).write_bytes(b"an older graph")
    with pytest.raises(GateRefused, match=r"does not act like the network.*limit 1e-12"):
        export(tight, admitted, safety, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["parity.json"]
    assert not ParityReport.read(tmp_path / "parity.json").passed


# --- admission --------------------------------------------------------------------------------------------------


def changed(safety: Path, folder: Path, *claims: Claim, passed: bool = True) -> Path:
    """The case with more claims."""
    case = SafetyCase.read(safety / "case.json")
    decision = GateDecision(passed=passed, blocking=[], reason="")
    case.model_copy(update={"claims": [*case.claims, *claims], "decision": decision}).write(folder / "case.json")
    return folder


def claim(verdict: Verdict, mandatory: bool = True, waiver: Waiver | None = None) -> Claim:
    bound = Bound(kind="clopper-pearson upper", measured=0.0732, limit=0.01)
    return Claim(
        id="pole_stays_up",
        stage="statistical limits",
        statement="the pole stays up",
        mandatory=mandatory,
        method="clopper-pearson",
        verdict=verdict,
        bound=bound,
        waiver=waiver,
    )


@pytest.mark.parametrize("verdict", [Verdict.REFUTED, Verdict.UNDECIDED])
@pytest.mark.parametrize("passed", [True, False])  # the claims count, whatever the decision says
def test_a_blocked_case_is_refused_with_its_bound(
    config: PolicyConfig, admitted: Policy, safety: Path, tmp_path: Path, verdict: Verdict, passed: bool
) -> None:
    blocked = changed(safety, tmp_path / "safety", claim(verdict), passed=passed)
    with pytest.raises(GateRefused, match=rf"pole_stays_up is {verdict.value} .*0\.0732, limit 0\.01"):
        export(config, admitted, blocked, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_a_refuted_claim_that_is_not_mandatory_does_not_block(admitted: Policy, safety: Path, tmp_path: Path) -> None:
    folder = changed(safety, tmp_path, claim(Verdict.REFUTED, mandatory=False))
    admit(folder, admitted.training, admitted.environment)


def test_a_waiver_holds_until_its_last_day(admitted: Policy, safety: Path, tmp_path: Path) -> None:
    waiver = Waiver(claim="pole_stays_up", person="Ada", reason="test", expires="2026-06-30")
    folder = changed(safety, tmp_path, claim(Verdict.WAIVED, waiver=waiver))
    admit(folder, admitted.training, admitted.environment, date(2026, 6, 30))
    with pytest.raises(GateRefused, match="Ada expired on 2026-06-30"):
        admit(folder, admitted.training, admitted.environment, date(2026, 7, 1))
    nobody = changed(safety, tmp_path, claim(Verdict.WAIVED))
    with pytest.raises(GateRefused, match="waived by nobody"):
        admit(nobody, admitted.training, admitted.environment)


def test_an_empty_case_is_refused(admitted: Policy, safety: Path, tmp_path: Path) -> None:
    SafetyCase.read(safety / "case.json").model_copy(update={"claims": []}).write(tmp_path / "case.json")
    with pytest.raises(GateRefused, match="empty gate"):
        admit(tmp_path, admitted.training, admitted.environment)


@pytest.mark.parametrize("field", ["policy_digest", "snapshot_digest"])
def test_the_case_of_another_subject_is_refused(admitted: Policy, safety: Path, tmp_path: Path, field: str) -> None:
    SafetyCase.read(safety / "case.json").model_copy(update={field: "0" * 64}).write(tmp_path / "case.json")
    with pytest.raises(ArtifactError, match="is about another"):
        admit(tmp_path, admitted.training, admitted.environment)


def test_a_local_claim_that_fails_on_the_graph_is_refused(
    config: PolicyConfig, admitted: Policy, safety: Path, tmp_path: Path
) -> None:
    """The case says robust; held against the graph with far larger noise the claim no longer holds."""
    shaken = config.safety.model_copy(update={"checks": {"robustness": {"noise": 50.0, "max_action_change": 1e-3}}})
    with pytest.raises(GateRefused, match="do not hold for the graph: robustness"):
        export(config.model_copy(update={"safety": shaken}), admitted, safety, tmp_path)
    assert not (tmp_path / GRAPH).exists()


def certifying(config: PolicyConfig, **settings: Any) -> PolicyConfig:
    checks = {
        **config.safety.checks,
        "stability": {"num_visited": 16, "min_share": 0.01, "on_uncertified": "mark", **settings},
    }
    return config.model_copy(update={"safety": config.safety.model_copy(update={"checks": checks})})


def test_what_is_certified_travels_with_the_graph(
    admitted: Policy, config: PolicyConfig, safety: Path, tmp_path: Path
) -> None:
    """Within a certified box the graph never acts differently."""
    export(certifying(config, radius=0.05), admitted, safety, tmp_path)
    policy = ServedPolicy.load(tmp_path)
    assert policy.manifest.certified is not None
    assert policy.manifest.certified["on_uncertified"] == "mark"
    assert policy.guard is not None
    certified = policy.guard.certified
    assert certified is not None
    assert len(certified.low) >= 8
    rng = np.random.default_rng(2)
    for low, high in zip(certified.low, certified.high, strict=True):
        inside = rng.uniform(low, high, (256, 4)).astype(np.float32)
        covered = inside[certified.covers(inside)]  # rounding to float32 may lead out
        assert len(covered) > 200
        assert len(set(policy(covered).tolist())) == 1
    assert certified.covers(np.full((1, 4), 1e6, np.float32)) == [False]


def test_nothing_certified_is_no_export(admitted: Policy, config: PolicyConfig, safety: Path, tmp_path: Path) -> None:
    hopeless = certifying(config, radius=1e3, halvings=0, max_boxes=1)
    with pytest.raises(GateRefused, match="on_uncertified is set, and nothing is certified about the graph"):
        export(hopeless, admitted, safety, tmp_path)
    assert not (tmp_path / GRAPH).exists()


def test_constraints_stand_in_the_manifest(exported: Path) -> None:
    policy = ServedPolicy.load(exported)
    (constraint,) = policy.manifest.constraints
    assert (constraint["quantity"], constraint["high"], constraint["enforce"]) == ("observation[0]", 100.0, None)
    assert policy.guard is None  # a limit on observations is enforced only where it says so
