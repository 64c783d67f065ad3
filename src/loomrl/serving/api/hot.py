"""The routes of agents without a task: a request that is whole is answered before the event loop turns again.

uvicorn starts a coroutine for every request, which costs as much as the decision. Here a POST of agents is collected by
uvicorn's own parser and answered in the same turn, with all that came in it; every other request, compressed bodies
too, takes uvicorn's way, and so does one that needs other workers.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from loomrl.system.http.asgi import Response, Scope, packed
from loomrl.system.http.bounded import NOTHING, TRAILERS, BoundedProtocol, encoded
from loomrl.system.http.guard import Admission
from loomrl.system.http.problems import Problem

if TYPE_CHECKING:
    from loomrl.serving.api.app import HotHandler, PolicyServer

_NOT_HOT = frozenset((b"content-encoding", b"origin", b"sec-fetch-site"))  # packed bodies and browsers


def protocol_of(server: "PolicyServer", max_body_bytes: int) -> type[BoundedProtocol]:
    """A class of uvicorn's HTTP protocol that keeps within the server's bounds, and answers the POSTs of agents itself
    before the event loop turns again. Bodies of more than `max_body_bytes` are refused with 413.
    """

    class HotProtocol(BoundedProtocol):
        intake = server.intake
        _handler: "HotHandler | None" = None
        _is_waiting = False  # an answer comes at the end of this turn
        _keeps_alive = True
        _idle_since: float | None = None  # `loop.time()` of the last answer; None while there is something to answer
        _idle_timer: asyncio.TimerHandle | None = None  # one for the connection: one for each answer costs more
        _admission: Admission
        _scope: Scope
        _body: bytes | bytearray = b""
        _problem: Response | None = None  # why what is being read gets no other answer

        def connection_made(self, transport: Any) -> None:
            self._admission = Admission()
            super().connection_made(transport)

        def on_message_begin(self) -> None:
            if self._is_waiting:  # the next request of the same connection: answers leave in order
                server.batcher.flush()
            self._idle_since = None
            self._begin()
            self.url, self.headers, self.expect_100_continue = b"", [], False

        def on_headers_complete(self) -> None:
            self._end_head()
            is_free = self.cycle is None or self.cycle.response_complete  # else answers would leave out of order
            is_free = is_free and not self.flow.write_paused  # uvicorn waits until answers are taken, and reads no more
            is_plain = not (self.expect_100_continue or self.parser.should_upgrade())
            self._handler = None
            if is_free and is_plain and self.parser.get_method() == b"POST":
                path = self.url.partition(b"?")[0].decode("latin-1")
                found = dict(self.headers)
                if _NOT_HOT.isdisjoint(found):
                    self._handler = server.hot_handler(path)
            if self._handler is None:
                self._go_on_as_usual(self.headers)
                return
            self._scope = {"method": "POST", "path": path, "headers": self.headers, "client": self.client}
            self._body, self.headers = b"", TRAILERS
            try:
                server.admit_agent(self._scope, found, max_body_bytes, self._admission)
            except Problem as problem:
                self._problem = server.refusal(self._scope, problem)

        def on_body(self, body: bytes) -> None:
            if self._handler is None:
                super().on_body(body)
                return
            self._num_body += len(body)
            if self._problem is None:
                if self._num_body > max_body_bytes:  # sent in chunks, which say nothing of what is to come
                    self._stop(413, f"the body is larger than the {max_body_bytes} bytes that are read")
                if not self._body:
                    self._body = body
                    return
                if isinstance(self._body, bytes):  # a list of pieces would hold many times what came in small ones
                    self._body = bytearray(self._body)
                self._body += body

        def on_message_complete(self) -> None:
            if self._handler is None:
                super().on_message_complete()
                return
            handler, self._handler = self._handler, None
            self._reads = NOTHING
            self._keeps_alive = self.parser.should_keep_alive() and not (self._is_stopping or server.is_leaving)
            if self._problem is not None:
                self._send(self._problem)
                self._problem = None
                return
            body, self._body = bytes(self._body), b""
            answer = server.read_at_once(handler, self._scope, body)
            if isinstance(answer, Response):
                self._send(answer)
            elif answer is None:  # other workers have to be waited for
                self._go_on_as_usual(self._scope["headers"])
                HttpToolsProtocol.on_body(self, body)
                self._num_unanswered += len(body)
                HttpToolsProtocol.on_message_complete(self)
            else:
                self._is_waiting = True
                server.batcher.add(answer, self._send)

        def _wait_for_more(self) -> None:
            super()._wait_for_more()
            if self._problem is not None and not self._is_refused:  # the rest of its body is not waited for
                self._leave(packed(self._scope, self._problem))
                self._problem = None

        def _let_go(self) -> None:
            super()._let_go()
            self._body = b""

        def shutdown(self) -> None:
            self._is_stopping = True
            if self._is_waiting:
                server.batcher.flush()
            if self._handler is None or self._is_refused:  # else what is half read is answered, and nothing after it
                super().shutdown()

        def _go_on_as_usual(self, headers: list[tuple[bytes, bytes]]) -> None:
            """Hand over to uvicorn what was read until here."""
            url, expects = self.url, self.expect_100_continue
            HttpToolsProtocol.on_message_begin(self)
            self.url, self.expect_100_continue = url, expects
            self.headers += headers
            HttpToolsProtocol.on_headers_complete(self)
            self._hand_over()

        def _send(self, answer: Response) -> None:
            self._is_waiting = False
            if self._is_refused or self.transport.is_closing():
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
