"""Which policy holds which role in this server, following the registry without a lost request.

A new version is fetched, verified, loaded and probed in a thread of its own; only then one reference is assigned. What
arrives is held against the latest look at the source, so the newest alias wins, and neither a person's pin nor another
role waits for a download that hangs. A version that fails is refused: the former one goes on deciding and the reason
stands in `/status`. A request keeps the policies it began with; the last one to end releases a replaced policy.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from loomrl.errors import ArtifactError, LoomRLError, ServiceError
from loomrl.serving.config import ExplorationConfig
from loomrl.serving.guardian.quarantine import Quarantine
from loomrl.serving.policy.exploration import require_fit
from loomrl.serving.policy.last_verified import LastVerified
from loomrl.serving.policy.model import ServedPolicy, UnloadedPolicy
from loomrl.serving.policy.sources import ROLES, PolicySource
from loomrl.storage.registry import CHALLENGER, CHAMPION, PREVIOUS

log = logging.getLogger(__name__)
_RETRY_SECONDS = 30.0  # a refused version is tried again, for its files may be restored
_PIN_SECONDS = 60.0  # a version a person asked for is kept this long without an override: it is about to come
_WAIT_SECONDS = 60.0  # nobody waits longer for a version; what brings it goes on
_LOOK_UP_SECONDS = 0.5  # that an order waits for the source to say that there is no such version,
_LOAD_SECONDS = 5.0  # and for one that there is to be loaded
_NAMING_SECONDS = 10.0  # after a champion came, within which the registry names the one before it `previous`

Vote = Callable[[str | None, Container[str]], str]


@dataclass(frozen=True)
class Roles:
    """Which loaded version has which role, None for a role that none has: one consistent view, which a request takes
    once and keeps.
    """

    champion: ServedPolicy | None = None
    challenger: ServedPolicy | None = None
    pinned: dict[str, ServedPolicy] = field(default_factory=dict)  # versions that overrides or the plan name
    draining: dict[str, ServedPolicy] = field(default_factory=dict)  # recurrent ones, until their episodes end
    prepared: ServedPolicy | None = None  # champion next, once all workers have loaded it
    previous: ServedPolicy | None = None  # the last safe version: decides at once where the champion may no longer
    taken_out: ServedPolicy | None = None  # the champion by the registry, in quarantine
    quarantined: frozenset[str] = frozenset()  # versions that may decide for a person's override at most
    known: ServedPolicy | None = None  # whose actions are known, where no version is loaded; it decides nothing
    unreachable: str | None = None  # why the registry does not say who has which role
    unknown: str | None = None  # why it is not known which versions are in quarantine: none may act

    def versions(self) -> set[str]:
        """The numbers of all versions that are loaded."""
        return set(self.loaded())

    def by_version(self, version: str) -> ServedPolicy | None:
        """The loaded policy of a version, whatever its role; None where it is not loaded."""
        return self.loaded().get(version)

    def whose_actions(self) -> ServedPolicy | None:
        """The version whose actions are those a person may name: the champion, else any; None where none is known."""
        return self.champion or next(iter(self.loaded().values()), self.known)

    @cached_property
    def is_safety_critical(self) -> bool:
        """Whether any loaded version is: then no answer leaves before its record is on the disk."""
        return any(policy.manifest.safety_critical for policy in self.loaded().values())

    def loaded(self) -> dict[str, ServedPolicy]:
        """All loaded policies by version, whatever their roles."""
        named = (self.taken_out, self.previous, self.challenger, self.prepared, self.champion)
        held = (*self.draining.values(), *self.pinned.values(), *named)
        return {policy.version: policy for policy in held if policy is not None}


@dataclass(frozen=True)
class RefusedVersion:
    """A version that was not taken into service, and why."""

    version: str
    reason: str
    at: float  # time.monotonic() seconds


class Loading(threading.Thread):
    """Brings one version; afterwards either `policy` or `error` is set. `answered` is set once it is known whether
    there is such a version, or that nobody can say.
    """

    def __init__(
        self,
        look_up: Callable[[str], None],
        load: Callable[[str], ServedPolicy],
        version: str,
        arrived: Callable[["Loading"], None],
    ) -> None:
        super().__init__(name=f"load {version}", daemon=True)
        self._look_up, self._load, self._arrived = look_up, load, arrived
        self.version, self.answered = version, threading.Event()
        self.policy: ServedPolicy | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Look up, fetch, verify, load and probe the version; sets `policy`, or `error` where that fails."""
        try:
            self._look_up(self.version)
            self.answered.set()
            self.policy = self._load(self.version)
        except Exception as error:  # noqa: BLE001 - whatever a parser raises: it is refused, the server goes on
            self.error = error
        self.answered.set()
        self._arrived(self)


class RoleKeeper:
    """Keeps `current` in step with a source; every method may be called from any thread.

    `refused` says which versions were not taken into service and why, `unreachable` why the source did not answer, None
    where it did.
    """

    def __init__(
        self,
        source: PolicySource,
        wanted_versions: Callable[[], set[str]] = set,
        remembering: Callable[[], set[str]] = set,
        exploration: ExplorationConfig | None = None,
        quarantine: Quarantine | None = None,
        vote: Vote | None = None,
        on_last: Callable[[LastVerified | None, str], None] = lambda _last, _why: None,
    ) -> None:
        """`wanted_versions` are those people ask for, `remembering` those with episodes of their own under way.

        `exploration` is for all versions, whatever their own configs say. Versions in `quarantine` do not act. With
        `vote` the champion is the one that several workers agree on, see `Agreement.vote`. `on_last` is told when the
        last verified roles are used in place of the registry's, and (None) when they no longer are.
        """
        self._source, self._wanted_versions, self._quarantine = source, wanted_versions, quarantine
        self._looking = threading.Lock()  # held while the source is asked: an older answer never comes last
        self._keeping = threading.Lock()  # held while roles are written: older ones never come last
        self._lock = threading.Lock()  # held for assignments only, never while anything blocks
        self._wanted: Mapping[str, str] = {}  # role -> version, as of the latest look
        self._asked: dict[str, float] = {}  # version a person asked for -> time.monotonic() seconds
        self._loading: dict[str, Loading] = {}
        self._former: tuple[ServedPolicy, float] | None = None  # the last champion, and until when it stands by
        self._remembering, self._exploration = remembering, exploration
        self._vote, self._has_looked = vote, False
        self.current = Roles(known=self._known(), unreachable="it has not answered yet")
        self.refused: dict[str, RefusedVersion] = {}
        self.unloaded: str | None = None  # the challenger's version, where a person let it go
        self.unreachable: str | None = None
        self.last: LastVerified | None = None  # in use instead of the registry's answer, which never came yet
        self.unkept: str | None = None  # why roles are not kept for the next start
        self._was_kept = False  # a champion was, or that failed
        self.num_swaps = 0
        self._on_last = on_last

    def refresh(self, retry_refused: bool = False) -> None:
        """Look at the source once, and wait up to a minute until what it asks for is loaded or refused.

        Nothing is raised: what went wrong is kept in `unreachable` and `refused`.
        """
        _wait(self.look(retry_refused))

    def look(self, retry_refused: bool = False) -> list[Loading]:
        """Look at the source once and begin to load what is missing; roles follow as soon as a version is there.

        Returns the loadings under way. `retry_refused`: versions that were refused or unloaded are tried again. Nothing
        is raised: what went wrong is kept in `unreachable` and `refused`.
        """
        with self._looking:
            try:
                wanted = self._source.roles()
            except LoomRLError as error:
                self._report_unreachable(str(error))
                self._keep()  # what could not be written before
                return self.use_last(str(error))
            self.unreachable = None
            was_last, self.last = self.last, None
            if was_last is not None:
                log.warning("the registry answers: its roles are followed again")
                self._on_last(None, "the registry answers")
            with self._lock:
                self.unloaded = None if retry_refused else self.unloaded
                self._wanted, self._has_looked = self._without_unloaded(wanted), True
                asked_for = {*self._wanted.values(), *self._pins()}
                kept = set() if retry_refused else asked_for
                self.refused = {
                    one: entry for one, entry in self.refused.items() if one in kept and entry.at > -math.inf
                }
                self.refused = self._not_followed() | self.refused
                self._assign()
                begun = self._begin(asked_for)
            self._keep()
            return begun

    def _not_followed(self) -> dict[str, RefusedVersion]:
        """What aliases name and no role is given for; a version that has a role all the same is loaded at once."""
        given, now = set(self._wanted.values()), time.monotonic()
        told = self._source.not_followed().items()
        return {version: RefusedVersion(version, why, -math.inf if version in given else now) for version, why in told}

    def use_last(self, why: str) -> list[Loading]:
        """Take the roles that were verified last, where the source has never answered yet; they are verified again.

        Returns the loadings under way: none where the source has answered, or nothing was kept. `why` is for the log.
        """
        last = self._source.last_verified()
        with self._lock:
            if self._has_looked or last is None:
                return []
            is_new, self.last = self.last is None, last
            self._wanted = self._without_unloaded(last.roles)
            self._assign()
            begun = self._begin({*self._wanted.values(), *self._pins()})
        if is_new:
            log.warning("roles are those of %s, verified last, until the registry answers: %s", last.verified, why)
            self._on_last(last, why)
        return begun

    @property
    def has_looked(self) -> bool:
        """Whether the source has answered since the start."""
        return self._has_looked

    @property
    def is_ready(self) -> bool:
        """Whether a champion decides, and a start without the registry would find one: a server may be ended as soon as
        it says so. Where its roles cannot be written that is said, and keeps no server from being ready.
        """
        return self.current.champion is not None and self._was_kept

    def _keep(self) -> None:
        """Keep what is in service for a start without the registry; what is used without it was kept before."""
        with self._keeping:
            now = self.current
            try:
                if self._has_looked:
                    self._write(now)
                self.unkept = None
            except LoomRLError as error:
                if self.unkept is None:
                    log.error("roles are not kept for a start without the registry: %s", error)
                self.unkept = str(error)
            finally:
                self._was_kept |= (now.champion or now.prepared) is not None

    def _write(self, now: Roles) -> None:
        """A version that is still being loaded keeps the role that was kept for it."""
        champion = now.taken_out or now.champion or now.prepared  # the other workers may not have loaded the first yet
        named = {CHAMPION: champion, CHALLENGER: now.challenger, PREVIOUS: now.previous}
        roles = {role: policy for role, policy in named.items() if policy is not None}
        awaited = {role: version for role, version in self._wanted.items() if role not in roles}
        self._source.keep_verified(roles, now.loaded().values(), awaited)

    def ensure(self, versions: set[str]) -> dict[str, str]:
        """Load versions that an order names, before it is in force. Works without the source's roles.

        The order need not wait long: returned are those that are not loaded yet, and why. The source has half a second
        to say that there is no such version; one that there is has five to be loaded. What brings them goes on.

        Raises:
            ArtifactError: when there is no such version, or one cannot be taken into service. Those that came stay
                loaded for a minute.
        """
        with self._lock:
            self._asked.update(dict.fromkeys(versions, time.monotonic()))
            self.refused = {version: entry for version, entry in self.refused.items() if version not in versions}
            self._assign()
            begun = self._begin(versions)
        deadline = time.monotonic() + _LOOK_UP_SECONDS
        answered = [one for one in begun if one.answered.wait(max(0.0, deadline - time.monotonic()))]
        _wait(answered, _LOAD_SECONDS)
        not_loaded = {one.version: _why_not_loaded(one) for one in begun if one.policy is None}
        for version, why in not_loaded.items():
            log.warning("an order names version %s, which is not loaded yet: %s", version, why)
        return not_loaded

    def unload(self, version: str) -> bool:
        """Let go of a version that is not the champion; False where there is no such version.

        It stays away until `refresh(retry_refused=True)`, or until it gets another role.
        """
        with self._lock:
            before = self.current
            if before.challenger is not None and before.challenger.version == version:
                self.unloaded = version
            self._asked.pop(version, None)
            self._wanted = self._without_unloaded(self._wanted)
            self._assign()
            return version in before.versions() - self.current.versions()

    def load_pinned(self) -> None:
        """Begin to load the versions that overrides pin. Works without the source's roles; what fails is kept in
        `refused`.
        """
        with self._lock:
            self._assign()
            self._begin(self._pins())

    def take_out(self, version: str) -> str | None:
        """Let a quarantined version decide no more, from the next request on.

        Returns the version of the champion that there is then; None where there is none, or for want of another it
        stays.
        """
        self.obey_quarantine()
        champion = self.current.champion
        return None if champion is None or champion.version == version else champion.version

    def obey_quarantine(self) -> None:
        """Take out what was quarantined, let back what was released. Asks no registry."""
        with self._lock:
            self._assign()

    def is_named(self, version: str) -> bool:
        """Whether a version is champion by the registry, as of the latest look, or by the roles that are used in its
        place.
        """
        return self._wanted.get(CHAMPION) == version

    @property
    def loading(self) -> list[str]:
        """The versions that are being fetched, verified or probed now."""
        return sorted(self._loading.copy())

    def _without_unloaded(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Roles without a challenger that was unloaded; once another version challenges, that is forgotten."""
        if self.unloaded is not None and wanted.get(CHALLENGER) == self.unloaded:
            return {role: version for role, version in wanted.items() if role != CHALLENGER}
        self.unloaded = None
        return dict(wanted)

    def _pins(self) -> set[str]:
        """The versions overrides pin, and those a person has just asked for."""
        oldest = time.monotonic() - _PIN_SECONDS
        self._asked = {version: at for version, at in self._asked.items() if at > oldest}
        return self._wanted_versions() | self._asked.keys()

    def _begin(self, versions: set[str]) -> list[Loading]:
        """What brings the versions that are neither loaded nor refused; call it with the lock held."""
        latest = time.monotonic() - _RETRY_SECONDS
        missing = [version for version in sorted(versions) if self.current.by_version(version) is None]
        due = [version for version in missing if version not in self.refused or self.refused[version].at < latest]
        for version in due:
            if version not in self._loading:
                self._loading[version] = Loading(self._source.look_up, self._load, version, self._arrived)
                self._loading[version].start()
        return [self._loading[version] for version in due]

    def _load(self, version: str) -> ServedPolicy:
        policy = ServedPolicy.load(self._source.fetch(version), version)
        policy.exploration = self._exploration or self._source.settings(version).exploration
        require_fit(policy)
        return policy

    def _arrived(self, loading: Loading) -> None:
        version = loading.version
        with self._lock:
            del self._loading[version]
            if loading.error is not None:
                self._asked.pop(version, None)
                reason = str(loading.error) or type(loading.error).__name__
                self.refused = {**self.refused, version: RefusedVersion(version, reason, time.monotonic())}
                log.error("version %s refused, what was loaded goes on: %s", version, reason)
                return
            self.refused = {refused: entry for refused, entry in self.refused.items() if refused != version}
            self._assign(loading.policy)
            in_service = self.current.by_version(version) is not None
        self._keep()  # now: at the next look the registry may be away
        log.info("version %s %s", version, "taken into service" if in_service else "came too late: nobody wants it now")

    def _assign(self, arrived: ServedPolicy | None = None) -> None:
        """One assignment: each role gets the version it wants where that is loaded, and keeps what it has where not."""
        before = self.current
        loaded = before.loaded() | ({} if arrived is None else {arrived.version: arrived})
        held = {
            role: loaded.get(self._wanted[role], getattr(before, role)) if role in self._wanted else None
            for role in ROLES
        }
        pinned = {version: loaded[version] for version in self._pins() if version in loaded}
        prepared = None
        if self._vote is not None:
            prepared = loaded.get(self._wanted.get(CHAMPION, ""))
            held[CHAMPION] = self._agreed(self._vote, prepared, loaded)
        previous = held[PREVIOUS] or self._standing_by(before, held[CHAMPION])
        after = self._without_quarantined(
            Roles(
                held[CHAMPION],
                held[CHALLENGER],
                pinned,
                prepared=prepared,
                previous=previous,
                unreachable=self.unreachable,
            )
        )
        after = replace(after, draining=self._draining(before, after))
        if not after.versions():
            after = replace(after, known=before.known or self._known())
        acting = (CHAMPION, CHALLENGER)
        self.num_swaps += any(getattr(before, role) is not getattr(after, role) for role in acting)
        self.current = after

    def _known(self) -> ServedPolicy | None:
        """The version whose manifest is known, where none is loaded."""
        known = self._source.known()
        return None if known is None else UnloadedPolicy(known[1], known[0])

    def _standing_by(self, before: Roles, champion: ServedPolicy | None) -> ServedPolicy | None:
        """The champion until now, while the registry has not named it: a promotion moves the champion's alias first.

        A champion that gives way to the one before it was taken back, and is none to go back to.
        """
        if before.champion is not None and champion is not before.champion:
            is_taken_back = champion is before.previous
            self._former = None if is_taken_back else (before.champion, time.monotonic() + _NAMING_SECONDS)
        if self._former is None or self._former[0] is champion or time.monotonic() > self._former[1]:
            self._former = None
        return None if self._former is None else self._former[0]

    def _agreed(
        self, vote: Vote, prepared: ServedPolicy | None, loaded: Mapping[str, ServedPolicy]
    ) -> ServedPolicy | None:
        """The champion of all workers; this one votes for what the registry wants as soon as it has that."""
        is_none_wanted = self._has_looked and CHAMPION not in self._wanted
        wanted = "" if is_none_wanted else None if prepared is None else prepared.version
        return loaded.get(vote(wanted, loaded))

    def _without_quarantined(self, roles: Roles) -> Roles:
        """The last safe version instead of a quarantined champion.

        Where there is none, a champion that breaks a limit, or of which the entry cannot be read, decides no more; any
        other goes on for want of a better.
        """
        entries = [] if self._quarantine is None else self._quarantine.entries()
        barred = {
            version for version in roles.versions() if self._quarantine is not None and self._quarantine.bars(version)
        }
        unknown = None if self._quarantine is None else self._quarantine.unknown
        quarantined = frozenset(barred | {entry.version for entry in entries})
        roles = replace(roles, quarantined=quarantined, unknown=unknown)
        if roles.champion is None or roles.champion.version not in quarantined:
            return roles
        entry = next((one for one in entries if one.version == roles.champion.version), None)
        safe = None if roles.previous is None or roles.previous.version in roles.quarantined else roles.previous
        if safe is None and entry is not None and not entry.trigger.violates:
            return roles
        return replace(roles, champion=safe, taken_out=roles.champion)

    def _draining(self, before: Roles, after: Roles) -> dict[str, ServedPolicy]:
        """Recurrent versions that lost their role, while episodes of theirs go on; never those in quarantine.

        The former champion stays for one more look: requests may be under way that begin an episode with it.
        """
        remembering = self._remembering() - after.quarantined
        acted = [
            one for one in (before.champion, *before.pinned.values(), *before.draining.values()) if one is not None
        ]
        left = [one for one in acted if one is before.champion or one.version in remembering]
        return {one.version: one for one in left if one.memory_size and one.version not in after.versions()}

    def _report_unreachable(self, reason: str) -> None:
        if reason != self.unreachable:
            log.error("cannot look up roles, the loaded policies go on: %s", reason)
            with self._lock:
                self.unreachable = reason
                self.current = replace(self.current, unreachable=reason)


def _why_not_loaded(loading: Loading) -> str:
    """Why a version is not there that an order names.

    Raises:
        ArtifactError: when it cannot be had, which is more than that nobody can say so now.
    """
    if isinstance(loading.error, ServiceError):
        return f"it could not be looked up: {loading.error}"
    if loading.error is not None:
        raise ArtifactError(f"version {loading.version} cannot be pinned: {loading.error}") from loading.error
    if loading.answered.is_set():
        return "it is still being loaded"
    return f"it could not be looked up: the registry gave no answer for {_LOOK_UP_SECONDS:g} s"


def _wait(loadings: list[Loading], seconds: float = _WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    for loading in loadings:
        loading.join(max(0.0, deadline - time.monotonic()))
