"""Who may use a hub or an inference engine, by the roles of policy servers' tokens, see `loomrl.system.http.tokens`.

Environments hold tokens that may `decide`, trainers and people tokens that may `operate`, dashboards and Prometheus
tokens that may `observe`. Where there are none, the programs of this machine may do everything, but no web page may.
Unmodified clients show a token as the password of their URL: `http://name:TOKEN@host:8000`. Such a login is neither
asked for nor taken from a browser, which would keep it and send it along with what any page asks for.
"""

import base64
import binascii

from loomrl.system.http.asgi import Scope, header
from loomrl.system.http.browsers import is_browser
from loomrl.system.http.guard import RouteGuard
from loomrl.system.http.problems import Problem
from loomrl.system.http.tokens import DECIDE, OBSERVE, OPERATE, Tokens

ANYONE = RouteGuard("", of_people=True)  # whoever holds a token
TAKES_PART, LOOKS, RUNS = (RouteGuard(role, of_people=True) for role in (DECIDE, OBSERVE, OPERATE))


def check_role(scope: Scope, tokens: Tokens, guard: RouteGuard) -> None:
    """Demand that a request shows a token with a guard's role, or one that may operate; without any tokens all may.

    Raises:
        Problem: 401 without a token that is known, 403 for one of another role.
    """
    if not guard.is_closed(tokens):
        return
    role = guard.role
    holder = tokens.holder(_authorization(scope))
    if holder is None:
        wanted = f", with the role {role}" if role else ""
        raise Problem(
            401,
            f"this route needs `Authorization: Bearer TOKEN`{wanted}; clients that cannot send it take "
            "http://name:TOKEN@host:port as their URL",
            {"WWW-Authenticate": "Bearer"},
        )
    if role and role not in holder.roles and OPERATE not in holder.roles:
        raise Problem(403, f"the token of {holder.name!r} has not the role {role}; `loomrl tokens new` makes others")


def _authorization(scope: Scope) -> bytes:
    """The header, a password of HTTP's basic authentication as a bearer's token."""
    sent = header(scope, b"authorization").encode("latin-1")
    scheme, _, credentials = sent.partition(b" ")
    if scheme.lower() != b"basic":
        return sent
    if is_browser(scope):
        return b""
    try:
        return b"Bearer " + base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
