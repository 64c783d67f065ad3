"""Stage 1: the environment's snapshot, taken again when the environment drifted, and put on record."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from loomrl.environment.snapshots.snapshot import load_snapshot
from loomrl.environment.snapshots.store import store_snapshot
from loomrl.runs.verify_snapshot import verify_snapshot
from loomrl.safety.gate import check_limits
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.run_record import read_run
from loomrl.system.home import project_root
from tasks.record import project_folders, recorded, run_config
from tasks.reproduce import reproduce
from tasks.say import say


@task(name="environment", cache_policy=NO_CACHE)
def environment(run_id: str) -> None:
    """Snapshot the environment; the same digest as before where nothing changed."""
    folder = project_folders(run_id)["environment"]
    with recorded(run_id, "environment") as entry:
        reproduce(run_id, "environment", entry)
        if entry.status != "ran" and _drifted(run_id):
            reproduce(run_id, "environment", entry, force=True)
        snapshot = load_snapshot(folder)
        entry.verdict = f"{snapshot.spec.name} {snapshot.spec.version}, snapshot {snapshot.digest[:12]}"
        check_limits(run_config(run_id).safety, folder)
        store_snapshot(folder)
        with LoomDB.open() as db:
            db.link(f"run:{run_id}", "used", f"snapshot:{snapshot.digest}")


def _drifted(run_id: str) -> bool:
    """Whether the environment on this machine is no longer the one in the snapshot.

    DVC sees the config and our own code; what else an environment is made of lies outside the project.
    """
    report = verify_snapshot(project_folders(run_id)["environment"], project_root())
    for remark in report.remarks:
        say(remark)
    if not report.unchanged:
        changed = ", ".join(report.changed)
        say(f"the environment of {read_run(run_id).policy} drifted ({changed}): a new snapshot is taken")
    return not report.unchanged
