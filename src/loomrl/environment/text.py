"""Texts as arrays of a fixed size, which snapshots, recorded rollouts and exported policies need."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.errors import EnvironmentFault

_FIRST_PRINTABLE, _LAST_PRINTABLE = 0x20, 0x7E  # of ASCII


class TextBox(spaces.Box):
    """Texts of at most `size` bytes: UTF-8 in uint8 (size,), with zeros after its end and nowhere else."""

    def __init__(self, size: int) -> None:
        super().__init__(0, 255, (size,), np.uint8)
        self.size = size

    def sample(self, mask: None = None, probability: None = None) -> NDArray[Any]:  # noqa: ARG002 - Gymnasium's signature
        """A random text of ASCII's printable letters."""
        letters = self.np_random.integers(_FIRST_PRINTABLE, _LAST_PRINTABLE, self.size, np.uint8, endpoint=True)
        letters[self.np_random.integers(self.size, endpoint=True) :] = 0
        return letters

    def contains(self, x: Any) -> bool:
        """Bytes of the right number, zeros after the first zero; whether they are UTF-8 is for whoever reads them."""
        return super().contains(x) and bool(ends_once(np.asarray(x)[None])[0])

    def __repr__(self) -> str:
        return f"TextBox({self.size})"


def ends_once(texts: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of the arrays of bytes (N, size) have nothing but zeros after their first zero, (N,)."""
    ended = np.logical_or.accumulate(texts == 0, axis=1)
    return np.asarray(~np.any(ended & (texts != 0), axis=1))


def encode_text(text: str, size: int) -> NDArray[np.uint8]:
    """UTF-8 of a text, uint8 (size,), zeros after its end.

    Raises:
        EnvironmentFault: when it is longer: half a task is none.
    """
    data = text.encode()
    if len(data) > size:
        raise EnvironmentFault(f"a text of {len(data)} bytes does not fit into {size}: {text[:60]!r}...")
    encoded = np.zeros(size, np.uint8)
    encoded[: len(data)] = np.frombuffer(data, np.uint8)
    return encoded


def decode_text(encoded: Any) -> str:
    """The text an array of bytes stands for, up to its first zero; what is not UTF-8 becomes U+FFFD."""
    data = np.asarray(encoded, np.uint8).tobytes()
    return data.partition(b"\0")[0].decode(errors="replace")
