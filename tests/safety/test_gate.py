"""Whole cases of real policies, and the decision rules."""

import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.policies.policy import TrainedPolicy
from loomrl.errors import ConfigError
from loomrl.evaluation.evaluate import evaluate_policy, evaluation_digest
from loomrl.safety.case.decision import decide
from loomrl.safety.case.document import check_case
from loomrl.safety.case.standing import lapsed
from loomrl.safety.config import ConstraintConfig, SafetyConfig, WaiverConfig
from loomrl.safety.gate import apply_waivers, build_case, check_limits, recheck_local
from loomrl.safety.registry import configured_checks
from loomrl.safety.replay import replay
from loomrl.system.files import sha256_file, sums
from loomrl.types import Claim, EvaluationReport, SafetyCase, Verdict
from tests.support.trained import CONSTRAINTS, EVALUATION, OFF, SAFETY, Policy, examine, without_long_searches

PROGRAM = """
import sys
from pathlib import Path
from loomrl.safety.config import SafetyConfig
from loomrl.safety.gate import build_case
build_case(SafetyConfig.model_validate_json(sys.argv[1]), *map(Path, sys.argv[2:]))
"""


def by_id(case: SafetyCase) -> dict[str, Claim]:
    return {claim.id: claim for claim in case.claims}


def test_a_good_policy_passes(good: Policy, tmp_path: Path) -> None:
    case = examine(good, tmp_path)
    assert case.decision.passed, case.decision.reason
    assert case.decision.blocking == []
    claims = by_id(case)
    assert [claim.id for claim in case.claims] == [
        "provenance.evaluation_data",
        "provenance.files",
        "provenance.policy",
        "provenance.snapshot",
        "minimum_return",
        "statistical_limits.cart_stays_on_track",
        "statistical_limits.pole_is_upright",
        "action_bounds",
        "disturbed_return",
        "falsification.lone_choices",
        "falsification.recovery",
        "finiteness",
        "robustness",
        "out_of_distribution",
    ]
    assert all(claim.verdict is Verdict.PROVED for name, claim in claims.items() if name.startswith("provenance"))
    others = {name: claim.verdict for name, claim in claims.items() if not name.startswith("provenance")}
    # A third of 80 episodes measures false alarms: too few for the limit, and not mandatory.
    assert others.pop("out_of_distribution") is Verdict.UNDECIDED
    assert set(others.values()) == {Verdict.SUPPORTED}
    assert claims["statistical_limits.cart_stays_on_track"].num_samples == 80
    assert case.policy_digest == sha256_file(good.training / "policy.safetensors")
    assert case.evaluation_digest == evaluation_digest(good.evaluation)
    assert case.controls["Rule 2 environments are versioned: the case names the snapshot by digest"] == [
        "provenance.snapshot"
    ]
    assert case.tools["gymnasium"].startswith("1.")
    assert (tmp_path / "ood.json").is_file()
    assert check_case(tmp_path) == []


def test_a_barely_trained_policy_is_refuted_with_its_bound(barely_trained: Policy) -> None:
    case = SafetyCase.read(barely_trained.root / "safety" / "case.json")
    assert not case.decision.passed
    assert "minimum_return" in case.decision.blocking
    claim = by_id(case)["minimum_return"]
    assert claim.verdict is Verdict.REFUTED
    assert claim.bound is not None
    assert (claim.bound.kind, claim.bound.limit) == ("clopper-pearson upper", 0.5)
    # So few of 80 episodes, or fewer, have a probability of 5 % where the true rate is the one-sided 95 % upper bound.
    reached = int(claim.finding.partition(" of 80 episodes reach 475")[0])
    assert binom.cdf(reached, 80, claim.bound.measured) == pytest.approx(0.05)
    cart = by_id(case)["statistical_limits.cart_stays_on_track"]
    assert cart.verdict is Verdict.REFUTED
    assert cart.bound is not None
    assert cart.bound.kind == "clopper-pearson lower"
    assert cart.bound.measured > cart.bound.limit
    assert cart.counterexample is not None
    assert cart.counterexample.evidence is not None
    assert cart.counterexample.replay_command == "loomrl safety replay . statistical_limits.cart_stays_on_track"


@pytest.mark.long
def test_another_process_writes_equal_bytes_whatever_the_number_of_environments(
    barely_trained: Policy, tmp_path: Path
) -> None:
    config = SAFETY.model_copy(update={"num_envs": 7}).model_dump_json()
    folders = [barely_trained.environment, barely_trained.training, barely_trained.evaluation, tmp_path]
    subprocess.run([sys.executable, "-c", PROGRAM, config, *map(str, folders)], check=True, capture_output=True)
    assert sums(tmp_path) == sums(barely_trained.root / "safety")


@pytest.mark.long
def test_inside_a_project_the_replay_command_names_the_folder(barely_trained: Policy, tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").touch()
    output = tmp_path / "artifacts" / "cartpole" / "safety"
    case = examine(barely_trained, output, SAFETY.model_copy(update={"num_episodes": 10}))
    found = by_id(case)["minimum_return"].counterexample
    assert found is not None
    assert found.replay_command == "loomrl safety replay artifacts/cartpole/safety minimum_return"


def test_torch_runs_on_one_thread_meanwhile(discrete: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several wait for each other in every step: on a busy machine that takes twenty times as long."""
    seen: set[int] = set()
    padded = TrainedPolicy._padded

    def counted(policy: TrainedPolicy, obs: Any) -> Any:
        seen.add(torch.get_num_threads())
        return padded(policy, obs)

    monkeypatch.setattr(TrainedPolicy, "_padded", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        evaluate_policy(EVALUATION, discrete.environment, discrete.training, tmp_path / "evaluation")
        assert seen == {1}
        seen.clear()
        examine(discrete, tmp_path / "safety", SafetyConfig(num_episodes=8, num_envs=8))
        assert seen == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_discrete_observations(discrete: Policy, tmp_path: Path) -> None:
    case = examine(discrete, tmp_path, SafetyConfig(num_episodes=30))
    claims = by_id(case)
    assert claims["minimum_return"].verdict is Verdict.REFUTED
    assert claims["action_bounds"].verdict is claims["finiteness"].verdict is Verdict.SUPPORTED
    assert not claims.keys() & {"robustness", "disturbed_return", "out_of_distribution"}
    assert check_case(tmp_path) == []


# --- decision ---


def claim(name: str, verdict: Verdict, mandatory: bool = True, stage: str = "statistical limits") -> Claim:
    return Claim(id=name, stage=stage, statement="", mandatory=mandatory, method="", verdict=verdict, finding="seen")


@pytest.mark.parametrize(
    ("verdict", "passed"),
    [
        (Verdict.PROVED, True),
        (Verdict.SUPPORTED, True),
        (Verdict.WAIVED, True),
        (Verdict.UNDECIDED, False),
        (Verdict.REFUTED, False),
    ],
)
def test_each_verdict(verdict: Verdict, passed: bool) -> None:
    decision = decide([claim("a", Verdict.SUPPORTED), claim("b", verdict)])
    assert decision.passed is passed
    assert decision.blocking == ([] if passed else ["b"])
    assert passed or f"b is {verdict}: seen" in decision.reason


def test_a_claim_that_is_not_mandatory_does_not_block() -> None:
    assert decide([claim("a", Verdict.SUPPORTED), claim("b", Verdict.REFUTED, mandatory=False)]).passed


@pytest.mark.parametrize(
    "claims",
    [
        [],
        [claim("a", Verdict.SUPPORTED, mandatory=False)],
        [
            claim("a", Verdict.PROVED, stage="provenance and parity"),
            claim("b", Verdict.SUPPORTED, stage="falsification"),
        ],
    ],
)
def test_an_empty_gate_fails(claims: list[Claim]) -> None:
    decision = decide(claims)
    assert not decision.passed
    assert "empty" in decision.reason


@pytest.mark.parametrize(
    "relative", [{}, {"robustness": {"mandatory": True}, "disturbed_return": {"mandatory": True, "num_episodes": 8}}]
)
def test_an_empty_gate_fails_for_real(good: Policy, tmp_path: Path, relative: dict[str, object]) -> None:
    """To be as good as itself under noise says nothing of how good a policy is."""
    short = {"falsification": {"num_leads": 8, "num_lines": 8}, "disturbed_return": {"num_episodes": 8}}
    config = SafetyConfig(num_episodes=6, checks={"minimum_return": OFF, **short, **relative})
    case = examine(good, tmp_path, config)
    assert not case.decision.passed
    assert "declare safety.constraints" in case.decision.reason


def test_a_limit_hides_no_claim_of_its_name(barely_trained: Policy, tmp_path: Path) -> None:
    named = CONSTRAINTS[0].model_copy(update={"name": "recovery"})
    drifts = {"falsification": {"magnitude": 0.1}}
    with pytest.raises(ValueError, match="falsification.recovery is that of a search; give the limit another name"):
        SafetyConfig(constraints=[named], checks=drifts)
    unseen = SAFETY.model_copy(update={"constraints": [named], "checks": drifts})  # as a check of another package may
    with pytest.raises(ConfigError, match="2 claims are named falsification.recovery"):
        examine(barely_trained, tmp_path, unseen)


def test_what_an_attack_breaks_is_counted_whatever_repeats(barely_trained: Policy, tmp_path: Path) -> None:
    again = CONSTRAINTS[0].model_copy(update={"name": "cart_again", "high": 2.3, "max_probability": 0.2})
    checks = without_long_searches(observation_attack={"magnitude": 0.3, "num_episodes": 80})
    config = SAFETY.model_copy(update={"constraints": [CONSTRAINTS[0], again], "checks": checks})
    claims = by_id(examine(barely_trained, tmp_path, config))
    first, second = claims["observation_attack.cart_stays_on_track"], claims["observation_attack.cart_again"]
    assert (first.verdict, first.label) == (Verdict.REFUTED, None)
    assert (second.verdict, second.label) == (Verdict.REFUTED, None), "each has a failure of its own to show"


@pytest.mark.long
def test_too_few_episodes_leave_it_undecided_and_say_how_many_more(good: Policy, tmp_path: Path) -> None:
    config = SAFETY.model_copy(update={"checks": {"disturbed_return": {"enabled": False}}})
    case = examine(good, tmp_path / "few", config.model_copy(update={"num_episodes": 30}))
    found = by_id(case)["statistical_limits.cart_stays_on_track"]
    assert found.verdict is Verdict.UNDECIDED
    assert not case.decision.passed
    assert "42 more episodes without a violation" in found.finding  # two limits of 5 % at 95 %: 72 clean episodes
    enough = examine(good, tmp_path / "enough", config.model_copy(update={"num_episodes": 72}))
    assert enough.decision.passed, enough.decision.reason


@pytest.mark.long
def test_as_many_episodes_as_it_takes_are_the_same_in_any_number_of_environments(good: Policy, tmp_path: Path) -> None:
    checks = {"statistical_limits": {"max_episodes": 600}, "disturbed_return": {"enabled": False}}
    config = SAFETY.model_copy(update={"num_episodes": 30, "checks": checks})
    case = examine(good, tmp_path / "many", config)
    assert case.decision.passed, case.decision.reason
    found = by_id(case)["statistical_limits.cart_stays_on_track"]
    assert found.num_samples == 92  # two limits of 5 % at 97.5 %, for a first attempt; of a number fixed before, 86
    examine(good, tmp_path / "few", config.model_copy(update={"num_envs": 7}))
    assert sums(tmp_path / "few") == sums(tmp_path / "many")


# --- waivers ---


def waiver(name: str) -> WaiverConfig:
    return WaiverConfig(claim=name, person="A. Person", reason="a test stand without people", expires=date(2030, 1, 31))


def test_a_waiver_is_recorded_with_the_verdict_it_covers(barely_trained: Policy, tmp_path: Path) -> None:
    names = ["minimum_return", "statistical_limits.cart_stays_on_track"]
    config = SAFETY.model_copy(update={"waivers": [waiver(name) for name in names], "checks": without_long_searches()})
    case = examine(barely_trained, tmp_path, config)
    waived = by_id(case)["minimum_return"]
    assert waived.verdict is Verdict.WAIVED
    assert waived.verdict_before_waiver is Verdict.REFUTED
    assert waived.waiver is not None
    assert (waived.waiver.person, waived.waiver.expires) == ("A. Person", "2030-01-31")
    assert waived.counterexample is not None
    assert not set(names) & set(case.decision.blocking)
    assert lapsed(case, date(2030, 1, 31)) == []
    assert [each.id for each in lapsed(case, date(2030, 2, 1))] == names


def test_a_claim_that_is_met_needs_no_waiver() -> None:
    assert apply_waivers([claim("a", Verdict.SUPPORTED)], [waiver("a")]) == [claim("a", Verdict.SUPPORTED)]


@pytest.mark.parametrize(
    ("name", "message"), [("b", "no claim 'b'; claims: a, p"), ("p", "claims about provenance cannot be waived")]
)
def test_waivers_that_do_not_fit(name: str, message: str) -> None:
    claims = [claim("a", Verdict.REFUTED), claim("p", Verdict.REFUTED, stage="provenance and parity")]
    with pytest.raises(ConfigError, match=message):
        apply_waivers(claims, [waiver(name)])


# --- provenance ---


def copy(policy: Policy, tmp_path: Path) -> Policy:
    shutil.copytree(policy.root, tmp_path / "copy", ignore=shutil.ignore_patterns("home", "safety"))
    return Policy(tmp_path / "copy")


def provenance(policy: Policy, tmp_path: Path) -> dict[str, Claim]:
    case = examine(policy, tmp_path / "case", SafetyConfig(num_episodes=6, checks=without_long_searches()))
    assert not case.decision.passed
    return by_id(case)


def test_a_changed_file_breaks_provenance(barely_trained: Policy, tmp_path: Path) -> None:
    policy = copy(barely_trained, tmp_path)
    (policy.evaluation / "returns.png").write_bytes(b"another picture")
    found = provenance(policy, tmp_path)["provenance.files"]
    assert found.verdict is Verdict.REFUTED
    assert found.finding.startswith("evaluation: returns.png is changed")
    assert str(tmp_path) not in found.finding
    again = replay(tmp_path / "case", "provenance.files", policy.environment, policy.training)
    assert (again.reproduced, again.finding) == (True, found.finding)
    shutil.copy(barely_trained.evaluation / "returns.png", policy.evaluation)
    assert not replay(tmp_path / "case", "provenance.files", policy.environment, policy.training).reproduced


def test_a_missing_manifest_leaves_provenance_undecided(barely_trained: Policy, tmp_path: Path) -> None:
    policy = copy(barely_trained, tmp_path)
    (policy.training / "SHA256SUMS").unlink()
    assert provenance(policy, tmp_path)["provenance.files"].verdict is Verdict.UNDECIDED


def test_another_policy_s_evaluation_breaks_provenance(barely_trained: Policy, tmp_path: Path) -> None:
    policy = copy(barely_trained, tmp_path)
    report = EvaluationReport.read(policy.evaluation / "evaluation.json")
    changed = {"policy_digest": "0" * 64, "snapshot_digest": "1" * 64, "data_valid": False}
    report.model_copy(update=changed).write(policy.evaluation / "evaluation.json")
    claims = provenance(policy, tmp_path)
    assert claims["provenance.policy"].verdict is Verdict.REFUTED
    assert "the evaluation report names policy 000" in claims["provenance.policy"].finding
    assert claims["provenance.snapshot"].verdict is Verdict.REFUTED
    assert claims["provenance.evaluation_data"].verdict is Verdict.REFUTED


# --- the exported graph ---


def test_local_claims_are_checked_again_on_another_form_of_the_policy(good: Policy, tmp_path: Path) -> None:
    policy = load_policy(good.training)
    verdicts = recheck_local(policy, SAFETY, good.environment, good.evaluation)
    assert verdicts == dict.fromkeys(["action_bounds", "finiteness", "robustness"], Verdict.SUPPORTED)
    before = sums(good.evaluation)

    def broken(obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.asarray(policy(obs)) + 1

    verdicts = recheck_local(broken, SAFETY, good.environment, good.evaluation)
    assert verdicts["action_bounds"] is Verdict.REFUTED
    assert sums(good.evaluation) == before


def test_local_outputs_that_are_not_finite(good: Policy) -> None:
    class Graph:
        def __call__(self, obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return np.zeros(len(obs), np.int64)

        def outputs(self, obs: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
            value = np.where(np.abs(obs[:, 0]) > 4.5, np.nan, 0.0)
            return {"action": self(obs), "value": value}

    verdicts = recheck_local(Graph(), SAFETY, good.environment, good.evaluation)
    assert verdicts["finiteness"] is Verdict.REFUTED
    assert verdicts["action_bounds"] is Verdict.SUPPORTED


# --- config ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checks": {"minimum_retrun": {}}}, r"safety\.checks\.minimum_retrun: no such check; checks: abstraction,"),
        (
            {"checks": {"robustness": {"nose": 1}}},
            r"safety\.checks\.robustness\.nose: Extra .* keys of this check: enabled,",
        ),
        ({"checks": {"robustness": {"noise": -1}}}, r"safety\.checks\.robustness\.noise: .* found -1"),
        ({"checks": {"provenance": {"enabled": False}}}, r"safety\.checks\.provenance\.enabled: found false, .*remove"),
        ({"checks": {"provenance": {"mandatory": False}}}, r"safety\.checks\.provenance\.mandatory: found false"),
        (
            {"safety_critical": True, "checks": {"finiteness": {"mandatory": False}}},
            r"safety\.checks\.finiteness\.mandatory: found false, but with `safety_critical: true`",
        ),
        (
            {"safety_critical": True, "checks": {"action_bounds": {"enabled": False}}},
            r"safety\.checks\.action_bounds\.enabled: found false",
        ),
    ],
)
def test_wrong_settings_are_named_before_anything_runs(
    good: Policy, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = SafetyConfig(constraints=CONSTRAINTS, **changes)
    with pytest.raises(ConfigError, match=message):
        build_case(config, good.environment, good.training, good.evaluation, tmp_path / "case")
    assert not (tmp_path / "case").exists()


def test_optional_checks_may_be_switched_off_and_local_ones_where_nothing_is_critical() -> None:
    optional = {"robustness": {"enabled": False}, "minimum_return": {"mandatory": False}}
    names = [check.NAME for check, _ in configured_checks(SafetyConfig(safety_critical=True, checks=optional))]
    assert "robustness" not in names
    assert {"provenance", "finiteness", "action_bounds"} <= set(names)
    tolerant = SafetyConfig(checks={"finiteness": {"enabled": False}})
    assert "finiteness" not in [check.NAME for check, _ in configured_checks(tolerant)]


@pytest.mark.parametrize(
    ("quantity", "message"),
    [
        ("observation[9]", r"constraints\.1\.quantity: limit: found quantity 'observation\[9\]', .* has 4 components"),
        ("action[1]", r"constraints\.1\.quantity: limit: .* has 1 component: action\[0\]"),
    ],
)
def test_a_limit_the_environment_lacks_is_found_before_anything_is_trained(
    good: Policy, quantity: str, message: str
) -> None:
    fits = [ConstraintConfig(name=f"fits_{i}", quantity=q, low=0) for i, q in enumerate(["action", "action[0]"])]
    check_limits(SafetyConfig(constraints=[*CONSTRAINTS, *fits]), good.environment)
    limit = ConstraintConfig(name="limit", quantity=quantity, low=0)
    with pytest.raises(ConfigError, match=message):
        check_limits(SafetyConfig(constraints=[CONSTRAINTS[0], limit]), good.environment)
    with pytest.raises(ConfigError, match="no such check"):
        check_limits(SafetyConfig(checks={"nothing": {}}), good.environment)
