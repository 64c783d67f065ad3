"""Bring together what a decision rests on, and find the run whose shadow report still holds."""

import tempfile
from datetime import date
from pathlib import Path

from loomrl.environment.snapshots.releases import same_environment
from loomrl.errors import ArtifactError
from loomrl.promotion import envelope
from loomrl.promotion.comparison.compare import live_comparison, off_policy_estimate
from loomrl.promotion.comparison.live import LiveComparison
from loomrl.promotion.comparison.off_policy.report import OffPolicyReport
from loomrl.promotion.comparison.window import read_window
from loomrl.promotion.promote import champion_of
from loomrl.promotion.rules import (
    PROMOTED,
    REFUSED,
    UNCHANGED,
    WAITING,
    Inputs,
    PersonApproval,
    concerns,
    decide,
    inputs_digest,
    is_champion,
)
from loomrl.runs.config import PolicyConfig
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION, PolicyVersion, Registry
from loomrl.storage.registry.statements import check_registered
from loomrl.storage.run_record import RunRecord, list_runs
from loomrl.types import PolicyManifest, PromotionDecision, ShadowReport


def review(
    registry: Registry,
    config: PolicyConfig,
    version: PolicyVersion,
    shadow: ShadowReport | None,
    approval: PersonApproval | None = None,
    by_hand: str | None = None,
    today: date | None = None,
) -> PromotionDecision:
    """Fetch and verify version and champion, check the chain of cases, and decide; changes nothing.

    The reasons begin by naming the run that decided the same on the same inputs before, if there is one. `by_hand` is
    the person who promotes by hand; `today` is the day that waivers are held against, by default that in UTC.

    Raises:
        GateRefused: when the champion's alias is gone, and nobody promotes by hand.
        ConfigError: when the version is not registered, or logs that a rule demands cannot be read or contradict the
            config.
        ArtifactError: when a version's files, or audit logs that a rule demands, are not what was written.
        ServiceError: when the registry or LoomDB cannot be reached.
    """
    version = registry.require(version.policy, version.version)  # its tags may have moved on since it was registered
    # A person who promotes by hand may make a champion where the one that was is lost.
    champion = registry.get(version.policy, CHAMPION) if by_hand else champion_of(registry, version.policy)
    with tempfile.TemporaryDirectory(prefix="loomrl-review-") as temporary:
        folder = registry.download(version, Path(temporary) / f"version-{version.version}")
        champion_folder = (
            registry.download(champion, Path(temporary) / f"champion-{champion.version}") if champion else None
        )
        compared, estimated = _live_evidence(config, version, folder, champion, champion_folder)
        decision = decide(
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
                chain_problem=_chain_problem(registry, version, folder),
                comparison=compared,
                off_policy=estimated,
                one_environment=_one_environment(folder, champion_folder),
            )
        )
    earlier = recorded(registry, config, version)
    if earlier is None or not _repeats(decision, earlier.decision):
        return decision
    reasons = [f"nothing changed since run {earlier.run_id} decided", *decision.reasons]
    return decision.model_copy(update={"reasons": reasons})


def _one_environment(folder: Path, champion_folder: Path | None) -> str | None:
    """Why the snapshots of version and champion are of one environment, where they are two that LoomDB holds."""
    if champion_folder is None:
        return None
    digests = [PolicyManifest.read(one / envelope.MANIFEST).snapshot_digest for one in (champion_folder, folder)]
    if digests[0] == digests[1]:
        return None
    with LoomDB.open() as db:
        champion, challenger = (db.get_snapshot(digest) for digest in digests)
    return None if champion is None or challenger is None else same_environment(champion, challenger)


def _live_evidence(
    config: PolicyConfig,
    version: PolicyVersion,
    folder: Path,
    champion: PolicyVersion | None,
    champion_folder: Path | None,
) -> tuple[LiveComparison | None, OffPolicyReport | None]:
    """What the audit logs say about version and champion, as far as the config demands it."""
    promotion = config.promotion
    if champion is None or champion_folder is None or is_champion(version, champion):
        return None, None
    if promotion.comparison is None and promotion.off_policy is None:
        return None, None
    window, versions = read_window(config.name, {}, []), (champion.version, version.version)
    folders = champion_folder, folder
    compared = promotion.comparison and live_comparison(config, window, versions, champion_folder)
    estimated = promotion.off_policy and off_policy_estimate(config, window.episodes, versions, folders)
    return compared or None, estimated or None


def _chain_problem(registry: Registry, version: PolicyVersion, folder: Path) -> str | None:
    """Why the signed case is not this version's, or does not follow the one before it; the gate's rule turns it into a
    refusal."""
    try:
        check_registered(version, folder)
        statement, _ = envelope.verify(folder)
        envelope.check_chain(registry, version.policy, statement)
    except ArtifactError as error:
        return str(error)
    return None


def recorded(registry: Registry, config: PolicyConfig, version: PolicyVersion) -> RunRecord | None:
    """The newest run that decided on these very inputs and whose shadow report still holds; None when there is none.

    Only the report is reused; whether the version meets the rules is always examined anew. A report that refused, or
    that saw too little, is not reused either: what was wrong may have been mended.

    Raises:
        ConfigError: when the version is not registered.
        ArtifactError: when a run's record is torn.
        ServiceError: when the registry cannot be reached.
    """
    version = registry.require(version.policy, version.version)  # its tags may have moved on since it was registered
    champion = registry.get(version.policy, CHAMPION)
    digest = inputs_digest(config, version, champion)
    for record in list_runs(version.policy):
        decision, shadow = record.decision, record.shadow
        if (
            decision
            and decision.inputs_digest == digest
            and decision.decision != WAITING
            and shadow
            and shadow.passed
            and shadow.num_decisions >= config.shadow.min_decisions
            and concerns(shadow, version, champion)
        ):
            return record
    return None


def _repeats(decision: PromotionDecision, earlier: PromotionDecision | None) -> bool:
    """Whether a decision comes to the same as an earlier one: it acts or stays, or the same rules stand in the way."""
    if earlier is None:
        return False
    if decision.decision == REFUSED:
        verdicts = [[(claim.id, claim.verdict) for claim in one.rules] for one in (decision, earlier)]
        return earlier.decision == REFUSED and verdicts[0] == verdicts[1]
    kept = (PROMOTED, UNCHANGED)
    return decision.decision in kept and earlier.decision in kept
