"""Connections are shared out between those who listen on one port."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from loomrl.system.http import accepting
from loomrl.system.http.accepting import Acceptor
from loomrl.system.http.listening import bind


class Greets(asyncio.Protocol):
    """Says who accepted."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._name)
        transport.close()


async def greetings(has_more: dict[bytes, bool], num_connections: int) -> list[bytes]:
    """Who accepts, of those who listen, each with more connections than another or not."""
    listener = bind("127.0.0.1", 0)
    place = listener.getsockname()

    def greets(name: bytes) -> Callable[[], asyncio.Protocol]:
        return lambda: Greets(name)

    acceptors = [
        Acceptor(socket.socket(fileno=socket.dup(listener.fileno())), greets(name), lambda more=more: more)
        for name, more in has_more.items()
    ]
    found = []
    for _ in range(num_connections):
        reader, writer = await asyncio.open_connection(*place)
        found.append(await reader.read())
        writer.close()
    for acceptor in acceptors:
        acceptor.close()
    listener.close()
    return found


def test_who_has_more_leaves_connections_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_LEAVE_SECONDS", 10.0)  # however busy the machine is
    assert asyncio.run(greetings({b"one": True, b"two": False}, 5)) == [b"two"] * 5
    assert asyncio.run(greetings({b"one": False, b"two": True}, 5)) == [b"one"] * 5


def test_what_nobody_else_takes_is_taken() -> None:
    assert asyncio.run(greetings({b"one": True}, 5)) == [b"one"] * 5
    assert set(asyncio.run(greetings({b"one": True, b"two": True}, 5))) <= {b"one", b"two"}
