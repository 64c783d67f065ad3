"""What monitors of several servers know together: each keeps what it gathered in LoomDB, and all judge by all of it.

A server's row holds all it has gathered about a version, and an update replaces it: a server that dies loses nothing
that it shared, and one that comes back counts nothing twice. All rows of a policy are numbered in one order.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from loomrl.serving.guardian.evidence import VersionEvidence
from loomrl.serving.guardian.sharing import Homes, Shared
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.loomdb.records import MonitorEvidence
from loomrl.types import Json

log = logging.getLogger(__name__)
_LOOMDB_SECONDS = 5  # that LoomDB is waited for; nobody waits for this thread
_EVIDENCE: TypeAdapter[VersionEvidence] = TypeAdapter(VersionEvidence)


class EvidenceExchange:
    """Shares evidence with the other servers, in a thread of its own: LoomDB may be slow, or away.

    No method raises then: `error` says why, and what was not written is written with a later exchange.
    """

    def __init__(self, policy: str, server: str) -> None:
        self._policy, self._server = policy, server
        self._database: LoomDB | None = None
        self._lock, self._wake, self._stopping = threading.Lock(), threading.Event(), threading.Event()
        self._offered: dict[str, Json] = {}
        self._forgotten: list[str] = []
        self._found: Shared | None = None
        self._known: tuple[int, int] | None = None  # the newest revision, and the number of rows, when they were read
        self._number: int | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self.error: str | None = None

    def start(self) -> None:
        """Start the thread that writes this server's evidence to LoomDB and reads that of other servers."""
        self._thread.start()

    def offer(self, evidence: Iterable[VersionEvidence]) -> None:
        """Have this evidence written to LoomDB, and that of all servers read for `take_found`. Returns at once."""
        offered = {one.version: _EVIDENCE.dump_python(replace(one, open_episodes=[]), mode="json") for one in evidence}
        with self._lock:
            self._offered |= offered
        self._wake.set()

    def forget(self, version: str) -> None:
        """Have all servers' evidence about this version removed from LoomDB: it begins anew. Returns at once.

        What was offered about it and is not written yet is dropped. Where LoomDB is away, removing is tried again with
        each exchange until it succeeds.
        """
        with self._lock:
            self._offered.pop(version, None)
            self._forgotten.append(version)
        self._wake.set()

    def take_found(self) -> Shared | None:
        """The evidence of all servers, if any was read since the last call, else None."""
        with self._lock:
            found, self._found = self._found, None
        return found

    def stop(self, timeout_seconds: float) -> None:
        """Have what was offered last written, and wait at most so many seconds for the thread to end."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait()
            self._wake.clear()
            is_last = self._stopping.is_set()  # looked at before: what is offered until then is written
            try:
                self._exchange()
                self.error = None
            except Exception as error:  # noqa: BLE001 - a thread that ends of one row would share nothing any more
                if self.error != str(error):
                    log.error("monitors of %s judge without the other servers: %s", self._policy, error)
                self.error = str(error)

    def _exchange(self) -> None:
        if self._database is None:
            self._database = LoomDB.open(wait_seconds=_LOOMDB_SECONDS)
        with self._lock:
            offered, self._offered = self._offered, {}
            forgotten, self._forgotten = self._forgotten, []
        try:
            while forgotten:
                self._database.forget_evidence(self._policy, forgotten[-1])
                forgotten.pop()
            homes = {version: self._share(self._database, version, one) for version, one in offered.items()}
        except Exception:
            with self._lock:
                self._forgotten += forgotten
                kept = {version: one for version, one in offered.items() if version not in self._forgotten}
                self._offered = kept | self._offered
            raise
        newest = self._database.evidence_revision(self._policy)
        if newest != self._known:
            self._read(self._database.shared_evidence(self._policy), homes)
            self._known = newest

    def _share(self, database: LoomDB, version: str, shown: Json) -> Homes:
        """Put own evidence in place of what was shared before; the revisions by which its agents were known first."""

        def document(revision: int, former: Mapping[str, Any]) -> Json:
            homes, window_homes = _homes(shown, former, revision)
            return shown | {"homes": homes, "window_homes": window_homes}

        kept = database.share_evidence(self._policy, version, self._server, document)
        self._number = kept.number
        return kept.document["homes"], kept.document["window_homes"]

    def _read(self, rows: Iterable[MonitorEvidence], homes: Mapping[str, Homes]) -> None:
        found: dict[str, list[VersionEvidence]] = {}
        for row in rows:
            found.setdefault(row.version, []).append(_EVIDENCE.validate_python(row.document))
        with self._lock:
            self._found = Shared(self._number, found, homes)


def _homes(shown: Json, former: Mapping[str, Any], revision: int) -> Homes:
    """What LoomDB holds stands, also where a server was killed before it had kept as much itself."""
    earlier = former.get("homes", {}), former["window_homes"] if former.get("window") == shown["window"] else {}
    known, agents = (shown["homes"], shown["window_homes"]), (shown["unnamed"], shown["requests"]["window"])
    life, window = (
        dict.fromkeys(present, revision) | own | before
        for present, own, before in zip(agents, known, earlier, strict=True)
    )
    return life, window
