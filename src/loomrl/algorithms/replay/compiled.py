"""How replay compiles its inner loops.

numba's cache notices a changed file, not a changed callee in another file: whatever a compiled function calls or
reads as a constant stands in the file of that function.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from loomrl.system.machine_code import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function, compiled to machine code at its first call and kept on the disk. Arithmetic is IEEE's, in the order
    that is written."""
    return cast(Function, njit(nogil=True)(function))
