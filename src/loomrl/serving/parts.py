"""The parts of a running server, and the threads that keep them in step with the world."""

import logging
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loomrl.errors import LoomRLError
from loomrl.serving.asgi import Receive, Send
from loomrl.serving.audit import AuditLog, AuditUnwritable, Head
from loomrl.serving.decider import Decider
from loomrl.serving.feedback import FeedbackLedger
from loomrl.serving.limits import RateLimiter
from loomrl.serving.metrics import Metrics
from loomrl.serving.mirror import Mirror
from loomrl.serving.overrides import OverrideStore
from loomrl.serving.records import record
from loomrl.serving.roles import RoleKeeper
from loomrl.serving.sources import FolderSource, PolicySource, RegistrySource
from loomrl.serving.statistics import Statistics

log = logging.getLogger(__name__)
_SYNC_SECONDS = 0.05
_REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class ServerSettings:
    """How one server runs. `champion` and `challenger` pin versions; `folders` serves folders without a registry.

    `require_signature` None demands a signature of what the registry holds, and not of a folder.
    """

    policy: str
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    champion: str | None = None
    challenger: str | None = None
    folders: dict[str, Path] = field(default_factory=dict)
    tracking_uri: str | None = None
    rate: float = 1_000.0  # decisions per second and agent
    burst: float | None = None
    refresh_seconds: float = 0.5
    anchor_seconds: float = 5.0
    max_body_bytes: int = 4 * 2**20
    mirror_capacity: int = 4_096
    segment_bytes: int = 64 * 2**20
    seed: int | None = None  # of exploration; None takes the system's entropy
    server: str | None = None  # name of the audit chain
    require_signature: bool | None = None

    def source(self) -> PolicySource:
        """Where this server finds policies."""
        if self.folders:
            return FolderSource(self.policy, self.folders, require_signature=self.require_signature is True)
        pinned = {"champion": self.champion, "challenger": self.challenger}
        versions = {role: version for role, version in pinned.items() if version is not None}
        return RegistrySource(
            self.policy, self.tracking_uri, versions, require_signature=self.require_signature is not False
        )


class Parts:
    """Everything a server consists of. Made before the port answers; `live` runs the threads."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.started = time.time()
        self.operator_token = os.environ.get("LOOMRL_OPERATOR_TOKEN", "")
        self.audit = AuditLog(settings.policy, settings.server, settings.segment_bytes)
        self.overrides = OverrideStore(settings.policy)
        self.roles = RoleKeeper(settings.source(), self.overrides.versions)
        self.metrics = Metrics(settings.policy)
        self.statistics = Statistics()
        self.mirror = Mirror(self.audit, settings.mirror_capacity)
        self.ledger = FeedbackLedger(settings.policy, self.audit)
        self.limiter = RateLimiter(settings.rate, settings.burst)
        self.decider = Decider(
            settings.policy,
            self.audit,
            self.overrides,
            self.limiter,
            self.mirror,
            self.metrics,
            self.statistics,
            np.random.default_rng(settings.seed),
        )
        self.anchored: Head | None = None
        self.last_anchor_error: str | None = None
        self.last_audit_error: str | None = None
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._follow, self._keep)]
        self._gauges()

    async def live(self, receive: Receive, send: Send) -> None:
        """The ASGI life span: threads run from start-up to shutdown."""
        await receive()
        self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def start(self) -> None:
        """Begin following and mirroring."""
        self.mirror.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Decide what is mirrored, anchor the head, give the audit chain back."""
        self._stopping.set()
        self.mirror.stop()
        for thread in self._threads:
            thread.join(10)
        try:
            self.decider.report_refusals()
        except AuditUnwritable as error:
            log.error("the last refusals are not on record: %s", error)
        self.anchor()
        self.audit.close()

    def refresh(self) -> None:
        """Follow the override file and the registry, once.

        Overrides are in force before the versions they pin are loaded, and whether or not those can be: an emergency
        action must not wait for a download. Until then such a version answers 503.
        """
        try:
            changed = self.overrides.refresh()
        except LoomRLError as error:
            log.error("overrides stay as they were: %s", error)
            changed = False
        if changed:
            self.roles.load_pinned()
        self.roles.look()
        if changed:
            self.record_overrides()

    def record_overrides(self) -> None:
        """Put the overrides now in force on record."""
        active = [override.to_json() for override in self.overrides.active()]
        self.audit.append([record("overrides", policy=self.settings.policy, overrides=active)])

    def anchor(self) -> None:
        """Record the head in LoomDB: a chain alone cannot show that its end is missing."""
        head = self.audit.head
        if head == self.anchored:
            return
        self.audit.sync()
        try:
            from loomrl.loomdb.database import LoomDB

            LoomDB.open().anchor_audit_head(head.server, head.segment, head.sequence, head.digest)
        except LoomRLError as error:
            if self.last_anchor_error is None:
                log.error("the audit head is not anchored: %s", error)
            self.last_anchor_error = str(error)
            return
        self.anchored, self.last_anchor_error = head, None

    def _follow(self) -> None:
        while True:
            try:
                self.refresh()
            except AuditUnwritable as error:
                self.last_audit_error = str(error)
            except Exception:  # a thread that dies silently would leave the server on an old version for ever
                log.exception("following the registry failed; it is tried again")
            if self._stopping.wait(self.settings.refresh_seconds):
                return

    def _keep(self) -> None:
        anchored = reported = time.monotonic()
        while not self._stopping.wait(_SYNC_SECONDS):
            try:
                if time.monotonic() - reported >= _REPORT_SECONDS:
                    reported = time.monotonic()
                    self.decider.report_refusals()
                self.audit.sync()
                if time.monotonic() - anchored >= self.settings.anchor_seconds:
                    anchored = time.monotonic()
                    self.anchor()
            except Exception:  # as above: syncing and anchoring must go on
                log.exception("keeping the audit log failed; it is tried again")

    def _gauges(self) -> None:
        show = self.metrics.gauge
        show("ready", "1 when a champion decides", lambda: float(self.roles.current.champion is not None))
        show("audit_sequence", "Sequence of the last audit record", lambda: float(self.audit.head.sequence))
        show("shadow_mirrored", "Requests the challenger decided", lambda: float(self.mirror.num_mirrored))
        show("shadow_dropped", "Mirrored requests dropped", lambda: float(self.mirror.num_dropped))
        show("shadow_errors", "Mirrored requests the challenger failed on", lambda: float(self.mirror.num_errors))
        show("refused_versions", "Versions not taken into service", lambda: float(len(self.roles.refused)))
        show("overrides", "Overrides in force", lambda: float(len(self.overrides.active())))
