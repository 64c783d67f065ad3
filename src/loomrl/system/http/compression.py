"""Bodies packed by gzip or deflate: unpacked within a limit, packed for those who ask.

RFC 9110, sections 8.4 and 12.5.3; what HTTP calls deflate is zlib's format.
"""

import zlib
from functools import lru_cache

from loomrl.system.http.problems import Problem

MIN_BYTES = 1_024  # smaller answers are sent as they are: packing them costs more than sending them
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
_FAST = 1


def inflate(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """The body of a request with `Content-Encoding: encoding`. Never unpacks more than one byte beyond `max_bytes`.

    Raises:
        Problem: 415 for another encoding, 400 for damaged bytes, 413 for more than `max_bytes`.
    """
    bits = _WINDOW_BITS.get(encoding.lower())
    if bits is None:
        raise Problem(415, f"content-encoding {encoding!r} is not read; send gzip, deflate, or the body as it is")
    stream = zlib.decompressobj(bits)
    try:
        found = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise Problem(400, f"the body is not {encoding}: {error}") from error
    if len(found) > max_bytes:
        raise Problem(413, f"the body unpacks to more than the {max_bytes} bytes that are read")
    if not stream.eof or stream.unused_data:
        raise Problem(400, f"the body is not one whole {encoding} stream: its end is missing, or more follows it")
    return found


def compress(body: bytes, encoding: str) -> bytes:
    """The body packed in an encoding that `accepted` named; any other raises `KeyError`."""
    stream = zlib.compressobj(_FAST, wbits=_WINDOW_BITS[encoding])
    return stream.compress(body) + stream.flush()


@lru_cache(maxsize=64)
def accepted(accept_encoding: str) -> str | None:
    """The encoding to answer in, gzip before deflate; None where the client asks for none or prefers none."""
    weights = dict(_weighted(entry) for entry in accept_encoding.lower().split(",") if entry.strip())
    offered = {name: weights.get(name, weights.get("*", 0.0)) for name in _WINDOW_BITS}
    best = max(offered, key=lambda name: offered[name])
    return best if offered[best] > 0 and offered[best] >= weights.get("identity", 0.0) else None


def _weighted(entry: str) -> tuple[str, float]:
    """`gzip;q=0.5` as name and weight; a weight that is no number counts as 0."""
    name, _, weight = entry.partition(";")
    try:
        return name.strip(), float(weight.strip().removeprefix("q=") or 1.0)
    except ValueError:
        return name.strip(), 0.0
