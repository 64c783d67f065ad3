"""Calls to Ray actors, of which any may die or hang."""

import time
from collections.abc import Callable
from typing import Any

from loomrl.errors import LoomRLError

MAX_LOSSES = 3  # of actors, until all that was asked for is there


class Calls:
    """That are under way, each to an actor known by its number.

    Args:
        timeout_seconds: that an actor may take.
        setting: that says so, for messages.
    """

    def __init__(self, timeout_seconds: float, setting: str) -> None:
        self._timeout, self._setting = timeout_seconds, setting
        self._asked: dict[Any, int] = {}  # reference to the answer -> actor
        self._deadlines: dict[int, float] = {}

    def add(self, index: int, answer: Any, more_seconds: float = 0.0) -> None:
        """Wait for this too, which actor `index` was asked for, so much longer than for others."""
        self._asked[answer] = index
        self._deadlines[index] = time.monotonic() + self._timeout + more_seconds

    def answers(self, ask_again: Callable[[int, str], None], where: str) -> dict[int, Any]:
        """Wait for all, by actors' numbers. Of one that is lost or late, `ask_again` is told why: it has another actor
        asked, and adds that.

        Raises:
            LoomRLError: of an actor, such as an `EnvironmentFault`; or when actors are lost again and again: `where`
                says which, and in what.
        """
        found: dict[int, Any] = {}
        num_losses = 0
        while self._asked:
            for index, reason in self._next(found):
                num_losses += 1
                if num_losses > MAX_LOSSES:
                    raise LoomRLError(
                        f"{where.format(num_losses)}; see that the environment neither ends nor blocks its process, "
                        f"and that the cluster has room for them; the last time: {reason}"
                    )
                ask_again(index, reason)
        return found

    def _next(self, found: dict[int, Any]) -> list[tuple[int, str]]:
        """Wait for an answer; returns who is lost, and why."""
        import ray

        until = min(self._deadlines[index] for index in self._asked.values())
        done, _ = ray.wait([*self._asked], timeout=max(1.0, until - time.monotonic()))
        if not done:
            late = [ref for ref, index in self._asked.items() if self._deadlines[index] <= time.monotonic()]
            reason = f"no answer within {self._timeout:g} s ({self._setting})"
            return [(self._asked.pop(ref), reason) for ref in late]
        return self._take(done[0], self._asked.pop(done[0]), found)

    def _take(self, answer: Any, index: int, found: dict[int, Any]) -> list[tuple[int, str]]:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            found[index] = ray.get(answer)
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, LoomRLError) else error) from None
        except RayError as error:
            return [(index, str(error))]
        return []
