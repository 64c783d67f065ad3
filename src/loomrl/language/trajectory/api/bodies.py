"""Bodies of requests: read within limits, unpacked, answered in the encoding that was asked for."""

from collections.abc import Sequence

from loomrl.language.trajectory.state.fragments import Fragment, compress, gunzip, gzip_of, plain_of
from loomrl.language.trajectory.wire import Invalid, refused
from loomrl.system.http.asgi import CLOSE, ClientGone, Receive, Response, Scope, header
from loomrl.system.http.compression import accepted
from loomrl.system.http.problems import Problem

MIN_PACKED_BYTES = 1_000  # the wire's: shorter answers are never packed
_TEXT = b"text/plain; charset=utf-8"
_RETRY = {"Retry-After": "1", **CLOSE}


class BadGzip(Exception):
    """A body that is not valid gzip, raised while it is read. `response` is Atropos' 400 for it."""

    response = Response(b"Invalid gzip payload", 400, _TEXT)


class Bodies:
    """Reads bodies of requests, each of at most `max_bytes`, and all that are being read at once (`pending` bytes) of
    at most `max_pending_bytes`."""

    def __init__(self, max_bytes: int, max_pending_bytes: int) -> None:
        self._max_bytes, self.max_pending_bytes = max_bytes, max_pending_bytes
        self.pending = 0  # bytes

    async def read(self, scope: Scope, receive: Receive, most: int | None = None) -> bytes:
        """The whole body, unpacked, of at most `max_bytes`, or `most` where that is given.

        Raises:
            BadGzip: when it cannot be unpacked.
            Problem: 413 beyond the limit, packed or not; 503 while too much is being read at once.
            ClientGone: when the sender goes away before the body is whole.
        """
        length, most = header(scope, b"content-length"), self._max_bytes if most is None else most
        if length and int(length) > most:
            raise Problem(413, f"the body has {length} bytes; at most {most} are read", CLOSE)
        taken, body = 0, bytearray()
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk, more = message.get("body", b""), message.get("more_body", False)
                self.pending += len(chunk)
                taken += len(chunk)
                if taken > most:
                    raise Problem(413, f"the body is larger than the {most} bytes that are read", CLOSE)
                if self.pending > self.max_pending_bytes:
                    raise Problem(503, "too much is being posted at once; send it again", _RETRY)
                body += chunk
        finally:
            self.pending -= taken
        if "gzip" not in header(scope, b"content-encoding").lower():
            return bytes(body)
        return _unpacked(bytes(body), most)


def _unpacked(body: bytes, most: int) -> bytes:
    try:
        return gunzip(body, most)
    except OverflowError as error:
        raise Problem(413, str(error)) from error
    except ValueError as error:
        raise BadGzip from error


def check_json(scope: Scope) -> None:
    """Check that a request's `Content-Type` is JSON, or that there is none: a web page's form has another.

    Raises:
        Invalid: naming the `Content-Type` found.
    """
    kind = header(scope, b"content-type").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Invalid(refused(f"send it with `Content-Type: application/json`, found {kind!r}"))


def packed(scope: Scope, response: Response) -> Response:
    """The response in gzip where the client accepts it and the body is long; else, and where it is packed already, the
    response itself."""
    if len(response.body) < MIN_PACKED_BYTES or response.headers.keys() >= _PACKED.keys() or not wants_gzip(scope):
        return response
    headers = {**response.headers, **_PACKED}
    return Response(gzip_of([compress(response.body)]), response.status, response.content_type, headers)


def spliced(scope: Scope, pieces: Sequence[Fragment]) -> Response:
    """A response made of compressed pieces: as gzip where the client accepts it and the body is long, else unpacked."""
    if sum(piece.num_bytes for piece in pieces) < MIN_PACKED_BYTES or not wants_gzip(scope):
        return Response(plain_of(pieces))
    return Response(gzip_of(pieces), headers=_PACKED)


def wants_gzip(scope: Scope) -> bool:
    """Whether the client accepts gzip."""
    return accepted(header(scope, b"accept-encoding")) == "gzip"


_PACKED = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
