"""Whether a safety case lets its policy be exported, judged from the claims themselves."""

from datetime import UTC, date, datetime
from pathlib import Path

from loomrl.algorithms.policies.policy import WEIGHTS
from loomrl.errors import ArtifactError, GateRefused
from loomrl.safety.case.decision import MET
from loomrl.safety.case.standing import explain_lapsed, lapsed
from loomrl.system.files import read_json, sha256_file
from loomrl.types import Claim, SafetyCase

CASE = "case.json"


def admit(safety_folder: Path, policy_folder: Path, snapshot_folder: Path, today: date | None = None) -> SafetyCase:
    """The case, when it is about this very policy and nothing in it blocks.

    Raises:
        ArtifactError: when the case is about another policy or environment, or a file cannot be read.
        GateRefused: naming each claim in the way with its measured bound, or the waiver that has expired.
    """
    case = SafetyCase.read(safety_folder / CASE)
    _check_subject(case, safety_folder / CASE, policy_folder, snapshot_folder)
    if not case.claims:
        raise GateRefused("the safety case holds no claim: an empty gate passes nothing; configure `safety`")
    blocking = [claim for claim in case.claims if claim.mandatory and claim.verdict not in MET]
    if blocking or not case.decision.passed:
        named = blocking or [claim for claim in case.claims if claim.id in case.decision.blocking]
        raise GateRefused(
            f"the safety case blocks the export: {'; '.join(map(_explain, named)) or case.decision.reason}"
        )
    if expired := lapsed(case, today or datetime.now(UTC).date()):
        raise GateRefused(f"the export is refused: {'; '.join(map(explain_lapsed, expired))}")
    return case


def _check_subject(case: SafetyCase, path: Path, policy_folder: Path, snapshot_folder: Path) -> None:
    weights = policy_folder / WEIGHTS
    if case.policy_digest != sha256_file(weights):
        raise ArtifactError(f"{path} is about another policy than {weights}; run the safety stage again")
    digest = read_json(snapshot_folder / "snapshot.json").get("digest")
    if case.snapshot_digest != digest:
        raise ArtifactError(f"{path} is about another environment snapshot than {digest}; run the safety stage again")


def _explain(claim: Claim) -> str:
    text = f"{claim.id} is {claim.verdict.value}"
    if claim.bound is not None:
        bound = claim.bound
        unit = f" {bound.unit}" if bound.unit else ""
        text += f" ({bound.kind} {bound.measured:.6g}{unit}, limit {bound.limit:.6g}{unit})"
    elif claim.finding:
        text += f" ({claim.finding})"
    return text
