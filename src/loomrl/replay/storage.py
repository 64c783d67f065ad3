"""Where a buffer's arrays live.

A buffer asks its storage for named arrays and works on them in place; it keeps no other bulk data. Whatever can hand
out such arrays can hold a replay buffer: memory, files mapped into it, and, later, files encrypted at rest.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from loomrl.errors import ArtifactError


class Storage(Protocol):
    """Hands out arrays by name. Asking again for a name with another shape replaces the array."""

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array of zeros; raises `ArtifactError` where there is no room."""

    def flush(self) -> None:
        """Make what was written so far survive the machine; nothing to do in memory."""


class MemoryStorage:
    """Arrays in memory."""

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Zeros: the system gives the pages when they are first written."""
        try:
            return np.zeros(shape, dtype)
        except MemoryError as error:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            raise ArtifactError(
                f"no memory for the replay array {name!r} ({size / 1e9:.2f} GB); lower the capacity or map it to disk"
            ) from error

    def flush(self) -> None:
        """Memory does not outlive the process."""
