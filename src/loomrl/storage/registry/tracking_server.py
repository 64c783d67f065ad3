"""An MLflow server with access control: `python -m loomrl.storage.registry.tracking_server`; options as of `mlflow
server`.

MLflow's own login (`--app-name basic-auth`) needs another package, hashes the password for every request, and treats
pages of this machine's other ports as its own. So `loomrl.system.security.web_access` stands before it: the login is
`MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`, as for clients, and the names of the server are those in
`MLFLOW_SERVER_ALLOWED_HOSTS`, which MLflow checks as well.
"""

import os
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any

from loomrl.errors import ConfigError, LoomRLError
from loomrl.system.security.credentials import MLFLOW_PASSWORD, MLFLOW_USER, require_variables
from loomrl.system.security.web_access import AccessControl, App, parse_hosts

HOSTS = "MLFLOW_SERVER_ALLOWED_HOSTS"
PUBLIC_PATHS = ("/health", "/version")
_APP_NAME = "loomrl"
_DISTRIBUTION = "loomrl-tracking-server"


def create_app() -> App:
    """MLflow's application behind access control.

    Raises:
        ConfigError: without a login, or without the names of the server.
    """
    hosts, login = _hosts(), _login()
    from mlflow.server.fastapi_app import app

    return AccessControl(app, hosts, login, PUBLIC_PATHS)


class _EntryPoint(Distribution):
    """`mlflow server --app-name NAME` finds applications by entry points; this one needs no installed package."""

    def read_text(self, filename: str) -> str | None:
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: 0\n",
            "entry_points.txt": f"[mlflow.app]\n{_APP_NAME} = loomrl.storage.registry.tracking_server:create_app\n",
        }.get(filename)

    def locate_file(self, path: Any) -> Path:
        raise FileNotFoundError(path)


class _Finder(DistributionFinder):
    def find_distributions(self, context: Any = DistributionFinder.Context()) -> Iterable[Distribution]:  # noqa: B008
        return [_EntryPoint()] if context.name in (None, _DISTRIBUTION) else []


def _hosts() -> tuple[str, ...]:
    found = parse_hosts(os.environ.get(HOSTS, ""))
    if not found or any("*" in host for host in found):
        raise ConfigError(
            f"{HOSTS} is {','.join(found) or 'not set'}; set it to the names of this server, HOST:PORT,HOST:PORT"
        )
    return found


def _login() -> str:
    return ":".join(require_variables(MLFLOW_USER, MLFLOW_PASSWORD))


def main(arguments: list[str]) -> None:
    """Run MLflow's tracking server; does not return, and exits with the error's code where it cannot start."""
    try:
        _hosts(), _login()
    except LoomRLError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.meta_path.append(_Finder())
    from mlflow.cli import cli

    cli(["server", "--app-name", _APP_NAME, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
