"""Stage 4: the Prism gate. A blocked case ends well here: `export` refuses it, and the evidence stays."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from loomrl.promotion.attempts import record_attempt
from loomrl.safety.case.tally import tally
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import Registry
from loomrl.storage.run_record import read_run
from loomrl.types import SafetyCase
from tasks.record import project_folders, recorded, run_config
from tasks.reproduce import reproduce


@task(name="safety", cache_policy=NO_CACHE)
def safety(run_id: str) -> None:
    """Examine every claim and write the safety case."""
    with recorded(run_id, "safety") as entry:
        reproduce(run_id, "safety", entry)
        case = SafetyCase.read(project_folders(run_id)["safety"] / "case.json")
        gate = "passed" if case.decision.passed else f"blocked by {', '.join(case.decision.blocking)}"
        attempt = _recorded(run_id, case)
        entry.verdict = f"{tally(case.claims)}, {gate}; {attempt}"


def _recorded(run_id: str, case: SafetyCase) -> str:
    """Put the attempt on record, whether it passed or not; says which it is."""
    policy, settings = read_run(run_id).policy, run_config(run_id).safety
    with LoomDB.open() as db:
        return record_attempt(db, policy, case, settings, run_id, Registry().versions(policy)).sentence()
