"""Promotion and rollback as a person asks for them on the command line."""

import subprocess
import sys
from pathlib import Path

from loomrl.errors import ConfigError
from loomrl.promotion import promote
from loomrl.promotion.promote import PromotionOutcome
from loomrl.promotion.review import review
from loomrl.promotion.rules import WAITING, PersonApproval
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION, PolicyVersion, Registry
from loomrl.storage.run_record import list_runs, new_run_id
from loomrl.system.home import config_file, project_root
from loomrl.types import PromotionDecision, ShadowReport

BY_HAND = "promotion by hand"  # the event of a decision that a person asked for


def promote_by_hand(
    policy: str, reference: str, person: str | None, reason: str, registry: Registry | None = None
) -> tuple[PromotionDecision, PromotionOutcome]:
    """Apply the rules in force to a version and carry the decision out; returns both, also where the decision is a
    refusal.

    A named person's wish counts as the approval a config asks for, and brings back what was rolled back; every other
    rule holds. Without a name a rule that needs a person refuses.

    Raises:
        ConfigError: when the version does not exist, or its rules are known neither from the project nor from a run
            here.
        GateRefused: when the champion or the version's files changed since they were judged.
        ArtifactError: when a version's files, or audit logs that a rule demands, are not what was written.
        ServiceError: when the registry or LoomDB cannot be reached, or somebody else moves the policy's aliases.
    """
    registry, db = registry or Registry(), LoomDB.open()
    with promote.exclusive(policy):
        promote.settle(policy, registry, db)
        version = registry.require(policy, reference)
        approval = PersonApproval(True, person, reason) if person else None
        shadow = _shadow_of(registry, version)
        decision = review(registry, _rules_in_force(version), version, shadow, approval, by_hand=person)
        if decision.decision == WAITING:
            reasons = [*decision.reasons, "name yourself with --by NAME"]
            decision = decision.model_copy(update={"decision": "refused", "reasons": reasons})
        run_id = f"by-hand-{new_run_id()}"
        db.record_event(BY_HAND, {"run_id": run_id, "person": person, "decision": decision.to_json()})
        return decision, promote.apply(decision, run_id, registry, db)


def project_with_flows() -> Path | None:
    """The project around the working folder, if it has a rollback flow; else None."""
    try:
        root = project_root()
    except ConfigError:
        return None
    return root if (root / "flows" / "rollback.py").is_file() else None


def run_rollback_flow(project: Path, policy: str, reason: str, person: str, to: str | None) -> int:
    """Run the rollback flow of a project in a process of its own, and wait for it; returns its exit code, 0 when it is
    done."""
    command = [sys.executable, "-m", "flows.rollback", policy, "--reason", reason, "--by", person]
    return subprocess.run([*command, *(["--to", to] if to else [])], cwd=project, check=False).returncode


def _rules_in_force(version: PolicyVersion) -> PolicyConfig:
    """The project's config as it stands; outside a project, the one the version was made with."""
    try:
        path = config_file(version.policy)
    except ConfigError:
        path = None
    if path is not None and path.is_file():
        return load_config(path)
    for record in list_runs(version.policy):
        if version.version == record.version:
            return PolicyConfig.model_validate(record.config)
    raise ConfigError(
        f"no rules for {version.policy}@{version.version}: run this inside the project that has its config, or on the "
        "machine that has its run"
    )


def _shadow_of(registry: Registry, version: PolicyVersion) -> ShadowReport | None:
    """The newest shadow report about a version, one beside today's champion first."""
    champion = registry.aliases(version.policy).get(CHAMPION)
    reports = [
        record.shadow
        for record in list_runs(version.policy)
        if record.shadow and record.shadow.challenger_version == version.version
    ]
    beside = [report for report in reports if report.champion_version == champion]
    return next(iter([*beside, *reports]), None)
