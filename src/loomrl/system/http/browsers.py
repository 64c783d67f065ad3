"""What a server answers a browser: pages of its own, and nobody else's; one rule for policy server, hub and engine.

A browser sends what any page tells it to, to loopback and into the local network too. Such a request names the page in
`Origin`, says in `Sec-Fetch-Site` that the page is another's, comes with a content type that needs no leave (text or a
form), or reaches a server of this machine under a name that was rebound to loopback. Programs send neither header.

All of this stands in the headers, so it is looked at before a byte of the body is kept.
"""

import ipaddress
import re
from collections.abc import Sequence
from functools import lru_cache

from loomrl.system.http.asgi import Scope, has_body, header
from loomrl.system.http.problems import Problem

_HOST = re.compile(r"(\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(:[0-9]+)?")
_OTHERS = ("cross-site", "same-site")  # of `Sec-Fetch-Site`
_TYPES = ("application/json", "application/octet-stream")
_IN_ADVANCE = (b"sec-purpose", b"purpose", b"x-purpose", b"x-moz")  # a browser fetches what nobody asked for yet
_SHOWN = 200  # characters of a header that an answer repeats


def is_loopback(host: str) -> bool:
    """Whether an IP address, or the name `localhost`, is one that only this machine reaches; other names are not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@lru_cache(maxsize=64)  # asked for every request
def is_local_host(host: str) -> bool:
    """Whether a `Host` header, with or without a port, names this machine: 127.0.0.1, localhost, [::1]."""
    found = _HOST.fullmatch(host.lower())
    return found is not None and is_loopback(found["v6"] or found["name"])


def check_host(host: str) -> None:
    """On loopback, demand that the request was meant for this machine, by its `Host` header.

    Raises:
        Problem: 421, for a host that is not a name of this machine.
    """
    if not is_local_host(host):
        shown = host[:_SHOWN]
        raise Problem(421, f"host {shown!r} is not this machine; on loopback, ask 127.0.0.1, localhost or [::1]")


def check_origin(scope: Scope, schemes: Sequence[str]) -> None:
    """Refuse what the page of another server asks for, as the `Origin` header names it; without one nothing is refused.

    `schemes` are those under which this server's own pages are opened: `http`, and `https` behind a proxy.

    Raises:
        Problem: 403, naming the page's origin.
    """
    own = [f"{scheme}://{header(scope, b'host')}" for scheme in schemes]
    for name, value in scope["headers"]:
        if name == b"origin" and value.decode("latin-1") not in own:
            raise _refused(own[0], f"the Origin is {value.decode('latin-1')[:_SHOWN]!r}")


def check_site(scope: Scope, *, changes: bool) -> None:
    """Refuse what a browser asks for in the name of another server's page, as `Sec-Fetch-Site` says.

    A person may follow a link there to what only shows something: `changes` says whether the request does more.

    Raises:
        Problem: 403.
    """
    site = header(scope, b"sec-fetch-site")
    if site in _OTHERS and (changes or not _follows_link(scope)):
        raise _refused(f"http://{header(scope, b'host')}", f"`Sec-Fetch-Site` is {site!r}")


def check_program(scope: Scope) -> None:
    """Refuse a GET that changes something to every browser, whoever tells it to: a link in a mail, a bookmark, an
    address that is pasted, or half typed and fetched in advance, look like a person who means it
    (`Sec-Fetch-Site: none`).

    For a picture in another's page, old browsers send no such header at all, and over plain HTTP new ones don't either.

    Raises:
        Problem: 403.
    """
    asks_for_page = "text/html" in header(scope, b"accept")  # also where a browser calls itself otherwise
    if is_browser(scope) or asks_for_page or any(header(scope, name) for name in _IN_ADVANCE):
        raise Problem(403, f"GET {scope['path']} changes something, so browsers may not ask for it; `curl` may")


def is_browser(scope: Scope) -> bool:
    """Whether a request came from a browser, by its `User-Agent` and `Sec-Fetch-Site`: no page can take both away."""
    return header(scope, b"user-agent").startswith("Mozilla/") or bool(header(scope, b"sec-fetch-site"))


def check_type(content_type: str) -> None:
    """Demand a content type that no browser sends unasked: `application/json`, `application/octet-stream` or one that
    ends in `+json`.

    Raises:
        Problem: 415, for any other type.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in _TYPES and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Problem(
            415, f"send the body as `Content-Type: application/json` (`curl --json`), found {content_type[:_SHOWN]!r}"
        )


def check_body_type(scope: Scope) -> None:
    """Refuse a content type that `check_type` refuses. Programs may name none, as Triton's clients do; a browser must
    name one for a body, and in any POST: old browsers do not say which page it is of.

    Raises:
        Problem: 415.
    """
    content_type = header(scope, b"content-type")
    if content_type or (is_browser(scope) and (has_body(scope) or scope["method"] == "POST")):
        check_type(content_type)


def _follows_link(scope: Scope) -> bool:
    """Whether a person goes from another server's page to one of this server's."""
    return header(scope, b"sec-fetch-mode") == "navigate" and header(scope, b"sec-fetch-dest") == "document"


def _refused(own: str, why: str) -> Problem:
    return Problem(403, f"this server answers no page but {own[:_SHOWN]}/dashboard: {why}")
