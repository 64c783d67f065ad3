"""The logins of this machine's Prefect and MLflow servers: generated once and sent to no other server.

`LOOMRL_HOME/services/credentials.env` holds the URLs of the two servers and their logins, under the names that their
own clients read. A shell can source it; only its owner can read it. LoomRL's commands need only `PREFECT_API_URL` and
`MLFLOW_TRACKING_URI`: where one of them names a server of the file, they take its login from there.
"""

import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.files import write_atomic
from loomrl.system.home import home
from loomrl.system.locks import hold_lock

USER = "loomrl"
PREFECT_URL, PREFECT_LOGIN = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"  # the latter is USER:PASSWORD
MLFLOW_URL, MLFLOW_USER = "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME"
MLFLOW_PASSWORD = "MLFLOW_TRACKING_PASSWORD"  # pragma: allowlist secret - the name of a variable

_GENERATED = (PREFECT_LOGIN, MLFLOW_USER, MLFLOW_PASSWORD)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def generate() -> dict[str, str]:
    """Fresh logins for a Prefect and an MLflow server: name -> value of the environment variables of their clients."""
    return {
        PREFECT_LOGIN: f"{USER}:{secrets.token_urlsafe(32)}",
        MLFLOW_USER: USER,
        MLFLOW_PASSWORD: secrets.token_urlsafe(32),
    }


def to_env(variables: dict[str, str]) -> str:
    """The variables as lines `NAME=VALUE`, which a shell and `kubectl create secret --from-env-file` read."""
    return "".join(f"{name}={value}\n" for name, value in variables.items())


def credentials_path() -> Path:
    """The file with the logins of this home's servers, `LOOMRL_HOME/services/credentials.env`; it need not be there."""
    return home() / "services" / "credentials.env"


def create_credentials(prefect_url: str, mlflow_url: str) -> Path:
    """Write the servers' URLs into this home's file, with the logins that it has or else new ones; returns the file.

    Raises:
        ArtifactError: when it cannot be read or written.
        ServiceError: when another process writes it for more than a minute.
    """
    path = credentials_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(path.with_suffix(".lock"), 60):
        found = read_credentials()
        is_complete = all(found.get(name) for name in _GENERATED)
        logins = {name: found[name] for name in _GENERATED} if is_complete else generate()
        variables = {PREFECT_URL: prefect_url, MLFLOW_URL: mlflow_url, **logins}
        write_atomic(path, to_env(variables).encode(), mode=0o600)
    return path


def read_credentials() -> dict[str, str]:
    """The variables in this home's file; empty where there is none.

    Raises:
        ArtifactError: when it is there and cannot be read.
    """
    path = credentials_path()
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"{path} cannot be read: {error}; remove it and start the servers again with `make down` and `make up`"
        ) from error
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def prefect_login(url: str | None) -> str | None:
    """`USER:PASSWORD` for the Prefect server at `url`, or None where none is known for it.

    `PREFECT_API_AUTH_STRING` of the environment belongs to the server that `PREFECT_API_URL` names there. Others are
    looked up in this home's file.

    Raises:
        ArtifactError: when that file is there and cannot be read.
    """
    if not url:
        return None
    if os.environ.get(PREFECT_LOGIN) and _is_same_server(url, os.environ.get(PREFECT_URL)):
        return os.environ[PREFECT_LOGIN]
    found = read_credentials()
    return found.get(PREFECT_LOGIN) if _is_same_server(url, found.get(PREFECT_URL)) else None


def set_prefect_login() -> None:
    """Set `PREFECT_API_AUTH_STRING`, where it is not set and the login of the server at `PREFECT_API_URL` is known.

    Prefect's client reads it when Prefect is imported: call this before.

    Raises:
        ArtifactError: when this home's file of logins is there and cannot be read.
    """
    if not os.environ.get(PREFECT_LOGIN) and (login := prefect_login(os.environ.get(PREFECT_URL))):
        os.environ[PREFECT_LOGIN] = login


def set_mlflow_login(uri: str) -> None:
    """Set the variables of MLflow's client for a login, where none is set and this home's file holds that of the server
    at `uri`.

    Raises:
        ArtifactError: when this home's file of logins is there and cannot be read.
    """
    if os.environ.get(MLFLOW_USER) or os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return
    found = read_credentials()
    if _is_same_server(uri, found.get(MLFLOW_URL)):
        os.environ |= {name: found[name] for name in (MLFLOW_USER, MLFLOW_PASSWORD) if name in found}


def require_variables(*names: str) -> list[str]:
    """The values of environment variables without which a server must not start, in the order of their names here.

    Raises:
        ConfigError: naming those that are not set.
    """
    if missing := [name for name in names if not os.environ.get(name)]:
        raise ConfigError(
            f"{' and '.join(missing)} must be set, or the server would be open to everyone; `make up` sets them, and "
            "`loomrl keys credentials` prints fresh logins"
        )
    return [os.environ[name] for name in names]


def _is_same_server(url: str, known: str | None) -> bool:
    return bool(known) and _server(url) == _server(str(known))


def _server(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port; the names of loopback count as one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme, _LOOPBACK[0] if host in _LOOPBACK else host, parts.port


if __name__ == "__main__":
    import sys

    print(create_credentials(*sys.argv[1:]))
