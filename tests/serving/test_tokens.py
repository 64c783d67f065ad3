"""Tokens with roles: who may do what, and what a server without them, or with some, is open to."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from loomrl.cli.orders import tokens_app
from loomrl.errors import ConfigError
from loomrl.serving.client import Refused
from loomrl.serving.process import ServerProcess
from loomrl.serving.settings import ServerSettings
from loomrl.storage.audit.history import records
from loomrl.system.http.tokens import ROLES, add, configured
from tests.support.inside import Inside, wait_for
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.several_workers import connected, pids, worker_of

OBS = OBSERVATIONS[0].tolist()
OVERRIDE = {"action": 0, "person": "Ada", "reason": "test"}
V2 = "/v2/models/cartpole"
INFER = {"inputs": [{"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": OBS}]}

# method, route, document, the role it needs
ROUTES = [
    ("POST", "/decide", {"agent_id": "a", "observation": OBS}, "decide"),
    ("POST", "/feedback", {"decision_id": "none", "reward": 1.0}, "decide"),
    ("POST", f"{V2}/infer", INFER, "decide"),
    ("GET", "/status", None, "observe"),
    ("GET", "/metrics", None, "observe"),
    ("GET", "/override", None, "observe"),
    ("GET", "/plan", None, "observe"),
    ("GET", "/shadow/records", None, "observe"),
    ("GET", "/dashboard/data", None, "observe"),
    ("POST", "/v2/repository/index", None, "observe"),
    ("POST", "/override", OVERRIDE, "operate"),
    ("DELETE", "/override", None, "operate"),
    ("PUT", "/plan", {"person": "Ada", "reason": "test"}, "operate"),
    ("PUT", "/kill-switch", {"on": False, "person": "Ada", "reason": "test"}, "operate"),
    ("POST", "/v2/repository/models/cartpole/load", None, "operate"),
]
MAY = {"decide": {"decide"}, "observe": {"observe"}, "operate": {"observe", "operate"}}


@pytest.fixture
def settings(loomrl_home: Path, tmp_path: Path) -> ServerSettings:
    return ServerSettings("cartpole", folders={"champion": discrete_folder(tmp_path / "policy")})


def test_each_route_wants_its_role(settings: ServerSettings, tokens: dict[str, str]) -> None:
    with Inside(settings) as server:
        for method, route, document, wanted in ROUTES:
            for token in ("", "wrong", tokens["decide"][:-1], tokens["decide"] + "x"):
                assert server.ask(method, route, document, token).status_code == 401, (route, token)
            for role in ROLES:
                status = server.ask(method, route, document, tokens[role]).status_code
                assert (status == 403) is (wanted not in MAY[role]), (route, role, status)
                assert status != 401
        for route in ("/v2/health/ready", "/v2/health/live", V2):
            assert server.ask("GET", route).status_code == 200


def test_what_no_token_is_made_for_is_open(
    settings: ServerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOMRL_OPERATOR_TOKEN", "correct horse")
    with Inside(settings) as server:
        for method, route, document, role in ROUTES:
            is_open = role == "decide" or route in ("/status", "/metrics", "/v2/repository/index")
            status = server.ask(method, route, document).status_code
            assert (status == 401) is not is_open, (route, status)
            assert server.ask(method, route, document, "correct horse").status_code not in (401, 403)
        server.ask("POST", "/override", OVERRIDE, "correct horse")
        assert server.ask("GET", "/status").json()["overrides"] is None
        assert server.ask("GET", "/status", token="correct horse").json()["overrides"]


def test_what_an_operator_does_is_on_record_with_the_tokens_name(
    settings: ServerSettings, tokens: dict[str, str]
) -> None:
    with Inside(settings) as server:
        for method, route, document, role in ROUTES:
            if role == "operate":
                assert server.ask(method, route, document, tokens["operate"]).is_success
    done = [entry for entry in records("cartpole") if entry["kind"] == "operation"]
    assert [entry["operation"] for entry in done] == ["override", "override", "plan", "kill_switch", "load"]
    assert {entry["actor"] for entry in done} == {"token operate-holder"}
    assert all(entry["reason"] for entry in done)
    assert [bool(entry.get("document")) for entry in done] == [True, False, True, False, False]


def test_who_asks_for_decisions_reports_on_no_one_elses(
    settings: ServerSettings, tokens: dict[str, str], tmp_path: Path
) -> None:
    """Anyone can guess the number of a decision. The true reward still comes, also from who asks for none."""
    shown = {name: add(tmp_path / "tokens", name, ["decide"]) for name in ("thief", "rewards")}
    shown["cart-7"] = add(tmp_path / "tokens", "cart-7", ["decide"], ["cart-7"])
    shown["fleet"] = tokens["decide"]
    for _ in range(2):  # the second time after a restart, which knows who asked before
        with Inside(settings) as server:

            def decide(agent_id: str, who: str) -> str:
                told = {"agent_id": agent_id, "observation": OBS}
                decided: str = server.ask("POST", "/decide", told, shown[who]).json()["decision_id"]
                return decided

            def report(decision_id: str, who: str) -> int:
                return server.ask(
                    "POST", "/feedback", {"decision_id": decision_id, "reward": 1.0}, shown[who]
                ).status_code

            own = decide("a", "thief")
            for others in (decide("a", "fleet"), decide("cart-7", "cart-7")):
                assert report(others, "thief") == 403
            assert report(others, "cart-7") == report(own, "thief") == report(decide("b", "fleet"), "rewards") == 200
    with Inside(settings) as server:
        refused = server.ask("POST", "/feedback", {"decision_id": "x", "reward": 1.0}, shown["thief"])
        assert refused.status_code == 404
    assert [entry["reward"] for entry in records("cartpole") if entry["kind"] == "feedback"] == [1.0] * 6


@pytest.mark.long
def test_what_a_token_asked_another_worker_for_counts(
    settings: ServerSettings, tokens: dict[str, str], tmp_path: Path
) -> None:
    """Also after one of them, or all, were started again."""
    thief = add(tmp_path / "tokens", "thief", ["decide"])
    champion, observer = settings.folders["champion"], tokens["observe"]
    for restarts in (False, True):
        with ServerProcess("cartpole", champion_folder=champion, workers=2, server="two") as server:
            with (
                connected(server, 0, thief, observer) as asking,
                connected(server, 1, thief, observer) as reporting,
                connected(server, 1, tokens["decide"], observer) as honest,
            ):
                if not restarts:
                    assert worker_of(asking.decide("a", OBS).decision_id) == 0
                other = honest.decide("b", OBS).decision_id
                assert worker_of(other) == 1
                with pytest.raises(Refused, match="asks for decisions itself"):
                    reporting.feedback(other, -1e9)
            os.kill(pids(server, observer)[1], signal.SIGKILL)
            wait_for(lambda: len(pids(server, observer)) == 2)
            with pytest.raises(Refused, match="asks for decisions itself"), server.client(token=thief) as again:
                again.feedback(other, -1e9)
            with server.client(token=tokens["decide"]) as honest:
                honest.feedback(other, 1.0)
    assert [entry["reward"] for entry in records("cartpole") if entry["kind"] == "feedback"] == [1.0, 1.0]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.long_cases("2")
def test_a_token_for_some_agents_speaks_for_no_others(
    settings: ServerSettings, tokens: dict[str, str], tmp_path: Path, workers: int
) -> None:
    """Neither one by one nor among others, nor by feedback on their decisions; on the fast path and off it."""
    own = add(tmp_path / "tokens", "cart 7", ["decide"], ["cart-7", "spare-*"])
    with ServerProcess("cartpole", champion_folder=settings.folders["champion"], workers=workers) as server:

        def ask(path: str, document: object, token: str) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {token}"}
            answer = httpx.post(f"{server.url}{path}", json=document, headers=headers, trust_env=False, timeout=300)
            return answer.status_code, answer.json()

        def decide(agent_id: str, token: str) -> tuple[int, Any]:
            return ask("/decide", {"agent_id": agent_id, "observation": OBS}, token)

        for agent_id, status in (("cart-7", 200), ("spare-1", 200), ("cart-70", 403), ("cart-8", 403), ("a", 403)):
            assert decide(agent_id, own)[0] == status, agent_id
        refused = decide("cart-8", own)[1]["error"]
        assert refused == "the token of 'cart 7' is for the agents cart-7, spare-*: not 'cart-8'"
        several = [{"agent_id": name, "observation": OBS} for name in ("cart-7", "cart-8")]
        assert ask("/decide", {"requests": several}, own)[0] == 403
        assert ask(f"{V2}/infer", INFER | {"parameters": {"agent_id": "cart-8"}}, own)[0] == 403
        assert ask(f"{V2}/infer", INFER | {"parameters": {"agent_id": "cart-7"}}, own)[0] == 200
        other = decide("cart-8", tokens["decide"])[1]["decision_id"]
        assert ask("/feedback", {"decision_id": other, "reward": -1e9}, own)[0] == 403
        assert ask("/feedback", {"decision_id": other, "reward": 1.0}, tokens["decide"])[0] == 200
    decided = [entry for entry in records("cartpole") if entry["kind"] == "decision"]
    assert {entry["agent_id"] for entry in decided} == {"cart-7", "spare-1", "cart-8"}
    assert [entry["reward"] for entry in records("cartpole") if entry["kind"] == "feedback"] == [1.0]


def test_a_token_that_is_taken_out_is_refused(settings: ServerSettings, tokens: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    with Inside(settings) as server:
        ask = ("POST", "/decide", {"agent_id": "a", "observation": OBS}, tokens["decide"])
        assert server.ask(*ask).status_code == 200
        add(path, "another", ["decide"])
        path.write_text("".join(line for line in path.read_text().splitlines(True) if "decide-holder" not in line))
        server.context.follow_tokens()
        assert server.ask(*ask).status_code == 401


def test_a_token_stands_in_no_file_and_in_no_answer(
    settings: ServerSettings, tokens: dict[str, str], tmp_path: Path
) -> None:
    with Inside(settings) as server:
        told = server.ask("POST", "/override", OVERRIDE, tokens["decide"])
        assert "decide-holder" in told.text
        assert tokens["decide"] not in told.text
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not any(token.encode() in written for token in tokens.values())


def test_the_command_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    run = lambda *options: CliRunner().invoke(tokens_app, [*options, "--file", str(path)])  # noqa: E731
    token = run("--name", "cart 7", "--role", "decide", "--role", "observe").stdout.strip()
    monkeypatch.setenv("LOOMRL_TOKENS_FILE", str(path))
    monkeypatch.delenv("LOOMRL_OPERATOR_TOKEN", raising=False)
    holder = configured().holder(f"Bearer {token}".encode())
    assert holder is not None
    assert (holder.name, holder.roles) == ("cart 7", {"decide", "observe"})
    assert configured().holder(token.encode()) is None
    bound = run("--name", "cart 8", "--role", "decide", "--agent", "cart-8", "--agent", "b-*").stdout.strip()
    holder = configured().holder(f"Bearer {bound}".encode())
    assert holder is not None
    assert [holder.decides_for(name) for name in ("cart-8", "b-", "b-1", "cart-88", "b", "")] == [
        *[True] * 3,
        *[False] * 3,
    ]
    assert "has a token already" in str(run("--name", "cart 7", "--role", "decide").exception)
    assert "no role 'rule'" in str(run("--name", "x", "--role", "rule").exception)
    assert "without colons" in str(run("--name", "a:b", "--role", "decide").exception)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("decide:a", "line 2 is not ROLE"),
        (f"decide:a:{'0' * 63}", "line 2 is not ROLE"),
        (f"decide:a:{'0' * 64}:", "line 2: an agent without a name"),
        (f"decide:a:{'0' * 64}:cart-7,", "line 2: an agent without a name"),
        (f"decide::{'0' * 64}", "line 2 is not ROLE"),
        (f"decide,rule:a:{'0' * 64}", "line 2: no role 'rule'"),
        (f"decide:a:{'0' * 64}\noperate:a:{'1' * 64}", "two tokens have one holder"),
    ],
)
def test_lines_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str) -> None:
    monkeypatch.delenv("LOOMRL_TOKENS_FILE", raising=False)
    monkeypatch.setenv("LOOMRL_TOKENS", f"# of this project\n{line}")
    with pytest.raises(ConfigError, match=message):
        configured()
    monkeypatch.setenv("LOOMRL_TOKENS_FILE", str(tmp_path / "tokens"))
    with pytest.raises(ConfigError, match="unset one of them"):
        configured()
    monkeypatch.delenv("LOOMRL_TOKENS")
    with pytest.raises(ConfigError, match="No such file"):
        configured()
