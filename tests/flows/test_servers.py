"""With servers: runs through the Prefect API, schedules, approval in the UI, rollback, a policy server that follows."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loomrl.storage.audit import history
from tests.support.foreign_page import EVIL, attack, basic, browser
from tests.support.prefect_api import prefect_api
from tests.support.projects import copy_state, free_ports, records, run, until


class Services:
    """`make up` in a project copy, on free ports."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.prefect, self.mlflow, self.policy = (f"http://127.0.0.1:{port}" for port in free_ports(3))
        ports = {"PREFECT": self.prefect, "MLFLOW": self.mlflow, "POLICY": self.policy}
        self.settings = {f"LOOMRL_{name}_PORT": url.rpartition(":")[2] for name, url in ports.items()}
        self.settings |= {"MAKEFLAGS": "", "VENV": str(project / ".venv"), "LOOMRL_POLICY_RATE": "20"}
        self.api = prefect_api(f"{self.prefect}/api")

    def up(self) -> None:
        """Start them as a user does; from then on `api` has the login that was generated."""
        run(self.project, "make", "up", **self.settings)
        lines = (self.project / ".loomrl" / "services" / "credentials.env").read_text().splitlines()
        self.logins = dict(line.split("=", 1) for line in lines)
        self.login = self.logins["PREFECT_API_AUTH_STRING"]
        self.api = prefect_api(f"{self.prefect}/api", self.login)

    def trigger(self, **parameters: Any) -> str:
        """Start the served life cycle with parameters; returns the flow run's id."""
        answer = self.api.post(f"/deployments/{self.deployment()}/create_flow_run", json={"parameters": parameters})
        answer.raise_for_status()
        return str(answer.json()["id"])

    def deployment(self) -> str:
        answer = self.api.get("/deployments/name/lifecycle/lifecycle")
        answer.raise_for_status()
        return str(answer.json()["id"])

    def state(self, flow_run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(f"/flow_runs/{flow_run}").json()["state"]
        return found

    def wait(self, flow_run: str, *states: str) -> dict[str, Any]:
        """Wait for one of these state types."""
        until(
            lambda: self.state(flow_run)["type"] in states,
            f"{flow_run} to be {states}",
            lambda: self.state(flow_run),
            seconds=900,
        )
        return self.state(flow_run)

    def answer(self, flow_run: str, approved: bool) -> None:
        """Fill in the approval form, as the UI does."""
        form = {"approved": approved, "person": "grace", "reason": "looked at the report"}
        answer = self.api.post(f"/flow_runs/{flow_run}/resume", json={"run_input": form})
        assert answer.json()["status"] == "ACCEPT", answer.text


@pytest.fixture(scope="module")
def services(finished_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    started = Services(copy_state(finished_project, tmp_path_factory.mktemp("services") / "project"))
    try:
        started.up()
        until(lambda: started.api.get("/deployments/name/lifecycle/lifecycle").is_success, "the flows to be served")
        yield started
    finally:
        run(started.project, "make", "down", **started.settings)
        started.api.close()


def test_a_run_is_triggered_through_the_api_and_seen_in_the_ui(services: Services) -> None:
    flow_run = services.trigger(policy="cartpole", overrides={})
    services.wait(flow_run, "COMPLETED")
    last = records(services.project)[-1]
    assert last["prefect_flow_run_id"] == flow_run
    assert last["state"] == "unchanged"
    run_form = f"/deployments/deployment/{services.deployment()}/run"
    sees(services, {"/runs": ("lifecycle", "cartpole", "Completed"), run_form: ("policy", "overrides")})


@pytest.mark.parametrize(
    "parameters", [{"policy": "nobody"}, {"overrides": {}}, {"policy": "cartpole", "overrides": 3}]
)
def test_wrong_parameters_are_refused_before_anything_runs(services: Services, parameters: dict[str, Any]) -> None:
    path = f"/deployments/{services.deployment()}/create_flow_run"
    assert services.api.post(path, json={"parameters": parameters}).status_code in (409, 422)


def test_without_the_login_401_and_under_another_host_403_is_answered(services: Services) -> None:
    name, password = (services.logins[f"MLFLOW_TRACKING_{part}"] for part in ("USERNAME", "PASSWORD"))
    for url, login in (
        (f"{services.prefect}/api/admin/settings", {"Authorization": basic(services.login)}),
        (
            f"{services.mlflow}/api/2.0/mlflow/experiments/get?experiment_id=0",
            {"Authorization": basic(f"{name}:{password}")},
        ),
    ):
        assert httpx.get(url, headers=login).status_code == 200
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={**login, "Host": EVIL}).status_code == 403


def test_a_page_of_another_site_starts_no_life_cycle(services: Services) -> None:
    url = f"{services.prefect}/api/deployments/{services.deployment()}/create_flow_run"
    code = '{"parameters": {"policy": "cartpole", "overrides": {"environment.entry_point": "os:system"}}}'
    before = services.api.post("/flow_runs/count", json={}).json()
    with browser() as chromium:
        for origin in ("http://localhost:8888", f"http://{EVIL}"):
            seen = attack(chromium.new_context(), origin, url, code)
            assert not {200, 201} & set(seen.values()), seen
    assert services.api.post("/flow_runs/count", json={}).json() == before


@pytest.mark.long  # `tests/serving/test_guard.py` asks a server of its own, by a page in a browser and headers by hand
@pytest.mark.parametrize("host", ["127.0.0.1", EVIL])
def test_a_page_of_another_site_decides_and_changes_nothing_on_the_policy_server(
    services: Services, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("LOOMRL_HOME", str(services.project / ".loomrl"))  # whose records are read
    decided = decide(services, "honest", [0.0] * 4)
    version, absurd = decided["version"], [1e30] * 4
    tensor = {"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": absurd}
    order = {"person": "page", "reason": "x"}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/decide", {"agent_id": "page", "observation": absurd}),
        ("POST", "/v2/models/cartpole/infer", {"inputs": [tensor]}),
        ("POST", "/feedback", {"decision_id": decided["decision_id"], "reward": 1}),
        ("POST", "/override", {"action": 0, **order}),
        ("DELETE", "/override", {}),
        ("PUT", "/plan", {"split": {}, **order}),
        ("PUT", "/kill-switch", {"on": True, **order}),
        ("POST", "/rollback", {"version": version, "reason": "x"}),
        ("POST", "/v2/repository/models/cartpole/load", {}),
        ("POST", f"/v2/repository/models/cartpole/versions/{version}/unload", {}),
    ]
    before = state_of_policy_server(services)
    origin = f"http://{host}:{free_ports(1)[0]}"
    with browser() as chromium, chromium.new_context() as context:
        context.new_page()  # which keeps the window: another one for each request takes longer than the request
        for method, path, body in requests:
            seen = attack(context, origin, services.policy + path, json.dumps(body), method)
            assert not {200, 201} & set(seen.values()), (path, seen)
            assert state_of_policy_server(services) == before, (origin, path, seen)
    assert served(services) == version


def test_a_flow_run_that_names_code_fails_before_it_begins(services: Services) -> None:
    before = len(records(services.project))
    flow_run = services.trigger(policy="cartpole", overrides={"environment.entry_point": "os:system"})
    assert "changes environment.entry_point" in services.wait(flow_run, "FAILED")["message"]
    assert len(records(services.project)) == before
    assert "os:system" not in (services.project / "configs" / "cartpole.yaml").read_text()


@pytest.mark.long
def test_approval_pauses_resumes_and_rejects_and_rollback_restores(services: Services) -> None:
    before = champion(services)
    flow_run = services.trigger(policy="cartpole", overrides={"training.seed": 2, "promotion.approval": "human"})
    services.wait(flow_run, "PAUSED")
    assert records(services.project)[-1]["state"] == "waiting"
    assert champion(services) == before
    services.answer(flow_run, approved=True)
    services.wait(flow_run, "COMPLETED")
    approved = records(services.project)[-1]
    assert approved["decision"]["approved_by"] == "grace"
    assert champion(services) == approved["version"] != before

    flow_run = services.trigger(policy="cartpole", overrides={"training.seed": 1})  # what was champion before
    services.wait(flow_run, "PAUSED")
    services.answer(flow_run, approved=False)
    state = services.wait(flow_run, "FAILED")
    assert "rejected by grace" in state["message"]
    assert champion(services) == approved["version"]

    until(lambda: served(services) == approved["version"], "the policy server to follow")
    settings = {"PREFECT_API_URL": f"{services.prefect}/api", "MLFLOW_TRACKING_URI": services.mlflow}
    run(services.project, "loomrl", "policy", "rollback", "cartpole", "--reason", "test", "--by", "grace", **settings)
    assert champion(services) == before
    until(lambda: served(services) == before, "the policy server to follow the rollback")


def test_override_and_rate_limit_act_on_the_running_server(services: Services) -> None:
    settings = {"MLFLOW_TRACKING_URI": services.mlflow}
    command = ("loomrl", "override", "set", "--policy", "cartpole", "--agent", "held", "--action", "1")
    reason = ("--person", "grace", "--reason", "test", "--server", services.policy)
    run(services.project, *command, *reason, **settings)
    observation = [0.0, 0.0, -0.2, -2.0]  # falling to the left: the policy would push left
    held, free = (decide(services, agent, observation) for agent in ("held", "free"))
    assert (held["action"], free["action"]) == (1, 0)
    assert held["override"]
    body = {"agent_id": "greedy", "episode_id": "1", "observation": observation}
    with httpx.Client(base_url=services.policy, timeout=300) as agent:
        several = {"requests": [body] * 15}  # of 20 a second: one by one, a busy machine is too slow to be refused
        answers = [agent.post("/decide", json=several) for _ in range(300)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert int(refused[0].headers["Retry-After"]) >= 1
    assert {answer.status_code for answer in answers} == {200, 429}
    assert decide(services, "another", observation)["action"] == 0


@pytest.mark.long
def test_a_scheduled_run_fires(services: Services) -> None:
    path = f"/deployments/{services.deployment()}/schedules"
    calm = {"training.seed": 1, "promotion.approval": "none"}
    parameters = {"policy": "cartpole", "overrides": calm}
    schedule = {"schedule": {"interval": 30}, "active": True, "parameters": parameters}
    made = services.api.post(path, json=[schedule])
    made.raise_for_status()

    def scheduled() -> list[dict[str, Any]]:
        body = {"deployments": {"id": {"any_": [services.deployment()]}}, "sort": "EXPECTED_START_TIME_ASC"}
        found: list[dict[str, Any]] = services.api.post("/flow_runs/filter", json=body).json()
        return [one for one in found if one["auto_scheduled"] and one["state"]["type"] in ("RUNNING", "COMPLETED")]

    try:
        until(lambda: bool(scheduled()), "a scheduled run to start")
    finally:
        services.api.delete(f"{path}/{made.json()[0]['id']}").raise_for_status()
    services.wait(scheduled()[0]["id"], "COMPLETED")


def champion(services: Services) -> str:
    """As MLflow's own API says."""
    url = f"{services.mlflow}/api/2.0/mlflow/registered-models/alias"
    login = services.logins["MLFLOW_TRACKING_USERNAME"], services.logins["MLFLOW_TRACKING_PASSWORD"]
    answer = httpx.get(url, params={"name": "cartpole", "alias": "champion"}, auth=login, timeout=600)
    answer.raise_for_status()
    return str(answer.json()["model_version"]["version"])


def state_of_policy_server(services: Services) -> dict[str, Any]:
    """Who decides, what operators ordered, and how much is on record of decisions, feedback and orders."""
    status = httpx.get(f"{services.policy}/status", timeout=600).json()
    names = ("roles", "loaded", "num_swaps", "quarantined", "plan", "kill_switch", "overrides")
    kinds = Counter(str(one["kind"]) for one in history.records("cartpole"))
    of_the_server = {"open", "loaded", "anchored"}  # written in its own time
    return {name: status[name] for name in names} | {
        "records": {kind: kinds[kind] for kind in kinds.keys() - of_the_server}
    }


def served(services: Services) -> str:
    body = {"agent_id": "test", "episode_id": "1", "observation": [0.0, 0.0, 0.0, 0.0]}
    answer = httpx.post(f"{services.policy}/decide", json=body, timeout=10)
    answer.raise_for_status()
    return str(answer.json()["version"])


def decide(services: Services, agent: str, observation: list[float]) -> dict[str, Any]:
    body = {"agent_id": agent, "episode_id": "1", "observation": observation}
    answer = httpx.post(f"{services.policy}/decide", json=body, timeout=10)
    answer.raise_for_status()
    decision: dict[str, Any] = answer.json()
    return decision


def sees(services: Services, texts: dict[str, tuple[str, ...]]) -> None:
    """A person who logs in at Prefect's page sees on each path these texts."""
    with browser() as chromium:
        page = chromium.new_page()
        page.goto(services.prefect)
        page.locator("input[type=password]").fill(services.login)
        page.keyboard.press("Enter")
        page.locator("input[type=password]").wait_for(state="detached", timeout=60_000)
        for path, expected in texts.items():
            page.goto(services.prefect + path)
            for text in expected:
                page.get_by_text(text).first.wait_for(timeout=60_000)
