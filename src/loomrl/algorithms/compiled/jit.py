"""How this package is compiled, and where the machine code is kept.

numba's cache on disk notices a changed file, not a changed callee in another file. So every function's entry is named
after the sources of the whole package: after any edit all is compiled anew, and nothing stale is ever loaded.
"""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from loomrl.home import home

Function = TypeVar("Function", bound=Callable[..., Any])
_FOLDER = Path(__file__).parent


def compiled(function: Function) -> Function:
    """Compile to machine code at the first call and keep it on disk: IEEE arithmetic, in the order that is written."""
    return cast(Function, _compile(function))


def compiled_reduction(function: Function) -> Function:
    """As `compiled`, but sums may be regrouped so that they vectorise: one fixed order on one kind of processor."""
    return cast(Function, _compile(function, fastmath={"reassoc", "contract", "nsz"}))


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    function.__qualname__ = f"{function.__qualname__}.{source_digest()}"
    return numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function)


@cache
def source_digest() -> str:
    """The start of a SHA-256 over the sources of this package."""
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def find_cache() -> None:
    """Keep compiled code under the home folder where the package's own folder cannot be written."""
    own = _FOLDER / "__pycache__"
    writable = os.access(own if own.is_dir() else _FOLDER, os.W_OK)
    config: Any = numba.config
    if not writable and not config.CACHE_DIR:
        config.CACHE_DIR = str(home() / "compiled")


find_cache()
