"""A page of another server, and a login that a browser keeps, get nothing from a hub."""

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page

from loomrl.language.trajectory.process import HubProcess
from tests.support.atropos import environment, group
from tests.support.foreign_page import EVIL, PATIENCE_MILLISECONDS, attack, basic, browser
from tests.support.projects import free_ports

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"
EVE = f"operate:eve:{hashlib.sha256(b'secret').hexdigest()}"
REGISTER = {
    "wandb_group": "", "wandb_project": "", "checkpoint_dir": "", "batch_size": 2, "max_token_len": 64,
    "save_checkpoint_interval": 0, "starting_step": 0, "num_steps": 10,
}  # fmt: skip


@pytest.fixture
def waiting(hub: httpx.Client) -> httpx.Client:
    """A hub with a batch that waits."""
    assert hub.post("/register", json=REGISTER).status_code == 200
    assert hub.post("/scored_data", json=group(2)).status_code == 200
    return hub


def still_waits(hub: httpx.Client) -> bool:
    return bool(hub.get("/status").json()["queue_size"] == 1)


@pytest.mark.parametrize("path", ["/reset_data", "/batch"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},  # a link
        {"User-Agent": FIREFOX},  # a picture, in a browser that sends nothing else
        {"User-Agent": FIREFOX, "Sec-Fetch-Site": "none"},  # typed, pasted, a bookmark, a link in a mail
        {"User-Agent": FIREFOX, "Sec-Fetch-Site": "none", "Sec-Purpose": "prefetch;prerender"},  # half typed
        {"User-Agent": FIREFOX, "Sec-Fetch-Site": "same-origin"},  # no page of the hub's asks for it
        {"Sec-Fetch-Site": "none"},
        {
            "User-Agent": "w3m/0.5.3",
            "Accept": "text/html, text/*;q=0.5",
        },  # a link, in a browser that sends nothing else
        {"User-Agent": "Previews/1.0", "Purpose": "prefetch"},
        {"Host": "evil.example"},
    ],
)
def test_no_page_changes_anything_by_a_get(waiting: httpx.Client, path: str, headers: dict[str, str]) -> None:
    assert waiting.get(path, headers=headers).status_code in (403, 421)
    assert still_waits(waiting)


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_nor_by_a_post(waiting: httpx.Client, headers: dict[str, str]) -> None:
    for path in ("/register", "/register-env", "/scored_data", "/policy_version", "/batch/1/ack"):
        assert waiting.post(path, json={}, headers=headers).status_code == 403
    assert still_waits(waiting)


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}])
def test_nor_does_an_old_browser_that_names_no_page(waiting: httpx.Client, headers: dict[str, str]) -> None:
    """A form without fields, and a Blob without a type."""
    acknowledge = f"/batch/{waiting.get('/batch?lease=3600').json()['batch_id']}/ack"
    for path in ("/register", "/scored_data", "/policy_version", acknowledge):
        for content in (b"", b'{"version": 7}'):
            told = waiting.post(path, content=content, headers={"User-Agent": FIREFOX, **headers})
            assert told.status_code == 415, path
    assert waiting.get("/policy_version").json() == {"version": None}
    assert waiting.post(acknowledge).status_code == 200


def test_people_and_programs_are_answered(waiting: httpx.Client) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert waiting.get("/dashboard", headers={"User-Agent": FIREFOX, **link}).status_code == 200
    own = {"User-Agent": FIREFOX, "Sec-Fetch-Site": "same-origin", "Origin": str(waiting.base_url).rstrip("/")}
    assert waiting.get("/hub", headers=own).status_code == 200
    assert waiting.get("/batch").json()["batch"] is not None
    typed = {"User-Agent": FIREFOX, "Sec-Fetch-Site": "none"}
    assert waiting.get("/status", headers=typed).status_code == 200
    for program in ("python-requests/2.32", "Python/3.12 aiohttp/3.11", "curl/8.5.0", "node"):
        known = {"User-Agent": program, "Accept": "*/*"}
        if program == "node":
            known |= {"Sec-Fetch-Mode": "cors", "Accept-Language": "*"}
        assert waiting.get("/batch", headers=known).status_code == 200
        assert waiting.get("/reset_data", headers=known).status_code == 200


def test_a_login_is_neither_asked_for_nor_taken_from_a_browser() -> None:
    login = {"Authorization": basic("eve:secret")}
    with HubProcess(environment={"LOOMRL_TOKENS": EVE}) as hub, httpx.Client(trust_env=False, timeout=600) as client:
        asked = client.get(f"{hub.url}/batch")
        assert (asked.status_code, asked.headers["www-authenticate"]) == (401, "Bearer")
        kept = client.get(f"{hub.url}/status", headers=login | {"User-Agent": FIREFOX, "Sec-Fetch-Site": "none"})
        assert (kept.status_code, kept.headers["www-authenticate"]) == (401, "Bearer")
        unmodified = hub.url.replace("http://", "http://eve:secret@")
        assert client.get(f"{unmodified}/status").status_code == 200
        bearer = {"Authorization": "Bearer secret", "User-Agent": FIREFOX, "Sec-Fetch-Site": "same-origin"}
        assert client.get(f"{hub.url}/hub", headers=bearer).status_code == 200


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if os.environ.get("LOOMRL_TEST_BROWSER") == "off":
        pytest.skip("LOOMRL_TEST_BROWSER=off")
    with browser() as started:
        yield started


@contextmanager
def hub_in_use(tokens: str) -> Iterator[tuple[httpx.Client, int]]:
    """A client, with the token, of a hub where an environment takes part and two batches wait, one of them leased: that
    one's number."""
    settings: dict[str, Any] = {"auth": ("eve", "secret"), "trust_env": False, "timeout": 600}
    with (
        HubProcess(environment={"LOOMRL_TOKENS": tokens}, silent_seconds=3600) as hub,
        httpx.Client(base_url=hub.url, **settings) as client,
    ):
        assert client.post("/register", json=REGISTER).status_code == 200
        assert client.get("/batch").json() == {"batch": None}  # from now on environments may come
        assert client.post("/register-env", json=environment()).json()["env_id"] == 0
        for mark in range(2):
            assert client.post("/scored_data", json=group(2, mark)).status_code == 200
        yield client, client.get("/batch?lease=3600").json()["batch_id"]


def everything(hub: httpx.Client) -> list[Any]:
    told = [hub.get(path).json() for path in ("/info", "/wandb_info", "/latest_example", "/policy_version", "/hub")]
    for one in told[-1]["environments"]:
        del one["silent_seconds"]
    return told


@pytest.mark.long
@pytest.mark.parametrize("tokens", ["", EVE], ids=["without tokens", "with a token that the browser sends along"])
def test_a_real_browser_changes_nothing_for_another_page(chromium: Browser, tokens: str) -> None:
    sent_along = {"Authorization": basic("eve:secret")} if tokens else {}
    with hub_in_use(tokens) as (hub, leased):
        requests: list[tuple[str, str, Any]] = [
            ("GET", "/reset_data", {}), ("GET", "/batch", {}), ("POST", f"/batch/{leased}/ack", {}),
            ("POST", "/policy_version", {"version": 7}), ("POST", "/scored_data", group(2, mark=2)),
            ("POST", "/scored_data_list", [group(2, mark=3)]), ("POST", "/register-env", environment()),
            ("POST", "/disconnect-env", {"env_id": 0}), ("POST", "/register", REGISTER),
        ]  # fmt: skip
        before = everything(hub)
        for origin in (f"http://127.0.0.1:{free_ports(1)[0]}", f"http://{EVIL}"):
            with closing(chromium.new_context(extra_http_headers=sent_along)) as context:
                for method, path, body in requests:
                    seen = attack(context, origin, f"{hub.base_url}{path}", json.dumps(body), method)
                    assert 200 not in seen.values(), (path, seen)
                    assert everything(hub) == before, (origin, path, seen)


def test_a_real_browser_changes_nothing_for_an_address_that_is_pasted_or_a_link(chromium: Browser) -> None:
    """Nor by a link of the hub's own page."""
    with closing(chromium.new_context()) as context, hub_in_use("") as (hub, _):
        before = everything(hub)
        for path in ("/reset_data", "/batch"):
            page = context.new_page()
            answer = page.goto(
                f"{hub.base_url}{path}", timeout=PATIENCE_MILLISECONDS
            )  # as typed: `Sec-Fetch-Site: none`
            assert answer is not None
            assert (answer.status, "browsers may not ask" in answer.text()) == (403, True)
            assert answer.request.all_headers().get("sec-fetch-site") == "none"
            page.goto(f"{hub.base_url}/dashboard", timeout=PATIENCE_MILLISECONDS)
            with page.expect_navigation(url=f"**{path}", timeout=PATIENCE_MILLISECONDS) as linked:
                page.evaluate("path => { location.href = path }", path)
            assert linked.value is not None
            assert linked.value.status == 403
            page.close()
        assert everything(hub) == before


class AsksForLogin(BaseHTTPRequestHandler):
    """What a hub must not do."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="login"')
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"no")

    def log_message(self, *_: object) -> None:
        """Not into the tests' output."""


@contextmanager
def asked_for_logins(page: Page) -> Iterator[list[str]]:
    """The servers for which the browser asks a person for a login, who gives it."""
    asked: list[str] = []
    devtools = page.context.new_cdp_session(page)

    def give(question: dict[str, Any]) -> None:
        asked.append(question["authChallenge"]["origin"])
        login = {"response": "ProvideCredentials", "username": "eve", "password": "secret"}
        answer = login if asked.count(asked[-1]) == 1 else {"response": "CancelAuth"}  # one that was refused comes back
        devtools.send("Fetch.continueWithAuth", {"requestId": question["requestId"], "authChallengeResponse": answer})

    devtools.on("Fetch.authRequired", give)
    devtools.on(
        "Fetch.requestPaused", lambda one: devtools.send("Fetch.continueRequest", {"requestId": one["requestId"]})
    )
    devtools.send("Fetch.enable", {"handleAuthRequests": True})
    yield asked
    devtools.detach()


def test_a_real_browser_is_not_asked_for_a_login_and_keeps_none(chromium: Browser) -> None:
    with closing(chromium.new_context()) as context, asked_for_logins(page := context.new_page()) as asked:
        with ThreadingHTTPServer(("127.0.0.1", 0), AsksForLogin) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            assert asked
            server.shutdown()
        with hub_in_use(EVE) as (hub, _):
            asked.clear()
            before = everything(hub)
            for url in (str(hub.base_url), str(hub.base_url).replace("http://", "http://eve:secret@")):
                for path in ("/status", "/hub", "/batch", "/reset_data"):
                    answer = page.goto(url + path)
                    assert answer is not None
                    assert answer.status == (403 if path in ("/batch", "/reset_data") else 401)
            assert asked == []
            attack(context, f"http://{EVIL}", f"{hub.base_url}/reset_data", method="GET")
            assert everything(hub) == before


@pytest.mark.parametrize(
    ("begun", "piece", "status"),
    [
        (b"GET /status HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"x: " + b"y" * 60_000 + b"\r\n", 431),
        (b"GET /", b"y" * 2**16, 414),
    ],
)
def test_headers_without_end_are_not_kept(hub: httpx.Client, begun: bytes, piece: bytes, status: int) -> None:
    sent, answer = 0, b""
    with socket.create_connection((hub.base_url.host, hub.base_url.port), timeout=600) as connection:
        try:
            connection.sendall(begun)
            while sent < 2**27:
                connection.sendall(piece)
                sent += len(piece)
        except ConnectionError:
            pass
        assert sent < 2**25  # what sockets hold on the way
    with socket.create_connection((hub.base_url.host, hub.base_url.port), timeout=600) as connection:
        connection.sendall(begun + piece[:40_000] + b"\r\n")
        while part := connection.recv(2**16):
            answer += part
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b'"detail"' in answer


def test_a_refused_body_is_not_read_on() -> None:
    with HubProcess(environment={"LOOMRL_TOKENS": EVE}) as hub:
        host, port = hub.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=600) as connection:
            connection.sendall(b"POST /scored_data HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n")
            answer = b""
            while part := connection.recv(2**16):  # until it closes, without a byte of the body
                answer += part
        assert answer.startswith(b"HTTP/1.1 401 ")
