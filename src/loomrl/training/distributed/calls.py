"""Calls to Ray actors, of which any may die or hang."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from loomrl.errors import LoomRLError

MAX_LOSSES = 3  # of one actor and those in its place, until all that was asked for is there
START_SECONDS = 120.0  # that a new actor has beside: a process begins, and imports


class Calls:
    """Calls to Ray actors that are under way; each actor is known by its number.

    Args:
        timeout_seconds: how long an actor may take for one call.
        setting: the name of the setting that bounds it, for messages.
    """

    def __init__(self, timeout_seconds: float, setting: str) -> None:
        self._timeout, self._setting = timeout_seconds, setting
        self._pending: dict[Any, int] = {}  # reference to the answer -> actor
        self._before: dict[Any, list[Any]] = {}  # what the same actor was asked for before, that must have gone well
        self._deadlines: dict[int, float] = {}

    def add(self, index: int, answer: Any, before: list[Any], is_new: bool) -> None:
        """Register a call that actor `index` was given, by the reference `answer` to its result. `before` are
        references to earlier calls of the same actor that must have succeeded. A new actor gets START_SECONDS more."""
        self._pending[answer], self._before[answer] = index, before
        self._deadlines[index] = time.monotonic() + self._timeout + (START_SECONDS if is_new else 0.0)

    def wait_for_results(self, retry: Callable[[int, str], None], where: str) -> dict[int, Any]:
        """Wait for all calls; returns the results by the actors' numbers. For a lost or late actor `retry(index,
        reason)` must give the call to another actor and add it here.

        Raises:
            LoomRLError: that an actor raised, such as an `EnvironmentFault`; when one cannot begin; or when one is lost
                more than MAX_LOSSES times: `where` is the format of the message, with number and count.
            RayTaskError: when an actor raised another error.
        """
        found: dict[int, Any] = {}
        losses: Counter[int] = Counter()
        while self._pending:
            for index, reason in self._next(found):
                losses[index] += 1
                if losses[index] > MAX_LOSSES:
                    raise LoomRLError(
                        f"{where.format(index, losses[index])}; see that the environment neither ends nor blocks its "
                        f"process, and that the cluster has room for it; the last time: {reason}"
                    )
                retry(index, reason)
        return found

    def _next(self, found: dict[int, Any]) -> list[tuple[int, str]]:
        """Wait for an answer; returns who is lost, and why."""
        import ray

        until = min(self._deadlines[index] for index in self._pending.values())
        done, _ = ray.wait([*self._pending], timeout=max(1.0, until - time.monotonic()))
        if not done:
            late = [ref for ref, index in self._pending.items() if self._deadlines[index] <= time.monotonic()]
            reason = f"no answer within {self._timeout:g} s ({self._setting})"
            return [(self._pending.pop(ref), reason) for ref in late]
        return self._collect(done[0], self._pending.pop(done[0]), found)

    def _collect(self, answer: Any, index: int, found: dict[int, Any]) -> list[tuple[int, str]]:
        import ray
        from ray.exceptions import ActorDiedError, RayError, RayTaskError

        try:
            *_, found[index] = ray.get([*self._before.pop(answer), answer])
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, LoomRLError) else error) from None
        except RayError as error:
            if isinstance(error, ActorDiedError) and error.actor_init_failed:
                raise LoomRLError(f"an actor cannot begin: {str(error).strip().splitlines()[-1]}") from error
            return [(index, str(error))]
        return []
