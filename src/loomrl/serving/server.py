"""Runs a policy server in this process: binds, says where, serves until it is told to stop."""

import logging
import os
import signal
import socket
from pathlib import Path
from types import FrameType

from loomrl.errors import ConfigError, ServiceError
from loomrl.files import write_json
from loomrl.serving.guard import is_loopback
from loomrl.serving.parts import Parts, ServerSettings
from loomrl.serving.tokens import Tokens, configured

log = logging.getLogger(__name__)
DRAIN_SECONDS = 10  # for requests in flight


def serve(settings: ServerSettings, port_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    `port_file` gets `{"url": ..., "pid": ...}` once the port is bound.

    Raises:
        ConfigError: when the address may be reached by others but there is no token.
        ServiceError: when the address cannot be bound.
    """
    check_exposure(settings.host, configured())
    import uvicorn

    from loomrl.serving.app import PolicyServer
    from loomrl.serving.hot import protocol_of

    listener = bind(settings.host, settings.port)
    url = address_of(listener)
    server = PolicyServer(Parts(settings))
    config = uvicorn.Config(
        server,
        loop="uvloop",
        http=protocol_of(server, settings.max_body_bytes),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    log.info("%s is served on %s", settings.policy, url)
    if port_file is not None:
        write_json(port_file, {"url": url, "pid": os.getpid()})
    # uvicorn drains, then raises the signal again for the handler it found: being told to stop is a good end.
    signal.signal(signal.SIGTERM, _end_well)
    uvicorn.Server(config).run(sockets=[listener])


def _end_well(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def check_exposure(host: str, tokens: Tokens) -> None:
    """Refuse an address that others can reach unless operators must show a token.

    Raises:
        ConfigError: saying how to go on.
    """
    if not tokens and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines: set LOOMRL_TOKENS_FILE or LOOMRL_OPERATOR_TOKEN, so "
            "that not everyone can override decisions, or bind 127.0.0.1"
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
    listener.listen(1_024)
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
