"""Processors are counted on every system."""

import os

import pytest

from loomrl.processors import num_processors


def test_those_of_this_process_are_counted_and_elsewhere_all_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2} if process == 0 else set(), raising=False)
    assert num_processors() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert num_processors() == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_processors() == 1
