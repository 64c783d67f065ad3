"""The parts of a running server, and the threads that keep them in step with the world."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loomrl.errors import ArtifactError, LoomRLError
from loomrl.serving.controls.controls import Change, Controls
from loomrl.serving.controls.orders import ActiveOrders
from loomrl.serving.decisions.asking_tokens import AskingTokens
from loomrl.serving.decisions.authority import challengers
from loomrl.serving.decisions.decider import Decider
from loomrl.serving.decisions.feedback import FeedbackLedger
from loomrl.serving.decisions.limits import RateLimiter
from loomrl.serving.decisions.memory import Memories
from loomrl.serving.decisions.retries import Retries
from loomrl.serving.guardian.consequences import EVENTS
from loomrl.serving.guardian.guardian import Guardian, GuardianHooks
from loomrl.serving.guardian.quarantine import MONITORS, Quarantine, Quarantined
from loomrl.serving.guardian.watch import Watch
from loomrl.serving.mirror.process import Shadow
from loomrl.serving.policy.exploration import Draws
from loomrl.serving.policy.last_verified import LastVerified
from loomrl.serving.policy.model import ServedPolicy, runtime
from loomrl.serving.policy.roles import RoleKeeper
from loomrl.serving.policy.sources import source_of
from loomrl.serving.settings import ServerSettings
from loomrl.serving.telemetry.history import History
from loomrl.serving.telemetry.metrics import ServerMetrics
from loomrl.serving.telemetry.statistics import InferenceStatistics
from loomrl.serving.workers.address import WorkerAddress, token_prefix
from loomrl.serving.workers.agreement import Agreement
from loomrl.serving.workers.shared_limits import SharedRateLimiter
from loomrl.storage.audit.keeper import AuditKeeper
from loomrl.storage.audit.log import AuditLog, AuditUnwritable
from loomrl.storage.audit.records import operation, record
from loomrl.storage.audit.segments import newest_records
from loomrl.storage.loomdb.records import Event
from loomrl.system.background import Background
from loomrl.system.home import shares_loomdb
from loomrl.system.http.asgi import Receive, Send
from loomrl.system.http.tokens import configured

if TYPE_CHECKING:
    from loomrl.storage.loomdb.database import LoomDB

log = logging.getLogger(__name__)
GUARDIAN = 0  # the worker whose monitors watch what all of them decide
_STEP_SECONDS = 0.02
SYNC_SECONDS = 0.02  # between syncs, where an answer does not wait for one
_PATIENCE_SECONDS = 30.0  # that a chain's former writer has to end: workers of a killed server take up to twelve
_STOP_SECONDS = 10.0  # that monitors and threads, all together, have to end the step they are at
_READ_BACK = 64 * 2**20  # bytes of the log that a new process reads to know what its predecessor decided
_ORDERS_SECONDS = 0.5  # between looks at the file of controls, and at LoomDB
_LATE_SECONDS = 1.0  # that a version acts while what was announced is being read
_READ_SECONDS = 0.3  # that a request waits for what was announced to be read, and with it the event loop
_WRITTEN_SECONDS = 1.0  # that the answer to an order waits for files
_REPORT_SECONDS = 1.0
_HISTORY_SECONDS = 1.0
_EVENTS_SECONDS = 5.0
_NUM_EVENTS = 20
_LOOMDB_SECONDS = 2  # that a locked or silent database is waited for
_REGISTRY_SECONDS = 3.0  # that a start waits for the registry before it takes the roles that were verified last
_FIRST_ORDERS_SECONDS = 5.0  # that the first decision waits for LoomDB's controls, where it does not answer


class ServerContext:
    """Everything a server consists of. Made before the port answers; `live` runs the threads.

    What the threads do fails into `errors`, by the method's name, and is tried again: it ends no thread.

    Raises:
        ArtifactError: when its audit chain cannot be made, belongs to a running server, or was edited; or no room can
            be reserved for orders.
        ConfigError: for tokens, keys or rates that are not valid.
    """

    def __init__(self, settings: ServerSettings, worker_address: WorkerAddress | None = None) -> None:
        """`worker_address` is that of one worker among several."""
        self.settings, self.worker_address = settings, worker_address
        self.started = time.time()
        self._agreement = None if worker_address is None else Agreement(worker_address.agreement, worker_address.count)
        self._revision = self._num_orders = 0  # of the agreement, as far as this worker is in step
        self._reading, self._reads_late = Background(self._read_announced), False
        self._unrecorded: AuditUnwritable | None = None  # why what was announced is not on record
        self._untaken: str | None = None  # why it is not in force
        self._behind: float | None = None  # since when, `time.monotonic()` seconds
        self.tokens = configured()
        draws = Draws.seeded(settings.seed)
        opening = {"draws": draws.key, "runtime": runtime()}
        prefix = "" if worker_address is None else token_prefix(worker_address.index)
        self.audit = AuditLog(
            settings.policy,
            settings.server,
            settings.segment_bytes,
            opening,
            prefix,
            reserves=True,
            patience_seconds=_PATIENCE_SECONDS,
        )
        self.keeper = AuditKeeper(self.audit)
        announce = None if self._agreement is None else self._agreement.announce
        self.controls = Controls(
            settings.policy, self._record_controls, announce, self.audit.keep_orders, _WRITTEN_SECONDS
        )
        self._damaged: str | None = None  # what is on record of a damaged file of orders
        self.quarantine = Quarantine(settings.policy, announce)
        self.memories = Memories()
        self.memories.restore(self.audit.folder)
        self._source = source_of(settings)
        self.roles = RoleKeeper(
            self._source,
            self._wanted_versions,
            self.memories.versions,
            settings.exploration,
            self.quarantine,
            None
            if worker_address is None or self._agreement is None
            else partial(self._agreement.vote, worker_address.index),
            self._record_last,
        )
        self.metrics = ServerMetrics(settings.policy)
        self.statistics = InferenceStatistics()
        limits = settings.shadow_backlog_bytes, settings.shadow_hang_seconds
        self.shadow = Shadow(self.audit, self._challengers, *limits)
        self.history = History(self.metrics, self.shadow)
        self.events: list[Event] = []  # of LoomDB about versions of this policy, the newest first
        asking = AskingTokens(None if worker_address is None else worker_address.asking)
        self.ledger, self.retries = FeedbackLedger(settings.policy, self.audit, asking=asking), Retries()
        for entry in newest_records(self.audit.folder, _READ_BACK):
            self.ledger.recall(entry)
            self.retries.recall(entry)
        limits_of_agents = settings.rates()
        shared = None if worker_address is None else worker_address.limits
        self.limiter = (
            RateLimiter(*limits_of_agents) if shared is None else SharedRateLimiter(shared, *limits_of_agents)
        )
        self.decider = Decider(
            settings.policy,
            self.audit,
            self.controls,
            self.limiter,
            self.metrics,
            self.statistics,
            self.memories,
            self.ledger,
            draws,
        )
        self.guardian = self._guardian() if worker_address is None or worker_address.index == GUARDIAN else None
        self.is_leaving = False  # told to stop: no longer ready, while requests are still answered
        self.last_audit_error: str | None = None
        self.errors: dict[str, str] = {}  # what the threads' works fail at now, by the work
        self._loomdb: LoomDB | None = None
        self._opening = threading.Lock()
        self._stopping, self._has_orders = threading.Event(), threading.Event()
        self._orders_loaded = ActiveOrders()
        self._threads = [
            threading.Thread(target=self._repeat, args=work, name=work[0].__name__, daemon=True)
            for work in (
                (self.follow_roles, settings.refresh_seconds),
                (self.follow_orders, min(_ORDERS_SECONDS, settings.refresh_seconds)),
                (self.follow_quarantine, min(_ORDERS_SECONDS, settings.refresh_seconds)),
                (self.follow_tokens, _ORDERS_SECONDS),
                (self.agree, _ORDERS_SECONDS),
                (self.keeper.sync, SYNC_SECONDS),
                (self.history.take, _HISTORY_SECONDS),
                (self.follow_events, _EVENTS_SECONDS),
                (self.decider.report_refusals, _REPORT_SECONDS),
                (self.anchor, settings.anchor_seconds),
                *([(self.keeper.compact, settings.compact_seconds)] if settings.compact_seconds else []),
            )
        ]
        self._gauges()

    async def live(self, receive: Receive, send: Send) -> None:
        """The ASGI life span: threads run from start-up to shutdown."""
        await receive()
        self.start()
        await self._in_step()
        await asyncio.to_thread(self.controls.ask_workers)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def start(self) -> None:
        """Begin following and mirroring: each thread does one thing, so that none waits for another's."""
        self.shadow.start()
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._attempt, args=(self.wait_for_registry,), daemon=True).start()
        if self.guardian is not None:
            self.guardian.start()  # last: it is waited for

    def stop(self) -> None:
        """Have challengers decide what is on record, anchor the head, give the audit chain back. What fails is
        logged; a database or registry that is silent is waited for once, whoever asks it.
        """
        self._stopping.set()
        self.shadow.stop()
        deadline = time.monotonic() + _STOP_SECONDS
        if self.guardian is not None:
            self.guardian.stop(_STOP_SECONDS)  # first: it has something to keep
        for thread in self._threads:
            thread.join(_left(deadline))
        self._attempt(self.decider.report_refusals)
        self._attempt(lambda: self.controls.finish(max(_left(deadline), _WRITTEN_SECONDS)))
        last = threading.Thread(target=self._attempt, args=(self.anchor,), name="last anchor", daemon=True)
        last.start()
        last.join(max(_left(deadline), _LOOMDB_SECONDS))
        self.audit.close()
        if self._loomdb is not None:
            self._loomdb.close()

    @property
    def is_strict(self) -> bool:
        """Whether answers wait until their records are on the disk: so set, or for a safety-critical version."""
        return self.settings.durability == "strict" or self.roles.current.is_safety_critical

    def apply_announced(self) -> None:
        """Have in force whatever any worker has announced. Where nothing was, that is one look at memory. Where it
        cannot be had in force, or not within a second, no version acts (see `Authority`), people do; and it is tried
        again with the next request.

        Raises:
            AuditUnwritable: where it cannot be put on record.
        """
        if self._agreement is None:
            return
        if (announced := self._agreement.revision) == self._revision:
            self.controls.late = self._behind = None
            return
        patience, self._reads_late = 0.0 if self._reads_late else _READ_SECONDS, True
        is_read = self._reading.ask(patience)
        if self._unrecorded is not None:
            raise self._unrecorded.with_traceback(None)
        if self._revision >= announced:
            self.controls.late = self._behind = None
        elif is_read and self._untaken is not None:
            self.controls.late = self._untaken
        elif self._behind is None:
            self._behind = time.monotonic()
        elif time.monotonic() - self._behind > _LATE_SECONDS:
            self.controls.late = f"orders and quarantine are not read after {_LATE_SECONDS:g} s; check the disk"

    def _read_announced(self) -> None:
        """By a thread of its own: files that hang keep no event loop waiting."""
        assert self._agreement is not None, "one process alone announces nothing"
        revision, num_orders = self._agreement.changes()
        has_changed = num_orders != self._num_orders  # another champion is in no file
        try:
            for refresh in (self.controls.refresh, self.quarantine.refresh):
                with suppress(ArtifactError):  # who follows the files says so
                    refresh(has_changed=has_changed)
            self.roles.obey_quarantine()
        except AuditUnwritable as error:
            self._unrecorded = error
        except Exception as error:
            self._unrecorded, self._untaken = None, f"{type(error).__name__}: {error}"
            raise
        else:
            self._unrecorded, self._untaken = None, self.controls.unknown or self.quarantine.unknown
            if self._untaken is None:
                self._revision, self._num_orders = revision, num_orders
        finally:
            self._reads_late = False

    def beat(self) -> None:
        """Let the supervisor know that this worker does not hang."""
        if self.worker_address is not None and self._agreement is not None:
            self._agreement.beat(self.worker_address.index)

    def has_most_connections(self, num_connections: int) -> bool:
        """Note how many connections this worker has; returns whether another worker has fewer. False for the only
        process.
        """
        if self.worker_address is None or self._agreement is None:
            return False
        return self._agreement.has_most(self.worker_address.index, num_connections)

    async def _in_step(self) -> None:
        """Wait until this worker can do what the others do; it listens to nobody before."""
        while self.worker_address is not None and self._agreement is not None and not self.is_leaving:
            self.roles.obey_quarantine()
            if self._agreement.has_vote(self.worker_address.index):
                return
            await asyncio.sleep(_STEP_SECONDS)

    def _wanted_versions(self) -> set[str]:
        """Those people name, and the champion of the other workers: it decides until all have the next."""
        champion = "" if self._agreement is None else self._agreement.champion
        return self.controls.versions() | ({champion} if champion else set())

    def follow_orders(self) -> None:
        """Put in force what people set on this host. Waits for no database, no registry, no download, and for no file
        to be written. That a damaged one was set aside stands on record.

        Raises:
            ArtifactError: when the file of orders cannot be read; what is in force goes on.
        """
        if self._agreement is not None and self._agreement.revision != self._revision:
            self._reading.begin()  # also where no request comes: what hangs later hinders nobody
        self.controls.follow()
        if (damaged := self.controls.damaged) is not None and damaged != self._damaged:
            self.audit.queue_order([record("damaged", policy=self.settings.policy, reason=damaged)])
            self._damaged = damaged

    def follow_quarantine(self) -> None:
        """Let no version decide that monitors on this host took out of service.

        Raises:
            ArtifactError: when a file of the quarantine cannot be read; what was known stays in force.
        """
        try:
            self.quarantine.refresh()
        finally:
            self.roles.obey_quarantine()

    def follow_tokens(self) -> None:
        """Let in whom the tokens name now: what was taken out is refused without a restart.

        Raises:
            ConfigError: when the tokens cannot be read; those that were known go on.
        """
        tokens = configured()
        if tokens.holders != self.tokens.holders:
            self.tokens = tokens

    def agree(self) -> None:
        """Exchange what people set with the other hosts, through LoomDB.

        Raises:
            ServiceError: when LoomDB fails; what is in force goes on.
        """
        try:
            self.controls.exchange(self._open_loomdb())
        finally:
            self._has_orders.set()

    def follow_events(self) -> None:
        """Read from LoomDB into `events` what became of versions: for people who look.

        Raises:
            ServiceError: when LoomDB fails; the events that were known stay.
        """
        self.events = self._open_loomdb().newest_events(self.settings.policy, EVENTS, _NUM_EVENTS)

    def follow_roles(self) -> None:
        """Follow the registry, and load the versions that people name.

        Before there is a champion, what people set on other hosts is known; on this one it stands in the file. What
        fails is kept in `roles`, and nothing is raised.
        """
        if shares_loomdb():
            self._has_orders.wait(_FIRST_ORDERS_SECONDS)
        self.refresh()

    def refresh(self) -> None:
        """Begin to load what the registry and people name. Works without the registry's aliases for what people name.

        Orders are in force before their versions are loaded, and whether or not those can be: an emergency action must
        not wait for a download. Until then such a version answers 503. What fails is kept in `roles`, and nothing is
        raised.
        """
        orders = self.controls.orders
        if orders is not self._orders_loaded:
            self._orders_loaded = orders
            self.roles.load_pinned()
        self.roles.look()

    def _guardian(self) -> Guardian:
        """It watches this server's own chain, or those of all workers."""
        own, worker_address = self.audit.folder, self.worker_address
        folders = [own] if worker_address is None else [own.parent / name for name in worker_address.chains]
        hooks = GuardianHooks(
            watch=self._watch,
            is_ready=lambda: bool(self.roles.current.versions()),
            take_out=self.roles.take_out,
            is_named=lambda version: self.roles.is_named(version) or version in self.controls.orders.plan.split,
            append=self.audit.append,
            drop=self._drop_from_plan,
            has_registry=not self.settings.folders,
        )
        name = own.name if worker_address is None else worker_address.name
        return Guardian(self.settings.policy, name, lambda: list(filter(Path.is_dir, folders)), self.quarantine, hooks)

    def _watch(self, version: str) -> Watch | None:
        policy = self.roles.current.by_version(version)
        if policy is None:
            return None
        return Watch.of(policy.manifest, policy.dtype, self._source.settings(version).monitors)

    def _drop_from_plan(self, entry: Quarantined) -> None:
        """Deal no agent to a version that was taken out."""
        plan, revision = self.controls.plan()
        if entry.version in plan.split:
            split = {version: share for version, share in plan.split.items() if version != entry.version}
            changed = {"split": split, "person": MONITORS, "reason": entry.trigger.reason}
            self.controls.set_plan(plan.model_copy(update=changed), MONITORS, revision)

    def wait_for_registry(self) -> None:
        """Take the roles that were verified last, if the registry has not answered three seconds from now: it may hang
        for minutes.
        """
        if not self._stopping.wait(_REGISTRY_SECONDS) and not self.roles.has_looked:
            self.roles.use_last(f"the registry gave no answer for {_REGISTRY_SECONDS:g} s")

    def _record_last(self, last: LastVerified | None, why: str) -> None:
        """On record where roles come from, as long as that is not the registry."""
        named = {} if last is None else {"roles": last.roles, "verified": last.verified}
        source = "registry" if last is None else "last verified"
        self.audit.append_order([record("roles", policy=self.settings.policy, source=source, reason=why, **named)])

    def _record_controls(self, changes: Sequence[Change]) -> None:
        """On record before whatever is decided by it, also where no decision finds room. No disk is waited for."""
        self.audit.queue_order([_control_record(change) for change in changes])

    def _open_loomdb(self) -> "LoomDB":
        """Opened when it is first needed, by whoever comes first."""
        from loomrl.storage.loomdb.database import LoomDB

        with self._opening:
            if self._loomdb is None:
                self._loomdb = LoomDB.open(wait_seconds=_LOOMDB_SECONDS)
            return self._loomdb

    def anchor(self) -> None:
        """Keep the heads of both chains in LoomDB: a chain alone cannot show that its end is missing.

        Raises:
            AuditUnwritable: when the disk did not take the head.
            ServiceError: when LoomDB cannot be reached, or knows a head that the log does not hold.
        """
        mirrors = self.shadow.state.own_head()
        self.keeper.anchor(self._open_loomdb, [] if mirrors is None else [mirrors])

    def _repeat(self, work: Callable[[], None], seconds: float) -> None:
        self._attempt(work)
        while not self._stopping.wait(seconds):
            self._attempt(work)

    def _attempt(self, work: Callable[[], None]) -> None:
        """Whatever goes wrong is told once, and tried again: a thread that dies would leave the server as it is."""
        name = work.__name__
        try:
            work()
        except Exception as error:
            if str(error) != self.errors.get(name):
                log.error("%s: %s", name, error, exc_info=not isinstance(error, LoomRLError))
            self.errors[name] = str(error)
        else:
            self.errors.pop(name, None)

    def _challengers(self) -> list[ServedPolicy]:
        return challengers(self.controls.orders, self.roles.current)

    def _failing(self) -> list[str]:
        beside = (
            self.roles.unreachable,
            self.roles.unkept,
            self.keeper.sync_error,
            self.controls.unsaved,
            self.controls.reserved,
            self.controls.missing,
        )
        return [
            *self.errors.values(),
            *(why for why in beside if why is not None),
            *map(str, self.controls.unconfirmed),
        ]

    def _gauges(self) -> None:
        show = self.metrics.gauge
        show("ready", "1 when a champion decides", lambda: float(self.roles.is_ready))
        show("roles_last_verified", "1 while roles are not the registry's", lambda: float(self.roles.last is not None))
        show("audit_sequence", "Sequence of the last audit record", lambda: float(self.audit.head.sequence))
        show("audit_durable_sequence", "Last record on the disk", lambda: float(self.audit.durable_sequence))
        show("audit_waiting_bytes", "Orders' records in the reserve", lambda: float(self.audit.num_waiting_bytes))
        show("shadow_mirrored", "Decisions a challenger took too", lambda: float(self.shadow.state.num_mirrored))
        show("shadow_dropped", "Decisions no challenger looked at", lambda: float(self.shadow.state.num_dropped))
        show("shadow_errors", "Decisions a challenger failed on", lambda: float(self.shadow.state.num_errors))
        show("shadow_pending", "Records challengers have not come to", lambda: float(self.shadow.num_pending))
        show("shadow_restarts", "Ends of the challengers' process", lambda: float(self.shadow.num_restarts))
        show("refused_versions", "Versions not taken into service", lambda: float(len(self.roles.refused)))
        show("memories", "Episodes that recurrent policies remember", lambda: float(len(self.memories)))
        show("quarantined_versions", "Versions taken out", lambda: float(len(self.quarantine.entries())))
        if (guardian := self.guardian) is not None:
            show("guardian_running", "1 while monitors are at work", lambda: float(guardian.pid is not None))
            show("suspicions", "Tokens that alone speak against a version", lambda: float(len(guardian.suspicions)))
            show("guardian_restarts", "Ends of the monitors' process", lambda: float(guardian.num_restarts))
        show("kill_switch", "1 while it is on", lambda: float(self.controls.orders.kill_switch is not None))
        show("failing", "What fails now and is tried again; /status names it", lambda: float(len(self._failing())))
        show("overrides", "Overrides in force", lambda: float(len(self.controls.orders.active_overrides())))


def _left(deadline: float) -> float:
    """Seconds until then, by `time.monotonic()`."""
    return max(0.0, deadline - time.monotonic())


def _control_record(change: Change) -> dict[str, Any]:
    control, given_up = change.control, change.gave_way
    what, _, agent_id = control.name.partition("/")
    told = {"document": control.document, "revision": control.revision, "set_at": control.created.isoformat()}
    if given_up is not None:
        told["instead_of"] = {"document": given_up.document, "actor": given_up.actor, "reason": given_up.reason}
    return operation(control.policy, what, control.actor, control.reason, **told) | {"agent_id": agent_id or None}
