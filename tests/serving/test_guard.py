"""A web page that a person of this machine looks at must not operate the server on it."""

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import sync_playwright

from loomrl.serving.process import ServerProcess
from loomrl.system.http.browsers import is_local_host
from loomrl.system.http.guard import Admission, holder_name
from loomrl.system.http.problems import Problem
from loomrl.system.http.tokens import Holder, Tokens
from tests.support.policies import OBSERVATIONS

OVERRIDE = b'{"action": 0, "person": "page", "reason": "x"}'
JSON = {"Content-Type": "application/json"}
LOAD = "/v2/repository/models/cartpole/load"


def ask(server: ServerProcess, method: str, path: str, body: bytes | None = None, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(method, server.url + path, content=body, headers=named, trust_env=False)


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({"Content_Type": "text/plain"}, 415, "application/json"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ({"Sec_Fetch_Site": "cross-site"}, 403, "Sec-Fetch-Site"),
        ({"Origin": "http://evil.example"}, 403, "Origin"),
        ({"Content_Type": "application/json", "Origin": "http://evil.example"}, 403, "Origin"),
        ({"Content_Type": "application/json", "Origin": "null"}, 403, "Origin"),
        ({"Content_Type": "application/json", "Host": "evil.example"}, 421, "evil.example"),
        ({"Content_Type": "application/json", "Host": "127.0.0.1.evil.example:8100"}, 421, "evil.example"),
    ],
)
def test_a_web_page_cannot_override(open_server: ServerProcess, headers: dict, status: int, message: str) -> None:
    answer = ask(open_server, "POST", "/override", OVERRIDE, **headers)
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text
    assert ask(open_server, "GET", "/override").json() == {"overrides": []}


PAGE = """async url => {
  const untyped = new Blob(['{"action": 0, "person": "page", "reason": "x"}']);
  await fetch(url, {method: "POST", mode: "no-cors", body: untyped}).catch(error => error);
  navigator.sendBeacon(url, untyped);
  await fetch(url, {method: "POST", mode: "no-cors", body: await untyped.text()}).catch(error => error);
}"""


@pytest.mark.skipif(os.environ.get("LOOMRL_TEST_BROWSER") == "off", reason="LOOMRL_TEST_BROWSER=off")
def test_nor_can_one_in_a_real_browser_that_declares_no_type(open_server: ServerProcess) -> None:
    with page_of_another_server() as url, sync_playwright() as playwright:
        quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=quiet)
        page = browser.new_page()
        page.goto(url)
        answers = []
        page.on("response", lambda answer: answers.append(answer.status))
        with page.expect_event("requestfinished", lambda sent: sent.resource_type == "ping"):
            page.evaluate(PAGE, f"{open_server.url}/override")
        browser.close()
    assert answers == [403, 403, 403]
    assert ask(open_server, "GET", "/override").json() == {"overrides": []}


@contextmanager
def page_of_another_server() -> Iterator[str]:
    """The URL of an empty page at another port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class EmptyPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *about: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "/override"), ("DELETE", "/override/1"), ("POST", LOAD), ("GET", "/shadow/records")]
)
def test_nor_any_other_operators_route(open_server: ServerProcess, method: str, path: str) -> None:
    assert ask(open_server, method, path, Origin="http://evil.example").status_code == 403


def test_a_name_that_was_rebound_to_loopback_reads_and_decides_nothing(open_server: ServerProcess) -> None:
    for method, path in (("GET", "/status"), ("GET", "/override"), ("GET", "/shadow/records"), ("POST", "/decide")):
        assert ask(open_server, method, path, Host="evil.example:8100").status_code == 421


def test_people_and_programs_of_this_machine_can(open_server: ServerProcess) -> None:
    port = open_server.url.rsplit(":", 1)[1]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST"):
        answer = ask(
            open_server, "POST", "/override", OVERRIDE, Host=host, Content_Type="application/json; charset=utf-8"
        )
        assert answer.status_code == 201, answer.text
    assert ask(open_server, "POST", LOAD).status_code == 200
    assert len(ask(open_server, "GET", "/status").json()["overrides"]) == 1
    assert ask(open_server, "DELETE", "/override").status_code == 200
    with open_server.client() as client:
        client.decide("a", OBSERVATIONS[0])


def test_a_program_may_leave_the_type_out(open_server: ServerProcess) -> None:
    assert ask(open_server, "POST", "/override", OVERRIDE).status_code == 201
    assert ask(open_server, "DELETE", "/override").status_code == 200


def test_a_token_covers_loading_and_the_overrides_in_the_status(server: ServerProcess, server_home: Path) -> None:
    with server.client(token="correct horse") as operator:
        override = operator.set_override(action=0, agent_id="x", person="Ada", reason="secret")
        operator.refresh("cartpole")
        assert [entry["id"] for entry in operator.status()["overrides"]] == [override["id"]]
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert ask(server, "POST", LOAD, **headers).status_code == 401
            status = ask(server, "GET", "/status", **headers)
            assert status.json()["overrides"] is None
            assert "secret" not in status.text
        operator.clear_override(override["id"])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8100", "localhost:1", "[::1]", "[::1]:80", "127.1.2.3:5"])
def test_names_of_this_machine(host: str) -> None:
    assert is_local_host(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "10.0.0.1:80", "[fe80::1]:80", "[::1", "::1:80:"]
)
def test_names_of_others(host: str) -> None:
    assert not is_local_host(host)


def test_what_was_let_in_is_looked_at_anew_once_tokens_change() -> None:
    holder = Holder("ada", frozenset({"decide"}), hashlib.sha256(b"x").digest())
    found = {b"host": b"127.0.0.1", b"content-type": b"application/json", b"authorization": b"Bearer x"}
    admission, before = Admission(), Tokens([holder])
    for _ in range(2):
        scope: dict[str, Any] = {"headers": list(found.items())}
        admission.admit(scope, found, before, on_loopback=True)
        assert holder_name(scope) == "ada"
    with pytest.raises(Problem) as refusal:
        admission.admit(
            {"headers": []}, found, Tokens([replace(holder, digest=hashlib.sha256(b"y").digest())]), on_loopback=True
        )
    assert refusal.value.status == 401
