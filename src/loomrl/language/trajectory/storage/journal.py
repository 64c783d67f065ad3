"""Group commit: whatever changed while the last transaction was written goes into the next one."""

import asyncio
import logging
import time
from collections.abc import Sequence

from loomrl.errors import ServiceError
from loomrl.language.trajectory.settings import HubSettings
from loomrl.language.trajectory.state.fragments import Fragment
from loomrl.language.trajectory.state.hub import Hub
from loomrl.language.trajectory.state.packing import TrajectoryGroup
from loomrl.language.trajectory.storage.store import Store

log = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0  # between looks at a database that failed


class HubJournal:
    """The hub in memory (`hub`) and the database it is written to. Making one raises ServiceError when the database
    cannot be read.

    Where a write fails nothing of it was answered yet: `hub` becomes another `Hub`, of what the database holds, and
    `failure` says what went wrong while the database cannot be read either.
    """

    def __init__(self, store: Store, settings: HubSettings) -> None:
        self._store, self._settings = store, settings
        self.hub = self._load()
        self.failure: ServiceError | None = None  # of the database; None once it could be read again
        self._tried = 0.0  # time.monotonic() seconds
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Do nothing while the database works; where it failed, load the hub from it again, once a second at most.

        Raises:
            ServiceError: while the database fails.
        """
        if self.failure is None:
            return
        if time.monotonic() - self._tried < _RETRY_SECONDS:
            raise self.failure
        self._tried = time.monotonic()
        self.hub = self._load()
        self.failure = None

    async def durable(self) -> None:
        """Wait until all that changed in `hub` until now is in the database, where it outlives a power failure.

        Raises:
            ServiceError: when it was not written; the changes are undone, for `hub` is loaded from the database again.
        """
        if self._task is None and not self.hub.changes:
            return
        self._waiting.append(written := asyncio.get_running_loop().create_future())
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        await asyncio.shield(written)

    async def contents(self, groups: Sequence[TrajectoryGroup]) -> list[Fragment]:
        """The groups' content, from memory or from the database, in the order of the groups. Those that the database
        does not have, since they were removed meanwhile, are left out.

        Raises:
            ServiceError: when the database fails.
        """
        found = {group.id: self.hub.contents.get(group.id) for group in groups}
        if missing := [group_id for group_id, fragment in found.items() if fragment is None]:
            await self.durable()
            found |= await asyncio.to_thread(self._store.read, missing)
        return [fragment for fragment in (found[group.id] for group in groups) if fragment is not None]

    async def _write(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._store.write, self.hub.pop_changes())
                error = None
            except ServiceError as failed:
                error = failed
                waiting += self._waiting  # what changed meanwhile rests on what was lost
                self._waiting = []
                self._undo(failed)
            for future in waiting:
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
        self._task = None

    def _load(self) -> Hub:
        hub = Hub(self._settings, self._store.load())
        hub.environments.restart_timers(time.time())
        return hub

    def _undo(self, error: ServiceError) -> None:
        log.error("%s; nothing is taken until it is back", error)
        self.failure, self._tried = error, time.monotonic()
        try:
            self.hub = self._load()
            self.failure = None
        except ServiceError:
            log.error("the database cannot be read either")
