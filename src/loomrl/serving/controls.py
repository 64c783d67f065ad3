"""What people have set for a policy's servers, on all hosts alike: overrides, the plan, the kill switch.

Each is a control of its own, numbered by the time it was set. Wherever two are known, the newest revision is in force:
nothing else decides between hosts, so that they agree in whatever order they hear. Controls lie in one file per policy,
`home()/controls/POLICY.json`, which the servers of a host follow within a second, and in LoomDB, which joins the hosts.
With LoomDB out of reach the file works alone, and what was set meanwhile is added to LoomDB when it is back.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from pydantic import ValidationError

from loomrl.errors import ConfigError
from loomrl.home import home
from loomrl.loomdb.records import Control
from loomrl.schema import Document
from loomrl.serving.overrides import Override
from loomrl.serving.plan import NO_PLAN, KillSwitch, Plan

if TYPE_CHECKING:
    from loomrl.loomdb.database import LoomDB

log = logging.getLogger(__name__)
PLAN, KILL_SWITCH, OVERRIDE = "plan", "kill_switch", "override"  # of one agent: "override/AGENT"
_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class Orders:
    """What is in force: one consistent view, never changed, only replaced."""

    overrides: Mapping[str | None, Override] = field(default_factory=dict)  # by agent; None: of all agents
    kill_switch: KillSwitch | None = None
    plan: Plan = NO_PLAN

    def override_for(self, agent_id: str) -> Override | None:
        """The override in force for an agent: its own, else the one for all."""
        now = time.time()
        for key in (agent_id, None):
            override = self.overrides.get(key)
            if override is not None and override.is_active(now):
                return override
        return None

    def active_overrides(self) -> list[Override]:
        """All overrides in force, oldest first."""
        now = time.time()
        found = [override for override in self.overrides.values() if override.is_active(now)]
        return sorted(found, key=lambda override: override.created)

    def versions(self) -> set[str]:
        """Every version that has to be loaded for them."""
        pinned = {override.version for override in self.active_overrides() if override.version is not None}
        return pinned | self.plan.versions()


class _File(Document):
    controls: list[Control]


class Controls:
    """The controls of one policy. `orders` is what is in force; everything else may block.

    `record` is told what is about to be in force, before it is; where it raises, that waits for the next `refresh`.
    `announce` is called when the file has changed, before who changed it goes on.

    Raises:
        ArtifactError: when the file cannot be read.
    """

    def __init__(
        self,
        policy: str,
        record: Callable[[Sequence[Control]], None] | None = None,
        announce: Callable[[], None] | None = None,
    ) -> None:
        self.policy, self.path = policy, home() / "controls" / f"{policy}.json"
        self.orders = Orders()
        self._record, self._announce = record, announce
        self._lock = threading.Lock()
        self._standing: dict[str, Control] = {}  # replaced, never changed
        self._stamp: tuple[int, int] | None = None  # of the file when it was read
        self._shared: tuple[int, dict[str, Control]] | None = None  # LoomDB's revisions and ours when they agreed
        self.refresh()

    def refresh(self, has_changed: bool = False) -> None:
        """Follow the file, where it looks changed or is said to be: two changes may share one tick of its clock."""
        with self._lock:
            stamp = self._stat()
            if has_changed or stamp != self._stamp:
                self._put_in_force(self._read())
                self._stamp = stamp

    def exchange(self, database: "LoomDB") -> None:
        """Give LoomDB what it does not know, and take what we do not; where nothing changed it is one query.

        Raises:
            ServiceError: when the database fails; what is in force goes on.
        """
        num_revisions, mine = database.num_controls(self.policy), self._standing
        if self._shared is not None and self._shared[0] == num_revisions and self._shared[1] is mine:
            return
        theirs = {control.name: control for control in database.controls(self.policy)}
        for name, control in mine.items():
            if name not in theirs or control.revision > theirs[name].revision:
                num_revisions += database.add_control(control)
        with self._lock:
            self._put_in_force(theirs.values())
            self._shared = num_revisions, self._standing
        with self._exclusive(), self._lock:
            self._write(_newest(self._read(), self._standing.values()))

    def versions(self) -> set[str]:
        """Every version that has to be loaded now."""
        return self.orders.versions()

    def revision(self, name: str) -> int:
        """Of a control, as known here; 0 where it was never set."""
        return self._standing[name].revision if name in self._standing else 0

    def describe_plan(self) -> dict[str, Any]:
        """The plan and its revision, and the kill switch, as JSON values."""
        revision, orders = self.revision(PLAN), self.orders
        switch = None if orders.kill_switch is None else orders.kill_switch.to_json()
        return {"plan": orders.plan.to_json(), "revision": revision, "kill_switch": switch}

    def set_override(self, override: Override, actor: str) -> None:
        """Put an override in force; it replaces the former one of the same agent (or of all)."""
        name = OVERRIDE if override.agent_id is None else f"{OVERRIDE}/{override.agent_id}"
        self._set(name, override, actor, override.reason)

    def clear_overrides(self, override_id: str | None, actor: str, reason: str) -> list[Override]:
        """Lift one override, or all; returns those lifted.

        Raises:
            ConfigError: when there is no such override.
        """
        self.refresh()
        active = self.orders.active_overrides()
        lifted = [override for override in active if override_id in (None, override.id)]
        if override_id is not None and not lifted:
            known = ", ".join(override.id for override in active) or "none"
            raise ConfigError(f"no override {override_id!r}; in force: {known}")
        for override in lifted:
            name = OVERRIDE if override.agent_id is None else f"{OVERRIDE}/{override.agent_id}"
            self._set(name, None, actor, reason)
        return lifted

    def set_plan(self, plan: Plan, actor: str, revision: int | None = None) -> Plan:
        """Put a plan in force; agents keep their version where its split allows. Returns it with its slices.

        Raises:
            ConfigError: when the plan was changed since the `revision` that the new one was made from.
        """
        self.refresh()
        known = self.revision(PLAN)
        dealt = plan.dealt_after(self.orders.plan)
        self._set(PLAN, dealt, actor, plan.reason, known if revision is None else revision)
        return dealt

    def set_kill_switch(self, switch: KillSwitch | None, actor: str, reason: str) -> None:
        """Turn the kill switch on, or off (None)."""
        self._set(KILL_SWITCH, switch, actor, reason)

    def _set(self, name: str, document: Document | None, actor: str, reason: str, made_from: int | None = None) -> None:
        """File first: what is in force survives a restart."""
        with self._exclusive(), self._lock:
            known = _newest(self._read(), self._standing.values())
            former = known[name].revision if name in known else 0
            if made_from not in (None, former):
                raise ConfigError(f"the {name} was changed meanwhile: its revision is {former}; read it again")
            now = datetime.now(UTC)
            known[name] = Control(
                policy=self.policy,
                name=name,
                revision=max(int(now.timestamp() * _MICROSECONDS), former + 1),
                document=None if document is None else document.to_json(),
                actor=actor,
                reason=reason,
                created=now,
            )
            self._write(known)
            self._put_in_force(known.values())

    def _put_in_force(self, arrived: Iterable[Control]) -> None:
        """Whatever is newer than what stands; what this version of LoomRL cannot read stays as it was."""
        standing = _newest(self._standing.values(), filter(_is_readable, arrived))
        changed = [control for name, control in standing.items() if control != self._standing.get(name)]
        if changed:
            if self._record is not None:
                self._record(changed)
            self.orders, self._standing = _orders(standing), standing

    def _read(self) -> list[Control]:
        return _File.read(self.path).controls if self.path.is_file() else []

    def _write(self, controls: Mapping[str, Control]) -> None:
        wanted = _File(controls=[controls[name] for name in sorted(controls)])
        if controls and wanted.controls != self._read():
            wanted.write(self.path)
            if self._announce is not None:
                self._announce()

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """No other process writes the file. Taken before `_lock`: who decides takes that, and waits for no process."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock", timeout=10):
            yield


def _newest(*sources: Iterable[Control]) -> dict[str, Control]:
    """The newest revision of each control; of equal ones the one that is named last."""
    found: dict[str, Control] = {}
    for control in (control for source in sources for control in source):
        known = found.get(control.name)
        if known is None or control.revision >= known.revision:
            found[control.name] = control
    return found


def _is_readable(control: Control) -> bool:
    try:
        _document(control)
    except ValidationError as error:
        first = error.errors()[0]
        log.error("%s of %s, by %s, stays as it was: %s", control.name, control.policy, control.actor, first["msg"])
        return False
    return True


def _document(control: Control) -> Override | Plan | KillSwitch | None:
    if control.document is None:
        return None
    kinds: dict[str, type[Override | Plan | KillSwitch]] = {PLAN: Plan, KILL_SWITCH: KillSwitch}
    return kinds.get(control.name, Override).model_validate(control.document)


def _orders(controls: Mapping[str, Control]) -> Orders:
    documents = [_document(control) for control in controls.values()]
    overrides = {document.agent_id: document for document in documents if isinstance(document, Override)}
    switch = next((document for document in documents if isinstance(document, KillSwitch)), None)
    plan = next((document for document in documents if isinstance(document, Plan)), NO_PLAN)
    return Orders(overrides, switch, plan)
