"""The routes of agents without a task: a request that is whole is answered before the event loop turns again.

uvicorn starts a coroutine for every request, which costs as much as the decision. Here a POST of agents is collected by
uvicorn's own parser and answered in the same turn, with all that came in it; every other request, compressed bodies
too, takes uvicorn's way, and so does one that needs other workers.
"""

import asyncio
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from loomrl.serving.asgi import Response, Scope, as_problem, packed

if TYPE_CHECKING:
    from loomrl.serving.app import HotHandler, PolicyServer


def protocol_of(server: "PolicyServer", max_body_bytes: int) -> type[HttpToolsProtocol]:
    """uvicorn's protocol, with the server's answers to agents in it."""

    class HotProtocol(HttpToolsProtocol):
        _handler: "HotHandler | None" = None
        _is_waiting = False  # an answer comes at the end of this turn
        _keeps_alive = True
        _is_last = False  # the server stops: a request that is half read is answered, and nothing after it
        _idle_since: float | None = None  # `loop.time()` of the last answer; None while there is something to answer
        _idle_timer: asyncio.TimerHandle | None = None  # one for the connection: one for each answer costs more
        _scope: Scope
        _pieces: list[bytes]
        _num_bytes: int

        def on_message_begin(self) -> None:
            if self._is_waiting:  # the next request of the same connection: answers leave in order
                server.batcher.flush()
            self._idle_since = None
            self.url, self.headers, self.expect_100_continue = b"", [], False

        def on_headers_complete(self) -> None:
            is_free = self.cycle is None or self.cycle.response_complete  # else answers would leave out of order
            is_free = is_free and not self.flow.write_paused  # uvicorn waits until answers are taken, and reads no more
            is_plain = not (self.expect_100_continue or self.parser.should_upgrade())
            self._handler = None
            if is_free and is_plain and self.parser.get_method() == b"POST":
                path = self.url.partition(b"?")[0].decode("latin-1")
                if not any(name == b"content-encoding" for name, _ in self.headers):
                    self._handler = server.hot_handler(path)
            if self._handler is None:
                self._go_on_as_usual()
                return
            self._scope = {"method": "POST", "path": path, "headers": self.headers}
            self._pieces, self._num_bytes = [], 0

        def on_body(self, body: bytes) -> None:
            if self._handler is None:
                super().on_body(body)
                return
            self._num_bytes += len(body)
            if self._num_bytes <= max_body_bytes:
                self._pieces.append(body)

        def on_message_complete(self) -> None:
            if self._handler is None:
                super().on_message_complete()
                return
            handler, self._handler = self._handler, None
            self._keeps_alive = self.parser.should_keep_alive() and not (self._is_last or server.is_leaving)
            if self._num_bytes > max_body_bytes:
                self._send(as_problem(413, f"the body has {self._num_bytes} bytes; at most {max_body_bytes} are read"))
                return
            answer = server.read_at_once(handler, self._scope, b"".join(self._pieces))
            if isinstance(answer, Response):
                self._send(answer)
            elif answer is None:  # other workers have to be waited for
                self._go_on_as_usual()
                super().on_body(b"".join(self._pieces))
                super().on_message_complete()
            else:
                self._is_waiting = True
                server.batcher.add(answer, self._send)

        def shutdown(self) -> None:
            if self._is_waiting:
                server.batcher.flush()
            self._is_last = self._handler is not None
            if not self._is_last:
                super().shutdown()

        def _go_on_as_usual(self) -> None:
            """Hand over to uvicorn what was read until here."""
            url, headers, expects = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expects
            self.headers += headers
            super().on_headers_complete()

        def _send(self, answer: Response) -> None:
            self._is_waiting = False
            if self.transport.is_closing():
                return
            self.transport.write(encoded(packed(self._scope, answer), self._keeps_alive))
            self.server_state.total_requests += 1
            if self._keeps_alive:
                self._idle_since = self.loop.time()
                if self._idle_timer is None:
                    self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)
            else:
                self.transport.close()

        def _close_if_idle(self) -> None:
            self._idle_timer = None
            if self._idle_since is None:
                return
            rest = self._idle_since + self.timeout_keep_alive - self.loop.time()
            if rest > 0:
                self._idle_timer = self.loop.call_later(rest, self._close_if_idle)
            else:
                self.timeout_keep_alive_handler()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            super().connection_lost(exc)

    return HotProtocol


def encoded(answer: Response, keep_alive: bool) -> bytes:
    """A response as it crosses the wire."""
    lines = b"".join(b"%b: %b\r\n" % (name.lower().encode(), text.encode()) for name, text in answer.headers.items())
    if not keep_alive:
        lines += b"connection: close\r\n"
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n%b" % (
        STATUS_LINE[answer.status], answer.content_type, len(answer.body), lines, answer.body,
    )  # fmt: skip
