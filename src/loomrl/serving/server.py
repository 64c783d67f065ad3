"""Runs a policy server: binds, says where, serves until it is told to stop; in this process, or in several."""

import logging
import os
import socket
from pathlib import Path

from loomrl.errors import ConfigError
from loomrl.serving.settings import ServerSettings
from loomrl.serving.uvicorn_server import make, run
from loomrl.serving.workers.address import MAX_WORKERS
from loomrl.system.files import write_json
from loomrl.system.http.listening import address_of, bind, check_exposure
from loomrl.system.http.tokens import configured

log = logging.getLogger(__name__)


def serve(settings: ServerSettings, port_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    `port_file` gets `{"url": ..., "pid": ...}` once the port is bound.

    Raises:
        ConfigError: when the address may be reached by others but there is no token.
        ServiceError: when the address cannot be bound.
    """
    check_exposure(settings.host, configured())
    if not 1 <= settings.workers <= MAX_WORKERS:
        raise ConfigError(f"--workers {settings.workers}: from 1 to {MAX_WORKERS}")
    listener = bind(settings.host, settings.port)
    if settings.workers > 1:
        from loomrl.serving.supervision.supervisor import Supervisor

        with Supervisor(settings, listener) as supervisor:
            _announce_address(settings, listener, port_file)
            supervisor.run()
    else:
        server = make(settings, None)
        _announce_address(settings, listener, port_file)
        run(server, [listener])


def _announce_address(settings: ServerSettings, listener: socket.socket, port_file: Path | None) -> None:
    url = address_of(listener)
    log.info("%s is served on %s", settings.policy, url)
    if port_file is not None:
        write_json(port_file, {"url": url, "pid": os.getpid()})
