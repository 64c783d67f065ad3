"""A person can override at any time: pin an action or a version, for one agent or for all, with a reason and an expiry.

Overrides live in one file per policy, `home()/overrides/POLICY.json`, written atomically: they survive a restart, and
a server follows the file within a second whether a person used the server's route or the command line.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import Field, model_validator

from loomrl.errors import ConfigError
from loomrl.home import home
from loomrl.schema import Document


class Override(Document):
    """One decision a person took out of the policy's hands. `agent_id` None means every agent."""

    id: str = Field(default_factory=lambda: secrets.token_hex(4))
    action: Any = None
    version: str | None = None
    agent_id: str | None = Field(default=None, min_length=1, max_length=128)
    person: str = Field(min_length=1, max_length=200)
    reason: str = Field(min_length=1, max_length=1_000)
    created: float = Field(default_factory=time.time)  # seconds since 1970, UTC
    expires: float | None = None  # seconds since 1970, UTC; None until a person clears it

    @model_validator(mode="after")
    def _one_thing(self) -> "Override":
        if (self.action is None) == (self.version is None):
            raise ValueError("an override pins either an `action` or a `version`")
        return self

    def mark(self) -> dict[str, Any]:
        """How an audit record says that a person decided."""
        return {"id": self.id, "person": self.person, "reason": self.reason, "version": self.version}

    def describe(self) -> str:
        """One line for people."""
        what = f"action {self.action}" if self.version is None else f"version {self.version}"
        who = f"agent {self.agent_id}" if self.agent_id else "all agents"
        until = (
            f"until {datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M:%SZ}" if self.expires else "until cleared"
        )
        return f"{what} for {who} {until}, by {self.person}: {self.reason}"


class _File(Document):
    overrides: list[Override]


class OverrideStore:
    """The overrides of one policy. Reading is a dictionary lookup; writing goes through the file."""

    def __init__(self, policy: str) -> None:
        self.path = home() / "overrides" / f"{policy}.json"
        self._refreshing = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._for_agent: dict[str | None, Override] = {}
        self.refresh()

    def __bool__(self) -> bool:
        return bool(self._for_agent)

    def refresh(self) -> bool:
        """Read the file again where it changed; says whether it did.

        One thread at a time: a slow one must not put back what another has just replaced.
        """
        with self._refreshing:
            stamp = self._stat()
            if stamp == self._stamp:
                return False
            self._for_agent, self._stamp = {override.agent_id: override for override in self._read()}, stamp
            return True

    def versions(self) -> set[str]:
        """The versions that overrides in force pin."""
        return {override.version for override in self.active() if override.version is not None}

    def find(self, agent_id: str) -> Override | None:
        """The override in force for an agent: its own, else the one for all."""
        now = time.time()
        for key in (agent_id, None):
            override = self._for_agent.get(key)
            if override is not None and (override.expires is None or override.expires > now):
                return override
        return None

    def active(self) -> list[Override]:
        """All overrides in force, oldest first."""
        now = time.time()
        found = [entry for entry in self._for_agent.values() if entry.expires is None or entry.expires > now]
        return sorted(found, key=lambda override: override.created)

    def set(self, override: Override) -> None:
        """Put an override in force; it replaces the former one of the same agent (or of all)."""
        self._change(lambda entries: [*(e for e in entries if e.agent_id != override.agent_id), override])

    def clear(self, override_id: str | None = None) -> list[Override]:
        """Lift one override, or all; returns those lifted.

        Raises:
            ConfigError: when there is no such override.
        """
        lifted = [entry for entry in self._read() if override_id in (None, entry.id)]
        if override_id is not None and not lifted:
            known = ", ".join(entry.id for entry in self._read()) or "none"
            raise ConfigError(f"no override {override_id!r}; in force: {known}")
        self._change(lambda entries: [entry for entry in entries if entry not in lifted])
        return lifted

    def _change(self, change: Callable[[list[Override]], list[Override]]) -> None:
        with self._exclusive():
            _File(overrides=change(self._read())).write(self.path)
        self.refresh()

    def _read(self) -> list[Override]:
        return _File.read(self.path).overrides if self.path.is_file() else []

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock", timeout=10):
            yield
