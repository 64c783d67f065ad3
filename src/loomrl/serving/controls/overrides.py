"""A person can override at any time: pin an action, a version or the fallback, for one agent or for all."""

import secrets
import time
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from loomrl.serving.controls.plan import Action, Version
from loomrl.system.schema import Document

MAX_SECONDS = 10 * 365.25 * 86_400  # that an override may be in force; one without an end needs none
_LATEST = 253_402_300_799  # the last second of the year 9999: no `datetime` is later


class _Pin(Document):
    """What is to be done instead of what the policy chooses. `agent_id` None means every agent."""

    action: Any = None
    version: Version | None = None
    fallback: bool = False
    agent_id: str | None = Field(default=None, min_length=1, max_length=128, examples=["cart-7"])
    person: str = Field(min_length=1, max_length=200, examples=["Ada"])
    reason: str = Field(min_length=1, max_length=1_000, examples=["a wheel is being changed"])

    @field_validator("agent_id")
    @classmethod
    def _is_an_agents(cls, agent_id: str | None) -> str | None:
        if agent_id is not None and not agent_id.isprintable():
            raise ValueError(f"an agent's id is a printable text, found {agent_id!r}")
        return agent_id

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if (self.action is not None) + (self.version is not None) + self.fallback != 1:
            raise ValueError("an override pins either an `action`, a `version` or the `fallback`")
        return self


class OverrideOrder(_Pin):
    """An override as an operator asks for it."""

    action: Action = None
    expires_in_seconds: float | None = Field(default=None, gt=0, le=MAX_SECONDS, examples=[600])

    def override(self) -> "Override":
        """The override that this order asks for. It begins now and expires after `expires_in_seconds`, where that is
        given."""
        now, lifetime = time.time(), self.expires_in_seconds
        pinned = self.model_dump(exclude={"expires_in_seconds"})
        return Override(**pinned, created=now, expires=None if lifetime is None else now + lifetime)


class Override(_Pin):
    """One decision a person took out of the policy's hands."""

    id: str = Field(default_factory=lambda: secrets.token_hex(4))
    created: float = Field(default_factory=time.time, ge=0, le=_LATEST)  # seconds since 1970, UTC
    expires: float | None = None  # as the clock of the host where it was set will show; None until a person clears it

    @model_validator(mode="after")
    def _within_ten_years(self) -> Self:
        if self.expires is not None and not 0 <= self.expires - self.created <= MAX_SECONDS:
            raise ValueError(
                "an override expires within ten years; leave the expiry out to keep it until it is cleared"
            )
        return self

    @property
    def lifetime_seconds(self) -> float | None:
        """How long it is in force, by elapsed time; None until a person clears it."""
        return None if self.expires is None else self.expires - self.created

    def mark(self) -> dict[str, Any]:
        """How an audit record says that a person decided."""
        pinned = {"version": self.version, "action": self.action}
        return {"id": self.id, "person": self.person, "reason": self.reason, **pinned}

    def describe(self) -> str:
        """One line for people: what is overridden, for which agents, until when, by whom and why."""
        who = f"agent {self.agent_id}" if self.agent_id else "all agents"
        until = "until cleared"
        if self.expires:
            until = f"until {datetime.fromtimestamp(min(self.expires, _LATEST), UTC):%Y-%m-%d %H:%M:%SZ}"
        return f"{self._what()} for {who} {until}, by {self.person}: {self.reason}"

    def _what(self) -> str:
        if self.fallback:
            return "the fallback"
        return f"action {self.action}" if self.version is None else f"version {self.version}"
