"""Who may do what: tokens with roles, known by their digests alone.

A line `ROLE[,ROLE]:NAME:SHA256[:AGENT[,AGENT]]` for each holder, in `LOOMRL_TOKENS` or in the file that
`LOOMRL_TOKENS_FILE` names; the token of `LOOMRL_OPERATOR_TOKEN` operates. A token with agents decides for these alone:
`cart-7`, or `cart-*` for all whose names begin so. Tokens are long random texts, so that one pass of SHA-256 keeps
them; `loomrl tokens new` makes them.

| role | may |
|---|---|
| decide | ask for decisions and send feedback |
| observe | read status, metrics, the page's data, the plan, overrides and records |
| operate | all that changes something, and what an observer may |
"""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from loomrl.errors import ConfigError
from loomrl.system.files import write_atomic

DECIDE, OBSERVE, OPERATE = ROLES = ("decide", "observe", "operate")
OPERATOR, TOKENS, TOKENS_FILE = "LOOMRL_OPERATOR_TOKEN", "LOOMRL_TOKENS", "LOOMRL_TOKENS_FILE"
_BEARER = b"Bearer "
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Holder:
    """The name and rights of whoever a token was given to."""

    name: str
    roles: frozenset[str]
    digest: bytes = field(repr=False)  # SHA-256 of the token
    agents: tuple[str, ...] = ()  # for whom it decides, `NAME` or `BEGINNING*`; empty: for any

    def may(self, role: str) -> bool:
        """Whether the token has a role, `decide`, `observe` or `operate`; one that may operate may observe as well."""
        return role in self.roles or (role == OBSERVE and OPERATE in self.roles)

    @cached_property
    def shared_name(self) -> str | None:
        """The holder's name where the token may speak for any number of agents; None where each of its agents is
        named."""
        return self.name if not self.agents or any(one.endswith("*") for one in self.agents) else None

    def decides_for(self, agent_id: str) -> bool:
        """Whether the token may ask, and report, in an agent's name."""
        return not self.agents or any(
            agent_id.startswith(one[:-1]) if one.endswith("*") else agent_id == one for one in self.agents
        )


class Tokens:
    """All holders of tokens; false where there are none. `guarded` are the roles that some token has: what asks for any
    other role needs no token."""

    def __init__(self, holders: Sequence[Holder] = ()) -> None:
        self.holders = tuple(holders)
        self.guarded = frozenset(role for holder in holders for role in holder.roles)
        self._seen: dict[bytes, Holder] = {}  # by digest, once compared

    def __bool__(self) -> bool:
        return bool(self.holders)

    def holder(self, authorization: bytes) -> Holder | None:
        """Whose token an `Authorization: Bearer TOKEN` header shows; None for any other header, and for an unknown
        token.

        Digests are compared in constant time, all of them. What is looked up afterwards is a digest too: how long that
        takes tells nothing about a token.
        """
        if not authorization.startswith(_BEARER):
            return None
        digest = hashlib.sha256(authorization[len(_BEARER) :]).digest()
        found = self._seen.get(digest)
        if found is None:
            for holder in self.holders:
                if hmac.compare_digest(holder.digest, digest):
                    found = self._seen[digest] = holder
        return found


def configured() -> Tokens:
    """The tokens that the environment names, in variables or a file; an empty `Tokens` where it names none.

    Raises:
        ConfigError: for an entry, or a file, that cannot be read, and for two tokens of one name; the entry is named,
            the token never is.
    """
    text, place = os.environ.get(TOKENS, ""), TOKENS
    if path := os.environ.get(TOKENS_FILE):
        if text:
            raise ConfigError(f"both {TOKENS} and {TOKENS_FILE} are set; unset one of them")
        place = f"{TOKENS_FILE}={path}"
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{place}: {error}; `loomrl tokens new` makes such a file") from error
    holders = _holders(text, place)
    if operator := os.environ.get(OPERATOR):
        holders.append(Holder("operator", frozenset({OPERATE}), hashlib.sha256(operator.encode()).digest()))
    if len({holder.name for holder in holders}) < len(holders):
        raise ConfigError(f"{place}: two tokens have one holder; names stand in the audit log, so give each its own")
    return Tokens(holders)


def add(path: Path, name: str, roles: Sequence[str], agents: Sequence[str] = ()) -> str:
    """Add a holder to a file and return the fresh token, which is kept nowhere.

    Raises:
        ConfigError: for a role that does not exist, a name that no line can hold or that the file has already, and for
            a line of the file that cannot be read; the file stays as it is.
        ArtifactError: when the file cannot be written.
    """
    token = secrets.token_urlsafe(32)
    line = f"{','.join(roles)}:{name}:{hashlib.sha256(token.encode()).hexdigest()}"
    if agents:
        line += f":{','.join(agents)}"
    _holder(line, "the new token")
    before = path.read_text() if path.is_file() else ""
    if name in (holder.name for holder in _holders(before, str(path))):
        raise ConfigError(f"{path}: {name!r} has a token already; take its line out, or choose another name")
    write_atomic(path, f"{before}{line}\n".encode())
    return token


def _holders(text: str, place: str) -> list[Holder]:
    lines = enumerate((line.strip() for line in text.splitlines()), start=1)
    return [_holder(line, f"{place}, line {number}") for number, line in lines if line and not line.startswith("#")]


def _holder(line: str, place: str) -> Holder:
    match line.split(":"):
        case [roles, name, digest, *bound] if name and name.isprintable() and _DIGEST.fullmatch(digest):
            named, agents = frozenset(roles.split(",")), tuple(":".join(bound).split(",")) if bound else ()
            if not all(agents):
                raise ConfigError(f"{place}: an agent without a name; leave the last colon out to decide for any")
            if named <= set(ROLES):
                return Holder(name, named, bytes.fromhex(digest), agents)
            raise ConfigError(f"{place}: no role {sorted(named - set(ROLES))[0]!r}; roles: {', '.join(ROLES)}")
    raise ConfigError(
        f"{place} is not ROLE[,ROLE]:NAME:SHA256[:AGENT[,AGENT]] with a name without colons; make it: "
        "`loomrl tokens new`"
    )
