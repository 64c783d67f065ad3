"""Whether a case's claims let the policy pass the gate."""

from collections.abc import Sequence

from loomrl.safety.case.tally import tally
from loomrl.safety.check import MODEL_CHECKING, STATISTICAL
from loomrl.types import Claim, GateDecision, LabelKind, Verdict

_NEVER_FALSE = (LabelKind.CANNOT_BE_FALSE, LabelKind.NEVER_BROKEN)

BEHAVIOUR = (STATISTICAL, MODEL_CHECKING)  # stages that say what the policy does in its environment
MET = (Verdict.PROVED, Verdict.SUPPORTED, Verdict.WAIVED)


def decide(claims: Sequence[Claim]) -> GateDecision:
    """Whether a case's claims pass the gate: every mandatory claim is proved, supported or waived, and something is
    claimed about behaviour.

    A label changes nothing for a claim that is not met: it blocks all the same. One that cannot be false says nothing
    about behaviour. Where nothing that was tried, whoever acted, makes one of those false that do, the gate passes and
    the reason says so. The decision names the claims that block, and says why.
    """
    mandatory = [claim for claim in claims if claim.mandatory]
    blocking = [claim for claim in mandatory if claim.verdict not in MET]
    if not any(claim.stage in BEHAVIOUR and not _is_vacuous(claim) for claim in mandatory):
        reason = (
            "the gate is empty: no mandatory claim says how the policy behaves; declare safety.constraints, give "
            "safety.checks.minimum_return a threshold, or properties to safety.checks.model_checking"
        )
        if vacuous := ", ".join(claim.id for claim in mandatory if _is_vacuous(claim)):
            reason = f"{reason}; {vacuous} {'say' if ', ' in vacuous else 'says'} nothing: see why it is not counted"
        return GateDecision(passed=False, blocking=[claim.id for claim in blocking], reason=reason)
    if blocking:
        shown = "; ".join(f"{claim.id} is {claim.verdict}: {claim.finding}" for claim in blocking)
        return GateDecision(passed=False, blocking=[claim.id for claim in blocking], reason=shown)
    waived = sum(claim.verdict is Verdict.WAIVED for claim in mandatory)
    note = f", {waived} of them waived" if waived else ""
    labelled = any(claim.label for claim in mandatory)
    met = "every mandatory claim is met" if labelled else f"all {len(mandatory)} mandatory claims are met"
    count = f": of these {tally(mandatory)}" if labelled else ""
    behaviour = [claim.label for claim in mandatory if claim.stage in BEHAVIOUR]
    if all(label is not None and label.kind in _NEVER_FALSE for label in behaviour):
        count = (
            f"{count}; nothing that was tried, whoever acted, makes one of these claims false: about behaviour the "
            "gate may refuse nothing"
        )
    return GateDecision(passed=True, blocking=[], reason=f"{met}{note}{count}")


def _is_vacuous(claim: Claim) -> bool:
    return claim.label is not None and claim.label.kind is LabelKind.CANNOT_BE_FALSE
