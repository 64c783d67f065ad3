"""Bring together what a decision rests on, and find decisions that were taken on the same inputs before."""

import tempfile
from datetime import date
from pathlib import Path

from loomrl.config import PolicyConfig
from loomrl.errors import ArtifactError
from loomrl.promotion import envelope
from loomrl.promotion.rules import (
    PROMOTED,
    REFUSED,
    UNCHANGED,
    Approval,
    Inputs,
    decide,
    inputs_digest,
)
from loomrl.registry import CHAMPION, PolicyVersion, Registry
from loomrl.runs import RunRecord, list_runs
from loomrl.types import PromotionDecision, ShadowReport


def review(
    registry: Registry,
    config: PolicyConfig,
    version: PolicyVersion,
    shadow: ShadowReport | None,
    approval: Approval | None = None,
    by_hand: str | None = None,
    today: date | None = None,
) -> PromotionDecision:
    """Fetch and verify version and champion, check the chain of cases, and decide; changes nothing.

    Raises:
        ArtifactError: when a version's files are not what was registered.
        ServiceError: when the registry cannot be reached.
    """
    champion = registry.get(version.policy, CHAMPION)
    with tempfile.TemporaryDirectory(prefix="loomrl-review-") as temporary:
        folder = registry.download(version, Path(temporary) / f"version-{version.version}")
        champion_folder = (
            registry.download(champion, Path(temporary) / f"champion-{champion.version}") if champion else None
        )
        return decide(
            Inputs(
                config=config,
                version=version,
                folder=folder,
                champion=champion,
                champion_folder=champion_folder,
                shadow=shadow,
                approval=approval,
                by_hand=by_hand,
                today=today,
                chain_problem=_chain_problem(registry, version.policy, folder),
            )
        )


def _chain_problem(registry: Registry, policy: str, folder: Path) -> str | None:
    """Why the signed case does not follow the one before it; the gate's rule turns it into a refusal."""
    try:
        statement, _ = envelope.verify(folder)
        envelope.check_chain(registry, policy, statement)
    except ArtifactError as error:
        return str(error)
    return None


def find_recorded_decision(policy: str, digest: str) -> RunRecord | None:
    """The newest run that promoted or refused on these very inputs; None when there is none."""
    for record in list_runs(policy):
        decision = record.decision
        if decision and decision.inputs_digest == digest and decision.decision in (PROMOTED, REFUSED):
            return record
    return None


def recorded(registry: Registry, config: PolicyConfig, version: PolicyVersion) -> RunRecord | None:
    """The run whose shadow report and decision hold for this version today too; None when it must be looked at anew."""
    version = registry.require(version.policy, version.version)  # its tags may have moved on since it was registered
    champion = registry.get(version.policy, CHAMPION)
    return find_recorded_decision(version.policy, inputs_digest(config, version, champion))


def repeat(registry: Registry, record: RunRecord) -> PromotionDecision:
    """A recorded decision, as the decision of a new run: `unchanged` where the version is champion already."""
    assert record.decision is not None
    decision = record.decision
    champion = registry.aliases(record.policy).get(CHAMPION)
    reasons = [f"nothing changed since run {record.run_id} decided", *decision.reasons]
    if champion == decision.version:
        return decision.model_copy(
            update={"decision": UNCHANGED, "champion_before": champion, "reasons": reasons, "approved_by": None}
        )
    return decision.model_copy(update={"reasons": reasons})
