"""How LoomRL's functions are compiled, and where the machine code is kept: in the user's cache folder, by content.

Clones, work trees and rebuilt versions with the same sources share what was compiled once, and a CI runner can carry
the folder from job to job. `NUMBA_CACHE_DIR` names another one.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import platformdirs
from numba.core.caching import FunctionCache, UserWideCacheLocator
from numba.core.runtime.nrt import rtsys
from numba.np import linalg

_PACKAGE = Path(__file__).parents[1]


def njit(signature: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: compile to machine code and keep it on disk, with IEEE arithmetic in the order that is written.

    `options` are numba's. What numba cannot compile raises its own errors, `numba.core.errors.NumbaError`. With a
    signature (or several) that happens when the module is loaded, without one at the first call. numba notices a
    changed file, not a changed callee in another one: whoever calls across files puts those into the function's name.
    """
    signatures = [] if signature is None else signature if isinstance(signature, list) else [signature]

    def decorate(function: Callable[..., Any]) -> Any:
        compiled: Any = numba.njit(**{"error_model": "numpy", **options})(function)
        kept: Any = KeptCode
        compiled._cache = kept(function)  # what `cache=True` does, with a cache of our own
        for one in signatures:
            compiled.compile(one)
        if signatures:
            compiled.disable_compile()
        return compiled

    return decorate


class KeptCode(FunctionCache):
    """numba's cache of a function, without the 0.3 s in which numba makes its compiler ready before it loads anything.

    Machine code needs no compiler, and the compiler makes itself ready when something is not kept yet.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for a signature, from the disk; None where it is not kept, or cannot be read."""
        rtsys.initialize(target_context)  # what machine code calls for memory; does nothing from the second time on
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


def folder() -> Path:
    """The folder in the user's cache where machine code is kept, unless `NUMBA_CACHE_DIR` names another; it need not be
    there."""
    return platformdirs.user_cache_path("loomrl") / "compiled"


class ContentLocator(UserWideCacheLocator):
    """numba asks it where the code of a function lies: for this package, in a folder named after the file's content."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        content: bytes = self.get_source_stamp()  # type: ignore[no-untyped-call]
        self._cache_path = str(folder() / f"{Path(py_file).stem}-{content.hex()[:16]}")

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "ContentLocator | None":
        """A locator for a function of this package; None for one of another, and where the folder cannot be written.

        numba then asks its own locators.
        """
        if _PACKAGE not in Path(py_file).parents:
            return None
        located: ContentLocator | None = super().from_function(py_func, py_file)  # type: ignore[no-untyped-call]
        return located


def _keep_by_content() -> None:
    """Put the locator behind `NUMBA_CACHE_DIR` and before numba's own, which follow for all other packages."""
    config: Any = numba.config
    if not config.CACHE_LOCATOR_CLASSES:
        own = f"{__name__}.{ContentLocator.__name__}"
        standard = ("InTreeCacheLocator", "UserWideCacheLocator", "IPythonCacheLocator", "ZipCacheLocator")
        config.CACHE_LOCATOR_CLASSES = ",".join(("UserProvidedCacheLocator", own, *standard))


def _leave_scipy_for_later() -> None:
    """numba imports scipy, 0.1 s, to see that it is there; a matrix product in machine code loads it when it runs."""
    kept, linalg.ensure_blas = linalg.ensure_blas, lambda: None
    importlib.import_module("numba.np.arraymath")
    linalg.ensure_blas = kept


_keep_by_content()
_leave_scipy_for_later()
