"""Stage 3: evaluation on held-out seeds; Great Expectations' verdict on the data is a gate."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from loomrl.storage import registry
from loomrl.storage.run_record import read_run
from loomrl.types import EvaluationReport
from tasks.record import project_folders, recorded
from tasks.reproduce import reproduce


@task(name="evaluation", cache_policy=NO_CACHE)
def evaluation(run_id: str) -> None:
    """Evaluate; refuse when the data is not what the environment declares."""
    with recorded(run_id, "evaluation") as entry:
        reproduce(run_id, "evaluation", entry)
        report = EvaluationReport.read(project_folders(run_id)["evaluation"] / "evaluation.json")
        mean, iqm = report.mean_return, report.interquartile_mean_return
        entry.verdict = f"mean return {mean.estimate:.1f}, IQM {iqm.estimate:.1f} [{iqm.low:.1f}, {iqm.high:.1f}]"
        _log(run_id, report)


def _log(run_id: str, report: EvaluationReport) -> None:
    values = {
        "mean_return": report.mean_return.estimate,
        "interquartile_mean_return": report.interquartile_mean_return.estimate,
        "mean_length": report.mean_length,
    }
    if report.success_rate is not None:
        values["success_rate"] = report.success_rate.estimate
    registry.log_values(read_run(run_id).mlflow_run_id, {f"evaluation/{name}": value for name, value in values.items()})
