"""What a hub does by itself, once a second, and what it does at its end."""

import asyncio
import logging
import math
import time
from contextlib import suppress
from itertools import count

from loomrl.errors import ServiceError
from loomrl.language.trajectory.api.metrics import HubMetrics
from loomrl.language.trajectory.api.posts import KEEP_KEYS_SECONDS, Posts
from loomrl.language.trajectory.storage.journal import HubJournal
from loomrl.language.trajectory.storage.store import Store

log = logging.getLogger(__name__)
_EVERY_SECONDS = 1.0
_FORGET_EVERY = 30  # rounds


class Upkeep:
    """Quarantines silent environments, forgets old answers, closes the store at the end. A database that fails is
    logged, never raised."""

    def __init__(self, store: Store, journal: HubJournal, posts: Posts, metrics: HubMetrics) -> None:
        self._store, self._journal, self._posts = store, journal, posts
        metrics.gauge("queued_groups", "Groups that wait to be packed", lambda: len(journal.hub.queue))
        metrics.gauge("waiting_groups", "Groups that were not delivered for good", lambda: journal.hub.num_waiting)
        metrics.gauge("waiting_bytes", "Their size as JSON", lambda: journal.hub.num_bytes)
        metrics.gauge("environments", "Environments that take part", lambda: _count(journal, True))
        metrics.gauge("quarantined", "Environments that are silent or failing", lambda: _count(journal, False))
        metrics.gauge("step", "Batches formed since the start", lambda: journal.hub.state.step)

    async def begin(self) -> None:
        """Start the rounds: once a second quarantine is decided anew, and what changed is written."""
        self._task = asyncio.create_task(self._rounds())

    async def end(self) -> None:
        """End the rounds, write for the last time and close the store. Answers to requests without a key are deleted:
        they were all sent, so none of these requests comes again."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        hub = self._journal.hub
        for environment in hub.environments:
            hub.record_environment(environment)
        hub.changes.posts_before = (math.inf, time.time() - KEEP_KEYS_SECONDS)
        try:
            await self._journal.durable()
        except ServiceError as error:
            log.error("%s", error)
        self._store.close()

    async def _rounds(self) -> None:
        for number in count():
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                self._journal.check()
                await self._round(time.time(), number % _FORGET_EVERY == 0)
            except ServiceError as error:
                log.error("%s", error)

    async def _round(self, now: float, forget: bool) -> None:
        hub = self._journal.hub
        for environment in hub.environments.update_quarantine(now):
            log.info("environment %s: %s", environment.shown_name, environment.quarantine or "takes part again")
            hub.record_environment(environment)
        if forget:
            self._posts.remove_expired(now)
            hub.changes.posts_before = (now - self._posts.retry_seconds, now - KEEP_KEYS_SECONDS)
        await self._journal.durable()


def _count(journal: HubJournal, takes_part: bool) -> int:
    return sum(one.connected and one.takes_part == takes_part for one in journal.hub.environments)
