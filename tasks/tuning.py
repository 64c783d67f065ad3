"""Tuning: trials as they come, one MLflow run for the whole search, a table at the end."""

import time
from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from loomrl.runs.stages import Folders
from loomrl.runs.tuning.search import Trial, TuningStudy, best
from loomrl.storage import registry
from loomrl.system.home import config_file, project_root
from tasks.say import say


@task(name="tuning", cache_policy=NO_CACHE)
def search(policy: str, num_trials: int | None) -> tuple[list[Trial], str]:
    """Search until there are `num_trials` trials (default: the config's); returns them and the best one's command."""
    found = TuningStudy(config_file(policy), Folders(project_root(), policy)["environment"])
    mlflow_run_id = registry.find_run(policy, found.name) or registry.start_run(policy, found.name, {"kind": "tuning"})
    for trial in found.run(num_trials or found.tuning.num_trials):
        outcome = f"mean best validation return {trial.score:.6g}" if trial.score is not None else trial.problem
        say(f"trial {trial.number}: {outcome}")
        log(mlflow_run_id, trial)
    trials = found.trials()
    winner = best(trials)
    create_table_artifact(
        trial_rows(trials), key=f"tuning-{policy}".replace("_", "-"), description=found.command(winner.settings)
    )
    registry.finish_run(mlflow_run_id)
    return trials, found.command(winner.settings)


def log(mlflow_run_id: str, trial: Trial) -> None:
    """Score and numeric settings of a trial, its number as the step."""
    values = {"score": trial.score, **trial.settings}
    now = int(time.time() * 1_000)
    rows = [
        (f"tuning/{key}", value, trial.number, now) for key, value in values.items() if isinstance(value, int | float)
    ]
    registry.log_metrics_batch(mlflow_run_id, rows)


def trial_rows(trials: list[Trial]) -> list[dict[str, Any]]:
    """Trials as rows of a table, the best first."""
    ordered = sorted(trials, key=lambda trial: (trial.score is None, -(trial.score or 0.0), trial.number))
    return [
        {"trial": trial.number, "score": "failed" if trial.score is None else trial.score, **trial.settings}
        for trial in ordered
    ]
