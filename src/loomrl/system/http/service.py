"""What serving a policy, a hub and an engine have in common: who may ask, where to listen, how to run."""

import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn

from loomrl.system.files import write_json
from loomrl.system.http.asgi import Receive, Scope, Send
from loomrl.system.http.bounded import BoundedProtocol, bounded_by
from loomrl.system.http.intake import Intake, be_quiet
from loomrl.system.http.listening import address_of, bind, check_exposure, end_well
from loomrl.system.http.tokens import Tokens, configured

log = logging.getLogger(__name__)
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
_DRAIN_SECONDS = 10  # for requests in flight
_BACKLOG = 4_096  # connections: environments come by the thousand


def tokens_for(host: str, harm: str) -> Tokens:
    """The tokens that are configured; `harm` is what others could do without any.

    Raises:
        ConfigError: when the address may be reached by others but there is no token, or a token cannot be read.
    """
    tokens = configured()
    check_exposure(host, tokens, harm)
    return tokens


def listen(name: str, host: str, port: int, port_file: Path | None) -> socket.socket:
    """A socket that listens on the address; where, is said in the log and in `port_file`, if given. Port 0: a free one.

    Raises:
        ServiceError: when the address cannot be bound.
        ArtifactError: when the file cannot be written.
    """
    listener = bind(host, port)
    announce(name, listener, port_file)
    return listener


def announce(name: str, listener: socket.socket, port_file: Path | None) -> None:
    """Say where a server listens: in the log and, as `{"url": ..., "pid": ...}`, in a file, if one is given.

    Raises:
        ArtifactError: when the file cannot be written.
    """
    url = address_of(listener)
    log.info("%s is served on %s", name, url)
    if port_file is not None:
        write_json(port_file, {"url": url, "pid": os.getpid()})


def uvicorn_config(application: Application, protocol: type[BoundedProtocol], **more: Any) -> uvicorn.Config:
    """The config by which uvicorn serves an ASGI application with a life span: quietly, within a protocol's bounds.

    `more` are further arguments of `uvicorn.Config`. uvicorn's message about malformed requests is off from now on.
    """
    be_quiet()
    return uvicorn.Config(
        application,
        loop="uvloop",
        http=protocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        **more,
    )


def run_application(application: Application, listener: socket.socket, intake: Intake) -> None:
    """Serve an ASGI application with a life span until told to stop by SIGINT or SIGTERM.

    Requests in flight are answered first, for ten seconds at most. `intake` bounds what senders may leave with it. The
    socket listens already.

    Raises:
        SystemExit: with code 0 after SIGTERM.
    """
    config = uvicorn_config(application, bounded_by(intake), proxy_headers=False, backlog=_BACKLOG)
    # uvicorn drains, then raises the signal again for the handler it found: being told to stop is a good end.
    signal.signal(signal.SIGTERM, end_well)
    uvicorn.Server(config).run(sockets=[listener])
