"""The order of things: each flow reads top to bottom. Settings of Prefect are made before it is imported."""

import os
import sys

from loomrl.errors import LoomRLError
from loomrl.system.home import home
from loomrl.system.security.credentials import set_prefect_login


def _home() -> str:
    """Where Prefect keeps its state; a home that cannot be used ends the process before Prefect meets it."""
    try:
        set_prefect_login()
        return str(home() / "prefect")
    except LoomRLError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


DEFAULTS = {
    "DO_NOT_TRACK": "true",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # errors are ours to print, once and without a traceback
    "PREFECT_HOME": _home(),
}

for name, value in DEFAULTS.items():
    os.environ.setdefault(name, value)
