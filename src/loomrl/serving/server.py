"""Runs a policy server: binds, says where, serves until it is told to stop; in this process, or in several."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from loomrl.errors import ConfigError, ServiceError
from loomrl.serving.settings import ServerSettings
from loomrl.serving.workers.address import MAX_WORKERS, WorkerAddress
from loomrl.system.files import write_json
from loomrl.system.http.accepting import Acceptor
from loomrl.system.http.browsers import is_loopback
from loomrl.system.http.intake import be_quiet
from loomrl.system.http.tokens import Tokens, configured

if TYPE_CHECKING:
    from loomrl.serving.context import ServerContext

log = logging.getLogger(__name__)
DRAIN_SECONDS = 10  # for requests in flight
GRACE_SECONDS = 20.0  # for those, the challengers' process and the last anchor
_BACKLOG = 1_024


class _Server(uvicorn.Server):
    """Not ready any more from the moment on that it is told to stop; may share a port with other workers."""

    def __init__(self, config: uvicorn.Config, context: "ServerContext") -> None:
        super().__init__(config)
        self._context = context
        self.shared: socket.socket | None = None  # with other workers
        self._acceptor: Acceptor | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain; a second signal ends at once."""
        self._context.is_leaving = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, once the application can answer."""
        await super().startup(sockets)
        if self.shared is not None:
            self._acceptor = Acceptor(self.shared, self._protocol, self._has_most)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: say that the event loop turns."""
        self._context.beat()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, and answer what has come."""
        if self._acceptor is not None:
            self._acceptor.close()
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        return made

    def _has_most(self) -> bool:
        return self._context.has_most_connections(len(self.server_state.connections))


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
        from loomrl.serving.workers.supervisor import Supervisor

        with Supervisor(settings, listener) as supervisor:
            _announce_address(settings, listener, port_file)
            supervisor.run()
    else:
        server = make(settings, None)
        _announce_address(settings, listener, port_file)
        run(server, [listener])


def make(settings: ServerSettings, worker_address: WorkerAddress | None) -> _Server:
    """The server of this process, its parts made; `worker_address` is that of a worker among several."""
    from loomrl.serving.api.app import PolicyServer
    from loomrl.serving.api.hot import protocol_of
    from loomrl.serving.context import ServerContext

    be_quiet()
    context = ServerContext(settings, worker_address)
    application = PolicyServer(context)
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http=protocol_of(application, settings.max_body_bytes),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    return _Server(config, context)


def run(server: _Server, sockets: Sequence[socket.socket]) -> None:
    """Serve until told to stop, which is a good end: uvicorn drains, then raises the signal again."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_well)
    server.run(sockets=list(sockets))


def _announce_address(settings: ServerSettings, listener: socket.socket, port_file: Path | None) -> None:
    url = address_of(listener)
    log.info("%s is served on %s", settings.policy, url)
    if port_file is not None:
        write_json(port_file, {"url": url, "pid": os.getpid()})


def end_well(_number: int, _frame: FrameType | None) -> None:
    """Handles a signal: to be told to stop is no failure."""
    raise SystemExit(0)


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
