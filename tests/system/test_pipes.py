"""Waiting for what another process writes, also in one that has many files open."""

import fcntl
import os
import threading
from collections.abc import Iterator

import pytest

from loomrl.system.pipes import is_readable


@pytest.fixture(params=[0, 1_500])  # `select.select` ends at 1,024
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """A pipe whose reading end has at least this number."""
    reads, writes = os.pipe()
    high = fcntl.fcntl(reads, fcntl.F_DUPFD, request.param)
    os.close(reads)
    with os.fdopen(high, "rb"), os.fdopen(writes, "wb"):
        yield high, writes


def test_what_is_there_is_seen_at_once(ends: tuple[int, int]) -> None:
    reads, writes = ends
    assert not is_readable(reads, 0.0)
    os.write(writes, b"x")
    assert is_readable(reads, 0.0)
    assert is_readable(reads, None)


def test_what_comes_is_waited_for(ends: tuple[int, int]) -> None:
    reads, writes = ends
    threading.Timer(0.1, os.write, (writes, b"x")).start()
    assert is_readable(reads, 240.0)


def test_an_end_is_seen() -> None:
    reads, writes = os.pipe()
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        assert is_readable(pipe, None)
