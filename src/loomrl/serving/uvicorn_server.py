"""The policy server of one process, on uvicorn: made, run and ended."""

import asyncio
import signal
import socket
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from loomrl.serving.settings import ServerSettings
from loomrl.serving.workers.address import WorkerAddress
from loomrl.system.http.accepting import Acceptor
from loomrl.system.http.listening import end_well
from loomrl.system.http.service import uvicorn_config

if TYPE_CHECKING:
    from loomrl.serving.context import ServerContext

GRACE_SECONDS = 20.0  # for requests in flight, the challengers' process and the last anchor


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


def make(settings: ServerSettings, worker_address: WorkerAddress | None) -> _Server:
    """The server of this process, its parts made; `worker_address` is that of a worker among several.

    It raises as `ServerContext` does.
    """
    from loomrl.serving.api.app import PolicyServer
    from loomrl.serving.api.hot import protocol_of
    from loomrl.serving.context import ServerContext

    context = ServerContext(settings, worker_address)
    application = PolicyServer(context)
    protocol = protocol_of(application, settings.max_body_bytes)
    return _Server(uvicorn_config(application, protocol), context)


def run(server: _Server, sockets: Sequence[socket.socket]) -> None:
    """Serve on these sockets until told to stop, which is a good end: uvicorn drains, then raises the signal again, and
    the process ends with 0.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_well)
    server.run(sockets=list(sockets))
