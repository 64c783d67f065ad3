"""Where a server listens, who may reach it there, and how it ends."""

import socket
from types import FrameType

from loomrl.errors import ConfigError, ServiceError
from loomrl.system.http.browsers import is_loopback
from loomrl.system.http.tokens import Tokens

_BACKLOG = 1_024


def check_exposure(host: str, tokens: Tokens, harm: str = "override decisions") -> None:
    """Refuse an address that other machines can reach where there are no tokens; `harm` is what everyone could do
    there.

    Raises:
        ConfigError: saying how to go on.
    """
    if not tokens and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines: set LOOMRL_TOKENS_FILE or LOOMRL_OPERATOR_TOKEN, so "
            f"that not everyone can {harm}, or bind 127.0.0.1"
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on an IPv4 or IPv6 address; port 0 takes any free one.

    Raises:
        ServiceError: when the address cannot be bound; no socket is left open.
    """
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


def end_well(_number: int, _frame: FrameType | None) -> None:
    """Handles a signal by which the process is told to stop: raises `SystemExit` with code 0, for that is no
    failure."""
    raise SystemExit(0)
