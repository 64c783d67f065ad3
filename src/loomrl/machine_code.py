"""How LoomRL's functions are compiled, and where the machine code is kept: in the user's cache folder, by content.

Clones, work trees and rebuilt versions with the same sources share what was compiled once, and a CI runner can carry
the folder from job to job. `NUMBA_CACHE_DIR` names another one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import platformdirs
from numba.core.caching import UserWideCacheLocator

_PACKAGE = Path(__file__).parent


def njit(signature: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: compile to machine code and keep it on disk, with IEEE arithmetic in the order that is written.

    With a signature (or several) that happens when the module is loaded, without one at the first call. numba notices a
    changed file, not a changed callee in another one: whoever calls across files puts those into the function's name.
    """
    compile_: Callable[[Callable[..., Any]], Any] = numba.njit(
        signature, **{"cache": True, "error_model": "numpy", **options}
    )
    return compile_


def folder() -> Path:
    """Where machine code is kept, unless `NUMBA_CACHE_DIR` says otherwise or it cannot be written."""
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
        """None for functions of other packages, and where the folder cannot be written: numba's own follow then."""
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


_keep_by_content()
