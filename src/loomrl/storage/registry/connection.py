"""The connection to MLflow, and what its failures mean."""

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any

from loomrl.errors import LoomRLError, ServiceError
from loomrl.storage.registry.mlflow_database import ensure_tables
from loomrl.storage.sqlite import file_of
from loomrl.system.home import home
from loomrl.system.locks import hold_lock
from loomrl.system.security.credentials import credentials_path, set_mlflow_login

_opened: dict[str, tuple[int, int]] = {}  # URI -> device and inode of its SQLite file, as it was opened
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # the latter is what a missing alias raises


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
    if is_server(uri):
        set_mlflow_login(uri)
    with warnings.catch_warnings():
        # MLflow 3.17 declares mappers in a way SQLAlchemy 2.1 deprecates; importing it warns too.
        warnings.simplefilter("ignore")
        import logging

        from mlflow import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        with hold_lock(home() / "mlflow.lock", 120):  # two first runs at once would both make the tables
            ensure_tables(uri)
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.search_experiments(max_results=1)
            client.search_registered_models(max_results=1)
    return client


@contextmanager
def mlflow_client(uri: str) -> Iterator[Any]:
    """An `MlflowClient` for the URI, which has answered once; errors in the block are those of MLflow.

    Raises:
        ServiceError: for whatever MLflow, its database or the network raises, in the block too: it names the URI and
            the fix; when another process makes MLflow's tables for more than two minutes. Other errors pass.
        ArtifactError: when LOOMRL_HOME cannot be made or written, or holds logins that cannot be read.
    """
    try:
        client = _client(uri)
        _follow_file(uri, client)
        yield client
    except (LoomRLError, AssertionError):
        raise
    except Exception as error:
        if not _is_of_mlflow(error):
            raise
        shown = _without_password(uri)
        detail = " ".join(str(error).split()).replace(uri, shown)[:400]
        raise ServiceError(f"MLflow at {shown} failed: {detail}; {_fix(uri, error)}") from error


def _follow_file(uri: str, client: Any) -> None:
    """Open a SQLite file anew where another one was put in its place: open connections hold the one before for ever.

    Raises:
        ServiceError: when it is not there any more; opened all the same, it would be made anew, without a table.
    """
    path = file_of(uri)
    if path is None:
        return
    try:
        now = path.stat()
    except FileNotFoundError as error:
        raise ServiceError(f"{path} is not there any more; restore it (`loomrl backup` keeps copies)") from error
    if _opened.setdefault(uri, (now.st_dev, now.st_ino)) != (now.st_dev, now.st_ino):
        for store in (client._tracking_client.store, client._get_registry_client().store):
            store.engine.dispose()
        _opened[uri] = now.st_dev, now.st_ino


def _is_of_mlflow(error: Exception) -> bool:
    origin = type(error).__module__.partition(".")[0]
    return origin in ("mlflow", "sqlalchemy", "sqlite3", "requests", "urllib3", "alembic", "psycopg")


def _fix(uri: str, error: Exception) -> str:
    if uri.startswith("sqlite:"):
        return (
            "check that the file is a SQLite database this user may write and that no other process holds it locked; "
            "`loomrl backup` keeps copies to restore"
        )
    if "error code 401" in str(error):
        return (
            "the server needs a login: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; "
            f"that of `make up` is in {credentials_path()}"
        )
    return "start the server (`make up`), correct MLFLOW_TRACKING_URI, or unset it to use SQLite under LOOMRL_HOME"


def is_server(uri: str) -> bool:
    """Whether a tracking URI names a server rather than a database."""
    return uri.startswith(("http:", "https:"))


def _without_password(uri: str) -> str:
    head, separator, rest = uri.partition("://")
    return f"{head}{separator}{rest.rpartition('@')[2]}"


def absent_is_none() -> AbstractContextManager[None]:
    """Swallow exactly MLflow's 'there is no such thing'; the caller returns its empty value after the block.

    All other errors of the block pass.
    """
    return _passing_over(_ABSENT)


def present_is_fine() -> AbstractContextManager[None]:
    """Swallow exactly MLflow's 'there is such a thing already'; the caller goes on with that after the block.

    All other errors of the block pass.
    """
    return _passing_over(("RESOURCE_ALREADY_EXISTS",))


@contextmanager
def _passing_over(codes: tuple[str, ...]) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in codes:
            raise
