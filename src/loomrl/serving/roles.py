"""Which policy holds which role in this server, following the registry without a lost request.

A new version is fetched, verified, loaded and probed in a background thread; only then one reference is assigned.
A version that fails is refused: the former one goes on deciding and the reason stands in `/status`.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from loomrl.errors import ArtifactError, LoomRLError
from loomrl.registry import CHALLENGER, CHAMPION
from loomrl.serving.model import ServedPolicy
from loomrl.serving.sources import ROLES, PolicySource

log = logging.getLogger(__name__)
_RETRY_SECONDS = 30.0  # a refused version is tried again, for its files may be restored


@dataclass(frozen=True)
class Roles:
    """One consistent view: a request takes it once and keeps it."""

    champion: ServedPolicy | None = None
    challenger: ServedPolicy | None = None
    pinned: dict[str, ServedPolicy] = field(default_factory=dict)  # versions that overrides ask for

    def versions(self) -> set[str]:
        """All loaded versions."""
        loaded = (self.champion, self.challenger, *self.pinned.values())
        return {policy.version for policy in loaded if policy is not None}

    def by_version(self, version: str) -> ServedPolicy | None:
        """A loaded version, whatever its role."""
        loaded = [policy for policy in (self.champion, self.challenger) if policy is not None]
        return next((policy for policy in loaded if policy.version == version), self.pinned.get(version))


@dataclass(frozen=True)
class Refused:
    """A version that was not taken into service, and why."""

    version: str
    reason: str
    at: float  # time.monotonic() seconds


class RoleKeeper:
    """Keeps `current` in step with a source. `refresh` may run in any thread; one at a time."""

    def __init__(self, source: PolicySource, wanted_versions: Callable[[], set[str]] = set) -> None:
        self._source, self._wanted_versions = source, wanted_versions
        self._lock = threading.Lock()
        self.current = Roles()
        self.refused: dict[str, Refused] = {}
        self.unloaded: str | None = None  # the challenger's version, where a person let it go
        self.unreachable: str | None = None
        self.num_swaps = 0

    def refresh(self, retry_refused: bool = False) -> None:
        """Look at the source once and follow it. Nothing is raised: what went wrong is kept in the attributes."""
        with self._lock:
            if retry_refused:
                self.refused, self.unloaded = {}, None
            try:
                wanted = self._wanted_roles()
            except LoomRLError as error:
                self._report_unreachable(str(error))
                return
            self.unreachable = None
            before, pins = self.current, self._wanted_versions()
            asked_for = {*wanted.values(), *pins}
            self.refused = {version: entry for version, entry in self.refused.items() if version in asked_for}
            loaded = {role: self._follow(getattr(before, role), wanted.get(role)) for role in ROLES}
            pinned = {version: self._follow(before.by_version(version), version) for version in pins}
            ready = {version: policy for version, policy in pinned.items() if policy is not None}
            after = Roles(loaded[CHAMPION], loaded[CHALLENGER], ready)
            self.num_swaps += any(getattr(before, role) is not getattr(after, role) for role in ROLES)
            self.current = after

    def unload(self, version: str) -> bool:
        """Let go of a version that is not the champion; False where there is no such version.

        It stays away until `refresh(retry_refused=True)`, or until it gets another role.
        """
        with self._lock:
            before = self.current
            pinned = {name: policy for name, policy in before.pinned.items() if name != version}
            challenges = before.challenger is not None and before.challenger.version == version
            if challenges:
                self.unloaded = version
            self.current = replace(before, challenger=None if challenges else before.challenger, pinned=pinned)
            return challenges or len(pinned) < len(before.pinned)

    def _wanted_roles(self) -> dict[str, str]:
        """Role -> version by the source, without a challenger that was unloaded."""
        wanted = dict(self._source.roles())
        if self.unloaded is not None and wanted.get(CHALLENGER) == self.unloaded:
            del wanted[CHALLENGER]
        else:
            self.unloaded = None
        return wanted

    def ensure(self, versions: set[str]) -> None:
        """Load versions a person wants to pin, before the override is in force.

        Raises:
            ArtifactError: when one cannot be taken into service.
        """
        with self._lock:
            for version in sorted(versions):
                self.refused.pop(version, None)
                policy = self._follow(None, version)
                if policy is None:
                    raise ArtifactError(f"version {version} cannot be pinned: {self.refused[version].reason}")
                self.current = replace(self.current, pinned={**self.current.pinned, version: policy})

    def _follow(self, held: ServedPolicy | None, wanted: str | None) -> ServedPolicy | None:
        """The policy of the wanted version; what is held where that cannot be taken into service."""
        if wanted is None:
            return None
        if held is not None and held.version == wanted:
            return held
        if known := self.current.by_version(wanted):
            return known
        if (refused := self.refused.get(wanted)) and time.monotonic() - refused.at < _RETRY_SECONDS:
            return held
        try:
            policy = ServedPolicy.load(self._source.fetch(wanted), wanted)
            _demand_memoryless(policy)
        except LoomRLError as error:
            self.refused[wanted] = Refused(wanted, str(error), time.monotonic())
            log.error("version %s refused, %s kept: %s", wanted, held.version if held else "nothing", error)
            return held
        self.refused.pop(wanted, None)
        log.info("version %s taken into service", wanted)
        return policy

    def _report_unreachable(self, reason: str) -> None:
        if reason != self.unreachable:
            log.error("cannot look up roles, the loaded policies go on: %s", reason)
        self.unreachable = reason


def _demand_memoryless(policy: ServedPolicy) -> None:
    """Decisions are answered one by one, from the observation alone."""
    if policy.memory_size:
        raise ArtifactError(
            f"{policy.manifest.name} is recurrent: it needs its memory of {policy.memory_size} numbers back with every "
            "observation, which this server does not keep; serve a policy without memory"
        )
