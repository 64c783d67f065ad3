"""What bitwise equality depends on besides the inputs: the number of threads and the processor's kind."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

NUM_THREADS = 1  # small networks are fastest on one, and sums then have one order


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, and give it back its own number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(NUM_THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def processor_family() -> str:
    """Machine and instruction set, for example `x86_64 AVX512`: results are equal bit for bit only within it."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
