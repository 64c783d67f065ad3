"""What a page of another server may ask of this one: nothing that changes anything, on no route, by no trick."""

import asyncio
from pathlib import Path

import httpx
import pytest

from loomrl.serving.process import ServerProcess
from loomrl.serving.settings import ServerSettings
from tests.support.inside import Inside
from tests.support.policies import OBSERVATIONS, discrete_folder

FOREIGN = "http://evil.example"
ABSURD = b'{"agent_id": "page", "observation": [1e30, 1e30, 1e30, 1e30]}'
INFER = "/v2/models/cartpole/infer"
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"
OF_AGENTS = {
    "/decide": b'{"agent_id": "page", "observation": [0, 0, 0, 0]}',
    "/feedback": b'{"decision_id": "0", "reward": 1}',
    INFER: b'{"inputs": [{"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]}]}',
}


def post(server: ServerProcess, path: str, body: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(server.url + path, content=body, headers=named, trust_env=False, timeout=600)


def num_decided(server: ServerProcess) -> float:
    text = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=600).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("loomrl_decisions_total{"))


def test_two_posts_of_text_from_a_page_decide_nothing(open_server: ServerProcess) -> None:
    before = num_decided(open_server)
    for _ in range(2):
        answer = post(open_server, "/decide", ABSURD, Content_Type="text/plain", Origin=FOREIGN)
        assert (answer.status_code, FOREIGN in answer.json()["error"]) == (403, True), answer.text
    assert num_decided(open_server) == before
    with open_server.client() as client:
        assert client.decide("a", OBSERVATIONS[0]).role == "champion"


@pytest.mark.parametrize("path", OF_AGENTS)
@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({"Content_Type": "application/json", "Origin": FOREIGN}, 403, "Origin"),
        ({"Content_Type": "application/json", "Origin": "null"}, 403, "Origin"),
        ({"Content_Type": "application/json", "Sec_Fetch_Site": "cross-site"}, 403, "Sec-Fetch-Site"),
        ({"Content_Type": "application/json", "Sec_Fetch_Site": "same-site"}, 403, "Sec-Fetch-Site"),
        ({"Content_Type": "text/plain"}, 415, "curl --json"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415, "curl --json"),
        ({"Content_Type": "multipart/form-data; boundary=x"}, 415, "curl --json"),
        ({"Sec_Fetch_Site": "none"}, 415, "curl --json"),  # a browser that names no type
        ({"User_Agent": BROWSER}, 415, "curl --json"),  # an old one, which sends nothing else
        ({"Content_Type": "application/json", "Host": "evil.example"}, 421, "evil.example"),
    ],
)
def test_no_page_gets_an_agents_answer(
    open_server: ServerProcess, path: str, headers: dict[str, str], status: int, message: str
) -> None:
    before = num_decided(open_server)
    answer = post(open_server, path, OF_AGENTS[path], **headers)
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text
    assert num_decided(open_server) == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content_Type": "application/json"},
        {"Content_Type": "application/json; charset=utf-8"},
        {"Content_Type": "application/octet-stream"},  # Triton's
        {"Content_Type": "application/vnd.agents+json", "User_Agent": "agent/1.0"},
    ],
)
@pytest.mark.parametrize("path", ["/decide", INFER])
def test_programs_are_answered(open_server: ServerProcess, path: str, headers: dict[str, str]) -> None:
    answer = post(open_server, path, OF_AGENTS[path], **headers)
    assert answer.status_code == 200, answer.text


def test_a_page_of_the_servers_own_is_answered(open_server: ServerProcess) -> None:
    own = {"Content_Type": "application/json", "Origin": open_server.url, "Sec_Fetch_Site": "same-origin"}
    assert post(open_server, "/decide", OF_AGENTS["/decide"], **own).status_code == 200
    assert httpx.get(f"{open_server.url}/status", headers={"Sec-Fetch-Site": "none"}, trust_env=False).is_success


def test_a_link_to_the_page_may_stand_elsewhere_and_its_data_may_not(open_server: ServerProcess) -> None:
    site = {"Sec-Fetch-Site": "cross-site"}
    link = site | {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert httpx.get(f"{open_server.url}/dashboard", headers=link, trust_env=False).status_code == 200
    for headers in (site, site | {"Sec-Fetch-Mode": "no-cors"}, link | {"Sec-Fetch-Dest": "iframe"}):
        assert httpx.get(f"{open_server.url}/status", headers=headers, trust_env=False).status_code == 403
    answer = httpx.post(
        f"{open_server.url}/decide",
        content=OF_AGENTS["/decide"],
        headers=link | {"Content-Type": "application/json"},
        trust_env=False,
    )
    assert answer.status_code == 403


def test_no_route_that_changes_something_answers_another_page(loomrl_home: Path, tmp_path: Path) -> None:
    settings = ServerSettings("cartpole", folders={"champion": discrete_folder(tmp_path / "champion")})
    with Inside(settings) as server:
        routes = [route for route in server.application._router.routes if route.method != "GET"]
        assert len(routes) > 10
        for route in routes:
            path = route.path.replace("{model}", "cartpole").replace("{version}", "1").replace("{override_id}", "1")
            for headers in ({"Origin": FOREIGN}, {"Sec-Fetch-Site": "cross-site"}):
                answer = asyncio.run(_asked(server, route.method, path, headers))
                assert answer.status_code == 403, (route, headers, answer.text)


def test_an_old_browser_that_names_no_page_posts_nothing(loomrl_home: Path, tmp_path: Path) -> None:
    """A form without fields, and a Blob without a type: their requests have neither a body's type nor an Origin."""
    settings = ServerSettings("cartpole", folders={"champion": discrete_folder(tmp_path / "champion")})
    firefox = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"}
    with Inside(settings) as server:
        posts = [route for route in server.application._router.routes if route.method == "POST"]
        assert len(posts) > 5
        for route in posts:
            path = route.path.replace("{model}", "cartpole").replace("{version}", "1")
            assert asyncio.run(_asked(server, "POST", path, firefox)).status_code == 415, route


async def _asked(server: Inside, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app=server.application)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.request(method, path, headers=headers)
