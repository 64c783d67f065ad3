"""Work that may hang, in a thread of its own: who asks for it waits as long as they like."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

log = logging.getLogger(__name__)


class Background:
    """One piece of work, done by a thread of its own whenever somebody asks for it; for all who ask while it is being
    done it is done once more. What it raises is logged.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._lock = work, threading.Lock()
        self._next = _pending()  # of who has asked since the work that is being done began
        self._is_asked = self._is_at_work = False

    def begin(self) -> Future[None]:
        """Have the work done, from its beginning on, and wait for nothing; returns what is done when it was. Where no
        thread can be had it begins with the next call.
        """
        with self._lock:
            self._is_asked = True
            if not self._is_at_work:
                try:
                    threading.Thread(target=self._go_on, name=self._work.__name__, daemon=True).start()
                    self._is_at_work = True
                except RuntimeError as error:
                    log.error("%s cannot begin: %s", self._work.__name__, error)
            return self._next

    def ask(self, seconds: float) -> bool:
        """Have the work done, from its beginning on; returns whether it was within so many seconds. Else it goes on, or
        begins with the next call where no thread can be had.
        """
        done = self.begin()
        if not self._is_at_work and not done.done():
            return False
        try:
            done.result(seconds)
        except TimeoutError:
            return False
        return True

    def _go_on(self) -> None:
        """Until nobody asks."""
        while True:
            with self._lock:
                if not self._is_asked:
                    self._is_at_work = False
                    return
                done, self._next, self._is_asked = self._next, _pending(), False
            try:
                self._work()
            except Exception:
                log.exception("%s failed", self._work.__name__)
            done.set_result(None)


def _pending() -> Future[None]:
    """A future that cannot be cancelled: several may wait for it, and one that gives up must not end it for all."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future
