"""Stage 4: the Prism gate. A blocked case ends well here: `export` refuses it, and the evidence stays."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from loomrl.safety.tally import tally
from loomrl.types import SafetyCase
from tasks.record import project_folders, recorded
from tasks.reproduce import reproduce


@task(name="safety", cache_policy=NO_CACHE)
def safety(run_id: str) -> None:
    """Examine every claim and write the safety case."""
    with recorded(run_id, "safety") as entry:
        reproduce(run_id, "safety", entry)
        case = SafetyCase.read(project_folders(run_id)["safety"] / "case.json")
        gate = "passed" if case.decision.passed else f"blocked by {', '.join(case.decision.blocking)}"
        entry.verdict = f"{tally(case.claims)}, {gate}"
