"""Access control for Prefect's and MLflow's servers, as an ASGI application around theirs.

A login alone is not enough: a browser that knows one sends it with the requests of any page. Closed CORS is not
enough: a page may still send plain text, and only cannot read the answer. Both together are not enough either, where
an attacker's host name resolves to this machine (DNS rebinding). So every request but a health check must pass three
checks:

- `Host` is one of the names of the server.
- `Origin`, where there is one, is the server's own. A request without `Origin` whose `Sec-Fetch-Site` names another
  site may open a page, as a link does, and nothing else.
- The login is right, where the server behind has no login of its own.
"""

import hmac
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refusal = tuple[int, str]

SAFE_METHODS = ("GET", "HEAD")


def parse_hosts(text: str) -> tuple[str, ...]:
    """The hosts in a comma-separated list, without the spaces around them; empty for an empty text."""
    return tuple(host.strip() for host in text.split(",") if host.strip())


def loopback_hosts(port: int | str) -> str:
    """The hosts of a server on loopback as `parse_hosts` reads them: `127.0.0.1:PORT,localhost:PORT`."""
    return f"127.0.0.1:{port},localhost:{port}"


class AccessControl:
    """An ASGI application that passes on only requests with an allowed `Host`, of no other site's page and with the
    login.

    Others are answered with 403, or with 401 where the login is missing or wrong.

    Args:
        app: the application behind.
        hosts: the allowed values of `Host`, with the port unless it is the scheme's default.
        login: `USER:PASSWORD` for HTTP Basic; None where `app` checks its own.
        public_paths: paths that anyone may read under any `Host`; a Kubernetes probe uses the pod's address.
    """

    def __init__(
        self, app: App, hosts: Collection[str], login: str | None = None, public_paths: Collection[str] = ()
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._origins = frozenset(f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts)
        self._authorization = None if login is None else b"Basic " + b64encode(login.encode())
        self._public_paths = frozenset(public_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the client sees 403
        else:
            await _send_refusal(send, *refusal)

    def _refusal(self, scope: Scope) -> Refusal | None:
        method = scope.get("method", "GET")
        if scope["path"] in self._public_paths and method in SAFE_METHODS:
            return None
        return self._check_host(scope) or self._check_origin(scope, method) or self._check_login(scope)

    def _check_host(self, scope: Scope) -> Refusal | None:
        found = _header_values(scope, b"host")
        if len(found) == 1 and found[0] in self._hosts:
            return None
        return 403, f"Host is {', '.join(found) or 'missing'}; allowed: {', '.join(sorted(self._hosts))}"

    def _check_origin(self, scope: Scope, method: str) -> Refusal | None:
        if origins := _header_values(scope, b"origin"):
            foreign = [origin for origin in origins if origin not in self._origins]
            return (403, f"requests from pages of {foreign[0]} are not allowed") if foreign else None
        sites = set(_header_values(scope, b"sec-fetch-site")) - {"none", "same-origin"}
        opens_page = method in SAFE_METHODS and _header_values(scope, b"sec-fetch-dest") == ["document"]
        return (403, "requests from pages of other sites are not allowed") if sites and not opens_page else None

    def _check_login(self, scope: Scope) -> Refusal | None:
        if self._authorization is None:
            return None
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(found) == 1 and hmac.compare_digest(found[0], self._authorization):
            return None
        return 401, "a login is needed; that of `make up` is in LOOMRL_HOME/services/credentials.env"


def _header_values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]


async def _send_refusal(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    if status == 401:
        headers.append((b"www-authenticate", b'Basic realm="loomrl"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
