"""The hash chain: each audit record holds its predecessor's hash and ends with its own.

A record's hash is the SHA-256 of its line without the hash itself, byte for byte, so that no canonical form has to be
agreed on: `{...,"previous_hash":"P"}` is hashed and written as `{...,"previous_hash":"P","hash":"H"}`.
"""

import hashlib
from typing import Any

import orjson

GENESIS = "0" * 64
_TAIL = len(',"hash":"') + 64 + len('"}')


class BrokenRecord(ValueError):
    """A line that is no whole, unchanged record."""


def seal(record: dict[str, Any], previous_hash: str) -> tuple[bytes, str]:
    """(Line, hash) of a record that follows the one whose hash is `previous_hash`.

    The line is what is written, with its newline; the hash, 64 hex digits, is the record's own.

    Raises:
        TypeError: for a value that JSON cannot hold; NaN is written as null.
    """
    body = orjson.dumps({**record, "previous_hash": previous_hash}, option=orjson.OPT_SERIALIZE_NUMPY)
    digest = hashlib.sha256(body).hexdigest()
    return b'%b,"hash":"%b"}\n' % (body[:-1], digest.encode()), digest


def unseal(line: bytes) -> dict[str, Any]:
    """The record of one line, its own hash checked; whether it follows the record before it is not.

    Raises:
        BrokenRecord: when the line is torn or was changed.
    """
    body = line.rstrip(b"\n")
    head, tail = body[:-_TAIL], body[-_TAIL:]
    if not tail.startswith(b',"hash":"') or not tail.endswith(b'"}') or not line.endswith(b"\n"):
        raise BrokenRecord("not a whole record")
    digest = hashlib.sha256(head + b"}").hexdigest()
    if tail[len(b',"hash":"') : -2] != digest.encode():
        raise BrokenRecord("the hash is not that of the content")
    try:
        record: dict[str, Any] = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BrokenRecord(f"not JSON: {error}") from error
    return record
