"""The end of a run: its report, its MLflow run; and the runs whose process died before they had one."""

from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from loomrl.runs.report.build import build_report
from loomrl.storage import registry
from loomrl.storage.run_record import RunRecord, is_alive, list_runs, now, run_folder
from loomrl.system.security.credentials import prefect_login
from tasks.record import dvc_hashes, run_folders, update
from tasks.say import say

DIED = "its process died"
MLFLOW_STATUS = {"failed": "FAILED", "refused": "FAILED", "crashed": "KILLED"}


def close(run_id: str, state: str, message: str) -> None:
    """Record a run's outcome and make it known."""
    _publish(update(run_id, state=state, finished=now(), message=message))


def _publish(record: RunRecord) -> None:
    """Build the report and bring MLflow up to date; a run counts as closed once both are done."""
    build_report(record.run_id, run_folder(record.run_id))
    if record.mlflow_run_id is not None:
        _log_to_mlflow(record, record.mlflow_run_id)
    update(record.run_id, closed=True)


def _log_to_mlflow(record: RunRecord, mlflow_run_id: str) -> None:
    folder = run_folder(record.run_id)
    for name in ("report.html", "report.json", "record.json", "dvc.lock", "config.yaml", "diff.patch"):
        if (folder / name).is_file():
            registry.log_artifacts(mlflow_run_id, folder / name, "run")
    for stage in ("environment", "training", "evaluation", "safety"):
        if run_folders(record.run_id)[stage].is_dir():
            registry.log_artifacts(mlflow_run_id, run_folders(record.run_id)[stage], stage)
    registry.set_tags(mlflow_run_id, _tags(record))
    registry.finish_run(mlflow_run_id, MLFLOW_STATUS.get(record.state, "FINISHED"))


def mark_crashed_runs() -> list[str]:
    """Give every run whose process is gone its true state, here, in MLflow and in Prefect; return their ids.

    A run that died while it waited for a person still waits: `loomrl policy approve|reject` finishes it.
    """
    dead = [record for record in list_runs() if not record.closed and not is_alive(record.run_id)]
    for record in dead:
        _close_dead(record)
    return [record.run_id for record in dead]


def _close_dead(record: RunRecord) -> None:
    if record.state == "running":
        record = update(record.run_id, state="crashed", finished=now(), message=DIED)
    if record.prefect_flow_run_id and not _crash_flow_run(record):
        return  # its Prefect server is away: the next run tries again
    _publish(record)


def _crash_flow_run(record: RunRecord) -> bool:
    """Tell the Prefect server the run was started on; False when it cannot be reached or does not let us in."""
    url = record.prefect_api_url
    try:
        with _prefect_client(url) as client:
            flow_run = client.read_flow_run(UUID(record.prefect_flow_run_id))
            if flow_run.state and not flow_run.state.is_final():
                client.set_flow_run_state(flow_run.id, Crashed(message=DIED), force=True)
    except ObjectNotFound:
        return True  # deleted there: nothing says "Running"
    except (httpx.TransportError, httpx.HTTPStatusError) as error:
        say(f"run {record.run_id} died and its Prefect server at {url} cannot be told: {error}")
        return False
    return True


def _prefect_client(url: str | None) -> SyncPrefectClient:
    """Of the server at a URL, else of the one that is configured."""
    return SyncPrefectClient(api=url, auth_string=prefect_login(url)) if url else get_client(sync_client=True)


def _tags(record: RunRecord) -> dict[str, str]:
    """What the run came to, and DVC's hash of every stage's output."""
    tags = {"loomrl.state": record.state, "loomrl.version": record.version or "none"}
    for stage in record.stages:
        tags[f"loomrl.{stage.name}"] = stage.verdict[:500]
    return tags | dvc_hashes({stage.name: stage.lock for stage in record.stages})
