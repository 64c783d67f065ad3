"""The MLflow registry and tracking server, as the rest of LoomRL sees them. The one module that touches MLflow.

A registered model per policy; each version holds one export folder, is never changed, and is verified when read.
Only the aliases `champion`, `challenger` and `previous` move. Reading needs no more than `mlflow-skinny` (with
SQLAlchemy and alembic, which LoomRL has anyway, where the tracking URI is a database).
"""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from loomrl.errors import ArtifactError, ConfigError, LoomRLError, ServiceError
from loomrl.files import SUMS, canonical_json, changed_file, sha256, sha256_file, write_atomic, write_sums
from loomrl.home import home, tracking_uri
from loomrl.schema import Document

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"

RUN_ID = "loomrl.run_id"
DIGEST = "loomrl.digest"
SUMS_DIGEST = "loomrl.sums_sha256"

Metric = tuple[str, float, int, int]  # key, value, step, timestamp in milliseconds

_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # the latter is what a missing alias raises
_METRICS_PER_BATCH = 1_000  # MLflow's own limit
_IDENTITY = ("policy.onnx", "manifest.json")  # the files that make two versions the same policy
_ARTIFACT_FOLDER = "policy"
_MLMODEL = "MLmodel"


class PolicyVersion(Document):
    """One immutable version of a policy in the registry."""

    policy: str
    version: str
    run_id: str  # the life-cycle run that registered it
    tags: dict[str, str]
    source: str  # where its files lie, as the registry names it
    created: str  # ISO 8601, UTC

    @property
    def digest(self) -> str:
        """SHA-256 over `policy.onnx` and `manifest.json`."""
        return self.tags.get(DIGEST, "")


# --- versions and aliases ---------------------------------------------------------------------------------------


class Registry:
    """Policy versions and their aliases. Holds no connection until it is used."""

    def __init__(self, uri: str | None = None) -> None:
        self.tracking_uri = uri or tracking_uri()

    def register(self, policy: str, folder: Path, run_id: str, tags: Mapping[str, str] | None = None) -> PolicyVersion:
        """Make a version of an export folder; return the existing one when the same policy is there already.

        The folder is verified against its `SHA256SUMS`; files that joined it since (envelope, evaluation) are added
        to the version's own. The same policy means the same `policy.onnx` and `manifest.json`.

        Raises:
            ArtifactError: when a file is missing or was changed.
            ServiceError: when MLflow cannot be reached.
        """
        digest = export_digest(folder)
        with _exclusive(policy):
            existing = [version for version in self.versions(policy) if version.digest == digest]
            if existing:
                return existing[0]
            return self._register(policy, folder, run_id, {**(tags or {}), DIGEST: digest})

    def _register(self, policy: str, folder: Path, run_id: str, tags: dict[str, str]) -> PolicyVersion:
        mlflow_run_id = find_run(policy, run_id, self.tracking_uri)
        if mlflow_run_id is None:
            mlflow_run_id = start_run(policy, run_id, uri=self.tracking_uri)
            finish_run(mlflow_run_id, "FINISHED", self.tracking_uri)
        with tempfile.TemporaryDirectory(prefix="loomrl-register-") as temporary:
            staged = _stage(folder, Path(temporary) / _ARTIFACT_FOLDER, mlflow_run_id)
            sums_digest = sha256_file(staged / SUMS)
            # Named by its content: a folder left behind by an interrupted registration never mixes with this one.
            place = f"{_ARTIFACT_FOLDER}/{sums_digest[:16]}"
            log_artifacts(mlflow_run_id, staged, place, self.tracking_uri)
        tags = {**tags, SUMS_DIGEST: sums_digest, RUN_ID: run_id}
        with self._calls() as client:
            _create_model(client, policy)
            source = f"{client.get_run(mlflow_run_id).info.artifact_uri}/{place}"
            return _version(client.create_model_version(policy, source, run_id=mlflow_run_id, tags=tags))

    def get(self, policy: str, alias_or_version: str) -> PolicyVersion | None:
        """One version by number or alias; None when there is none."""
        with self._calls() as client, _absent_is_none():
            if str(alias_or_version).isdecimal():
                return _version(client.get_model_version(policy, str(alias_or_version)))
            return _version(client.get_model_version_by_alias(policy, alias_or_version))
        return None

    def require(self, policy: str, alias_or_version: str) -> PolicyVersion:
        """One version by number or alias.

        Raises:
            ConfigError: when there is none; names those that exist.
        """
        if found := self.get(policy, alias_or_version):
            return found
        known = ", ".join(version.version for version in self.versions(policy)) or "none"
        aliases = ", ".join(f"{alias}={version}" for alias, version in self.aliases(policy).items()) or "none"
        raise ConfigError(f"{policy}@{alias_or_version} is not registered; versions: {known}; aliases: {aliases}")

    def policies(self) -> list[str]:
        """The names of all policies that have a registered model."""
        with self._calls() as client:
            return sorted(model.name for model in _pages(client.search_registered_models))

    def versions(self, policy: str) -> list[PolicyVersion]:
        """All versions, oldest first."""
        with self._calls() as client:
            found = _pages(client.search_model_versions, filter_string=f"name='{policy}'")
            return sorted((_version(version) for version in found), key=lambda version: int(version.version))

    def aliases(self, policy: str) -> dict[str, str]:
        """Alias -> version; empty for a policy that is not registered."""
        with self._calls() as client, _absent_is_none():
            found = client.get_registered_model(policy).aliases
            return {alias: str(version) for alias, version in sorted(found.items())}
        return {}

    def set_aliases(self, policy: str, moves: Mapping[str, str | None]) -> None:
        """Move several aliases, in the order given; None removes one. All of them move or none.

        Each move is atomic in MLflow: an alias that is moved is never missing in between, so a server that polls
        sees the old or the new version. When one move fails, those made before it are undone.

        Raises:
            ConfigError: when a version does not exist.
            ServiceError: when MLflow fails; says whether the former aliases stand.
        """
        before = self.aliases(policy)
        for version in moves.values():
            if version is not None:
                self.require(policy, version)
        done: list[str] = []
        try:
            for alias, version in moves.items():
                if before.get(alias) != version:
                    done.append(alias)
                    self._move(policy, alias, version)
        except LoomRLError as error:
            self._undo(policy, before, done, error)
            raise

    def _undo(self, policy: str, before: Mapping[str, str], done: Sequence[str], error: LoomRLError) -> None:
        try:
            for alias in reversed(done):
                self._move(policy, alias, before.get(alias))
        except LoomRLError as second:
            raise ServiceError(
                f"{policy}: moving aliases failed ({error}) and so did putting them back ({second}); "
                f"they stood at {dict(before)}; run `loomrl policy rollback {policy}` once MLflow answers"
            ) from error

    def _move(self, policy: str, alias: str, version: str | None) -> None:
        with self._calls() as client:
            if version is None:
                with _absent_is_none():
                    client.delete_registered_model_alias(policy, alias)
            else:
                client.set_registered_model_alias(policy, alias, version)

    def set_tag(self, version: PolicyVersion, key: str, value: str) -> None:
        """Set a tag on a version."""
        with self._calls() as client:
            client.set_model_version_tag(version.policy, version.version, key, value)

    def delete_tag(self, version: PolicyVersion, key: str) -> None:
        """Remove a tag from a version, if it is there."""
        with self._calls() as client, _absent_is_none():
            client.delete_model_version_tag(version.policy, version.version, key)

    def download(self, version: PolicyVersion, destination: Path) -> Path:
        """Fetch a version's files into `destination`, verified; a verified copy already there is kept.

        Raises:
            ArtifactError: when the store lost, changed or added a file.
            ServiceError: when the store cannot be reached.
        """
        if destination.is_dir() and _is_intact(destination, version):
            return destination
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{destination.name}.", dir=destination.parent) as temporary:
            fetched = self._fetch(version, Path(temporary))
            verify_version(fetched, version)
            if destination.exists():
                shutil.rmtree(destination)
            os.replace(fetched, destination)
        return destination

    def _fetch(self, version: PolicyVersion, temporary: Path) -> Path:
        if local := local_source(version):
            return _copy(version, local, temporary / "files")
        from mlflow.artifacts import download_artifacts

        target = temporary / "files"
        target.mkdir()
        with self._calls():
            return Path(
                download_artifacts(artifact_uri=version.source, dst_path=str(target), tracking_uri=self.tracking_uri)
            )

    @contextmanager
    def _calls(self) -> Iterator[Any]:
        with _mlflow(self.tracking_uri) as client:
            yield client


def export_digest(folder: Path) -> str:
    """What makes two versions the same: SHA-256 over the digests of `policy.onnx` and `manifest.json`."""
    return sha256(canonical_json({name: sha256_file(folder / name) for name in _IDENTITY}))


def verify_version(folder: Path, version: PolicyVersion) -> None:
    """Check files against the digests recorded in the registry when the version was made.

    Raises:
        ArtifactError: naming what differs.
    """
    name = f"{version.policy}@{version.version}"
    if not (folder / SUMS).is_file() or sha256_file(folder / SUMS) != version.tags.get(SUMS_DIGEST):
        raise ArtifactError(
            f"{name}: {SUMS} in {version.source} is not the one that was registered; the artifact store was changed: "
            f"restore it from a backup, or go back with `loomrl policy rollback {version.policy}`"
        )
    if changed := changed_file(folder):
        raise ArtifactError(
            f"{name}: {changed} in {version.source} was changed after it was registered; "
            f"restore the store from a backup, or go back with `loomrl policy rollback {version.policy}`"
        )
    if export_digest(folder) != version.digest:
        raise ArtifactError(f"{name}: the files in {version.source} are whole but not the policy its tag names")


def local_source(version: PolicyVersion) -> Path | None:
    """The folder of a version's files, where the artifact store is a folder of this machine."""
    return _local_folder(version.source)


def _local_folder(uri: str) -> Path | None:
    """The folder an artifact URI means on this machine; None where only a server or an object store has it.

    A tracking server started by `make up` serves `LOOMRL_HOME/mlartifacts` as `mlflow-artifacts:/`. What was
    registered through it must stay readable when it is down and the same database is used directly.
    """
    plain = uri.removeprefix("file://")
    if plain.startswith("/"):
        return Path(plain)
    served = home() / "mlartifacts" / uri.removeprefix("mlflow-artifacts:/").lstrip("/")
    return served if uri.startswith("mlflow-artifacts:/") and served.is_dir() else None


def _copy(version: PolicyVersion, source: Path, target: Path) -> Path:
    try:
        return Path(shutil.copytree(source, target))
    except (OSError, shutil.Error) as error:
        raise ArtifactError(
            f"{version.policy}@{version.version}: its files at {source} cannot be read: {error}; "
            f"restore them from a backup, or go back with `loomrl policy rollback {version.policy}`"
        ) from error


def _is_intact(folder: Path, version: PolicyVersion) -> bool:
    try:
        verify_version(folder, version)
    except ArtifactError:
        return False  # a torn or older copy: it is fetched again
    return True


def _stage(folder: Path, staged: Path, mlflow_run_id: str) -> Path:
    """Copy an export folder, check it against its own manifest, add `MLmodel`, and manifest the whole."""
    shutil.copytree(folder, staged)
    _verify_listed(staged)
    write_atomic(staged / _MLMODEL, _mlmodel(mlflow_run_id))
    write_sums(staged)
    return staged


def _verify_listed(folder: Path) -> None:
    """Like `verify_sums`, but files may have joined since."""
    manifest = folder / SUMS
    if not manifest.is_file():
        raise ArtifactError(f"{manifest} is missing; run the export stage")
    for line in manifest.read_text().splitlines():
        digest, _, name = line.partition("  ")
        if sha256_file(folder / name) != digest:
            raise ArtifactError(f"{folder / name} was changed since it was exported; run the export stage again")


def _mlmodel(mlflow_run_id: str) -> bytes:
    """The descriptor that lets `mlflow.pyfunc.load_model` read `policy.onnx` as it is.

    `mlflow.onnx.log_model` would write the graph again, with other bytes than those the gate examined.
    """
    import yaml

    onnx = {"loader_module": "mlflow.onnx", "data": "policy.onnx", "env": {}, "python_version": "3.11.0"}
    flavors = {"onnx": {"data": "policy.onnx", "providers": ["CPUExecutionProvider"]}, "python_function": onnx}
    document = {"artifact_path": _ARTIFACT_FOLDER, "flavors": flavors, "run_id": mlflow_run_id}
    return yaml.safe_dump(document, sort_keys=True).encode()


def _create_model(client: Any, policy: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(policy)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _version(found: Any) -> PolicyVersion:
    created = datetime.fromtimestamp(found.creation_timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    tags = {str(key): str(value) for key, value in found.tags.items()}
    return PolicyVersion(
        policy=found.name,
        version=str(found.version),
        run_id=tags.get(RUN_ID, ""),
        tags=tags,
        source=found.source,
        created=created,
    )


# --- runs -------------------------------------------------------------------------------------------------------


def start_run(
    policy: str,
    run_id: str,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    uri: str | None = None,
) -> str:
    """Begin the MLflow run of a life cycle in the experiment `loomrl/POLICY`; returns MLflow's run id."""
    uri = uri or tracking_uri()
    with _mlflow(uri) as client:
        run = client.create_run(
            _experiment(client, policy, uri), tags={**(tags or {}), RUN_ID: run_id}, run_name=run_id
        )
        mlflow_run_id = str(run.info.run_id)
        _log_params(client, mlflow_run_id, params or {})
    return mlflow_run_id


def find_run(policy: str, run_id: str, uri: str | None = None) -> str | None:
    """MLflow's run id of a life-cycle run; None when it has none."""
    with _mlflow(uri or tracking_uri()) as client:
        experiment = client.get_experiment_by_name(f"loomrl/{policy}")
        if experiment is None:
            return None
        found = client.search_runs([experiment.experiment_id], f"tags.`{RUN_ID}` = '{run_id}'", max_results=1)
        return str(found[0].info.run_id) if found else None


def log_metrics_batch(mlflow_run_id: str, rows: Iterable[Metric], uri: str | None = None) -> None:
    """Log metrics `(key, value, step, timestamp_ms)`, a thousand a call: one at a time costs 20-40 ms each."""
    from mlflow.entities import Metric as Entity

    entities = [Entity(key, float(value), timestamp_ms, step) for key, value, step, timestamp_ms in rows]
    with _mlflow(uri or tracking_uri()) as client:
        for first in range(0, len(entities), _METRICS_PER_BATCH):
            client.log_batch(mlflow_run_id, metrics=entities[first : first + _METRICS_PER_BATCH])


def log_values(mlflow_run_id: str | None, values: Mapping[str, float], uri: str | None = None) -> None:
    """Log single values at step 0, now; does nothing for a run that has no MLflow run."""
    if mlflow_run_id is not None:
        timestamp_ms = int(datetime.now(UTC).timestamp() * 1_000)
        log_metrics_batch(mlflow_run_id, [(key, value, 0, timestamp_ms) for key, value in values.items()], uri)


def log_artifacts(
    mlflow_run_id: str, folder_or_file: Path, artifact_path: str | None = None, uri: str | None = None
) -> None:
    """Copy a folder's files, or one file, into the run's artifacts."""
    if not folder_or_file.exists():
        raise ArtifactError(f"{folder_or_file} is missing; run the stage that writes it")
    uri = uri or tracking_uri()
    with _mlflow(uri) as client:
        location = client.get_run(mlflow_run_id).info.artifact_uri
        if location.startswith("mlflow-artifacts:/") and not _is_server(uri):
            # An experiment that a server made, without that server: where it would have put the files.
            (home() / "mlartifacts" / location.removeprefix("mlflow-artifacts:/")).mkdir(parents=True, exist_ok=True)
            _copy_into(_local_folder(location), folder_or_file, artifact_path)
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
    """Set tags on a run."""
    from mlflow.entities import RunTag

    with _mlflow(uri or tracking_uri()) as client:
        client.log_batch(mlflow_run_id, tags=[RunTag(key, str(value)) for key, value in tags.items()])


def finish_run(mlflow_run_id: str, status: str = "FINISHED", uri: str | None = None) -> None:
    """End a run: `FINISHED`, `FAILED` or `KILLED`."""
    with _mlflow(uri or tracking_uri()) as client:
        client.set_terminated(mlflow_run_id, status)


def _log_params(client: Any, mlflow_run_id: str, params: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    entities = [Param(key, str(value)[:6_000]) for key, value in params.items()]  # MLflow's limit on a value
    for first in range(0, len(entities), 100):  # and on a batch
        client.log_batch(mlflow_run_id, params=entities[first : first + 100])


def _experiment(client: Any, policy: str, uri: str) -> str:
    """The policy's experiment; with a database as URI its artifacts lie under the home, not under `./mlruns`."""
    from mlflow.exceptions import MlflowException

    name = f"loomrl/{policy}"
    if found := client.get_experiment_by_name(name):
        return str(found.experiment_id)
    location = None if _is_server(uri) else str(home() / "mlartifacts" / policy)
    try:
        return str(client.create_experiment(name, artifact_location=location))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return str(client.get_experiment_by_name(name).experiment_id)  # another run made it meanwhile


# --- connection and errors --------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _client(uri: str) -> Any:
    """A client whose two stores have answered once."""
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
        "MLFLOW_SQLALCHEMYSTORE_POOL_PRE_PING": "true",
    }.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        # MLflow 3.17 declares mappers in a way SQLAlchemy 2.1 deprecates; importing it warns too.
        warnings.simplefilter("ignore")
        import logging

        from mlflow import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        with FileLock(home() / "mlflow.lock", timeout=120):  # two first runs at once would both make the tables
            client.search_experiments(max_results=1)
            client.search_registered_models(max_results=1)
    return client


@contextmanager
def _mlflow(uri: str) -> Iterator[Any]:
    """A client; whatever MLflow or its database raise becomes a `ServiceError` that names the URI and the fix."""
    try:
        yield _client(uri)
    except (LoomRLError, AssertionError):
        raise
    except Exception as error:
        if not _is_of_mlflow(error):
            raise
        shown = _without_password(uri)
        detail = " ".join(str(error).split()).replace(uri, shown)[:400]
        raise ServiceError(f"MLflow at {shown} failed: {detail}; {_fix(uri)}") from error


def _is_of_mlflow(error: Exception) -> bool:
    origin = type(error).__module__.partition(".")[0]
    return origin in ("mlflow", "sqlalchemy", "sqlite3", "requests", "urllib3", "alembic", "psycopg")


def _fix(uri: str) -> str:
    if uri.startswith("sqlite:"):
        return (
            "check that the file is a SQLite database this user may write and that no other process holds it locked; "
            "`loomrl backup` keeps copies to restore"
        )
    return "start the server (`make up`), correct MLFLOW_TRACKING_URI, or unset it to use SQLite under LOOMRL_HOME"


def _is_server(uri: str) -> bool:
    return uri.startswith(("http:", "https:"))


def _without_password(uri: str) -> str:
    head, separator, rest = uri.partition("://")
    return f"{head}{separator}{rest.rpartition('@')[2]}"


@contextmanager
def _absent_is_none() -> Iterator[None]:
    """Swallow exactly MLflow's 'there is no such thing'; the caller returns its empty value after the block."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in _ABSENT:
            raise


@contextmanager
def _exclusive(policy: str) -> Iterator[None]:
    """One registration of a policy at a time on this machine."""
    folder = home() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"register-{policy}.lock", timeout=600):
        yield


def _pages(search: Any, **arguments: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(page_token=token, **arguments)
        yield from page
        token = page.token
        if not token:
            return
