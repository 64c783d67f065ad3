"""Runs a hub in this process: binds, says where, serves until it is told to stop."""

import socket
from pathlib import Path

from loomrl.language.trajectory.api.app import HubServer
from loomrl.language.trajectory.settings import HubSettings
from loomrl.language.trajectory.storage.keeping import run_supervised
from loomrl.language.trajectory.storage.store import Store
from loomrl.system.http.service import listen, run_application, tokens_for
from loomrl.system.http.tokens import Tokens


def serve(settings: HubSettings, port_file: Path | None = None, keeps_up: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first. Returns the exit code, 0 where all went
    well.

    `port_file` gets `{"url": ..., "pid": ...}` once the port is bound. A hub that `keeps_up` runs in a child process,
    which is started again when it is killed; the port stays bound meanwhile. What the child raises is printed, and its
    exit code returned.

    Raises:
        ConfigError: when the address may be reached by others but there is no token, or for a wrong database URL.
        ServiceError: when the address cannot be bound, or the database cannot be opened.
        ArtifactError: when the folder of an SQLite database cannot be made.
    """
    tokens = tokens_for(settings.host, "post groups")
    listener = listen("the hub", settings.host, settings.port, port_file)
    if keeps_up:
        return run_supervised(lambda: _run(settings, tokens, listener))
    _run(settings, tokens, listener)
    return 0


def _run(settings: HubSettings, tokens: Tokens, listener: socket.socket) -> None:
    hub = HubServer(settings, Store.open(settings.database_url), tokens)
    run_application(hub, listener, hub.intake)
