"""How much senders may leave with a server, in all connections together.

Bounded are the address and the headers of a request, the bytes of requests that have no answer yet, the time in which a
request must be whole, and answers that nobody takes. Where there is no room for more, the unfinished request that holds
most goes: who asks in a few hundred bytes is served while others hold megabytes.
"""

import asyncio
import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from loomrl.system.http.asgi import Response, as_problem

_SWEEP_SECONDS = 1.0
_NOISE = ("Invalid HTTP request received.", "Unsupported upgrade request.")  # whoever likes would fill the log


@dataclass(frozen=True)
class IntakeLimits:
    """The sizes, numbers and times that one server accepts of its clients; beyond them it refuses or closes."""

    max_url_bytes: int = 8 * 2**10
    max_head_bytes: int = 32 * 2**10  # the first line and all headers
    max_headers: int = 100
    max_pending_bytes: int = 16 * 2**20  # of requests without an answer
    max_untaken_bytes: int = 32 * 2**20  # of answers whose clients do not take them
    head_seconds: float = 30.0  # from the connection, or a request's first byte, until its headers are complete
    request_seconds: float = 60.0  # from its first byte until its last; large ones, which keep coming, have longer:
    least_bytes_per_second: float = 64 * 2**10  # a second more for so many bytes of the body that came
    answer_seconds: float = 30.0  # in which a client takes nothing of its answer
    linger_seconds: float = 1.0  # about so long a refused connection stays open, unless its client closes it
    max_lingering: int = 256  # connections; others are closed at once


class ClientConnection(Protocol):
    """A client's connection, as far as an intake uses it."""

    held: int  # bytes of what it sent, as far as they count now

    def refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        """Answer the request that is being sent with this error, and close the connection after it."""

    def close(self) -> None:
        """Close the connection once its answer is sent."""

    def drop(self) -> None:
        """Close the connection at once, whether or not its answer was sent."""

    def seconds_left(self, now: float) -> float:
        """Seconds until the client must have sent its request in full; 0 or less when late. `now` is `loop.time()`."""

    def num_untaken(self) -> int:
        """Bytes of answers that the client has not read yet."""


class Intake:
    """Watches over the connections of one process and refuses or closes those that leave too much with it. Its methods
    are called in the event loop alone, and raise nothing.

    Args:
        bounds: the limits.
        answer: makes the response of a refusal, of status, message and headers, as the server words it.
        count: is told the status of each refusal.
    """

    def __init__(
        self,
        bounds: IntakeLimits,
        answer: Callable[[int, str, dict[str, str] | None], Response] = as_problem,
        count: Callable[[int], None] = lambda _status: None,
    ) -> None:
        self.bounds, self.answer, self.count = bounds, answer, count
        self.pending_bytes = 0
        self._unfinished: dict[ClientConnection, None] = {}  # something is awaited of their senders
        self._untaken: dict[ClientConnection, tuple[float, int]] = {}  # since when no less, how many bytes
        self._lingering: dict[ClientConnection, asyncio.TimerHandle] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_lingering = (
            bounds.max_lingering if files == resource.RLIM_INFINITY else min(bounds.max_lingering, files // 4)
        )
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: ClientConnection) -> None:
        """Begin to wait for what this client sends; it is refused with 408 where that takes too long."""
        self._unfinished[connection] = None
        self._wake()

    def note_complete_request(self, connection: ClientConnection) -> None:
        """Called when a request has come in full: its connection is no longer watched for slow sending."""
        self._unfinished.pop(connection, None)
        self._rest()

    def hold(self, connection: ClientConnection, num_bytes: int) -> None:
        """Record that this connection's requests hold so many bytes now.

        Where all together hold too much, the largest unfinished requests are refused with 503.
        """
        self.pending_bytes += num_bytes - connection.held
        connection.held = num_bytes
        while self.pending_bytes > self.bounds.max_pending_bytes and self._unfinished:
            largest = max(self._unfinished, key=lambda one: one.held)
            if not largest.held:
                return
            largest.refuse(503, "too much is being sent at once; send it again", {"Retry-After": "1"})

    def note_unread_answer(self, connection: ClientConnection) -> None:
        """Note that a client does not read its answer. Beyond a limit, those that wait longest are dropped."""
        self._untaken[connection] = asyncio.get_running_loop().time(), connection.num_untaken()
        while sum(size for _, size in self._untaken.values()) > self.bounds.max_untaken_bytes:
            oldest = min(self._untaken, key=lambda one: self._untaken[one][0])
            del self._untaken[oldest]
            oldest.drop()
        self._wake()

    def note_read_answer(self, connection: ClientConnection) -> None:
        """Note that a client has read everything that was sent to it."""
        self._untaken.pop(connection, None)
        self._rest()

    def close(self, connection: ClientConnection) -> None:
        """Close a connection whose last answer is on its way, about `linger_seconds` from now; at once where too many
        wait for that. Whoever is closed upon at once comes back at once; the more wait, the later each is closed, so
        that they do not come back together."""
        if len(self._lingering) >= self._max_lingering:
            connection.close()
            return
        seconds = self.bounds.linger_seconds * (0.5 + len(self._lingering) / self._max_lingering)
        self._lingering[connection] = asyncio.get_running_loop().call_later(seconds, connection.close)

    def connection_closed(self, connection: ClientConnection) -> None:
        """Forget a connection that is closed; room for another is free again."""
        self.forget(connection)
        if (timer := self._lingering.pop(connection, None)) is not None:
            timer.cancel()

    def forget(self, connection: ClientConnection) -> None:
        """Stop counting what this connection holds: it is closed, or will be."""
        self.hold(connection, 0)
        self._unfinished.pop(connection, None)
        self._untaken.pop(connection, None)
        self._rest()

    def _wake(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    def _rest(self) -> None:
        if self._timer is not None and not self._unfinished and not self._untaken:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for connection in [one for one in self._unfinished if one.seconds_left(now) <= 0]:
            connection.refuse(408, "the request was not whole in time; send it again")
        for connection, (since, num_bytes) in list(self._untaken.items()):
            if (left := connection.num_untaken()) < num_bytes:
                self._untaken[connection] = now, left
            elif since <= now - self.bounds.answer_seconds:
                connection.drop()
        if self._unfinished or self._untaken:
            self._wake()


def be_quiet() -> None:
    """Keep uvicorn's message about each malformed request out of the log."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)


def _is_news(entry: logging.LogRecord) -> bool:
    return not str(entry.msg).startswith(_NOISE)
