"""The rules a challenger must meet to become champion, and the decision they add up to.

Every rule yields a claim. A mandatory claim that is refuted or undecided refuses the challenger; only a pending
approval, with every other rule met, makes it wait instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from loomrl.errors import ArtifactError
from loomrl.promotion import envelope
from loomrl.promotion.comparison.config import ComparisonConfig
from loomrl.promotion.comparison.live import COST, REWARD, Difference, LiveComparison
from loomrl.promotion.comparison.off_policy.report import OffPolicyReport
from loomrl.promotion.comparison.returns import compare, worst_pair
from loomrl.promotion.config import PromotionConfig
from loomrl.promotion.envelope import EVALUATION
from loomrl.promotion.scope import label_of, scope_of
from loomrl.runs.config import PolicyConfig
from loomrl.safety.case.decision import MET
from loomrl.safety.case.standing import explain_lapsed, failed_on_graph, lapsed
from loomrl.safety.case.tally import tally
from loomrl.shadow.following import PREFIX, losing_pair, with_command
from loomrl.statistics.paired_returns import judge_margin
from loomrl.statistics.spending import short_of
from loomrl.storage.registry import PolicyVersion
from loomrl.system.files import canonical_json, sha256
from loomrl.types import (
    Bound,
    Claim,
    Counterexample,
    EvaluationReport,
    PolicyManifest,
    PromotionDecision,
    ShadowReport,
    Verdict,
)

STAGE = "promotion"
PROMOTED, REFUSED, WAITING, UNCHANGED = "promoted", "refused", "waiting", "unchanged"

PROMOTED_OVER = "loomrl.promoted_over"  # on a version: the content digest of the champion it replaced, or "none"
ROLLED_BACK = "loomrl.rolled_back"  # on a version: why it was taken back, and by whom


@dataclass(frozen=True)
class PersonApproval:
    """What a person decided; `approved` is None while nobody has."""

    approved: bool | None
    person: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Inputs:
    """Everything a decision rests on. `folder`s are verified downloads of the versions; the champion is None before the
    first.

    `by_hand` is the person who promotes by hand, `chain_problem` why the case does not follow the one before it.
    `comparison` and `off_policy` are there where the config demands them. `one_environment` says why the snapshots of
    version and champion are of one environment, where they are two.
    """

    config: PolicyConfig
    version: PolicyVersion
    folder: Path
    champion: PolicyVersion | None
    champion_folder: Path | None
    shadow: ShadowReport | None
    approval: PersonApproval | None = None
    by_hand: str | None = None  # the person who promotes by hand
    today: date | None = None
    chain_problem: str | None = None  # why the case does not follow the one before it
    comparison: LiveComparison | None = None  # with the champion; read where the config demands it
    off_policy: OffPolicyReport | None = None
    one_environment: str | None = None  # why the snapshots of version and champion are of one, where they are two


@dataclass(frozen=True)
class RuleResult:
    """What a rule says: the claim that gets the rule's name as its id, in the fields of `Claim`."""

    statement: str
    verdict: Verdict
    method: str
    mandatory: bool = True
    bound: Bound | None = None
    confidence: float | None = None
    num_samples: int | None = None
    counterexample: Counterexample | None = None


Rule = Callable[[Inputs], RuleResult]


def decide(inputs: Inputs) -> PromotionDecision:
    """The decision on a version by every rule; nothing is changed by it.

    What cannot be trusted or compared is a claim that is not met. An error is raised only where a file that was
    verified cannot be read: ArtifactError.
    """
    about = inputs.version.policy, inputs.version.version
    claims = [with_command(_judged(rule, inputs), *about) for rule in RULES]
    blocking = [claim for claim in claims if claim.mandatory and claim.verdict not in MET]
    return PromotionDecision(
        policy=inputs.version.policy,
        version=inputs.version.version,
        champion_before=inputs.champion.version if inputs.champion else None,
        decision=_outcome(inputs, blocking),
        reasons=_reasons(inputs, claims, blocking),
        rules=claims,
        inputs_digest=inputs_digest(inputs.config, inputs.version, inputs.champion),
        approved_by=inputs.approval.person if inputs.approval and inputs.approval.approved else None,
        sums_sha256=inputs.version.sums_sha256,
    )


def _judged(rule: Rule, inputs: Inputs) -> Claim:
    """What a rule claims, with what that rests on."""
    claim = Claim(id=rule.__name__, stage=STAGE, **vars(rule(inputs)))
    return claim.model_copy(update={**scope_of(claim)._asdict(), "label": label_of(claim)})


def inputs_digest(config: PolicyConfig, version: PolicyVersion, champion: PolicyVersion | None) -> str:
    """SHA-256, in hex digits, over policy, champion, rules, shadow settings and, through the manifest, snapshot and
    safety case.

    A version that is champion already is judged against the champion it replaced, so that running the same life cycle
    again finds the decision that made it champion. A rollback changes the digest: what was taken back is never
    repeated.
    """
    if is_champion(version, champion):
        against = version.tags.get(PROMOTED_OVER, "none")
    else:
        against = champion.digest if champion else "none"
    rules = config.promotion.model_dump(mode="json", exclude={"approval_timeout_seconds"})
    document = {
        "policy": config.name,
        "version": version.digest,
        "champion": against,
        "rules": rules,
        "shadow": config.shadow.model_dump(mode="json", exclude={"server", "wait_seconds"}),
        "rolled_back": version.tags.get(ROLLED_BACK),
    }
    return sha256(canonical_json(document))


def is_champion(version: PolicyVersion, champion: PolicyVersion | None) -> bool:
    """Whether the version judged is the one that acts already."""
    return champion is not None and champion.version == version.version


def _outcome(inputs: Inputs, blocking: Sequence[Claim]) -> str:
    """What blocks comes first: a champion that meets the rules no longer is not `unchanged`."""
    if not blocking:
        return UNCHANGED if is_champion(inputs.version, inputs.champion) else PROMOTED
    awaits_approval = all(claim.id == "approval" and claim.verdict is Verdict.UNDECIDED for claim in blocking)
    return WAITING if awaits_approval else REFUSED


def _reasons(inputs: Inputs, claims: Sequence[Claim], blocking: Sequence[Claim]) -> list[str]:
    shown = blocking or claims
    reasons = [claim.statement for claim in shown]
    if _outcome(inputs, blocking) == UNCHANGED:
        return [f"version {inputs.version.version} is the champion already", *reasons]
    return reasons


# --- the rules --------------------------------------------------------------------------------------------------


def gate_passed(inputs: Inputs) -> RuleResult:
    """The rule that the safety case passed, is signed, belongs to this very graph, and no waiver in it has run out.

    It is PROVED, or REFUTED with the reason, also where files are missing or were changed.
    """
    method = "envelope signature, SHA-256 of case, graph, manifest and parity"
    try:
        statement, case = envelope.verify(inputs.folder)
    except ArtifactError as error:
        return RuleResult(f"the safety case cannot be trusted: {error}", Verdict.REFUTED, method)
    expired = lapsed(case, inputs.today or datetime.now(UTC).date())
    unmet = failed_on_graph(case, statement.rechecked_claims)
    if inputs.chain_problem:
        problem = f"the safety case cannot be trusted: {inputs.chain_problem}"
    elif not case.decision.passed:
        problem = f"the safety gate blocked it: {case.decision.reason}"
    elif expired:
        problem = f"the safety case rests on waivers that have run out: {'; '.join(map(explain_lapsed, expired))}"
    elif unmet:
        problem = f"claims do not hold on the exported graph: {', '.join(unmet)}"
    elif statement.attempt is not None and (short := short_of(case, statement.attempt.number)):
        problem = (
            f"attempt {statement.attempt.number} since the last promotion is held to a share "
            f"1/{statement.attempt.number * (statement.attempt.number + 1)} of the error, which claims do not reach: "
            f"{'; '.join(short)}; raise safety.num_episodes"
        )
    elif not statement.parity.passed:
        problem = "the exported graph does not act like the trained network"
    else:
        met = f"the safety gate passed, signed for this graph: {tally(case.claims)}"
        if statement.attempt is not None:
            met += f"; {statement.attempt.sentence()}"
        return RuleResult(met, Verdict.PROVED, method)
    return RuleResult(problem, Verdict.REFUTED, method)


def not_worse(inputs: Inputs) -> RuleResult:
    """The rule that the challenger is not worse than the champion on the same seeds: see
    `loomrl.statistics.paired_returns`.

    It is PROVED without another champion, and UNDECIDED where the two cannot be compared.

    Raises:
        ArtifactError: when episodes of either are missing or not finite.
    """
    is_ranged = inputs.config.promotion.return_range is not None
    method = f"one-sided paired {'bounds by betting' if is_ranged else 't-test'} of non-inferiority on the same seeds"
    mandatory = inputs.config.promotion.require_not_worse
    if alone := _alone(inputs):
        return RuleResult(alone, Verdict.PROVED, method, mandatory)
    folder, champion_folder = inputs.folder, inputs.champion_folder
    assert champion_folder is not None, "a champion comes with its files"
    own, champions = (PolicyManifest.read(one / envelope.MANIFEST).snapshot_digest for one in (folder, champion_folder))
    if own != champions and inputs.one_environment is None:
        incomparable = (
            f"the champion was evaluated in snapshot {champions[:12]}, the challenger in {own[:12]}: their returns "
            "cannot be compared; set `promotion.require_not_worse: false` for the change of environment, with "
            "`approval: human`"
        )
        return RuleResult(incomparable, Verdict.UNDECIDED, method, mandatory)
    try:
        envelope.verify(champion_folder)
    except ArtifactError as error:
        untrusted = f"the champion's episodes cannot be trusted: {error}"
        return RuleResult(untrusted, Verdict.UNDECIDED, method, mandatory)
    comparison = compare(folder, champion_folder, inputs.config.promotion)
    if isinstance(comparison, str):
        return RuleResult(comparison, Verdict.UNDECIDED, method, mandatory)
    sentence = comparison.sentence()
    if inputs.one_environment is not None:
        sentence += f"; their snapshots are of one environment, under {inputs.one_environment}"
    return RuleResult(
        sentence,
        comparison.verdict,
        method,
        mandatory,
        bound=Bound(
            kind=f"paired {'betting' if is_ranged else 't'} lower",
            measured=comparison.low,
            limit=-comparison.margin,
            unit="return",
        ),
        confidence=comparison.confidence,
        num_samples=comparison.num_pairs,
        counterexample=None if comparison.verdict is Verdict.SUPPORTED else _worst_loss(inputs, comparison.margin),
    )


def _worst_loss(inputs: Inputs, margin: float) -> Counterexample | None:
    """The pair of episodes in which the version loses most beside the champion; None where the margin allows it."""
    assert inputs.champion_folder is not None, "a champion comes with its files"
    seed, lost = worst_pair(inputs.folder, inputs.champion_folder)
    return losing_pair(seed, lost) if lost > margin else None


def concerns(report: ShadowReport, version: PolicyVersion, champion: PolicyVersion | None) -> bool:
    """Whether a shadow report says something about this version beside this champion.

    The champion itself was watched beside the one it replaced, or alone: either is about it.
    """
    beside = None if champion is None else champion.version
    about_it = report.challenger_version == version.version
    return about_it and (is_champion(version, champion) or report.champion_version == beside)


def shadow_passed(inputs: Inputs) -> RuleResult:
    """The rule that the shadow stage watched this version beside this champion, and every limit held.

    It is UNDECIDED without a report about the two.
    """
    method = "shadow report"
    report = inputs.shadow
    if report is None:
        missing = (
            f"version {inputs.version.version} was never in shadow; run `loomrl run configs/{inputs.config.name}.yaml`"
        )
        return RuleResult(missing, Verdict.UNDECIDED, method)
    if not concerns(report, inputs.version, inputs.champion):
        champion = inputs.champion.version if inputs.champion else None
        other = (
            f"the shadow report is about version {report.challenger_version} beside champion "
            f"{report.champion_version or 'none'}, but the champion is {champion or 'none'} now; "
            "run the life cycle again"
        )
        return RuleResult(other, Verdict.UNDECIDED, method)
    failed = [claim.statement for claim in report.claims if claim.mandatory and claim.verdict not in MET]
    if failed or not report.passed:
        detail = "; ".join(failed) or "the report says so"
        refused = f"shadow refused it: {detail}"
        return RuleResult(refused, Verdict.REFUTED, method, num_samples=report.num_decisions)
    met = f"shadow passed: {report.num_decisions} decisions in {report.num_episodes} episodes within every limit"
    return RuleResult(met, Verdict.SUPPORTED, method, num_samples=report.num_decisions)


def consequences(inputs: Inputs) -> RuleResult:
    """The rule that what follows where version and champion differ was examined, and kept the limits and the return.

    It is UNDECIDED where nothing was examined that supports a claim, or WAIVED where a person promotes by hand.
    """
    method, mandatory = "shadow report", inputs.config.shadow.consequences.mandatory
    found = inputs.shadow.consequences if inputs.shadow else None
    if found is None or not found.examined:
        why = found.why_not if found else "there is no shadow report with it"
        statement = f"what follows where version and champion differ was not examined: {why}"
        if not mandatory:
            statement += "; shadow.consequences.mandatory is false"
        elif inputs.by_hand and inputs.shadow:
            return RuleResult(f"{inputs.by_hand} promotes by hand, {statement}", Verdict.WAIVED, method)
        return RuleResult(statement, Verdict.UNDECIDED, method, mandatory)
    assert inputs.shadow is not None
    claims = [claim for claim in inputs.shadow.claims if claim.id.startswith(PREFIX)]
    counted = [claim for claim in claims if claim.verdict in MET]
    unmet = [claim for claim in claims if claim.mandatory and claim.verdict not in MET]
    if not counted and not unmet:
        alone = _alone(inputs)
        statement = f"of what follows nothing was examined that supports a claim{f': {alone}' if alone else ''}"
        return RuleResult(statement, Verdict.UNDECIDED, method, mandatory and alone is None)
    worst = Verdict.REFUTED if any(one.verdict is Verdict.REFUTED for one in unmet) else Verdict.UNDECIDED
    statement = "; ".join(f"{one.statement}: {one.finding}" for one in unmet or counted)
    return RuleResult(
        statement,
        worst if unmet else Verdict.SUPPORTED,
        method,
        mandatory,
        confidence=inputs.config.shadow.confidence,
        num_samples=found.num_episodes,
    )


def minimum_decisions(inputs: Inputs) -> RuleResult:
    """The rule that the shadow stage saw at least `shadow.min_decisions` decisions; UNDECIDED where it saw fewer, or
    there is no report."""
    needed = inputs.config.shadow.min_decisions
    if inputs.shadow is None:
        missing = f"there is no shadow report; at least {needed} decisions in shadow are demanded"
        return RuleResult(missing, Verdict.UNDECIDED, "count")
    seen = inputs.shadow.num_decisions
    verdict = Verdict.PROVED if seen >= needed else Verdict.UNDECIDED
    statement = f"{seen} decisions in shadow, at least {needed} are demanded"
    bound = Bound(kind="count", measured=seen, limit=needed, unit="decisions")
    return RuleResult(statement, verdict, "count", bound=bound, num_samples=seen)


def min_success_rate(inputs: Inputs) -> RuleResult:
    """The rule that the success rate's lower confidence bound reaches the configured minimum; not mandatory without
    one.

    Raises:
        ArtifactError: when the evaluation report is missing or torn.
    """
    needed = inputs.config.promotion.min_success_rate
    if needed is None:
        return RuleResult("no minimum success rate is configured", Verdict.PROVED, "config", False)
    report = EvaluationReport.read(inputs.folder / EVALUATION)
    rate = report.success_rate
    if rate is None:
        undefined = (
            "a minimum success rate is configured, but success is not defined; set `evaluation.success_return` or "
            "remove `promotion.min_success_rate`"
        )
        return RuleResult(undefined, Verdict.UNDECIDED, "evaluation report")
    verdict = Verdict.SUPPORTED if rate.low >= needed else Verdict.REFUTED
    statement = f"success rate {rate.estimate:.4g}, lower {rate.confidence:.0%} bound {rate.low:.4g}, needed {needed:g}"
    return RuleResult(
        statement,
        verdict,
        rate.method,
        bound=Bound(kind=f"{rate.method} lower", measured=rate.low, limit=needed),
        confidence=rate.confidence,
        num_samples=report.num_episodes,
    )


def compared_live(inputs: Inputs) -> RuleResult:
    """The rule that beside the champion in production the challenger earns no less, costs no more and breaks no limit
    more often, than the config allows: bounds that hold at every look.

    It is not mandatory where the config demands no comparison, and UNDECIDED where there is none, or nothing is
    claimed.
    """
    method = "agents of a split: confidence sequences of the mean differences, by betting"
    settings, found = inputs.config.promotion.comparison, inputs.comparison
    if settings is None:
        return RuleResult("no live comparison is demanded", Verdict.PROVED, method, False)
    if alone := _alone(inputs):
        return RuleResult(alone, Verdict.PROVED, method)
    if found is None:
        return RuleResult("the two were not compared live", Verdict.UNDECIDED, method)
    if found.refused:
        return RuleResult(f"nothing is claimed: {found.refused}", Verdict.UNDECIDED, method)
    allowed = [(one, _allowed(inputs.config.promotion, settings, one)) for one in found.differences]
    verdicts = [_verdict(one, margin) for one, margin in allowed]
    worst = next((v for v in (Verdict.REFUTED, Verdict.UNDECIDED) if v in verdicts), Verdict.SUPPORTED)
    return RuleResult(
        "; ".join(_difference_in_words(one, margin) for one, margin in allowed),
        worst,
        method,
        confidence=found.confidence,
        num_samples=min(one.num_agents for one in found.differences),
    )


def _alone(inputs: Inputs) -> str | None:
    """Why there is nothing to compare with; None where there is a champion other than the version."""
    if inputs.champion is None:
        return "there is no champion yet to compare with"
    return "the version is the champion itself" if is_champion(inputs.version, inputs.champion) else None


def _allowed(promotion: PromotionConfig, settings: ComparisonConfig, difference: Difference) -> float:
    """How much worse the challenger may be."""
    if difference.quantity == REWARD:
        mean = abs(difference.champion_mean or 0.0)
        return max(promotion.max_regression, promotion.max_regression_fraction * mean)
    return settings.max_cost_increase if difference.quantity == COST else settings.max_rate_increase


def _verdict(difference: Difference, margin: float) -> Verdict:
    low, high = difference.low, difference.high
    if difference.better == "lower":
        low, high = -high, -low
    verdict = judge_margin(low, high, margin)
    return Verdict.UNDECIDED if verdict is Verdict.SUPPORTED and difference.num_flattered else verdict


def _difference_in_words(difference: Difference, margin: float) -> str:
    sign = "-" if difference.better == "higher" else "+"
    told = (
        f"{difference.quantity} differs by {difference.low:+.4g} to {difference.high:+.4g} over "
        f"{difference.num_agents} agents, allowed {sign}{margin:.4g}"
    )
    if not difference.num_flattered:
        return told
    return (
        f"{told}; of {difference.num_flattered} agents the value lies beyond {difference.least:g} to "
        f"{difference.greatest:g}, where it counts in the challenger's favour: widen the range in promotion.comparison"
    )


def off_policy(inputs: Inputs) -> RuleResult:
    """The rule that by the champion's logged decisions the challenger would earn at least as much more as the config
    demands.

    It is not mandatory where the config demands no estimate.
    """
    method = "importance sampling per decision, bounds by betting"
    settings, found = inputs.config.promotion.off_policy, inputs.off_policy
    if settings is None:
        return RuleResult("no estimate from the log is demanded", Verdict.PROVED, method, False)
    if alone := _alone(inputs):
        return RuleResult(alone, Verdict.PROVED, method)
    if found is None:
        return RuleResult("nothing was estimated from the log", Verdict.UNDECIDED, method)
    if found.improvement is None:
        return RuleResult(f"the log does not tell: {found.refused}", Verdict.UNDECIDED, method)
    needed, gain = settings.min_improvement, found.improvement
    verdict = Verdict.UNDECIDED
    if gain.low is not None and gain.low >= needed:
        verdict = Verdict.SUPPORTED
    elif gain.high is not None and gain.high < needed:
        verdict = Verdict.REFUTED
    shown = "has no bound" if gain.low is None else f"lower {found.confidence:.0%} bound {gain.low:+.4g}"
    statement = f"by the champion's log it would earn {gain.value:+.4g} more, {shown}, needed {needed:+.4g}"
    return RuleResult(
        statement,
        verdict,
        method,
        bound=None if gain.low is None else Bound(kind="lower", measured=gain.low, limit=needed, unit="return"),
        confidence=found.confidence,
        num_samples=found.num_episodes,
    )


def not_rolled_back(inputs: Inputs) -> RuleResult:
    """The rule that what a person or a server's monitors took back returns only by hand: REFUTED for such a version,
    WAIVED where a person promotes."""
    reason = inputs.version.tags.get(ROLLED_BACK)
    if reason is None:
        return RuleResult("the version was never rolled back", Verdict.PROVED, "registry tag")
    if inputs.by_hand:
        back = f"{inputs.by_hand} promotes it by hand although it was rolled back ({reason})"
        return RuleResult(back, Verdict.WAIVED, "registry tag")
    statement = (
        f"the version was rolled back ({reason}); it returns only by "
        f"`loomrl policy promote {inputs.version.policy} {inputs.version.version} --by NAME`"
    )
    return RuleResult(statement, Verdict.REFUTED, "registry tag")


def approval(inputs: Inputs) -> RuleResult:
    """The rule that a person agreed, where the config asks for it; UNDECIDED while nobody has answered.

    They agree to a move: a champion that stays needs no new one.
    """
    if inputs.config.promotion.approval == "none":
        return RuleResult("no approval is demanded", Verdict.PROVED, "config", False)
    given = inputs.approval
    if given is None or given.approved is None:
        if is_champion(inputs.version, inputs.champion):
            return RuleResult("no move to approve: the version is champion", Verdict.PROVED, "a person")
        return RuleResult("waits for a person's approval", Verdict.UNDECIDED, "a person")
    reason = f": {given.reason}" if given.reason else ""
    if given.approved:
        return RuleResult(f"approved by {given.person}{reason}", Verdict.PROVED, "a person")
    return RuleResult(f"rejected by {given.person}{reason}", Verdict.REFUTED, "a person")


RULES: tuple[Rule, ...] = (
    gate_passed,
    not_worse,
    shadow_passed,
    consequences,
    minimum_decisions,
    min_success_rate,
    compared_live,
    off_policy,
    not_rolled_back,
    approval,
)
