"""Torch runs on one thread within a block, and gets its own number back however blocks overlap."""

import threading
from collections.abc import Iterator

import pytest
import torch

from loomrl.system.threads import one_thread


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_blocks_within_blocks_and_errors() -> None:
    with pytest.raises(KeyError), one_thread():
        _enter_another()
    assert torch.get_num_threads() == 3


def _enter_another() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 1
    raise KeyError


def test_blocks_that_overlap_in_two_threads_leave_what_was_there() -> None:
    entered, may_leave, seen = threading.Event(), threading.Event(), []

    def later() -> None:
        with one_thread():
            entered.set()
            may_leave.wait()
            seen.append(torch.get_num_threads())

    other = threading.Thread(target=later)
    with one_thread():
        other.start()
        entered.wait()
    may_leave.set()
    other.join()
    fresh = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    fresh.start()
    fresh.join()
    assert seen == [1, 3]
