"""uvicorn's protocol within bounds: what a sender leaves behind, or leaves out, costs no more than `Bounds` says.

httptools gathers a header until it is whole, and uvicorn addresses, headers and waiting requests, whatever their size.
So what comes is handed to the parser in pieces, and looked at between them. Trailers, which follow a body, are thrown
away: who may do what was decided when the headers were complete.
"""

from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from loomrl.system.http.asgi import WHOLE, Response
from loomrl.system.http.intake import Intake

_PIECE = 8 * 2**10  # bytes handed over at once, unless they are a body's
_SLACK = 64 * 2**10  # bytes that may stand around a piece of a body: sizes of chunks, their extensions, trailers
_MOST_THROWN = 64 * 2**10  # bytes that are read, and thrown away, behind what was refused
NOTHING, _HEAD, _BODY = range(3)  # what of a request is being read


class _Dropped(list[tuple[bytes, bytes]]):
    """Where trailers go."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        """Drop a header: the list stays empty."""


TRAILERS = _Dropped()


class RequestRefused(Exception):
    """Raised in the parser's callbacks to stop it, once the refusal is sent; it goes no further."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol for one connection, held within the bounds of an `intake`, which a subclass names. uvicorn,
    its parser and the intake call its methods; what exceeds the bounds is refused and closed, and nothing is raised but
    `RequestRefused`, to the parser."""

    intake: ClassVar[Intake]

    held = 0
    _begun = 0.0  # `loop.time()` of the connection, or of the first byte of the request that is being read
    _reads = NOTHING
    _has_spoken = _is_watched = _is_refused = False
    _head: list[tuple[bytes, bytes]] = []  # the headers of the request whose body is being read
    _num_around = 0  # bytes since the request, or its last piece of body, began
    _num_body = 0  # bytes of the request that is being read,
    _num_seen = 0  # as far as they were looked at
    _num_unanswered = 0  # bytes of requests that uvicorn has
    _cycles: tuple[RequestResponseCycle, ...] = ()  # what uvicorn answers now, and what waits for that
    _num_thrown = 0  # bytes that came after it was refused
    _unfed = b""  # what came while uvicorn has several requests to answer
    _is_stopping = False  # the server is

    # --- what the parser calls ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called by the parser at a request's first byte: its time and size count from here."""
        self._begin()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser when a request's headers are complete: it is refused where they are too large, and else
        handed to uvicorn.

        Raises:
            RequestRefused: to stop the parser.
        """
        self._end_head()
        super().on_headers_complete()
        self._hand_over()

    def on_body(self, body: bytes) -> None:
        """Called by the parser for each piece of a request's body."""
        self._num_body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser when a request has come in full."""
        self._reads = NOTHING
        self._num_unanswered += self._num_body
        self.scope[WHOLE] = True  # type: ignore[literal-required]
        super().on_message_complete()

    def _hand_over(self) -> None:
        """uvicorn has a request's headers; it says when the connection is to end, and not how."""
        self.headers = TRAILERS
        if self.cycle is not None:
            self.cycle.transport = CycleTransport(self)  # type: ignore[assignment]  # all of a transport that it uses
            self._cycles = (*(one for one in self._cycles if not one.response_complete), self.cycle)

    def on_response_complete(self) -> None:
        """Called when uvicorn has answered a request: what came meanwhile is read on."""
        if self._is_refused:
            return
        super().on_response_complete()
        if not self.pipeline:
            self._num_unanswered = 0
            self._count()
            if self._unfed:
                self.loop.call_soon(self._feed_rest)

    def _begin(self) -> None:
        self._reads, self._has_spoken = _HEAD, True
        self._begun = self.loop.time()
        self._num_around = self._num_body = self._num_seen = 0

    def _end_head(self) -> None:
        num_bytes = self._num_around
        if num_bytes > self.intake.bounds.max_head_bytes - _PIECE:  # the last piece, which is not counted yet, matters
            num_bytes = sum(len(name) + len(value) for name, value in self.headers) + len(self.url)
        self._reads, self._num_around, self._head = _BODY, 0, self.headers
        if (problem := self._too_large_a_head(num_bytes)) is not None:
            self._stop(*problem)

    def _too_large_a_head(self, num_bytes: int) -> tuple[int, str] | None:
        """What is wrong with the size of the address and headers so far, which took so many bytes."""
        bounds = self.intake.bounds
        if len(self.url) > bounds.max_url_bytes:
            return 414, f"the address is longer than {bounds.max_url_bytes} bytes"
        if num_bytes > bounds.max_head_bytes:
            return 431, f"the first line and the headers are longer than {bounds.max_head_bytes} bytes"
        if len(self.headers) > bounds.max_headers:
            return 431, f"there are more than {bounds.max_headers} headers"
        return None

    def _size_of_piece(self) -> int:
        """How much the parser gets at once: the rest of a body whose length is known, and else little."""
        if self._reads == _BODY:
            for name, value in self._head:
                if name == b"content-length":
                    return max(int(value) - self._num_body, _PIECE)
        return _PIECE

    def _stop(self, status: int, message: str) -> None:
        self.refuse(status, message)
        raise RequestRefused(message)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the parser fails: refuse what came with 400, unless it was refused already."""
        self.refuse(400, msg)

    # --- what the transport calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Called by the transport for a new connection: from now on its client must send a request in time."""
        super().connection_made(transport)
        self._begun = self.loop.time()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Called by the transport with bytes that came: hand them to the parser, in pieces and within the bounds.

        What comes after a refusal is thrown away.
        """
        if self._is_refused:
            self._throw_away(len(data))
            return
        if self._unfed:
            self._unfed += data
            self.flow.pause_reading()
        elif len(data) <= _PIECE:
            super().data_received(data)
            self._look_at(len(data))
        else:
            self._feed(data)
        if self._reads != NOTHING or self._unfed:
            self._wait_for_more()
        elif self._is_watched:
            self._is_watched = False
            self.intake.note_complete_request(self)
        if self._reads != NOTHING or self.held or self._num_unanswered:
            self._count()

    def _throw_away(self, num_bytes: int) -> None:
        """What still comes is read for a while, so that its sender gets the answer, and is heard when it is done."""
        self._num_thrown += num_bytes
        if self._num_thrown > _MOST_THROWN:
            self.flow.pause_reading()

    def _wait_for_more(self) -> None:
        """A request is not whole, or has to wait."""
        self._watch()

    def _feed(self, data: bytes) -> None:
        """In pieces, and no further while a request waits that was sent before its turn."""
        start = 0
        while start < len(data) and not self._is_refused and not self.transport.is_closing():
            if self.pipeline:
                self._unfed = data[start:]
                self.flow.pause_reading()
                return
            size = self._size_of_piece()
            piece = data[start : start + size]
            super().data_received(piece)
            self._look_at(len(piece))
            if self.parser.should_upgrade():
                return
            start += size

    def _feed_rest(self) -> None:
        rest, self._unfed = self._unfed, b""
        if rest and not self.transport.is_closing():
            self.flow.resume_reading()
            self.data_received(rest)

    def _look_at(self, num_bytes: int) -> None:
        """Is there too much of what is not a body?"""
        if self._num_body > self._num_seen:
            self._num_seen, self._num_around = self._num_body, 0
            return
        self._num_around += num_bytes
        if self._reads == NOTHING:  # blank lines, which the parser passes over; a request's beginning counts anew
            if self._num_around > self.intake.bounds.max_head_bytes:
                self.refuse(400, "there are blank lines and no request")
        elif self._reads == _HEAD:
            if (problem := self._too_large_a_head(self._num_around)) is not None:
                self.refuse(*problem)
        elif self._num_around > _SLACK:
            self.refuse(400, "there is more around the pieces of the body than in them")

    def _watch(self) -> None:
        if not self._is_watched and not self._is_refused:
            self._is_watched = True
            self.intake.watch(self)

    def _count(self) -> None:
        if not self._is_refused:
            being_read = 0 if self._reads == NOTHING else self._num_around + self._num_body
            self.intake.hold(self, being_read + self._num_unanswered + len(self._unfed))

    def pause_writing(self) -> None:
        """Called by the transport when the client does not read its answer: it counts as slow from now on."""
        super().pause_writing()
        self.intake.note_unread_answer(self)

    def resume_writing(self) -> None:
        """Called by the transport when the client has read what was sent: it no longer counts as slow."""
        super().resume_writing()
        self.intake.note_read_answer(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport when the connection is closed: forget it, and tell all requests that wait for
        answers.

        uvicorn tells the last one alone: those before it would write to a closed connection, or wait for ever to hear
        that their sender is gone.
        """
        self._let_go()
        self.intake.connection_closed(self)
        super().connection_lost(exc)
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        self._cycles = ()

    def shutdown(self) -> None:
        """Called when the server stops: close now what was refused, and anything else once it is answered."""
        self._is_stopping = True
        if self._is_refused:
            self.close()
        else:
            super().shutdown()

    # --- what the intake calls ------------------------------------------------------------------------------------

    def refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        """Answer the request that is being sent with this error, and close in a while; without the answer where others
        before it wait for theirs. A second refusal does nothing."""
        if not self._is_refused and not self.transport.is_closing():
            self.intake.count(status)
            self._leave(self.intake.answer(status, message, headers))

    def _leave(self, answer: Response) -> None:
        """This is the last answer: nothing else that came, or comes, gets one."""
        self._read_no_more()
        is_another, cycle = self._reads != _BODY, self.cycle
        under_way = cycle is not None and not cycle.response_complete
        if self._has_spoken and not (under_way and (is_another or cycle.response_started or self.pipeline)):
            self.transport.write(encoded(answer, keep_alive=False))
        if under_way:
            cycle.disconnected, cycle.waiting_for_100_continue = True, False  # it may not have begun
            cycle.message_event.set()
        self._end()

    def finish(self) -> None:
        """Called when uvicorn has sent its last answer: close, at once where the request came in full, and else in a
        while."""
        if self._reads == NOTHING or self._is_refused:
            self.transport.close()
        else:
            self._read_no_more()
            self._end()

    def _read_no_more(self) -> None:
        self._is_refused = True
        self._let_go()
        self.intake.forget(self)  # before an answer is written: should nobody take it, that counts

    def _end(self) -> None:
        if self._is_stopping:
            self.close()
        else:
            self.intake.close(self)

    def _let_go(self) -> None:
        """Of what was read: parser and protocol know each other, so that only the garbage collector frees them."""
        self._unfed = b""
        if self._reads == _BODY and self.cycle is not None:
            self.cycle.body = bytearray()

    def close(self) -> None:
        """Close the connection once its answer is taken, or `answer_seconds` from now."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self.intake.bounds.answer_seconds, self.transport.abort)

    def drop(self) -> None:
        """Close the connection at once; what is left to send is lost."""
        self.transport.abort()

    def seconds_left(self, now: float) -> float:
        """Seconds until the client must have sent its request in full, 0 or less when late. `now` is `loop.time()`.

        The time does not run while uvicorn answers what came before.
        """
        if self._reads != _BODY and self.cycle is not None and not self.cycle.response_complete:
            return self.intake.bounds.head_seconds
        bounds = self.intake.bounds
        if self._reads == _BODY:
            return self._begun + bounds.request_seconds + self._num_body / bounds.least_bytes_per_second - now
        return self._begun + bounds.head_seconds - now

    def num_untaken(self) -> int:
        """Bytes of answers that its client did not take yet."""
        return int(self.transport.get_write_buffer_size())


class CycleTransport:
    """What uvicorn's request-response cycle has for a transport, with `write`, `is_closing` and `close`; to close is
    left to the protocol's `finish`."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self.write, self.is_closing = protocol.transport.write, protocol.transport.is_closing
        self.close = protocol.finish


def bounded_by(intake: Intake) -> type[BoundedProtocol]:
    """A protocol class for uvicorn whose connections share this intake."""
    return type("Protocol", (BoundedProtocol,), {"intake": intake})


def encoded(answer: Response, keep_alive: bool) -> bytes:
    """The bytes of a response as HTTP/1.1 sends it, headers included."""
    lines = b"".join(b"%b: %b\r\n" % (name.lower().encode(), text.encode()) for name, text in answer.headers.items())
    if not keep_alive:
        lines += b"connection: close\r\n"
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n%b" % (
        STATUS_LINE[answer.status], answer.content_type, len(answer.body), lines, answer.body,
    )  # fmt: skip
