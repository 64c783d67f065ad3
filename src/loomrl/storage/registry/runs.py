"""MLflow runs: one for each life cycle, in the policy's experiment."""

import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loomrl.errors import ArtifactError
from loomrl.storage.registry.connection import is_server, mlflow_client, present_is_fine
from loomrl.storage.registry.files import local_folder, served_folder, validate_location
from loomrl.system.home import inside, tracking_uri

RUN_ID = "loomrl.run_id"

Metric = tuple[str, float, int, int]  # key, value, step, timestamp in milliseconds

_METRICS_PER_BATCH = 1_000  # MLflow's own limit


def start_run(
    policy: str,
    run_id: str,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    uri: str | None = None,
) -> str:
    """Begin the MLflow run of a life cycle in the experiment `loomrl/POLICY`, made if need be; returns MLflow's run id.

    Values of `params` are logged as text, at most 6,000 characters of each. `uri` is MLflow's; None: that of the
    environment, else SQLite under the home.

    Raises:
        ServiceError: when MLflow cannot be reached or fails; a run may have begun, without all its parameters.
    """
    uri = uri or tracking_uri()
    with mlflow_client(uri) as client:
        run = client.create_run(
            _experiment(client, policy, uri), tags={**(tags or {}), RUN_ID: run_id}, run_name=run_id
        )
        mlflow_run_id = str(run.info.run_id)
        _log_params(client, mlflow_run_id, params or {})
    return mlflow_run_id


def find_run(policy: str, run_id: str, uri: str | None = None) -> str | None:
    """MLflow's run id of a life-cycle run; None when it has none.

    Raises:
        ServiceError: when MLflow cannot be reached or fails.
    """
    with mlflow_client(uri or tracking_uri()) as client:
        experiment = client.get_experiment_by_name(f"loomrl/{policy}")
        if experiment is None:
            return None
        found = client.search_runs([experiment.experiment_id], f"tags.`{RUN_ID}` = '{run_id}'", max_results=1)
        return str(found[0].info.run_id) if found else None


def log_metrics_batch(mlflow_run_id: str, rows: Iterable[Metric], uri: str | None = None) -> None:
    """Log metrics `(key, value, step, timestamp_ms)`, a thousand a call: one at a time costs 20-40 ms each.

    Raises:
        ServiceError: when MLflow cannot be reached or fails; the thousands before it are logged.
    """
    from mlflow.entities import Metric as Entity

    entities = [Entity(key, float(value), timestamp_ms, step) for key, value, step, timestamp_ms in rows]
    with mlflow_client(uri or tracking_uri()) as client:
        for first in range(0, len(entities), _METRICS_PER_BATCH):
            client.log_batch(mlflow_run_id, metrics=entities[first : first + _METRICS_PER_BATCH])


def log_values(mlflow_run_id: str | None, values: Mapping[str, float], uri: str | None = None) -> None:
    """Log single values at step 0, now; does nothing where the run has no MLflow run (None).

    Raises:
        ServiceError: when MLflow cannot be reached or fails.
    """
    if mlflow_run_id is not None:
        timestamp_ms = int(datetime.now(UTC).timestamp() * 1_000)
        log_metrics_batch(mlflow_run_id, [(key, value, 0, timestamp_ms) for key, value in values.items()], uri)


def log_artifacts(
    mlflow_run_id: str, folder_or_file: Path, artifact_path: str | None = None, uri: str | None = None
) -> None:
    """Copy a folder's files, or one file, into the run's artifacts, below `artifact_path` if given.

    Raises:
        ArtifactError: when it is missing, or MLflow says that artifacts go to a host of its choice; nothing is copied.
        ServiceError: when MLflow cannot be reached or fails; some files may be there.
    """
    if not folder_or_file.exists():
        raise ArtifactError(f"{folder_or_file} is missing; run the stage that writes it")
    uri = uri or tracking_uri()
    with mlflow_client(uri) as client:
        location = client.get_run(mlflow_run_id).info.artifact_uri
        validate_location(location)
        if location.startswith("mlflow-artifacts:/") and not is_server(uri):
            # An experiment that a server made, without that server: where it would have put the files.
            served_folder(location).mkdir(parents=True, exist_ok=True)
            _copy_into(local_folder(location), folder_or_file, artifact_path)
            return
        log = client.log_artifacts if folder_or_file.is_dir() else client.log_artifact
        log(mlflow_run_id, str(folder_or_file), artifact_path)


def _copy_into(store: Path | None, folder_or_file: Path, artifact_path: str | None) -> None:
    assert store is not None
    target = store / artifact_path if artifact_path else store
    target.mkdir(parents=True, exist_ok=True)
    if folder_or_file.is_dir():
        shutil.copytree(folder_or_file, target, dirs_exist_ok=True)
    else:
        shutil.copy2(folder_or_file, target)


def set_tags(mlflow_run_id: str, tags: Mapping[str, str], uri: str | None = None) -> None:
    """Set tags on a run; values they had are replaced.

    Raises:
        ServiceError: when MLflow cannot be reached or fails.
    """
    from mlflow.entities import RunTag

    with mlflow_client(uri or tracking_uri()) as client:
        client.log_batch(mlflow_run_id, tags=[RunTag(key, str(value)) for key, value in tags.items()])


def finish_run(mlflow_run_id: str, status: str = "FINISHED", uri: str | None = None) -> None:
    """End a run now, with the status `FINISHED`, `FAILED` or `KILLED`.

    Raises:
        ServiceError: when MLflow cannot be reached or fails.
    """
    with mlflow_client(uri or tracking_uri()) as client:
        client.set_terminated(mlflow_run_id, status)


def _log_params(client: Any, mlflow_run_id: str, params: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    entities = [Param(key, str(value)[:6_000]) for key, value in params.items()]  # MLflow's limit on a value
    for first in range(0, len(entities), 100):  # and on a batch
        client.log_batch(mlflow_run_id, params=entities[first : first + 100])


def _experiment(client: Any, policy: str, uri: str) -> str:
    """The policy's experiment; with a database as URI its artifacts lie under the home, not under `./mlruns`."""
    name = f"loomrl/{policy}"
    if found := client.get_experiment_by_name(name):
        return str(found.experiment_id)
    location = None if is_server(uri) else str(inside("mlartifacts", policy))
    with present_is_fine():
        return str(client.create_experiment(name, artifact_location=location))
    return str(client.get_experiment_by_name(name).experiment_id)  # another run made it meanwhile
