"""Prefect and MLflow as `make up` starts them: clients with the login may do everything, other sites' pages nothing."""

import configparser
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import httpx
import pytest
from playwright.sync_api import Browser, expect

from loomrl.system.security import credentials
from tests.support.foreign_page import EVIL, attack, basic, browser
from tests.support.prefect_api import prefect_api
from tests.support.projects import ROOT, answers, environment, free_ports, until
from tests.support.template_home import put_server_databases

pytestmark = pytest.mark.long  # `tests/flows/test_servers.py` shows the same of servers that `make up` started
LOCAL = ROOT / "deploy" / "local"
with_browser = pytest.mark.skipif(os.environ.get("LOOMRL_TEST_BROWSER") == "off", reason="LOOMRL_TEST_BROWSER=off")


@dataclass
class Servers:
    """Their URLs and the variables in `credentials.env`."""

    prefect: str
    mlflow: str
    credentials: dict[str, str]
    other_port: int

    @property
    def foreign_origins(self) -> list[str]:
        """Another port, another name of this machine, and one that an attacker bound to it."""
        return [f"http://{name}:{self.other_port}" for name in ("127.0.0.1", "localhost", EVIL)]

    def api(self) -> httpx.Client:
        """A client of Prefect with the login."""
        return prefect_api(f"{self.prefect}/api", self.prefect_login)

    @property
    def prefect_login(self) -> str:
        return self.credentials[credentials.PREFECT_LOGIN]

    @property
    def mlflow_login(self) -> tuple[str, str]:
        return self.credentials[credentials.MLFLOW_USER], self.credentials[credentials.MLFLOW_PASSWORD]


def command(program: str) -> str:
    """What supervisor runs, with the environment it gives it."""
    config = configparser.RawConfigParser()
    config.read(LOCAL / "supervisord.conf")
    section = config[f"program:{program}"]
    text = f"env {section.get('environment', '').replace(',', ' ')} {section['command']}"
    return text.replace("%(ENV_", "${").replace(")s", "}")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, prefect_database: Path, template_home: Path) -> Iterator[Servers]:
    home = tmp_path_factory.mktemp("home")
    put_server_databases(home, template_home, prefect_database)
    *ports, other = free_ports(3)
    settings = {"LOOMRL_PREFECT_PORT": str(ports[0]), "LOOMRL_MLFLOW_PORT": str(ports[1])}
    (home / "services").mkdir()
    started = []
    for program in ("prefect", "mlflow"):
        script = f"source {LOCAL}/environment; source {LOCAL}/credentials; exec {command(program)}"
        with (home / f"{program}.log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=ROOT,
                env=environment(ROOT, LOOMRL_HOME=str(home), **settings),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started.append(process)
    prefect, mlflow = (f"http://127.0.0.1:{port}" for port in ports)
    try:
        until(lambda: answers(f"{prefect}/api/health") and answers(f"{mlflow}/health"), "both servers", seconds=600)
        text = (home / "services" / "credentials.env").read_text()
        yield Servers(prefect, mlflow, dict(line.split("=", 1) for line in text.splitlines()), other)
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def deployment(servers: Servers) -> str:
    """The id of one, which nobody runs."""
    with servers.api() as api:
        flow = api.post("/flows/", json={"name": "lifecycle"}).json()["id"]
        made = api.post("/deployments/", json={"name": "lifecycle", "flow_id": flow})
        made.raise_for_status()
        return str(made.json()["id"])


def num_flow_runs(servers: Servers) -> int:
    with servers.api() as api:
        return int(api.post("/flow_runs/count", json={}).json())


def experiments(servers: Servers) -> list[str]:
    url = f"{servers.mlflow}/api/2.0/mlflow/experiments/search"
    found = httpx.post(url, json={"max_results": 100}, auth=servers.mlflow_login, timeout=30)
    found.raise_for_status()
    return sorted(one["name"] for one in found.json()["experiments"])


def test_without_the_login_every_route_answers_401(servers: Servers) -> None:
    asked = [
        httpx.post(f"{servers.prefect}/api/flow_runs/filter", json={}),
        httpx.get(f"{servers.prefect}/api/admin/settings"),
        httpx.get(f"{servers.prefect}/api/admin/settings", auth=servers.mlflow_login),
        httpx.post(f"{servers.mlflow}/api/2.0/mlflow/experiments/search", json={"max_results": 1}),
        httpx.post(f"{servers.mlflow}/graphql", json={}),
        httpx.get(f"{servers.mlflow}/api/2.0/mlflow-artifacts/artifacts"),
        httpx.get(f"{servers.mlflow}/"),
    ]
    assert {answer.status_code for answer in asked} == {401}


def test_under_another_host_every_route_answers_403_even_with_the_login(servers: Servers) -> None:
    with servers.api() as api:
        assert api.post("/flow_runs/filter", json={}, headers={"Host": EVIL}).status_code == 403
    for path in ("/", "/graphql", "/api/2.0/mlflow/experiments/get?experiment_id=0"):
        answer = httpx.get(servers.mlflow + path, headers={"Host": f"{EVIL}:5000"}, auth=servers.mlflow_login)
        assert answer.status_code == 403


class OpenServer(BaseHTTPRequestHandler):
    """Takes what any page sends, as Prefect does without access control."""

    asked: ClassVar[list[str]] = []

    def do_OPTIONS(self) -> None:
        self._send(200)

    def do_GET(self) -> None:
        self._take(200)

    def do_POST(self) -> None:
        self._take(201)

    do_PUT = do_DELETE = do_POST

    def _take(self, status: int) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        if not self.path.startswith("/favicon"):
            self.asked.append(f"{self.command} {self.headers['Content-Type']} {self.headers['Sec-Fetch-Dest']}")
        self._send(status)

    def _send(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Access-Control-Allow-Origin", self.headers["Origin"] or "*")
        self.send_header("Access-Control-Allow-Methods", "PUT, DELETE")
        self.send_header("Access-Control-Allow-Headers", "Content-Type")
        self.send_header("Access-Control-Allow-Credentials", "true")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not into the tests' output."""


@with_browser
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_the_attacks_reach_a_server_that_is_open(chromium: Browser, method: str) -> None:
    """Else the tests below would show that the browser refuses, not that the servers do."""
    with ThreadingHTTPServer(("127.0.0.1", 0), OpenServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for origin in ("http://localhost:8888", f"http://{EVIL}"):
            OpenServer.asked.clear()
            seen = attack(chromium.new_context(), origin, f"http://127.0.0.1:{server.server_port}/", method=method)
            assert len(OpenServer.asked) == len(seen) > 1, (seen, OpenServer.asked)
            assert {200, 201} & set(seen.values())
        server.shutdown()


@with_browser
@pytest.mark.parametrize("knows_login", [False, True], ids=["without login", "with login"])
def test_a_page_of_another_site_creates_no_flow_run_and_our_client_does(
    servers: Servers, deployment: str, chromium: Browser, knows_login: bool
) -> None:
    url = f"{servers.prefect}/api/deployments/{deployment}/create_flow_run"
    body = '{"parameters":{"policy":"cartpole","overrides":{"environment.entry_point":"os:system"}}}'
    before = num_flow_runs(servers)
    context = chromium.new_context()
    if knows_login:
        context.set_extra_http_headers({"Authorization": basic(servers.prefect_login)})
    for origin in servers.foreign_origins:
        seen = attack(context, origin, url, body)
        assert not {200, 201} & set(seen.values()), seen
        assert num_flow_runs(servers) == before, (origin, seen)
    context.close()
    with servers.api() as api:
        api.post(url, json={"parameters": {}}).raise_for_status()
    assert num_flow_runs(servers) == before + 1


@with_browser
def test_a_page_of_another_site_changes_nothing_in_mlflow_though_the_browser_knows_the_login(
    servers: Servers, chromium: Browser
) -> None:
    name, password = servers.mlflow_login
    context = chromium.new_context(http_credentials={"username": name, "password": password})
    page = context.new_page()
    page.goto(servers.mlflow)  # the browser was asked for the login and keeps it
    expect(page.get_by_text("Experiments").first).to_be_visible(timeout=60_000)
    before = experiments(servers)
    for origin in servers.foreign_origins:
        for path in ("/api/2.0/mlflow/experiments/create", "/ajax-api/2.0/mlflow/experiments/create"):
            seen = attack(context, origin, servers.mlflow + path, '{"name":"planted"}')
            assert 200 not in seen.values(), seen
        assert experiments(servers) == before, origin
    context.close()
    made = httpx.post(
        f"{servers.mlflow}/api/2.0/mlflow/experiments/create", json={"name": "ours"}, auth=servers.mlflow_login
    )
    made.raise_for_status()
    assert experiments(servers) == sorted([*before, "ours"])


@with_browser
def test_a_page_under_another_host_name_of_this_machine_is_refused(servers: Servers, chromium: Browser) -> None:
    context = chromium.new_context(extra_http_headers={"Authorization": basic(servers.prefect_login)})
    page = context.new_page()
    answer = page.goto(servers.prefect.replace("127.0.0.1", EVIL))
    assert answer is not None
    assert answer.status == 403
    expect(page.get_by_text(f"Host is {EVIL}:")).to_be_visible()
    context.close()


@with_browser
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_person_logs_in_on_prefects_page(servers: Servers, deployment: str, chromium: Browser, name: str) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(servers.prefect.replace("127.0.0.1", name) + "/deployments")
    page.locator("input[type=password]").fill(servers.prefect_login)
    page.keyboard.press("Enter")
    expect(page.get_by_text("lifecycle").first).to_be_visible(timeout=60_000)
    context.close()


def test_our_own_clients_find_the_login(servers: Servers, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "services").mkdir(parents=True)
    (home / "services" / "credentials.env").write_text(credentials.to_env(servers.credentials))
    urls = {"PREFECT_API_URL": f"{servers.prefect}/api", "MLFLOW_TRACKING_URI": servers.mlflow}
    settings: dict[str, Any] = {"cwd": ROOT, "env": environment(ROOT, LOOMRL_HOME=str(home), **urls)}
    ask = (
        "import flows; from prefect.client.orchestration import get_client; "
        "print(len(get_client(sync_client=True).read_deployments()) >= 0); "
        "from loomrl.storage.registry import Registry; print(Registry().aliases('cartpole'))"
    )
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, **settings).stdout
    assert told.split("\n")[:2] == ["True", "{}"]
    (home / "services" / "credentials.env").unlink()
    listed = subprocess.run(
        shlex.split("loomrl policy show cartpole@champion"), capture_output=True, text=True, check=False, **settings
    )
    assert listed.returncode == 3, listed
    assert "MLFLOW_TRACKING_USERNAME" in listed.stderr
    run = subprocess.run(
        shlex.split("loomrl run configs/cartpole.yaml"), capture_output=True, text=True, check=False, **settings
    )
    assert run.returncode == 3, run
    assert "needs a login: set PREFECT_API_AUTH_STRING" in run.stderr
