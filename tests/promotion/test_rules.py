"""Each rule, met and broken, and what they add up to."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from loomrl.environment.snapshots.snapshot import content_digest
from loomrl.errors import ArtifactError
from loomrl.promotion import review as reviewing
from loomrl.promotion.attempts import GateAttempt
from loomrl.promotion.rules import (
    ROLLED_BACK,
    RULES,
    PersonApproval,
    approval,
    gate_passed,
    inputs_digest,
    not_rolled_back,
)
from loomrl.promotion.scope import scope_of
from loomrl.safety.case.tally import tally
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION, PolicyVersion, Registry
from loomrl.system.files import sha256
from loomrl.types import (
    Claim,
    ClaimLabel,
    DynamicsFingerprint,
    EnvironmentSnapshot,
    EnvironmentSpec,
    Interval,
    LabelKind,
    PromotionDecision,
    Verdict,
)
from tests.support.policy_versions import FIRST_SEED, SNAPSHOT, config, graph, register, shadow_report
from tests.support.projects import copy_home
from tests.support.template_home import at_home

TODAY = date(2026, 11, 20)
DECIDED = (gate_passed, not_rolled_back, approval)  # rules that measure nothing


class Versions:
    """A champion and a challenger, and decisions about the latter."""

    def __init__(self, tmp: Path, champion: dict[str, Any] | None, challenger: dict[str, Any]) -> None:
        self.registry = Registry()
        self.champion: PolicyVersion | None = None
        if champion is not None:
            self.champion = register(tmp, "run-1", self.registry, bias=1.0, **champion)
            self.registry.set_aliases("cartpole", {CHAMPION: self.champion.version})
        self.challenger = register(tmp, "run-2", self.registry, **challenger)

    def decide(self, rules: dict[str, Any] | None = None, **given: Any) -> PromotionDecision:
        champion = self.champion.version if self.champion else None
        shadow = given.pop("shadow", shadow_report(self.challenger.version, champion))
        given.setdefault("today", TODAY)
        version = self.registry.require("cartpole", self.challenger.version)
        return reviewing.review(self.registry, config(**(rules or {})), version, shadow, **given)


def claim(decision: PromotionDecision, name: str) -> Claim:
    return next(claim for claim in decision.rules if claim.id == name)


class Equals(Versions):
    """Those that are in the home already."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.champion, self.challenger = self.registry.versions("cartpole")


@pytest.fixture(scope="module")
def home_of_equals(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("equals")
    with at_home(folder / "home", template_home):
        Versions(folder, {}, {})
    return folder / "home"


@pytest.fixture
def equals(home_of_equals: Path, loomrl_home: Path) -> Equals:
    """A champion, and a challenger that does no worse."""
    copy_home(home_of_equals, loomrl_home)
    return Equals()


@pytest.fixture
def first(ready_home: Path, tmp_path: Path) -> Versions:
    return Versions(tmp_path, None, {})


def test_the_first_version_is_promoted_with_nothing_to_compare(first: Versions) -> None:
    decision = first.decide()
    assert (decision.decision, decision.champion_before) == ("promoted", None)
    assert claim(decision, "not_worse").statement == "there is no champion yet to compare with"


def test_every_rule_says_what_it_rests_on(equals: Equals) -> None:
    decision = equals.decide()
    for one in decision.rules:
        said = one.examined, one.not_established, one.false_if
        assert all(len(text) > 10 for text in said), one
        assert len(set(said)) == 3
    assert claim(decision, "not_worse").examined.startswith("40 pairs of evaluation episodes")
    measured = decision.rules[-1].model_copy(update={"num_samples": 7})
    for rule in RULES:
        assert "7" in scope_of(measured.model_copy(update={"id": rule.__name__})).examined or rule in DECIDED
    with pytest.raises(KeyError, match="nothing says what the rule luck rests on"):
        scope_of(measured.model_copy(update={"id": "luck"}))


def test_a_rule_that_had_nothing_to_examine_is_labelled(equals: Equals) -> None:
    decision = equals.decide()
    assert decision.decision == "promoted"
    labelled = {one.id: one for one in decision.rules if one.label is not None}
    assert set(labelled) == {"min_success_rate", "compared_live", "off_policy"}
    for one in labelled.values():
        assert one.examined.startswith("nothing: ")
        assert one.label == ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=one.statement)
        assert one.verdict is Verdict.PROVED
    assert tally(decision.rules).not_counted[LabelKind.CANNOT_BE_FALSE] == 3


def test_a_first_version_is_compared_with_nothing_and_a_rule_that_is_undecided_has_no_label(first: Versions) -> None:
    alone = first.decide()
    assert alone.decision == "promoted"
    assert claim(alone, "not_worse").label is not None
    unseen = claim(first.decide(shadow=None), "shadow_passed")
    assert (unseen.verdict, unseen.label) == (Verdict.UNDECIDED, None)
    assert unseen.examined.startswith("nothing: ")


def test_decisions_from_before_rules_were_labelled_are_read(equals: Equals) -> None:
    document = equals.decide().model_dump(mode="json")
    for rule in document["rules"]:
        rule.pop("label", None)
    assert all(one.label is None for one in PromotionDecision.model_validate(document).rules)


def test_rules_say_what_refutes_them_and_what_leaves_them_undecided(equals: Equals) -> None:
    said = {one.id: one.false_if for one in equals.decide().rules}
    measured = equals.decide().rules[0].model_copy(update={"num_samples": 7})
    said |= {
        name: scope_of(measured.model_copy(update={"id": name})).false_if
        for name in ("not_worse", "off_policy", "compared_live", "consequences", "minimum_decisions", "approval")
    }
    assert "whose upper bound is below the limit" in said["not_worse"]
    for name in ("not_worse", "off_policy", "compared_live", "consequences", "minimum_decisions", "approval"):
        assert "undecided" in said[name], name
    assert "server" in said["not_rolled_back"]
    for reason in ("missing", "chain", "not met", "run out", "graph", "attempt", "trained network"):
        assert reason in said["gate_passed"], reason


def test_without_a_shadow_report_no_decisions_were_counted(equals: Equals) -> None:
    rule = claim(equals.decide(shadow=None), "minimum_decisions")
    assert (rule.verdict, rule.num_samples) == (Verdict.UNDECIDED, None)
    assert rule.examined == "nothing: there is no shadow report; at least 100 decisions in shadow are demanded"


def test_a_rule_that_had_nothing_to_examine_says_so(first: Versions) -> None:
    assert claim(first.decide(), "not_worse").examined == "nothing: there is no champion yet to compare with"
    assert claim(first.decide(), "off_policy").examined == "nothing: no estimate from the log is demanded"


def test_an_equal_challenger_is_promoted(equals: Equals) -> None:
    decision = equals.decide({"max_regression_fraction": 0})
    assert (decision.decision, decision.champion_before) == ("promoted", "1")


def test_a_worse_challenger_is_refused_with_its_numbers(ready_home: Path, tmp_path: Path) -> None:
    versions = Versions(tmp_path, {"returns": [500.0] * 40}, {"returns": [400.0 + index for index in range(40)]})
    decision = versions.decide()
    assert decision.decision == "refused"
    bound = claim(decision, "not_worse").bound
    assert bound is not None
    assert (bound.limit, bound.measured < -25) == (-25.0, True)
    assert "worse than the champion: mean return 419.5 against the champion's 500" in decision.reasons[0]
    shown = claim(decision, "not_worse").counterexample
    assert shown is not None
    assert (shown.seed, shown.replay_command) == (FIRST_SEED, "loomrl policy replay cartpole@2 not_worse")
    assert "earns 100 less than the champion's" in shown.description
    assert versions.decide({"require_not_worse": False}).decision == "promoted"


def test_a_challenger_that_may_be_worse_shows_where_it_lost_most(ready_home: Path, tmp_path: Path) -> None:
    returns = [500.0] * 36 + [300.0, 290.0, 300.0, 300.0]  # 20 less on average, where 25 may be
    decision = Versions(tmp_path, {"returns": [500.0] * 40}, {"returns": returns}).decide()
    found = claim(decision, "not_worse")
    assert (decision.decision, found.verdict) == ("refused", Verdict.UNDECIDED)
    assert found.counterexample is not None
    assert (found.counterexample.seed, "earns 210 less" in found.counterexample.description) == (FIRST_SEED + 37, True)
    assert found.counterexample.replay_command == "loomrl policy replay cartpole@2 not_worse"


def test_another_environment_is_no_comparison(ready_home: Path, tmp_path: Path) -> None:
    decision = Versions(tmp_path, {"snapshot": "a" * 64}, {}).decide()
    assert decision.decision == "refused"
    assert "their returns cannot be compared" in decision.reasons[0]


def snapshot_under(numpy: str, exact: str = "e", arithmetic: str = "a") -> str:
    """Put a snapshot on record that was taken under a release of numpy; returns its digest. `exact` and `arithmetic`
    are the digits of those digests."""
    spec = EnvironmentSpec(name="CartPole-v1", version="1", entry_point="m:C", observation={}, action={})
    dynamics = DynamicsFingerprint(
        num_episodes=4,
        num_steps=800,
        exact=exact * 64,
        toleranced="t" * 64,
        tolerance=1e-4,
        arithmetic=arithmetic * 64,
        rollouts=exact * 64,
    )
    unsigned = EnvironmentSnapshot(
        digest="",
        spec=spec,
        source_digest="s" * 64,
        source_root="m",
        source_roots=["m"],
        dependencies={"python": "3.11.4", "numpy": numpy},
        dynamics=dynamics,
    )
    snapshot = unsigned.model_copy(update={"digest": content_digest(unsigned)})
    with LoomDB.open() as db:
        db.record_snapshot(snapshot)
    return snapshot.digest


@pytest.mark.parametrize(
    ("challenger", "exact", "outcome", "words"),
    [
        ("2.3.5", "e", "promoted", "under numpy 2.3.5 for 2.3.1: all 800 recorded steps of 4 episodes are equal"),
        ("2.4.0", "e", "refused", "their returns cannot be compared"),
        ("2.3.5", "f", "refused", "their returns cannot be compared"),
    ],
)
def test_a_patch_release_that_leaves_the_dynamics_equal_is_no_other_environment(
    ready_home: Path, tmp_path: Path, challenger: str, exact: str, outcome: str, words: str
) -> None:
    first, second = snapshot_under("2.3.1"), snapshot_under(challenger, exact)
    assert first != second
    decision = Versions(tmp_path, {"snapshot": first}, {"snapshot": second}).decide()
    assert decision.decision == outcome
    assert words in claim(decision, "not_worse").statement


@pytest.mark.parametrize(
    ("numpy", "exact", "outcome", "words"),
    [
        ("2.3.1", "e", "promoted", "under the arithmetic of another machine: all 800 recorded steps of 4 episodes"),
        ("2.3.5", "e", "promoted", "under numpy 2.3.5 for 2.3.1, the arithmetic of another machine: all 800"),
        ("2.4.0", "e", "refused", "their returns cannot be compared"),
        ("2.3.1", "f", "refused", "their returns cannot be compared"),
    ],
)
def test_another_processor_that_leaves_the_dynamics_equal_is_no_other_environment(
    ready_home: Path, tmp_path: Path, numpy: str, exact: str, outcome: str, words: str
) -> None:
    first, second = snapshot_under("2.3.1"), snapshot_under(numpy, exact, arithmetic="b")
    decision = Versions(tmp_path, {"snapshot": first}, {"snapshot": second}).decide()
    assert decision.decision == outcome
    assert words in claim(decision, "not_worse").statement


@pytest.mark.parametrize(
    ("options", "verdict", "words"),
    [
        ({"passed": False}, Verdict.REFUTED, "the safety gate blocked it: pole_stays_up is refuted: it falls"),
        ({"waiver_expires": "2026-11-19"}, Verdict.REFUTED, "the waiver of pole_stays_up by Ada expired on 2026-11-19"),
        ({"waiver_expires": "2026-11-20"}, Verdict.PROVED, "the safety gate passed"),
        ({"rechecked": {"finiteness": Verdict.UNDECIDED}}, Verdict.REFUTED, "do not hold on the exported graph"),
        (
            {"optional": Verdict.UNDECIDED, "rechecked": {"robustness": Verdict.REFUTED}},
            Verdict.PROVED,
            "the safety gate passed",
        ),
        (
            {"optional": Verdict.SUPPORTED, "rechecked": {"robustness": Verdict.REFUTED}},
            Verdict.REFUTED,
            "claims do not hold on the exported graph: robustness",
        ),
    ],
)
def test_the_safety_case_counts(
    ready_home: Path, tmp_path: Path, options: dict[str, Any], verdict: Verdict, words: str
) -> None:
    decision = Versions(tmp_path, None, options).decide()
    found = claim(decision, "gate_passed")
    assert (found.verdict, words in found.statement) == (verdict, True)
    assert decision.decision == ("promoted" if verdict is Verdict.PROVED else "refused")


def test_a_case_signed_by_a_stranger_is_refused(first: Versions, ready_home: Path) -> None:
    for key in (ready_home / "keys").glob("*"):
        key.unlink()
    decision = first.decide()
    assert decision.decision == "refused"
    assert "not among the 0 trusted keys" in decision.reasons[0]


def test_a_broken_chain_of_cases_is_refused(equals: Equals) -> None:
    assert equals.champion is not None
    equals.registry.set_tag(equals.champion, "loomrl.envelope_sha256", "0" * 64)
    assert "chain of cases is broken" in equals.decide().reasons[0]


def test_shadow_counts(equals: Equals) -> None:
    missing = equals.decide(shadow=None)
    assert (missing.decision, "never in shadow" in missing.reasons[0]) == ("refused", True)
    broken = equals.decide(shadow=shadow_report("2", "1", passed=False))
    assert broken.reasons == ["shadow refused it: would-be violations 0.3, limit 0.01"]
    other = equals.decide(shadow=shadow_report("2", "7"))
    assert "beside champion 7, but the champion is 1 now" in other.reasons[0]
    few = equals.decide(shadow=shadow_report("2", "1", num_decisions=99))
    assert few.reasons == ["99 decisions in shadow, at least 100 are demanded"]


def test_what_follows_disagreements_is_demanded(equals: Equals) -> None:
    report = shadow_report("2", "1")
    unseen = report.model_copy(update={"consequences": None})
    assert equals.decide(shadow=report).decision == "promoted"
    decision = equals.decide(shadow=unseen)
    assert decision.decision == "refused"
    assert "was not examined" in " ".join(decision.reasons)
    assert equals.decide(shadow=unseen, by_hand="Ada").decision == "promoted", "a person may accept an old report"
    refuted = [claim.model_copy(update={"verdict": Verdict.REFUTED}) for claim in report.claims]
    worse = report.model_copy(update={"claims": refuted})
    assert equals.decide(shadow=worse).decision == "refused"


@pytest.mark.parametrize(("low", "decision"), [(0.95, "promoted"), (0.94, "refused")])
def test_the_success_rate_counts_by_its_lower_bound(
    ready_home: Path, tmp_path: Path, low: float, decision: str
) -> None:
    rate = Interval(estimate=0.98, low=low, high=1, confidence=0.95, method="clopper-pearson")
    versions = Versions(tmp_path, None, {"success_rate": rate})
    assert versions.decide({"min_success_rate": 0.95}).decision == decision


def test_a_success_rate_that_does_not_exist_is_no_success(first: Versions) -> None:
    decision = first.decide({"min_success_rate": 0.5})
    assert (decision.decision, "success is not defined" in decision.reasons[0]) == ("refused", True)


def test_approval_waits_then_counts(first: Versions) -> None:
    human = {"approval": "human"}
    assert first.decide(human).decision == "waiting"
    approved = first.decide(human, approval=PersonApproval(True, "Ada", "looks good"))
    assert (approved.decision, approved.approved_by) == ("promoted", "Ada")
    rejected = first.decide(human, approval=PersonApproval(False, "Ada", "too soon"))
    assert (rejected.decision, rejected.reasons) == ("refused", ["rejected by Ada: too soon"])
    assert rejected.approved_by is None


def test_a_champion_needs_no_new_approval(equals: Equals) -> None:
    equals.registry.set_aliases("cartpole", {CHAMPION: "2"})
    decision = equals.decide({"approval": "human"})
    assert (decision.decision, decision.approved_by) == ("unchanged", None)


def test_a_champion_that_meets_a_rule_no_longer_is_refused(ready_home: Path, tmp_path: Path) -> None:
    versions = Versions(tmp_path, {}, {"waiver_expires": "2026-11-20"})
    versions.registry.set_aliases("cartpole", {CHAMPION: "2"})
    assert versions.decide().decision == "unchanged"
    decision = versions.decide(today=date(2026, 11, 21))
    assert (decision.decision, "run out" in decision.reasons[0]) == ("refused", True)


def test_a_champion_signed_by_a_stranger_is_nothing_to_compare_with(
    equals: Equals, loomrl_home: Path, tmp_path: Path
) -> None:
    for key in (loomrl_home / "keys").glob("*"):
        key.unlink()
    third = register(tmp_path, "run-3", equals.registry, bias=3.0)
    decision = reviewing.review(equals.registry, config(), third, shadow_report("3", "1"))
    found = claim(decision, "not_worse")
    assert (decision.decision, found.verdict) == ("refused", Verdict.UNDECIDED)
    assert "the champion's episodes cannot be trusted: the envelope is signed by" in found.statement


@pytest.mark.parametrize(
    ("champion", "challenger", "words"),
    [
        (40, 2, "no episode on 38 of the champion's 40 seeds (first: 1000002); set `evaluation.first_seed: 1000000`"),
        (29, 40, "evaluated in 29 episodes, a comparison needs 30"),
    ],
)
def test_few_episodes_show_nothing(
    ready_home: Path, tmp_path: Path, champion: int, challenger: int, words: str
) -> None:
    versions = Versions(tmp_path, {"returns": [500.0] * champion}, {"returns": [500.0] * challenger})
    decision = versions.decide()
    assert (decision.decision, claim(decision, "not_worse").verdict) == ("refused", Verdict.UNDECIDED)
    assert words in decision.reasons[0]


def test_a_broken_rule_refuses_before_anybody_is_asked(first: Versions) -> None:
    assert first.decide({"approval": "human"}, shadow=None).decision == "refused"


def test_what_was_rolled_back_returns_only_by_hand(first: Versions) -> None:
    first.registry.set_tag(first.challenger, ROLLED_BACK, "it oscillates, by Ada")
    decision = first.decide()
    assert (decision.decision, "it oscillates, by Ada" in decision.reasons[0]) == ("refused", True)
    assert first.decide(by_hand="Ada").decision == "promoted"


def test_the_champion_itself_stays(equals: Equals) -> None:
    equals.registry.set_aliases("cartpole", {CHAMPION: "2"})
    decision = equals.decide(shadow=shadow_report("2", None))
    assert (decision.decision, decision.reasons[0]) == ("unchanged", "version 2 is the champion already")


def test_the_inputs_digest_covers_what_a_decision_rests_on(equals: Equals) -> None:
    challenger, champion = equals.challenger, equals.champion
    base = inputs_digest(config(), challenger, champion)
    assert inputs_digest(config(approval_timeout_seconds=1), challenger, champion) == base, "waiting is no rule"
    assert champion is not None
    others = {
        "rules": inputs_digest(config(confidence=0.9), challenger, champion),
        "champion": inputs_digest(config(), challenger, None),
        "policy": inputs_digest(config(), champion, champion),
        "rollback": inputs_digest(
            config(), challenger.model_copy(update={"tags": {**challenger.tags, ROLLED_BACK: "x"}}), champion
        ),
    }
    assert len({base, *others.values()}) == 5, others


def test_a_tampered_champion_stops_the_comparison(equals: Equals) -> None:
    assert equals.champion is not None
    (Path(equals.champion.source) / "policy.onnx").write_bytes(graph(8.0))
    with pytest.raises(ArtifactError, match="cartpole@1"):
        equals.decide()


# --- attempts ---


def _attempt(number: int) -> GateAttempt:
    return GateAttempt(
        policy="cartpole",
        policy_digest=sha256(b"weights 0.0"),
        snapshot_digest=SNAPSHOT,
        settings_digest="",
        confidence=0.95,
        number=number,
        num_promotions=0,
        run_id="run-2",
        created="2026-11-20T00:00:00+00:00",
        previous=None,
    )


@pytest.mark.parametrize(("number", "outcome"), [(1, "promoted"), (2, "refused")])
def test_the_gates_claims_are_held_to_the_level_of_their_attempt(
    ready_home: Path, tmp_path: Path, number: int, outcome: str
) -> None:
    versions = Versions(tmp_path, None, {"p_value": 0.01, "attempt": _attempt(number)})
    decision = versions.decide()
    assert decision.decision == outcome, decision.reasons
    statement = claim(decision, "gate_passed").statement
    if outcome == "promoted":
        assert "attempt 1 since the last promotion, each claim held to an error of 0.025" in statement
    else:
        assert "attempt 2 since the last promotion is held to a share 1/6 of the error" in statement
        assert "pole_stays_up may be wrong with probability 0.01; attempt 3 is held to 0.00417" in statement


def test_another_policys_attempt_is_not_taken(tmp_path: Path, ready_home: Path) -> None:
    other = _attempt(1).model_copy(update={"policy_digest": sha256(b"another")})
    with pytest.raises(ArtifactError, match="the attempt's policy"):
        Versions(tmp_path, None, {"attempt": other})
