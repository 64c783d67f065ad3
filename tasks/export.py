"""Stage 5: the exported policy becomes an immutable version in the registry, its signed envelope beside it."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from loomrl.promotion.attempts import ATTEMPT_TAG, GateAttempt, record_attempt
from loomrl.promotion.envelope import RunFacts, envelope_tags, previous_case
from loomrl.promotion.lineage import PLUGINS_TAG
from loomrl.promotion.package import build_package
from loomrl.safety.case.document import read_case
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.storage.registry.statements import state_serving
from loomrl.storage.run_record import now, read_run, run_folder
from loomrl.types import ParityReport, PolicyManifest
from tasks.record import StageEntry, dvc_hashes, project_folders, recorded, run_config, update
from tasks.reproduce import reproduce


@task(name="export", cache_policy=NO_CACHE)
def export(run_id: str) -> None:
    """Export, prove parity, register the version."""
    with recorded(run_id, "export") as entry:
        reproduce(run_id, "export", entry)
        version = _register(run_id, entry)
        parity = ParityReport.read(project_folders(run_id)["export"] / "parity.json")
        worst = max(parity.max_abs_difference.values())
        entry.verdict = (
            f"version {version.version}; parity over {parity.num_observations:,} observations: "
            f"{parity.action_mismatches} action mismatches, largest difference {worst:.1e}"
        )


def _register(run_id: str, entry: StageEntry) -> PolicyVersion:
    registry, record = Registry(), read_run(run_id)
    attempt = _attempt(run_id, record.policy, registry)
    facts = RunFacts(
        policy=record.policy,
        run_id=run_id,
        created=now(),
        git_commit=record.git_commit,
        git_dirty=record.git_dirty,
        stage_seconds={stage.name: stage.seconds for stage in record.stages},
        previous=previous_case(registry, record.policy),
        attempt=attempt,
    )
    plugins = sorted({node for stage in record.stages for node in stage.plugins} | set(entry.plugins))
    package = build_package(project_folders(run_id).root, run_folder(run_id) / "version", facts)
    manifest = PolicyManifest.read(package / "manifest.json")
    tags = {
        "git.commit": record.git_commit or "none",
        "git.dirty": str(record.git_dirty).lower(),
        "loomrl.policy_digest": manifest.policy_digest,
        "loomrl.snapshot_digest": manifest.snapshot_digest,
        **dvc_hashes({**{stage.name: stage.lock for stage in record.stages}, "export": entry.lock}),
        **envelope_tags(package),
        ATTEMPT_TAG: attempt.digest,
        **({PLUGINS_TAG: " ".join(plugins)} if plugins else {}),
    }
    version = registry.register(record.policy, package, run_id, tags)
    state_serving(registry, version, run_config(run_id).serving.model_dump(mode="json"))
    update(run_id, version=version.version)
    if version.run_id == run_id:
        _link(run_id, version, manifest, plugins)
    return version


def _attempt(run_id: str, policy: str, registry: Registry) -> GateAttempt:
    """Which attempt the case is; it is put on record where the safety stage ran without its task, by DVC alone."""
    case = read_case(project_folders(run_id)["safety"])
    with LoomDB.open() as db:
        return record_attempt(db, policy, case, run_config(run_id).safety, run_id, registry.versions(policy))


def _link(run_id: str, version: PolicyVersion, manifest: PolicyManifest, plugins: list[str]) -> None:
    name = f"policy:{version.policy}@{version.version}"
    with LoomDB.open() as db:
        db.link(f"run:{run_id}", "produced", name)
        db.link(name, "trained_in", f"snapshot:{manifest.snapshot_digest}")
        for node in plugins:
            db.link(name, "made_with", node)
