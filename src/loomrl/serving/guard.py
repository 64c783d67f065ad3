"""Who may operate a server: whoever has the token; without one, the programs of this machine, but no web page.

A browser on this machine sends what any page tells it to, to loopback too. Such a request names the page in `Origin`,
comes with a content type that needs no leave (text or a form), or reaches us under a name that was rebound to loopback.
Triton's clients send JSON as a body of no type, or of plain bytes: a browser needs leave for those bytes, and shows
itself by `Sec-Fetch-Site` where it sends no type.
"""

import hmac
import ipaddress
import re
from functools import lru_cache

from loomrl.serving.asgi import Scope, header
from loomrl.serving.problems import Problem

_TYPES = ("application/json", "application/octet-stream")
_HOST = re.compile(r"(\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(:[0-9]+)?")


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


def check_operator(scope: Scope, token: str, body: bytes) -> None:
    """Demand that a person's own program asks, and that it shows the token where one is set.

    Raises:
        Problem: 403 for a web page, 415 for a body that is said to be other than JSON, 401 without the token.
    """
    if any(name == b"origin" for name, _ in scope["headers"]):
        raise Problem(403, "this route answers no web page: the request has an Origin")
    content_type = header(scope, b"content-type")
    untyped = body and not content_type and header(scope, b"sec-fetch-site")
    if untyped or (content_type and content_type.partition(";")[0].strip().lower() not in _TYPES):
        raise Problem(415, f"this route wants `Content-Type: application/json`, found {content_type!r}")
    if not has_token(scope, token):
        raise Problem(
            401, "this route needs `Authorization: Bearer $LOOMRL_OPERATOR_TOKEN`", {"WWW-Authenticate": "Bearer"}
        )


def has_token(scope: Scope, token: str) -> bool:
    """Whether the request shows the token, or none is set; compared in constant time."""
    offered = header(scope, b"authorization").removeprefix("Bearer ")
    return not token or hmac.compare_digest(offered.encode(), token.encode())
