"""What bitwise equality depends on besides the inputs: the number of threads and the processor."""

import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NUM_THREADS = 1  # small networks are fastest on one, and sums then have one order

_lock = threading.Lock()
_inside = 0  # blocks of this process that have begun and not ended
_before = NUM_THREADS  # torch's number when the first of them began


@contextmanager
def one_thread(engine: str = "torch") -> Iterator[None]:
    """Run torch on one thread while the block lasts, and give it back its own number of threads afterwards.

    The number is one for the whole process: of blocks that lie in each other, or overlap in several threads, the last
    one to end gives it back. With the engine "compiled" nothing is done where torch is not loaded, and torch is not
    loaded for it. Where it is loaded it counts, whatever the engine: first weights and greedy episodes may be its
    business.
    """
    if engine == "compiled" and "torch" not in sys.modules:
        yield
        return
    import torch

    global _inside, _before  # noqa: PLW0603
    with _lock:
        if _inside == 0:
            _before = torch.get_num_threads()
        _inside += 1
        torch.set_num_threads(NUM_THREADS)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                torch.set_num_threads(_before)


def processor_family() -> str:
    """The machine and its processor, as the compiler names it, for example `x86_64 znver4`. Results are equal bit for
    bit only on processors of one family."""
    from llvmlite.binding import get_host_cpu_name

    return f"{platform.machine()} {get_host_cpu_name()}"
