"""What people have set for a policy's servers, on all hosts alike: overrides, the plan, the kill switch.

Each is a control of its own. Its revisions are numbered by LoomDB, which joins the hosts;
`loomrl.serving.controls.orders` says which of two stands. What is ordered here is in force here at once, in memory, and
then at the other workers of the server, which are told of it: no file is read before. Then it is written to one file
per policy, `home()/controls/POLICY.json`, which the servers of a host follow within a second
(`loomrl.serving.controls.order_store`), and given to LoomDB. With LoomDB out of reach the host goes on by itself, and
settles with the others when it is back. An override with an end lapses by elapsed time: an order like any other, which
the file forgets after 30 days, once LoomDB has it, which keeps all.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

from loomrl.errors import ArtifactError, ConfigError, ServiceError
from loomrl.serving.controls.elapsed import Countdown
from loomrl.serving.controls.numbering import NUM_SHARED, by_name, numbered, reaching_back
from loomrl.serving.controls.order_file import SavedControls
from loomrl.serving.controls.order_store import Kept, OrderStore
from loomrl.serving.controls.orders import (
    KILL_SWITCH,
    NUM_REPLACED,
    PLAN,
    ActiveOrders,
    is_at_least_as_strict,
    is_readable,
    not_replaced,
    orders_of,
    override_name,
    strictest,
    with_an_end,
)
from loomrl.serving.controls.overrides import Override
from loomrl.serving.controls.peer import Give, Orders, Peer
from loomrl.serving.controls.plan import KillSwitch, Plan, check_orderable
from loomrl.storage.loomdb.records import Control
from loomrl.system.background import Background
from loomrl.system.home import inside
from loomrl.system.schema import Document

if TYPE_CHECKING:
    from loomrl.storage.loomdb.database import LoomDB

log = logging.getLogger(__name__)
LAPSED = "elapsed time"  # who lifts an override whose time is over
_KEPT_SECONDS = 60.0  # between writings of what overrides with an end have left: a reboot forgets no more than that
_COMPARED_SECONDS = 60.0  # between comparisons with LoomDB where it has as many revisions as before: it may be restored
_LAPSE_KEPT = timedelta(days=30)  # a LoomDB that is restored from a backup may hold the override still
_CONFIRMED_SECONDS = 0.5  # that who orders waits for the other workers: longer than each has to answer
_FRESH_SECONDS = 1.0  # after which an order no longer replaces what the files are found to hold


@dataclass(frozen=True)
class Change:
    """An order that is in force from now on, and one of this host that was set meanwhile and gave way to it; None for
    none.
    """

    control: Control
    gave_way: Control | None = None


class Controls:
    """The controls of one policy. `orders` is what is in force; who reads it, or calls `take`, `put_override`,
    `put_kill_switch`, `lift_overrides` or `settled`, waits for no file and for nobody who does: an event loop may.
    `refresh` waits for files to be read. Everything else may wait for them to be written: with `patience_seconds` so
    long at most, while threads go on with it. A plan alone waits for the file.

    `record` is told what is about to be in force, before it is, and waits for no disk either; `keep` has the disk take
    what was recorded. `announce` is called when the file has changed, before who changed it goes on.

    Where the file cannot be read, it is made all the same: `unknown` says so.

    Raises:
        ArtifactError: when no room can be reserved for orders.
    """

    def __init__(
        self,
        policy: str,
        record: Callable[[Sequence[Change]], None] | None = None,
        announce: Callable[[], None] | None = None,
        keep: Callable[[], None] | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        self.policy, self.path = policy, inside("controls", f"{policy}.json")
        self.orders = ActiveOrders()
        self.unsaved: str | None = None  # why what is in force would not outlive this process
        self.late: str | None = None  # why none may act for now: it is not read yet
        self.unconfirmed: list[int] = []  # workers that were given an order and did not confirm; they are asked again
        self._saving, self._patience_seconds = Background(self._save), patience_seconds
        self._reading = Background(self._read_again)
        self._failed: ArtifactError | None = None  # to read, the last time
        self._num_changes = 0  # how often they were said to have changed
        self._record, self._announce, self._keep = record, announce, keep
        self._lock = threading.RLock()  # of what is in memory: nobody touches a file, or waits, with it held
        self._disk = threading.RLock()  # of reading the files, which may wait for them; taken before the former
        self._peers: dict[int, Peer] = {}  # the other workers
        self._known: dict[str, tuple[Control, ...]] = {}  # by name, what nothing replaces; replaced, never changed
        self._fresh: dict[str, tuple[Control, float]] = {}  # ordered here, and when: no file was read since
        self._standing: dict[str, Control] = {}  # of each the strictest; replaced, never changed
        self._written: object = self._known  # what was known when a file last held all of it
        self._unknown_at_start: str | None = None  # why the file may hold what is not known here, until LoomDB told all
        self._unknown_announced: str | None = None  # the same, of what was said to have changed, until it is read
        self._announced: dict[str, Control] | None = None
        self._countdowns: dict[str, Countdown] = {}  # of overrides with an end, by id
        self._kept = time.monotonic()  # when those were last written
        self._stamp: object = None  # of the files when they were read
        self._shared: tuple[int, object] | None = None  # LoomDB's revisions and ours when they agreed
        self._compared = 0.0  # `time.monotonic()` when that was found out
        self._store = OrderStore(self.path)
        self._found = Kept()  # when the files were read last
        self._lost: str | None = None  # what was lost to damage, until LoomDB has told what it knows
        self._lost_in_files: str | None = None  # what the files say of that
        self._settled: str | None = None  # of what LoomDB has made up for
        try:
            self.refresh()
        except ArtifactError as error:
            log.error("%s", error)
        self._unknown_at_start = self._found.unknown
        self._write_again()

    def connect(self, peers: Mapping[int, Give]) -> None:
        """Have these other workers told, from now on, what is ordered; they have read the file, too."""
        self._peers = {index: Peer(give, self._news, self.take, self._known) for index, give in peers.items()}

    def follow(self) -> None:
        """Do what `refresh` does, and have written, and known to all workers, what could not be before.

        What cannot be written still is tried again with the next call; `unsaved` says why.

        Raises:
            ArtifactError: when the file cannot be read, or not in time; what is in force goes on.
        """
        if self.unconfirmed:
            self._tell_workers()
        try:
            self._have_read()
        finally:
            self._lapse()
            self._write_again()

    def _write_again(self) -> None:
        is_due = bool(self._countdowns) and time.monotonic() - self._kept > _KEPT_SECONDS
        is_outdated = self._found.is_outdated and self._patience_seconds is not None  # a command writes what it orders
        fails = self.unsaved is not None or self.reserved is not None
        is_due |= is_outdated or self._found.file.damage is not None or self._found.is_movable
        is_due |= self._lost != self._lost_in_files
        if self._written is not self._known or fails or is_due:
            self._have_saved(0.0)

    def refresh(self, has_changed: bool = False) -> None:
        """Take what the file says, where it looks changed or is said to be: two changes may share a tick of its clock.

        Overrides whose time is over are lifted, whatever becomes of the file. No process is waited for.

        Raises:
            ArtifactError: when the file cannot be read; what is in force goes on, and `unknown` says whether something
                that is said to have changed may be missing here.
        """
        if has_changed:
            with self._lock:
                self._num_changes += 1
        try:
            with self._disk:
                stamp = (self._num_changes, self._store.look())
                if stamp != self._stamp or self._fresh or self._is_over():
                    found, began = self._read_now()
                    with self._lock:
                        self._follow(found, began)
                        self._stamp = stamp if found.unread is None else None
                        if found.unread is not None and has_changed:
                            self._unknown_announced = found.unknown
                    if found.unread is not None:
                        raise ArtifactError(found.unread)
        finally:
            self._lapse()

    def take(self, given: SavedControls) -> SavedControls:
        """Have in force what another worker was ordered, and put it on record; returns all that is known here. No disk
        is waited for: `follow` sees to it that a file holds it.
        """
        with self._lock:
            self._join(given)
            return self._to_save()

    def ask_workers(self) -> None:
        """Have in force what the other workers know: a file may not hold all of it. Who does not answer is asked again
        by `follow`.
        """
        self._tell_workers()
        for index in self.unconfirmed:
            self._peers[index].confirmed = {}

    def finish(self, seconds: float) -> None:
        """Have written, before this process ends, what could not be before; waits so many seconds at most."""
        if self._written is not self._known:
            self._have_saved(seconds)

    def exchange(self, database: "LoomDB") -> None:
        """Have LoomDB number what was ordered here, and take what was ordered elsewhere; mostly it is one query.

        Raises:
            ServiceError: when the database fails; what is in force goes on.
        """
        with suppress(ArtifactError):  # who follows the file says so: orders of other hosts do not depend on it
            self._have_read()
        num_revisions, mine = database.num_controls(self.policy), self._known
        is_all_told = self._lost is None and self._unknown_at_start is None
        is_recent = time.monotonic() - self._compared < _COMPARED_SECONDS and is_all_told
        if is_recent and self._shared is not None and self._shared[0] == num_revisions and self._shared[1] is mine:
            return
        self._compared = time.monotonic()
        revisions = by_name(database.controls(self.policy, last=NUM_SHARED))
        for name, orders in mine.items():
            revisions[name] = reaching_back(database, orders, revisions.get(name, []))
        with self._lock:  # first: that ours can be numbered is not sure
            self._put_in_force(chain.from_iterable(revisions.values()))
            mine = self._known
        failure: ServiceError | None = None
        for name, orders in mine.items():
            try:
                num_revisions += numbered(database, orders, revisions.setdefault(name, []))
            except ServiceError as error:
                database.num_controls(self.policy)  # fails where it is out of reach: no other name need be tried
                failure = error
        with self._lock:
            is_settled = self._known is mine and failure is None
            self._put_in_force(chain.from_iterable(revisions.values()))
            self._shared = (num_revisions, self._known) if is_settled else None
            if failure is None:  # LoomDB has told what was set before the start, and what was lost
                self._unknown_at_start = None
                self._settled, self._lost = self._lost or self._settled, None
        self._have_saved(self._patience_seconds)
        if failure is not None:
            raise failure

    def versions(self) -> set[str]:
        """Every version that has to be loaded now."""
        return self.orders.versions()

    @property
    def unknown(self) -> str | None:
        """Why no version may act: what was set last cannot be read, or, by a server that starts, found elsewhere."""
        return self._unknown_announced or self._unknown_at_start

    @property
    def reserved(self) -> str | None:
        """Why what was ordered is kept in the reserve; None where it is in the file."""
        return self._store.reserved

    @property
    def damaged(self) -> str | None:
        """What was wrong with a file that was set aside; None where none was."""
        return self._store.damaged

    @property
    def missing(self) -> str | None:
        """Why orders may be missing here; None where all that were kept are known."""
        return self._found.unknown or self._lost

    def plan(self) -> tuple[Plan, int]:
        """The plan in force, and its revision."""
        with self._lock:
            return self.orders.plan, self.revision(PLAN)

    def revision(self, name: str) -> int:
        """The number of a control's newest revision, as known here; 0 where it was never set."""
        return self._standing[name].revision if name in self._standing else 0

    def describe_plan(self) -> dict[str, Any]:
        """What is in force, as JSON values: `plan`, its `revision`, and `kill_switch`, None while it is off."""
        plan, revision = self.plan()
        on = self.orders.kill_switch
        return {"plan": plan.to_json(), "revision": revision, "kill_switch": None if on is None else on.to_json()}

    def set_override(self, override: Override, actor: str) -> None:
        """Put an override in force; it replaces the former one of the same agent (or of all).

        It is in force here at once, and then at the other workers, also where the disk takes no file: `unsaved` or
        `reserved` says why, `unconfirmed` which worker does not answer.

        Raises:
            ConfigError: for an action that cannot be kept, or put on record.
        """
        self.put_override(override, actor)
        self._settle()

    def put_override(self, override: Override, actor: str) -> None:
        """Put an override in force in this process; `settled` has the other workers told, and it written.

        Raises:
            ConfigError: for an action that cannot be kept, or put on record.
        """
        check_orderable(override.action)
        self._set(override_name(override.agent_id), override, actor, override.reason)

    def clear_overrides(self, override_id: str | None, actor: str, reason: str) -> list[Override]:
        """Lift one override, or all (None); returns those lifted. One that is known here is lifted at once, as
        `set_override` puts in force; else the file is read first, as long as there is patience.

        Raises:
            ConfigError: when there is no such override.
        """
        if not self.is_in_force(override_id):
            self._read_first()
        lifted = self.lift_overrides(override_id, actor, reason)
        if override_id is not None and not lifted:
            raise self.no_such(override_id)
        self._settle()
        return lifted

    def lift_overrides(self, override_id: str | None, actor: str, reason: str) -> list[Override]:
        """Lift in this process one override, or all (None), of those that are known to it; returns them. `settled` has
        the other workers told, and it written. Who lifts what is not known here has waited for `looked` before.
        """
        with self._lock:  # what replaces one of them meanwhile is not lifted with it
            lifted = [one for one in self.orders.active_overrides() if override_id in (None, one.id)]
            for override in lifted:
                self._set(override_name(override.agent_id), None, actor, reason, whatever_stands=override_id is None)
        return lifted

    def is_in_force(self, override_id: str | None) -> bool:
        """Whether an override of this id is known to this process."""
        return any(one.id == override_id for one in self.orders.active_overrides())

    def no_such(self, override_id: str) -> ConfigError:
        """What to raise for an override that is not in force."""
        known = ", ".join(override.id for override in self.orders.active_overrides()) or "none"
        return ConfigError(f"no override {override_id!r}; in force: {known}")

    def set_plan(self, plan: Plan, actor: str, revision: int | None = None) -> Plan:
        """Put a plan in force; agents keep their version where its split allows. Returns it with its slices.

        Raises:
            ConfigError: when the plan was changed since the `revision` that the new one was made from; and for an
                action of its fallback that cannot be kept, or put on record.
            ArtifactError: when another process holds the file for long, or neither it nor the reserve can be written;
                nothing has changed.
        """
        check_orderable(None if plan.fallback is None else plan.fallback.action)
        with self._store.exclusive():
            self._save_alone()
            with self._lock:
                known = self.revision(PLAN)
                if revision not in (None, known):
                    raise ConfigError(f"the {PLAN} was changed meanwhile: its revision is {known}; read it again")
                dealt = plan.dealt_after(self.orders.plan)
                self._set(PLAN, dealt, actor, plan.reason)
            self._tell_workers()
            self._keep_record()
            self._is_saved()  # else it is in force, and tried again
        self._notify()
        return dealt

    def set_kill_switch(self, switch: KillSwitch | None, actor: str, reason: str) -> None:
        """Turn the kill switch on, or off (None).

        On, that is in force here at once, and then at the other workers, as an override is. Off, the file is read
        first, as long as there is patience: who lets go knows what.
        """
        if switch is None:
            self._read_first()
        self.put_kill_switch(switch, actor, reason)
        self._settle()

    def put_kill_switch(self, switch: KillSwitch | None, actor: str, reason: str) -> None:
        """Turn the kill switch on, or off (None), in this process; `settled` has the other workers told, and it
        written. Who turns it off has waited for `looked` before.
        """
        self._set(KILL_SWITCH, switch, actor, reason)

    # --- in memory --------------------------------------------------------------------------------------------------

    def _set(self, name: str, document: Document | None, actor: str, reason: str, whatever_stands: bool = True) -> None:
        """In force at once: no file, no lock between processes and no database is waited for. What the files hold that
        is not known here yet, and is no stricter, is replaced, too, when they are read, where the order replaces
        `whatever_stands`.
        """
        with self._lock:
            order = self._order(name, document, actor, reason, self._known.get(name, ()))
            if whatever_stands:
                self._fresh[name] = (order, time.monotonic())

    def _order(
        self, name: str, document: Document | None, actor: str, reason: str, replaced: Sequence[Control]
    ) -> Control:
        known = self._known.get(name, ())
        newest = max(known, key=lambda one: one.place, default=None)
        before = [identity for one in replaced for identity in one.replaces or ()]
        order = Control(
            policy=self.policy,
            name=name,
            revision=1 + max((one.revision for one in known), default=0),
            document=None if document is None else document.to_json(),
            actor=_storable(actor),
            reason=_storable(reason),
            created=datetime.now(UTC),
            made_from=0 if newest is None else newest.place[0],
            replaces=list(dict.fromkeys([*before, *(one.identity for one in replaced)]))[-NUM_REPLACED:],
        )
        self._put_in_force([order])
        return order

    def _held_against(self, found: Iterable[Control], began: float) -> list[Control]:
        """Orders that were given here before any file was read that holds what they are to replace, as they name that,
        too. `found` is what the files hold, read from `began` on.

        What is found within a second was there when the order was given, for all that anybody can say: it is replaced,
        but not what is stricter, for that may have been set after the order. What is found later, by a disk that hung,
        was set apart.
        """
        fresh, now, by_control = self._fresh, time.monotonic(), by_name(found)
        self._fresh = self._fresh_since(began)
        held = []
        for name, (order, at) in fresh.items():
            known = {one.identity: one for one in self._known.get(name, ())}
            newly = [
                one
                for one in by_control.get(name, ())
                if one.identity not in known
                and order.identity not in (one.replaces or ())
                and is_at_least_as_strict(order, one)
            ]
            if newly and order.identity in known and now - at <= _FRESH_SECONDS:
                held.append(_replacing(known[order.identity], newly))
        return held

    def _fresh_since(self, began: float) -> dict[str, tuple[Control, float]]:
        return {name: (order, at) for name, (order, at) in self._fresh.items() if at >= began}

    def _is_over(self) -> bool:
        """Whether the time of an override is over."""
        return any(one.seconds_left <= 0.0 for one in list(self._countdowns.values()))

    def _lapse(self) -> None:
        """Lift overrides whose time is over; what was set apart from one of them, or renewed it, stands on."""
        with self._lock:
            if not self._is_over():
                return
            for control, one in with_an_end(chain.from_iterable(self._known.values())):
                if self._countdowns[one.id].seconds_left <= 0.0:
                    why = f"the {one.lifetime_seconds:g} s of override {one.id} are over: {one.reason}"
                    self._order(control.name, None, LAPSED, why, [control])
            self._count_down()

    def _put_in_force(self, arrived: Iterable[Control]) -> None:
        """On record first; whatever becomes of that, it is in force. What cannot be read leaves what stands."""
        forgets = self._written is self._known  # else the file may hold an override still, and bring it back
        known = {name: orders for name, orders in self._known.items() if not (forgets and _is_long_over(orders))}
        standing, changes = {name: self._standing[name] for name in known}, []
        for name, orders in by_name(filter(is_readable, arrived)).items():
            if list(known.get(name, ())) == orders or (name not in known and _is_long_over(not_replaced(orders))):
                continue
            known[name] = tuple(not_replaced([*known.get(name, ()), *orders]))
            former, standing[name] = standing.get(name), strictest(known[name])
            if former is None or not former.is_same_order(standing[name]):
                gave_way = next((one for one in known[name] if former is not None and one.is_same_order(former)), None)
                changes.append(Change(standing[name], gave_way))
        if changes and self._record is not None:
            try:
                self._record(changes)
            except Exception:
                log.exception("an order is in force, and not on record")
        if known != self._known:
            self._known = known
            self._count_down()
        if standing != self._standing:
            self._standing = standing
        if changes:
            self.orders = orders_of(standing)

    def _count_down(self) -> None:
        """Begin to count for overrides with an end that are new here, also where a stricter one covers them; forget
        those that are gone.
        """
        self._countdowns = {
            one.id: self._countdowns.get(one.id) or Countdown.of(one.lifetime_seconds or 0.0)
            for _, one in with_an_end(chain.from_iterable(self._known.values()))
        }

    # --- at the other workers ---------------------------------------------------------------------------------------

    async def looked(self) -> None:
        """Know what the files say, where that does not take long; for who may not wait."""
        await asyncio.wait([asyncio.wrap_future(self._reading.begin())], timeout=self._patience_seconds)

    async def settled(self) -> None:
        """Have what is in force here be so at the other workers, and then a disk hold it, as `set_override` does; for
        who may not wait, with no thread but those that are at it anyway.
        """
        self._reading.begin()
        if told := self.begin_telling():
            await asyncio.wait(list(map(asyncio.wrap_future, told.values())), timeout=_CONFIRMED_SECONDS)
            self._note_confirmed(told)
        saved = asyncio.wrap_future(self._saving.begin())
        await asyncio.wait([saved], timeout=self._patience_seconds)
        if not saved.done():
            self._report_late(self._patience_seconds)

    def _settle(self) -> None:
        """What `settled` does."""
        if self._patience_seconds is None:
            with suppress(ArtifactError):  # who writes says so
                self.refresh()
        else:
            self._reading.begin()
        self._tell_workers()
        self._have_saved(self._patience_seconds)

    def _tell_workers(self) -> None:
        """Give them what not all of them have confirmed; take what they know."""
        told = self.begin_telling()
        wait(told.values(), _CONFIRMED_SECONDS)
        self._note_confirmed(told)

    def begin_telling(self) -> dict[int, Future[None]]:
        """Have the other workers told, each by a thread of its own; returns what is done when they were."""
        return {index: peer.begin() for index, peer in self._peers.items()}

    def _note_confirmed(self, told: Mapping[int, Future[None]]) -> None:
        unconfirmed = [index for index, one in told.items() if not one.done() or self._peers[index].is_silent]
        if unconfirmed and unconfirmed != self.unconfirmed:
            log.error("workers %s have not confirmed what was ordered; they are asked again", unconfirmed)
        self.unconfirmed = unconfirmed

    def _news(self, confirmed: Orders) -> tuple[Orders, SavedControls]:
        """What is known here, and what of it is not known to whom has confirmed so much."""
        with self._lock:
            known, countdowns = self._known, self._counted_down()
        news = [one for name, orders in known.items() if confirmed.get(name) is not orders for one in orders]
        return known, SavedControls(controls=news, countdowns=countdowns)

    # --- on the disk ------------------------------------------------------------------------------------------------

    def _have_read(self) -> None:
        """`refresh`, by a thread that alone waits where files hang.

        Raises:
            ArtifactError: when they cannot be read, or not in time.
        """
        if self._patience_seconds is None:
            self.refresh()
        elif not self._reading.ask(self._patience_seconds):
            raise ArtifactError(f"{self.path} is not read after {self._patience_seconds:g} s; check the disk")
        elif (failed := self._failed) is not None:
            raise failed.with_traceback(None)

    def _read_first(self) -> None:
        """Before what relaxes: what cannot be read, or not in time, and is stricter, stands when it is found."""
        with suppress(ArtifactError):
            self._have_read()

    def _read_again(self) -> None:
        try:
            self.refresh()
            self._failed = None
        except ArtifactError as error:
            self._failed = error
        except Exception as error:
            self._failed = ArtifactError(f"{self.path} cannot be read: {error!r}")
            log.exception("%s cannot be read", self.path)

    def _read_now(self) -> tuple[Kept, float]:
        """What the files hold, and since when they were read."""
        began = time.monotonic()
        found = self._store.read()
        if found.unread is not None:  # nobody can say what the files held when orders were given before
            with self._lock:
                self._fresh = self._fresh_since(began)
        return found, began

    def _follow(self, kept: Kept, began: float) -> None:
        """Join what the files say, which were read from `began` on, with what is known here."""
        found, self._found = kept.orders, kept
        held = self._held_against(found.controls, began)
        self._join(found.model_copy(update={"controls": [*found.controls, *held]}))
        self._written = self._known if self._known_orders() == found.controls else None
        if kept.unread is None:
            self._unknown_announced = None
        if kept.unknown is None:
            self._unknown_at_start = None
        if kept.unread is None and found.lost != self._lost_in_files:  # of another process, which found it, or was told
            self._lost = self._lost_in_files = found.lost
        if kept.newly_lost is None:
            self._settled = None
        elif kept.newly_lost not in (self._lost, self._settled):
            log.error("%s", kept.newly_lost)
            self._lost = kept.newly_lost

    def _join(self, found: SavedControls) -> None:
        for override_id, countdown in found.countdowns.items():
            left = countdown.seconds_left
            self._countdowns.setdefault(override_id, Countdown.of(left))
        self._put_in_force(found.controls)
        self._count_down()

    def _to_save(self) -> SavedControls:
        return SavedControls(controls=self._known_orders(), countdowns=self._counted_down(), lost=self._lost)

    def _counted_down(self) -> dict[str, Countdown]:
        return {name: Countdown.of(one.seconds_left) for name, one in self._countdowns.items()}

    def _known_orders(self) -> list[Control]:
        """All that are known and not replaced, by name."""
        return [one for name in sorted(self._known) for one in self._known[name]]

    def _have_saved(self, seconds: float | None) -> None:
        """Have what stands written; who has patience waits so long at most, and is told where that is too short."""
        if self._patience_seconds is None:
            self._save()
        elif not self._saving.ask(seconds or 0.0) and seconds:
            self._report_late(seconds)

    def _report_late(self, seconds: float | None) -> None:
        with self._lock:
            if self._written is not self._known and self.unsaved is None:
                self._report(f"{self.path} is not written after {seconds or 0.0:g} s; see who holds it, or the disk")

    def _save(self) -> None:
        """Write what stands, on top of what other processes wrote meanwhile. Where that fails it is tried again."""
        self._keep_record()
        try:
            with self._store.exclusive():
                is_written = self._is_saved()
        except ArtifactError as error:
            self._report(str(error))
        else:
            if is_written:
                self._notify()

    def _is_saved(self) -> bool:
        """Whether what stands could be written, with the file locked; else `unsaved` says why."""
        try:
            self._save_alone()
        except (ArtifactError, OSError) as error:
            self._report(str(error))
        except Exception as error:  # of whatever kind: it is in force, and who ordered is told why it is not kept
            why = f"{self.path} is not written: {error!r}"
            if why != self.unsaved:
                log.exception("%s", why)
            self._report(why)
        else:
            return True
        return False

    def _save_alone(self) -> None:
        """With the file locked. Where neither the file nor the reserve can be written, that is said and tried again."""
        with self._disk:
            said = self._num_changes
            found, began = self._read_now()
            with self._lock:
                self._follow(found, began)
                known, wanted = self._known, self._to_save()
        is_due = time.monotonic() - self._kept > _KEPT_SECONDS
        if is_due or wanted.countdowns.keys() != found.orders.countdowns.keys() or not found.holds(wanted):
            kept = self._store.write(wanted, found, is_due)
        else:
            kept = self._store.renew(wanted, found)
        stamp = (said, self._store.look())
        with self._lock:  # what was ordered while the disk was waited for is not written yet
            self._written, self.unsaved, self._kept = known, None, time.monotonic()
            self._found, self._lost_in_files = kept, wanted.lost
            self._stamp = stamp if found.unread is None else None

    def _keep_record(self) -> None:
        if self._keep is None:
            return
        try:
            self._keep()
        except Exception:  # files hold it all the same
            log.exception("an order is in force, and not on record")

    def _report(self, why: str) -> None:
        if why != self.unsaved:
            log.error("what was ordered is in force, and would not survive a restart: %s", why)
        self.unsaved = why

    def _notify(self) -> None:
        if self._announce is not None and self._announced is not self._standing:
            self._announced = self._standing
            self._announce()


def _replacing(order: Control, others: Sequence[Control]) -> Control:
    """A copy of an order that also names these others, which it replaces, and follows on them."""
    newest = max(others, key=lambda one: one.place)
    before = [identity for one in others for identity in one.replaces or ()]
    named = [*(order.replaces or ()), *before, *(one.identity for one in others)]
    update: dict[str, Any] = {"replaces": list(dict.fromkeys(named))[-NUM_REPLACED:]}
    if order.made_from is not None:
        update["revision"] = max(order.revision, 1 + max(one.revision for one in others))
        update["made_from"] = max(order.made_from, newest.place[0])
    return order.model_copy(update=update)


def _is_long_over(orders: Sequence[Control]) -> bool:
    """Whether all that is left of an agent's override is that it lapsed long ago; never before LoomDB, which may hold
    the override, has numbered that.
    """
    now = datetime.now(UTC)
    return all(one.actor == LAPSED and one.made_from is None and now - one.created > _LAPSE_KEPT for one in orders)


def _storable(text: str) -> str:
    """As every database takes it: without NUL, and without bytes of a command line that are no UTF-8."""
    return text.encode(errors="replace").decode().replace("\0", "?")
