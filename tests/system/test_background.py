"""Work in a thread of its own: waited for as long as one likes, and done for whoever asked."""

import threading

import pytest

from loomrl.system.background import Background
from tests.support.inside import wait_for

PATIENCE = 60.0  # seconds


def test_who_asks_while_it_is_done_has_it_done_once_more() -> None:
    begun, goes_on, done = threading.Semaphore(0), threading.Semaphore(0), list[int]()

    def work() -> None:
        begun.release()
        assert goes_on.acquire(timeout=PATIENCE)
        done.append(len(done))

    background = Background(work)
    assert not background.ask(0.0)
    assert begun.acquire(timeout=PATIENCE)
    assert [background.ask(0.0), background.ask(0.01)] == [False, False]
    goes_on.release()
    assert begun.acquire(timeout=PATIENCE)  # once for both
    goes_on.release()
    wait_for(lambda: done == [0, 1])
    goes_on.release()
    assert background.ask(PATIENCE)
    assert done == [0, 1, 2]


def test_work_that_fails_is_logged_and_done_again(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        raise OSError("no disk")

    background = Background(work)
    assert [background.ask(PATIENCE), background.ask(PATIENCE)] == [True, True]
    assert len([entry for entry in caplog.records if entry.exc_info]) == 2


def test_where_no_thread_can_be_had_the_next_call_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done = threading.Event()
    background = Background(done.set)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert not background.ask(PATIENCE)
    assert background.ask(PATIENCE)
    assert done.is_set()
