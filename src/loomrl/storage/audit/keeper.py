"""What keeps an audit log beside those who write it: synced, anchored in LoomDB, its closed segments compacted."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from loomrl.errors import ArtifactError
from loomrl.storage.audit.log import AuditLog, AuditUnwritable, ChainHead, NotDurable
from loomrl.storage.audit.records import record

if TYPE_CHECKING:
    from loomrl.storage.loomdb.database import LoomDB

log = logging.getLogger(__name__)
_NAMED_EVERY_SECONDS = 60.0


class AuditKeeper:
    """What is done for one audit log beside writing it: syncing, anchoring and compacting. Each method may run in a
    thread of its own, so that none waits for another."""

    def __init__(self, audit: AuditLog) -> None:
        self.audit = audit
        self.anchored: dict[str, ChainHead] = {}  # by the chain's name
        self.unsigned: str | None = None  # why the anchored head bears no signature
        self.sync_error: str | None = None
        self._telling = threading.Lock()
        self._names_again = 0.0  # `time.monotonic()` from which the log names a statement of LoomDB again
        self._synced = time.monotonic()  # when the last sync began that the disk took
        self._syncing = asyncio.Lock()
        self._next_sync: asyncio.Future[None] | None = None

    @property
    def unsynced_seconds(self) -> float:
        """How many seconds the oldest record that is not on the disk may have been waiting; 0 where all are."""
        return 0.0 if self.audit.is_durable else time.monotonic() - self._synced

    async def durable(self) -> None:
        """Return once everything written so far is on the disk. All who wait while a sync goes on share the next one.

        Raises:
            NotDurable: when the disk did not take it.
        """
        if self.audit.is_durable:
            return
        if self._next_sync is None:
            self._next_sync = asyncio.ensure_future(self._sync_next())
        await asyncio.shield(self._next_sync)

    async def _sync_next(self) -> None:
        async with self._syncing:
            self._next_sync = None  # who comes from now on may have written too late for this one
            await asyncio.to_thread(self.sync)

    def sync(self) -> None:
        """Make everything written durable; that it failed, and from when on it works again, stands in the log.

        Raises:
            NotDurable: when the disk did not take it.
        """
        before, began = self.audit.durable_sequence, time.monotonic()
        try:
            self.audit.sync()
            self._synced = began
        except NotDurable as error:
            if self._had_error(str(error)) is None:
                self._put_on_record("not durable", before, str(error))
            raise
        if self._had_error(None) is not None:
            self._put_on_record("durable again", self.audit.durable_sequence, None)

    def _had_error(self, now: str | None) -> str | None:
        """What was wrong before, so that of several threads that find out at once one puts it on record."""
        with self._telling:
            before, self.sync_error = self.sync_error, now
        return before

    def anchor(self, open_loomdb: "Callable[[], LoomDB]", others: Sequence[ChainHead] = ()) -> None:
        """Keep the heads of this chain, and of `others`, in LoomDB, signed where there is a key: a chain alone cannot
        show that its end is missing.

        Raises:
            AuditUnwritable: when the disk did not take the head; it is not anchored then.
            ServiceError: when LoomDB cannot be reached, or knows a head that the log does not hold: that was rewritten.
                Heads are anchored one by one: those before it are.
            ArtifactError: when a line of the log, or a compacted segment, is damaged; likewise.
        """
        from loomrl.storage.audit.heads import anchor

        if not self._unanchored(others):
            return
        database = open_loomdb()
        self._name_statement(database)
        self.sync()
        for head in self._unanchored(others):
            unsigned = anchor(database, head, self.anchored.get(head.server))
            if unsigned is not None and self.unsigned is None:
                log.warning("audit heads are anchored without a signature: %s", unsigned)
            self.anchored[head.server], self.unsigned = head, unsigned

    def _unanchored(self, others: Sequence[ChainHead]) -> list[ChainHead]:
        return [head for head in (self.audit.head, *others) if self.anchored.get(head.server) != head]

    def _name_statement(self, database: "LoomDB") -> None:
        """Have the chain name LoomDB's newest statement, now and then: so LoomDB's end cannot go missing unseen."""
        if time.monotonic() < self._names_again or (newest := database.newest_audit_anchor()) is None:
            return
        named = {"policy": self.audit.policy, "number": newest.number, "digest": newest.digest}
        self.audit.append([record("anchored", **named)])
        self._names_again = time.monotonic() + _NAMED_EVERY_SECONDS

    def compact(self) -> None:
        """Compact closed segments in a process of its own, so that no decision waits for it.

        Raises:
            ArtifactError: when one cannot be, or LoomDB cannot be reached: with the message of that process. Those that
                it did not come to stay as they are.
        """
        command = [sys.executable, "-m", "loomrl.storage.audit.compaction", str(self.audit.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ArtifactError(f"closed segments are not compacted: {done.stderr.strip()}")

    def _put_on_record(self, kind: str, sequence: int, reason: str | None) -> None:
        """From `not durable` to `durable again` no answer left a strict server: no agent acted on what lies between."""
        log.error("%s after record %d: %s", kind, sequence, reason or "the disk takes it")
        try:
            self.audit.append([record(kind, policy=self.audit.policy, after=sequence, reason=reason)])
        except AuditUnwritable as error:
            log.error("%r is not on record: %s", kind, error)
