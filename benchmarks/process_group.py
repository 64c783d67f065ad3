"""Functions called in processes that are a torch process group over loopback, as Ray's learners are one.

Each keeps to its share of the processors, as Ray's learners keep to their resources.
"""

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from loomrl.system.processors import keep_to, num_processors
from loomrl.training.distributed.learners.group import calm_receiver


class ProcessGroup:
    """So many processes, which are kept from one call to the next: what is compiled in one is there in the others."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pool = ProcessPoolExecutor(size, multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(*arguments)` gives in each process, in the order of ranks: each is one of a new group, which
        none leaves before all have joined."""
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            calls = [
                self._pool.submit(_member, store, rank, self._size, function, arguments) for rank in range(self._size)
            ]
            return [call.result() for call in calls]


def _member(store: Path, rank: int, size: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    keep_to(num_processors() / size)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
    calm_receiver()
    try:
        return function(*arguments)
    finally:
        dist.destroy_process_group()
