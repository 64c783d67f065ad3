"""Who may use a server: whoever has a token for it; without any, the programs of this machine, but no web page.

The server's own page, `/dashboard`, may look where there are no tokens, and operates with a token that a person types:
no browser sends that by itself.

What a browser may ask for is the same for all servers, see `loomrl.system.http.browsers`. All of it is looked at when a
request's headers are complete, before a byte of its body is kept.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loomrl.system.http.asgi import JSON, Scope
from loomrl.system.http.browsers import check_body_type, check_host, check_origin, check_site, check_type
from loomrl.system.http.problems import Problem
from loomrl.system.http.tokens import DECIDE, OBSERVE, OPERATE, Holder, Tokens

NO_TOKENS = (
    "this server has no tokens, so a page may look and change nothing; to operate from it, start the server with "
    "LOOMRL_OPERATOR_TOKEN or LOOMRL_TOKENS_FILE"
)
_HOLDER = "loomrl.holder"  # in a scope: whose token it showed


@dataclass(frozen=True)
class RouteGuard:
    """Who may use a route: everyone until it is closed, then holders of a role. It is closed once some token has that
    role; a route of people (`of_people`), once there is any token."""

    role: str
    of_people: bool = False

    def is_closed(self, tokens: Tokens) -> bool:
        """Whether this route needs a token, by the tokens that there are."""
        return bool(tokens) if self.of_people else self.role in tokens.guarded


AGENT, WATCHER = RouteGuard(DECIDE), RouteGuard(OBSERVE)
OBSERVER, OPERATOR = RouteGuard(OBSERVE, of_people=True), RouteGuard(OPERATE, of_people=True)


def admit(scope: Scope, guard: RouteGuard | None, tokens: Tokens) -> None:
    """Refuse a request whose sender may not use a route, by its headers; keep in the scope whose token it showed.

    `guard` is None where anyone may use the route; what browsers may not ask for is refused all the same.

    Raises:
        Problem: 403 for the page of another server, and on routes of people for any page where
            there are no tokens; 415 for a body of a type that browsers send unasked, 401 and 403 for the token.
    """
    check_origin(scope, (scope.get("scheme", "http"),))
    if guard is not None and guard.of_people and not tokens and any(name == b"origin" for name, _ in scope["headers"]):
        raise Problem(403, NO_TOKENS)
    changes = scope["method"] not in ("GET", "HEAD")
    check_site(scope, changes=changes)
    if changes:
        check_body_type(scope)
    if guard is not None and guard.is_closed(tokens):
        scope[_HOLDER] = _demand(_authorization(scope), tokens, guard.role)


@dataclass(slots=True)
class Admission:
    """Checks the requests of agents that come on one connection. One whose headers are those of the last that was let
    in is let in without being checked again."""

    _shown: tuple[Tokens, bytes | None, bytes | None, bytes | None] | None = None  # and by which tokens it was let in
    _holder: Holder | None = None

    def admit(self, scope: Scope, found: Mapping[bytes, bytes], tokens: Tokens, *, on_loopback: bool) -> None:
        """Refuse a request of agents that may not be answered, by its headers, `found`, which show no browser; keep in
        the scope whose token it showed. `on_loopback` demands a `Host` of this machine, too.

        Raises:
            Problem: 421 for another host, 415 for a body of a type that browsers send unasked, 401 without a token
                where one is needed, 403 for one that may not decide.
        """
        shown = tokens, found.get(b"host"), found.get(b"content-type"), found.get(b"authorization")
        if shown != self._shown:
            if on_loopback:
                check_host(found.get(b"host", b"").decode("latin-1"))
            content_type = found.get(b"content-type")
            if content_type is None:
                check_body_type(scope)
            elif content_type != JSON:
                check_type(content_type.decode("latin-1"))
            if DECIDE in tokens.guarded:
                scope[_HOLDER] = _demand(found.get(b"authorization", b""), tokens, DECIDE)
            # Without a content type other headers matter, too: then the next request is looked at as well.
            self._shown, self._holder = None if content_type is None else shown, scope.get(_HOLDER)
        elif self._holder is not None:
            scope[_HOLDER] = self._holder


def check_agents(scope: Scope, agent_ids: Iterable[str]) -> Holder | None:
    """Demand that the token which a request showed may decide for these agents; returns whose it is.

    None where no token was needed: then all agents may be decided for.

    Raises:
        Problem: 403, naming the first agent for whom it may not.
    """
    holder: Holder | None = scope.get(_HOLDER)
    if holder is not None and holder.agents:
        for agent_id in agent_ids:
            if not holder.decides_for(agent_id):
                names = ", ".join(holder.agents)
                raise Problem(403, f"the token of {holder.name!r} is for the agents {names}: not {agent_id!r}")
    return holder


def holder_name(scope: Scope) -> str:
    """The name of the holder whose token an admitted request showed; empty where none was needed."""
    holder: Holder | None = scope.get(_HOLDER)
    return "" if holder is None else holder.name


def check_operator(scope: Scope, tokens: Tokens, role: str = OPERATE) -> str:
    """Demand a token of a role where there are any tokens; returns who it is: `token NAME`, or `loopback` without
    tokens.

    Raises:
        Problem: 401 without a token, 403 for one that has another role.
    """
    return f"token {_demand(_authorization(scope), tokens, role).name}" if tokens else "loopback"


def sees_orders(scope: Scope, tokens: Tokens) -> bool:
    """Whether a request may be told who set which order, and why: observers may, and everyone where there are no
    tokens."""
    holder = holder_of(scope, tokens)
    return not tokens or (holder is not None and holder.may(OBSERVE))


def holder_of(scope: Scope, tokens: Tokens) -> Holder | None:
    """Whose token a request shows in its `Authorization` header; None without one, and for an unknown one."""
    return tokens.holder(_authorization(scope))


def _demand(authorization: bytes, tokens: Tokens, role: str) -> Holder:
    """Whose token an `Authorization` header shows, which must have a role.

    Raises:
        Problem: 401, 403.
    """
    holder = tokens.holder(authorization)
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
