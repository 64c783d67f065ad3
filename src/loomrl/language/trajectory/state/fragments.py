"""Pieces of JSON that are compressed once and spliced into any number of answers.

A piece is a deflate stream (RFC 1951) that ends at a whole byte and refers to nothing outside itself, so pieces put one
after the other are one stream. gzip (RFC 1952) wants a checksum of all of it, which the pieces' own give.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from isal import igzip_lib, isal_zlib

_FAST = 1
_RAW = -15  # window bits of a stream without header and checksum
_GZIP = 31
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"  # deflate, no time, fastest, unknown system
_Damaged = cast(type[Exception], igzip_lib.error)  # its annotation takes the class for an instance
_END = b"\x03\x00"  # an empty last block


@dataclass(frozen=True, slots=True)
class Fragment:
    """A compressed piece of an answer: a raw deflate stream, the CRC-32 of the plain bytes, and their number."""

    deflated: bytes
    checksum: int
    num_bytes: int

    def plain(self) -> bytes:
        """The piece's bytes, unpacked: `num_bytes` of them."""
        return isal_zlib.decompressobj(_RAW).decompress(self.deflated)


def compress(plain: bytes) -> Fragment:
    """A `Fragment` of plain bytes: deflated by itself, with its CRC-32, ready to be spliced into any answer."""
    stream = isal_zlib.compressobj(_FAST, isal_zlib.DEFLATED, _RAW)
    deflated = stream.compress(plain) + stream.flush(isal_zlib.Z_FULL_FLUSH)
    return Fragment(deflated, isal_zlib.crc32(plain), len(plain))


def gzip_of(pieces: Iterable[Fragment]) -> bytes:
    """All pieces, one after the other, as one gzip file."""
    parts, checksum, num_bytes = [_HEADER], 0, 0
    for piece in pieces:
        parts.append(piece.deflated)
        checksum = isal_zlib.crc32_combine(checksum, piece.checksum, piece.num_bytes)
        num_bytes += piece.num_bytes
    parts += (_END, checksum.to_bytes(4, "little"), (num_bytes & 0xFFFF_FFFF).to_bytes(4, "little"))
    return b"".join(parts)


def plain_of(pieces: Iterable[Fragment]) -> bytes:
    """The bytes of all pieces, unpacked, one after another."""
    return b"".join(piece.plain() for piece in pieces)


def listed(before: bytes, pieces: Iterable[Fragment], after: bytes) -> list[Fragment]:
    """Fragments that, one after the other, are the text `before`, a JSON list of the pieces, and the text `after`."""
    parts = [_fixed(before + b"[")]
    for piece in pieces:
        if len(parts) > 1:
            parts.append(_fixed(b","))
        parts.append(piece)
    return [*parts, compress(b"]" + after)]


def gunzip(body: bytes, max_bytes: int) -> bytes:
    """The plain bytes of a gzip body, `max_bytes` at most; of several members, one after the other.

    Raises:
        ValueError: when it is damaged or cut short.
        OverflowError: when there is more in it; no more than one byte beyond `max_bytes` was unpacked.
    """
    found = bytearray()
    while body:
        stream = isal_zlib.decompressobj(_GZIP)
        try:
            found += stream.decompress(body, max_bytes + 1 - len(found))
        except _Damaged as error:
            raise ValueError(str(error)) from error
        if len(found) > max_bytes:
            raise OverflowError(f"the body unpacks to more than the {max_bytes} bytes that are read")
        if not stream.eof:
            raise ValueError("the body is cut short")
        body = stream.unused_data
    return bytes(found)


@lru_cache(maxsize=8)
def _fixed(text: bytes) -> Fragment:
    return compress(text)
