"""The hash chain: each audit record holds its predecessor's hash and ends with its own.

A record's hash is the SHA-256 of its line without the hash itself, byte for byte, so that no canonical form has to be
agreed on: `{...,"previous_hash":"P"}` is hashed and written as `{...,"previous_hash":"P","hash":"H"}`.
"""

import hashlib
from typing import Any

import orjson

GENESIS = "0" * 64
_MAX_TEXT = 10_000  # characters
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


def writable(record: dict[str, Any]) -> dict[str, Any]:
    """A copy of a record in which each value that cannot be sealed stands as text, which is cut where it is long: what
    a person ordered is on record, whatever it is."""
    return {name: value if _is_writable(value) else _as_text(value) for name, value in record.items()}


def _as_text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... ({len(text)} characters)"


def _is_writable(value: Any) -> bool:
    try:
        orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return False
    return True


def unseal(line: bytes) -> dict[str, Any]:
    """The record of one line, its own hash checked, and that it has what every record of a server has; whether it
    follows the record before it is not.

    Raises:
        BrokenRecord: when the line is torn, was changed, or no server wrote it.
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
    if not _is_whole(record):
        raise BrokenRecord("not a record of a server")
    return record


def _is_whole(record: Any) -> bool:
    """Whether it has what every record of a server has."""
    if not isinstance(record, dict):
        return False
    texts, numbers = ["hash", "previous_hash", "kind"], ["sequence"]
    if record.get("kind") == "anchored":
        texts, numbers = [*texts, "digest"], [*numbers, "number"]
    return all(type(record.get(name)) is str for name in texts) and all(
        type(record.get(name)) is int and record[name] >= 0 for name in numbers
    )
