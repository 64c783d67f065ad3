"""A way to a service that can be closed, or fall silent: who comes by it meets what the network does at its worst."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Relay:
    """`with Relay(port) as relay: relay.port`; `close()` refuses everybody, `hang()` keeps them waiting, `open()`."""

    def __init__(self, target: int) -> None:
        self._target, self._lock = target, threading.Lock()
        self._listener: socket.socket | None = None
        self._sockets: set[socket.socket] = set()
        self._goes_on = threading.Event()
        self._goes_on.set()
        self.port = 0

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._goes_on.set()

    def open(self) -> None:
        """Let everything through."""
        self._goes_on.set()
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), reuse_port=True)
            self.port = self._listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def hang(self) -> None:
        """Take connections and bytes, and let none through until it is opened."""
        self._goes_on.clear()

    def close(self) -> None:
        """Refuse connections, and end those there are."""
        listener, self._listener = self._listener, None
        if listener is not None:
            _end(listener)
        with self._lock:
            ended, self._sockets = self._sockets, set()
        for one in ended:
            _end(one)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._sockets |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._goes_on.wait()
                sink.sendall(data)
        for one in (source, sink):
            _end(one)
        with self._lock:
            self._sockets -= {source, sink}


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
