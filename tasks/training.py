"""Stage 2: training; its curves go to MLflow while it runs."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from loomrl.types import TrainingReport
from tasks.record import project_folders, recorded
from tasks.reproduce import reproduce


@task(name="training", cache_policy=NO_CACHE)
def training(run_id: str) -> None:
    """Train, resuming from a checkpoint where an earlier run of the same inputs died."""
    with recorded(run_id, "training") as entry:
        reproduce(run_id, "training", entry)
        report = TrainingReport.read(project_folders(run_id)["training"] / "training.json")
        entry.verdict = f"{report.algorithm}, {report.total_env_steps:,} steps, stopped by {report.stop_reason}"
