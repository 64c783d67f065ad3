"""The little HTTP the server needs on top of ASGI: whole bodies within a limit, JSON answers, compression."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from loomrl.system.http.compression import MIN_BYTES, accepted, compress, inflate
from loomrl.system.http.problems import Problem
from loomrl.system.schema import Document

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = b"application/json"
CLOSE = {"Connection": "close"}
WHOLE = "loomrl.whole"  # in a scope, once all of the request has come
_JSON_HEADER = (b"content-type", JSON)


class ClientGone(Exception):
    """Raised where a client went away before its request was whole: nobody waits for an answer."""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response: its body in bytes, its status, its content type and further headers."""

    body: bytes
    status: int = 200
    content_type: bytes = JSON
    headers: dict[str, str] = field(default_factory=dict)


def as_json(value: Any, status: int = 200) -> Response:
    """A JSON response; documents within the value become what they are in JSON, NaN null.

    Raises:
        TypeError: for a value that JSON cannot hold.
    """
    return Response(orjson.dumps(value, default=Document.to_json, option=orjson.OPT_NON_STR_KEYS), status)


def as_problem(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """The response to a refused request: this status, with the message as `error`."""
    return Response(orjson.dumps({"error": message}), status, headers=headers or {})


def header(scope: Scope, name: bytes) -> str:
    """The value of a request's header, the first of its name, which is in lower case; empty where there is none."""
    for key, value in scope["headers"]:
        if key == name:
            found: str = value.decode("latin-1")
            return found
    return ""


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole body of a request, unpacked where it is compressed.

    Raises:
        Problem: 413 as soon as it is larger than `max_bytes`, packed or not; 415 for an unknown compression, 400 for a
            damaged one.
        ClientGone: when the client goes away before the body is whole.
    """
    message = await receive()
    body = message.get("body", b"")
    if message.get("more_body", False):
        pieces = bytearray(body)
        while message.get("more_body", False):
            message = await receive()
            pieces += message.get("body", b"")
            if len(pieces) > max_bytes:
                raise Problem(413, f"the body is larger than the {max_bytes} bytes that are read", CLOSE)
        body = bytes(pieces)
    if message["type"] == "http.disconnect":
        raise ClientGone
    encoding = header(scope, b"content-encoding")
    return inflate(body, encoding, max_bytes) if encoding not in ("", "identity") else body


def check_length(scope: Scope, max_bytes: int) -> int:
    """Refuse, before it comes, a body that says it is too large, and one behind an offer of another protocol
    (`Upgrade`).

    Returns the bytes that its `Content-Length` says, 0 without one. The parser reads no body behind such an offer: what
    was sent would be taken for nothing.

    Raises:
        Problem: 413 for too large a body, 400 for the offer.
    """
    num_bytes = check_size(header(scope, b"content-length") or 0, max_bytes)
    offers = "upgrade" in header(scope, b"connection").lower() and header(scope, b"upgrade")
    if offers and has_body(scope):
        raise Problem(400, f"this server speaks HTTP/1.1 alone: send no `Upgrade: {offers}` with a body")
    return num_bytes


def check_size(length: str | bytes | int, max_bytes: int) -> int:
    """Refuse a body of more bytes than are read; returns how many a `Content-Length` says.

    Raises:
        Problem: 413, for more than `max_bytes`.
        ValueError: for a length that is no whole number.
    """
    num_bytes = int(length)
    if num_bytes > max_bytes:
        raise Problem(413, f"the body has {num_bytes} bytes; at most {max_bytes} are read")
    return num_bytes


def has_body(scope: Scope) -> bool:
    """Whether a request's headers announce a body."""
    return header(scope, b"content-length") not in ("", "0") or bool(header(scope, b"transfer-encoding"))


def unread(scope: Scope, response: Response) -> Response:
    """The response to a request that is answered without its body being read: where that has not come in full, with the
    header that closes the connection after it."""
    if scope.get(WHOLE) or not has_body(scope):
        return response
    return replace(response, headers={**response.headers, **CLOSE})


def packed(scope: Scope, response: Response) -> Response:
    """The response in the encoding its client prefers; as it is where that is none, or the body has less than 1 KiB."""
    if len(response.body) < MIN_BYTES or (encoding := accepted(header(scope, b"accept-encoding"))) is None:
        return response
    headers = {**response.headers, "Content-Encoding": encoding}
    return replace(response, body=compress(response.body, encoding), headers=headers)


async def respond(send: Send, response: Response) -> None:
    """Send a whole response to the client, as ASGI's two messages: status with headers, then the body."""
    headers = [
        _JSON_HEADER if response.content_type is JSON else (b"content-type", response.content_type),
        (b"content-length", b"%d" % len(response.body)),
    ]
    headers += [(name.lower().encode(), value.encode()) for name, value in response.headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
