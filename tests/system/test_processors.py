"""Processors are counted on every system."""

import math
import os
from collections.abc import Iterator

import pytest

from loomrl.system.processors import keep_to, num_processors


@pytest.fixture
def _all_again() -> Iterator[None]:
    yield
    keep_to(math.inf)


@pytest.mark.usefixtures("_all_again")
def test_a_process_that_keeps_to_a_share_counts_no_more_and_one_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    found = []
    for share in (2.0, 0.5, 8.0):
        keep_to(share)
        found.append(num_processors())
    assert found == [2, 1, 3]


def test_those_of_this_process_are_counted_and_elsewhere_all_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2} if process == 0 else set(), raising=False)
    assert num_processors() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert num_processors() == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_processors() == 1
