"""How this package is compiled.

numba's cache on disk notices a changed file, not a changed callee in another file. So every function's entry is named
after the sources of its module and of those it imports from this package: nothing stale is ever loaded.
"""

import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from loomrl.system.machine_code import njit

Function = TypeVar("Function", bound=Callable[..., Any])
_FOLDER = Path(__file__).parent


def compiled(function: Function) -> Function:
    """The function, compiled to machine code at its first call and kept on the disk. Arithmetic is IEEE's, in the order
    that is written."""
    return cast(Function, _compile(function))


def compiled_reduction(function: Function) -> Function:
    """As `compiled`, but sums may be regrouped so that they vectorise: in one fixed order on one kind of processor."""
    return cast(Function, _compile(function, fastmath={"reassoc", "contract", "nsz"}))


def inlined(function: Function) -> Function:
    """The function, compiled into each compiled function that calls it and never alone: for what is called in one
    place."""
    return cast(Function, numba.njit(inline="always", error_model="numpy")(function))


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    digest = source_digest(function.__module__.rpartition(".")[2])
    function.__qualname__ = f"{function.__qualname__}.{digest}"
    return njit(nogil=True, **options)(function)


@cache
def source_digest(module: str) -> str:
    """16 hex digits: the start of a SHA-256 over the sources of a module of this package and of those it imports from
    it."""
    digest = hashlib.sha256()
    for name in sorted(_with_imports(module, set())):
        digest.update(name.encode() + b"\0" + (_FOLDER / f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


def _with_imports(module: str, found: set[str]) -> set[str]:
    found.add(module)
    imported = set(re.findall(rf"{re.escape(__package__)}\.(\w+) import", (_FOLDER / f"{module}.py").read_text()))
    for name in imported - found:
        _with_imports(name, found)
    return found
