"""Work that may hang, in a thread of its own: who asks for it waits as long as they like."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Background:
    """One piece of work, done by a thread of its own whenever somebody asks for it; for all who ask while it is being
    done it is done once more. What it raises is logged.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._changed = work, threading.Condition()
        self._num_asked = self._num_done = 0
        self._is_at_work = False

    def ask(self, seconds: float) -> bool:
        """Have the work done, from its beginning on; returns whether it was within so many seconds. Else it goes on, or
        begins with the next call where no thread can be had.
        """
        with self._changed:
            self._num_asked += 1
            number = self._num_asked
            if not self._is_at_work:
                try:
                    threading.Thread(target=self._go_on, name=self._work.__name__, daemon=True).start()
                except RuntimeError as error:
                    log.error("%s cannot begin: %s", self._work.__name__, error)
                    return False
                self._is_at_work = True
            return self._changed.wait_for(lambda: self._num_done >= number, seconds)

    def _go_on(self) -> None:
        """Until nobody asks."""
        while True:
            with self._changed:
                if self._num_done == self._num_asked:
                    self._is_at_work = False
                    return
                number = self._num_asked
            try:
                self._work()
            except Exception:
                log.exception("%s failed", self._work.__name__)
            with self._changed:
                self._num_done = number
                self._changed.notify_all()
