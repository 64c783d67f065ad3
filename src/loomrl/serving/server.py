"""Runs a policy server: binds, says where, serves until it is told to stop; in this process, or in several."""

import logging
import os
import socket
from pathlib import Path

from loomrl.errors import ConfigError, ServiceError
from loomrl.serving.settings import ServerSettings
from loomrl.serving.uvicorn_server import make, run
from loomrl.serving.workers.address import MAX_WORKERS
from loomrl.system.files import write_json
from loomrl.system.http.browsers import is_loopback
from loomrl.system.http.tokens import Tokens, configured

log = logging.getLogger(__name__)
_BACKLOG = 1_024


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


def check_exposure(host: str, tokens: Tokens, harm: str = "override decisions") -> None:
    """Refuse an address that others can reach unless operators must show a token. `harm` is what everyone could do.

    Raises:
        ConfigError: saying how to go on.
    """
    if not tokens and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines: set LOOMRL_TOKENS_FILE or LOOMRL_OPERATOR_TOKEN, so "
            f"that not everyone can {harm}, or bind 127.0.0.1"
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServiceError(
            f"cannot bind {host}:{port}: {error.strerror}; choose another --port (0 takes a free one)"
        ) from error
    listener.listen(_BACKLOG)
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a bound socket, such as `http://127.0.0.1:8000`."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
