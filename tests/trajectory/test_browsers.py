"""A page of another server, and a login that a browser keeps, get nothing from a hub."""

import base64
import hashlib
import socket

import httpx
import pytest
from atropos import group

from loomrl.trajectory.process import HubProcess

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"
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


def test_people_and_programs_are_answered(waiting: httpx.Client) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert waiting.get("/dashboard", headers={"User-Agent": FIREFOX, **link}).status_code == 200
    own = {"User-Agent": FIREFOX, "Sec-Fetch-Site": "same-origin", "Origin": str(waiting.base_url).rstrip("/")}
    assert waiting.get("/hub", headers=own).status_code == 200
    assert waiting.get("/batch").json()["batch"] is not None
    typed = {"User-Agent": FIREFOX, "Sec-Fetch-Site": "none"}
    assert waiting.get("/reset_data", headers=typed).status_code == 200


def test_a_login_is_neither_asked_for_nor_taken_from_a_browser() -> None:
    tokens = f"operate:eve:{hashlib.sha256(b'secret').hexdigest()}"
    login = {"Authorization": "Basic " + base64.b64encode(b"eve:secret").decode()}
    with HubProcess(environment={"LOOMRL_TOKENS": tokens}) as hub, httpx.Client(trust_env=False, timeout=600) as client:
        asked = client.get(f"{hub.url}/batch")
        assert (asked.status_code, asked.headers["www-authenticate"]) == (401, "Bearer")
        kept = client.get(f"{hub.url}/status", headers=login | {"User-Agent": FIREFOX, "Sec-Fetch-Site": "none"})
        assert (kept.status_code, kept.headers["www-authenticate"]) == (401, "Bearer")
        unmodified = hub.url.replace("http://", "http://eve:secret@")
        assert client.get(f"{unmodified}/status").status_code == 200
        bearer = {"Authorization": "Bearer secret", "User-Agent": FIREFOX, "Sec-Fetch-Site": "same-origin"}
        assert client.get(f"{hub.url}/hub", headers=bearer).status_code == 200


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
    tokens = f"operate:eve:{hashlib.sha256(b'secret').hexdigest()}"
    with HubProcess(environment={"LOOMRL_TOKENS": tokens}) as hub:
        host, port = hub.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=600) as connection:
            connection.sendall(b"POST /scored_data HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n")
            answer = b""
            while part := connection.recv(2**16):  # until it closes, without a byte of the body
                answer += part
        assert answer.startswith(b"HTTP/1.1 401 ")
