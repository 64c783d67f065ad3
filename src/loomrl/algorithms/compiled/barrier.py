"""Where threads wait for one another inside machine code: they meet many times in a millisecond, without Python."""

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from loomrl.algorithms.compiled.jit import compiled

_WORD = ir.IntType(64)
_POSIX = os.name == "posix"


@intrinsic
def _add_one(context, counter):  # type: ignore[no-untyped-def]  # noqa: ARG001 - an intrinsic's signature
    """Add 1 to the first element of an int64 array, as one indivisible step."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        builder.atomic_rmw("add", data, ir.Constant(_WORD, 1), "seq_cst")
        return context.get_dummy_value()

    return types.void(counter), generate


@intrinsic
def _current(context, counter):  # type: ignore[no-untyped-def]  # noqa: ARG001 - an intrinsic's signature
    """The first element of an int64 array as the other threads left it, not as this one remembers it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(data, "seq_cst", 8)

    return types.int64(counter), generate


@intrinsic
def _give_way(context):  # type: ignore[no-untyped-def]  # noqa: ARG001 - an intrinsic's signature
    """Let another thread run: where threads outnumber processors, the awaited one may need this one's."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - numba's signature
        if _POSIX:
            kind = ir.FunctionType(ir.IntType(32), [])
            declare: Any = cgutils.get_or_insert_function
            builder.call(declare(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@compiled
def wait_for_all(counter: NDArray[Any], meeting: int, num_threads: int) -> None:
    """A barrier: wait until all `num_threads` threads have called it with this meeting number: 1, 2, ... `counter` (1,)
    int64 begins at zero and is shared by them. It waits without end where a thread does not come."""
    if num_threads == 1:
        return
    _add_one(counter)  # type: ignore[call-arg]  # numba passes the context
    attempts = 0
    while _current(counter) < meeting * num_threads:
        attempts += 1
        if attempts > 1000:  # about a microsecond, in which the other usually comes
            _give_way()
