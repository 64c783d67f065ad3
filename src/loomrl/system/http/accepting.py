"""How several workers share out the connections of their port.

All of them are woken when one comes, and the kernel gives it to the fastest: connections that stay open would gather in
one worker. So one that has more of them than another leaves it to that one for a moment.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)
_LEAVE_SECONDS = 0.002  # a worker that is free takes a connection within that
_RETRY_SECONDS = 0.1  # after a failure, such as too many open files


class Acceptor:
    """Accepts the connections of a listening socket in the running event loop, for one of several workers that share
    it.

    `protocol` makes the protocol of each. `has_more` says whether this worker has more connections than another; it
    then leaves a new one to the others for 2 ms. A failure to accept is logged, and tried again after 0.1 s.
    """

    def __init__(
        self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol], has_more: Callable[[], bool]
    ) -> None:
        self._listener, self._protocol, self._has_more = listener, protocol, has_more
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        listener.setblocking(False)
        self._loop.add_reader(listener, self._come)

    def close(self) -> None:
        """Stop accepting connections and close the listening socket; accepted ones go on."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _come(self) -> None:
        """A connection waits, unless another worker was faster."""
        if self._has_more():
            self._pause(_LEAVE_SECONDS)
        else:
            self._accept()

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        """Take what is still there."""
        self._loop.add_reader(self._listener, self._come)
        self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            log.error("no connection can be accepted: %s", error.strerror)
            self._pause(_RETRY_SECONDS)
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._protocol, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
