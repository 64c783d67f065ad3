"""Access control before Prefect's and MLflow's servers: which requests pass, and which do not."""

import asyncio
from base64 import b64encode
from typing import Any

import pytest

from loomrl.system.security.web_access import AccessControl, loopback_hosts, parse_hosts

HOST = (b"host", b"127.0.0.1:4200")
LOGIN = (b"authorization", b"Basic " + b64encode(b"loomrl:secret"))


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def first_message(
    *headers: tuple[bytes, bytes], path: str = "/api", method: str = "POST", kind: str = "http"
) -> dict[str, Any]:
    """What a server with a login sends first."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        raise AssertionError("a refusal needs no body")

    control = AccessControl(application, parse_hosts(loopback_hosts(4200)), "loomrl:secret", ["/api/health"])
    scope = {"type": kind, "path": path, "method": method, "headers": list(headers)}
    if kind == "websocket":
        del scope["method"]
    asyncio.run(control(scope, receive, send))
    return sent[0]


def status(*headers: tuple[bytes, bytes], **more: Any) -> int:
    return int(first_message(*headers, **more)["status"])


def test_a_client_with_the_login_passes_under_either_name() -> None:
    assert status(HOST, LOGIN) == 200
    assert status((b"host", b"localhost:4200"), LOGIN) == 200


@pytest.mark.parametrize(
    "login",
    [
        [],
        [(b"authorization", b"Basic " + b64encode(b"loomrl:guess"))],
        [(b"authorization", b"Bearer secret")],
        [LOGIN, (b"authorization", b"Basic x")],
    ],
)
def test_a_request_without_the_login_is_asked_for_it(login: list[tuple[bytes, bytes]]) -> None:
    answer = first_message(HOST, *login)
    assert answer["status"] == 401
    assert (b"www-authenticate", b'Basic realm="loomrl"') in answer["headers"]


@pytest.mark.parametrize(
    "hosts",
    [[], [b"evil.example"], [b"127.0.0.1"], [b"127.0.0.1:9"], [b"127.0.0.1:4200.evil.example"], [HOST[1], b"evil"]],
)
def test_another_host_is_refused_even_with_the_login(hosts: list[bytes]) -> None:
    assert status(*((b"host", host) for host in hosts), LOGIN) == 403


@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS", "DELETE"])
@pytest.mark.parametrize(
    "origin", [b"http://evil.example", b"null", b"http://127.0.0.1:9999", b"http://127.0.0.1", b"file://", b""]
)
def test_another_origin_is_refused_even_with_the_login(origin: bytes, method: str) -> None:
    assert status(HOST, LOGIN, (b"origin", origin), method=method) == 403


@pytest.mark.parametrize("origin", [b"http://127.0.0.1:4200", b"http://localhost:4200", b"https://localhost:4200"])
def test_the_servers_own_pages_pass(origin: bytes) -> None:
    assert status(HOST, LOGIN, (b"origin", origin)) == 200


def test_another_site_may_link_to_a_page_and_nothing_else() -> None:
    for site in (b"cross-site", b"same-site"):
        elsewhere = (b"sec-fetch-site", site)
        assert status(HOST, LOGIN, elsewhere, (b"sec-fetch-dest", b"document"), method="GET") == 200
        assert status(HOST, LOGIN, elsewhere, (b"sec-fetch-dest", b"document")) == 403  # a form that posts
        assert status(HOST, LOGIN, elsewhere, (b"sec-fetch-dest", b"iframe"), method="GET") == 403
        assert status(HOST, LOGIN, elsewhere, (b"sec-fetch-dest", b"empty"), method="GET") == 403
        assert status(HOST, LOGIN, elsewhere, method="GET") == 403
    assert status(HOST, LOGIN, (b"sec-fetch-site", b"same-origin")) == 200


def test_a_health_check_needs_neither_host_nor_login() -> None:
    assert status((b"host", b"10.0.0.7:4200"), path="/api/health", method="GET") == 200
    assert status((b"host", b"10.0.0.7:4200"), path="/api/health") == 403
    assert status((b"host", b"10.0.0.7:4200"), path="/api/health/", method="GET") == 403


def test_another_origin_opens_no_websocket() -> None:
    refused = first_message(HOST, LOGIN, (b"origin", b"http://evil.example"), kind="websocket")
    assert refused == {"type": "websocket.close", "code": 1008}
    assert first_message(HOST, LOGIN, kind="websocket")["type"] == "http.response.start"


def test_lifespan_messages_pass() -> None:
    assert first_message(kind="lifespan")["status"] == 200
