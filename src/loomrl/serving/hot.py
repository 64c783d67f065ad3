"""The routes of agents without a task: a request that is whole is answered where its last byte was read.

uvicorn starts a coroutine for every request, which costs as much as the decision. Here a POST of agents is collected by
uvicorn's own parser and answered in the same call; every other request, compressed bodies too, takes uvicorn's way.
"""

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from loomrl.serving.asgi import Response, as_problem

if TYPE_CHECKING:
    from loomrl.serving.app import HotHandler, PolicyServer


def protocol_of(server: "PolicyServer", max_body_bytes: int) -> type[HttpToolsProtocol]:
    """uvicorn's protocol, with the server's answers to agents in it."""

    class HotProtocol(HttpToolsProtocol):
        _handler: "HotHandler | None" = None
        _parts: list[bytes]
        _num_bytes: int

        def on_headers_complete(self) -> None:
            is_free = self.cycle is None or self.cycle.response_complete  # else answers would leave out of order
            self._handler = None
            if is_free and self.parser.get_method() == b"POST" and not self.expect_100_continue:
                path = self.url.partition(b"?")[0].decode("latin-1")
                if not any(name == b"content-encoding" for name, _ in self.headers):
                    self._handler = server.hot_handler(path)
            if self._handler is None:
                super().on_headers_complete()
                return
            self.scope["method"], self.scope["path"] = "POST", path
            self._parts, self._num_bytes = [], 0

        def on_body(self, body: bytes) -> None:
            if self._handler is None:
                super().on_body(body)
                return
            self._num_bytes += len(body)
            if self._num_bytes <= max_body_bytes:
                self._parts.append(body)

        def on_message_complete(self) -> None:
            if self._handler is None:
                super().on_message_complete()
                return
            handler, self._handler = self._handler, None
            if self._num_bytes > max_body_bytes:
                answer = as_problem(413, f"the body has {self._num_bytes} bytes; at most {max_body_bytes} are read")
            else:
                answer = server.answer_at_once(handler, self.scope, b"".join(self._parts))
            self._send(answer, self.parser.should_keep_alive())

        def _send(self, answer: Response, keep_alive: bool) -> None:
            if self.transport.is_closing():
                return
            self.transport.write(encoded(answer, keep_alive))
            self.server_state.total_requests += 1
            if keep_alive:
                self._unset_keepalive_if_required()
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            else:
                self.transport.close()

    return HotProtocol


def encoded(answer: Response, keep_alive: bool) -> bytes:
    """A response as it crosses the wire."""
    lines = b"".join(b"%b: %b\r\n" % (name.lower().encode(), text.encode()) for name, text in answer.headers.items())
    if not keep_alive:
        lines += b"connection: close\r\n"
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n%b" % (
        STATUS_LINE[answer.status], answer.content_type, len(answer.body), lines, answer.body,
    )  # fmt: skip
