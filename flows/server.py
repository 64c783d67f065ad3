"""A Prefect server with access control: `python -m flows.server --host 127.0.0.1 --port 4200`.

The login (`PREFECT_SERVER_API_AUTH_STRING`) and CORS (`PREFECT_SERVER_CORS_ALLOWED_ORIGINS`, by default the server's
own pages alone) are Prefect's own settings. Prefect checks neither `Host` nor `Origin`:
`loomrl.system.security.web_access` does, with the names of the server in `LOOMRL_PREFECT_HOSTS`.
"""

import argparse
import os
import sys

from loomrl.errors import LoomRLError
from loomrl.system.security.credentials import require_variables
from loomrl.system.security.web_access import AccessControl, App, loopback_hosts, parse_hosts

SERVER_LOGIN = "PREFECT_SERVER_API_AUTH_STRING"
HOSTS = "LOOMRL_PREFECT_HOSTS"
ORIGINS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"
PUBLIC_PATHS = ("/api/health", "/api/ready")


def server_environment(port: int | str, hosts: str | None = None) -> dict[str, str]:
    """Variables that a server needs beside its login; `hosts` defaults to those of loopback."""
    hosts = hosts or loopback_hosts(port)
    return {HOSTS: hosts, ORIGINS: ",".join(f"http://{host}" for host in parse_hosts(hosts))}


def create_app() -> App:
    """Prefect's application behind access control.

    Raises:
        ConfigError: without a login, or without the names of the server.
    """
    _, hosts = require_variables(SERVER_LOGIN, HOSTS)
    from prefect.server.api.server import create_app

    return AccessControl(create_app(), parse_hosts(hosts), public_paths=PUBLIC_PATHS)


def main() -> None:
    """Serve until the process is told to end."""
    parser = argparse.ArgumentParser(prog="python -m flows.server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=4200)
    arguments = parser.parse_args()
    for name, value in server_environment(arguments.port, os.environ.get(HOSTS)).items():
        os.environ.setdefault(name, value)
    os.environ["PREFECT__SERVER_FINAL"] = "1"  # as `prefect server start` does
    try:
        app = create_app()
    except LoomRLError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    import uvicorn

    uvicorn.run(app, host=arguments.host, port=arguments.port, lifespan="on", log_level="warning")


if __name__ == "__main__":
    main()
