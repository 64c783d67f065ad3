"""Who may use a server: whoever has a token for it; without any, the programs of this machine, but no web page.

The server's own page, `/dashboard`, may look where there are no tokens, and operates with a token that a person types:
no browser sends that by itself.

A browser on this machine sends what any page tells it to, to loopback too. Such a request names the page in `Origin`,
comes with a content type that needs no leave (text or a form), or reaches us under a name that was rebound to loopback.
Triton's clients send JSON as a body of no type, or of plain bytes: a browser needs leave for those bytes, and shows
itself by `Sec-Fetch-Site` where it sends no type.
"""

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

from loomrl.serving.asgi import Scope, header
from loomrl.serving.problems import Problem
from loomrl.serving.tokens import DECIDE, OBSERVE, OPERATE, Holder, Tokens

NO_TOKENS = (
    "this server has no tokens, so a page may look and change nothing; to operate from it, start the server with "
    "LOOMRL_OPERATOR_TOKEN or LOOMRL_TOKENS_FILE"
)
_TYPES = ("application/json", "application/octet-stream")
_HOST = re.compile(r"(\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(:[0-9]+)?")


@dataclass(frozen=True)
class Guard:
    """Who may use a route: holders of a role, once some token has it; of a route of people, once there is any token."""

    role: str
    of_people: bool = False

    def is_closed(self, tokens: Tokens) -> bool:
        """Whether a token is needed now."""
        return bool(tokens) if self.of_people else self.role in tokens.guarded


AGENT, WATCHER = Guard(DECIDE), Guard(OBSERVE)
OBSERVER, OPERATOR = Guard(OBSERVE, of_people=True), Guard(OPERATE, of_people=True)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@lru_cache(maxsize=64)  # asked for every request
def is_local_host(host: str) -> bool:
    """Whether a `Host` header, with or without a port, names this machine: 127.0.0.1, localhost, [::1]."""
    found = _HOST.fullmatch(host.lower())
    return found is not None and is_loopback(found["v6"] or found["name"])


def check_host(scope: Scope) -> None:
    """On loopback, demand that the request was meant for this machine.

    Raises:
        Problem: 421.
    """
    host = header(scope, b"host")
    if not is_local_host(host):
        raise Problem(421, f"host {host!r} is not this machine; on loopback, ask 127.0.0.1, localhost or [::1]")


def check_operator(scope: Scope, tokens: Tokens, body: bytes, role: str = OPERATE) -> str:
    """Demand that a person's own program or the server's own page asks, with a token of a role where there are any;
    returns who it is.

    Raises:
        Problem: 403 for the page of another server, and for any page where there are no tokens, 415 for a body that is
            said to be other than JSON, 401 without a token, 403 for one that has another role.
    """
    _check_origin(scope, tokens)
    content_type = header(scope, b"content-type")
    untyped = body and not content_type and header(scope, b"sec-fetch-site")
    if untyped or (content_type and content_type.partition(";")[0].strip().lower() not in _TYPES):
        raise Problem(415, f"this route wants `Content-Type: application/json`, found {content_type!r}")
    return f"token {_demand(scope, tokens, role).name}" if tokens else "loopback"


def check_agent(scope: Scope, tokens: Tokens) -> None:
    """Demand a token that may decide, where there is one.

    Raises:
        Problem: 401, 403.
    """
    if DECIDE in tokens.guarded:
        _demand(scope, tokens, DECIDE)


def check_observer(scope: Scope, tokens: Tokens) -> None:
    """Demand a token that may observe, where there is one.

    Raises:
        Problem: 401, 403.
    """
    if OBSERVE in tokens.guarded:
        _demand(scope, tokens, OBSERVE)


def sees_orders(scope: Scope, tokens: Tokens) -> bool:
    """Whether who set what, and why, may be told: to observers, and to everyone where there are no tokens."""
    holder = holder_of(scope, tokens)
    return not tokens or (holder is not None and holder.may(OBSERVE))


def holder_of(scope: Scope, tokens: Tokens) -> Holder | None:
    """Whose token a request shows; None for nobody's."""
    return tokens.holder(_authorization(scope))


def _check_origin(scope: Scope, tokens: Tokens) -> None:
    """Let no page in but this server's own, and that one only where it has to show a token.

    A name that was rebound to this server's address makes any page one of its own; the token it has not.
    """
    origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
    own = f"{scope.get('scheme', 'http')}://{header(scope, b'host')}"
    if any(origin != own for origin in origins):
        raise Problem(403, f"this route answers no page but {own}/dashboard: the Origin is {origins[0]!r}")
    if origins and not tokens:
        raise Problem(403, NO_TOKENS)


def _demand(scope: Scope, tokens: Tokens, role: str) -> Holder:
    holder = holder_of(scope, tokens)
    if holder is None:
        raise Problem(
            401, f"this route needs `Authorization: Bearer TOKEN`, with the role {role}", {"WWW-Authenticate": "Bearer"}
        )
    if not holder.may(role):
        raise Problem(403, f"the token of {holder.name!r} has not the role {role}; `loomrl tokens new` makes others")
    return holder


def _authorization(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bytes(value)
    return b""
