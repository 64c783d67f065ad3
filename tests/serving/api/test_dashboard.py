"""What the page is served with, whom it serves, and that each of its figures is that of the audit log."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from loomrl.serving.client import Ask, PolicyClient
from loomrl.serving.context import ServerSettings
from loomrl.serving.process import ServerProcess
from loomrl.serving.telemetry.metrics import ServerMetrics
from loomrl.storage.audit.history import records
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION, Registry
from tests.support.champions import promoted
from tests.support.inside import Inside, wait_for
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder

FILES = ("", *(f"/{name}.js" for name in ("page", "orders", "charts", "history", "server", "dom", "format")))
FILES += ("/page.css", "/icon.svg")
OWN = "http://127.0.0.1"  # where `Inside` asks
DATA = "/dashboard/data"
OVERRIDE = {"action": 0, "person": "ada", "reason": "test"}


@pytest.fixture
def settings(loomrl_home: Path, tmp_path: Path) -> ServerSettings:
    folders = {"champion": discrete_folder(tmp_path / "champion"), "challenger": discrete_folder(tmp_path / "other")}
    return ServerSettings("cartpole", folders=folders, seed=3, rate=50.0)


# --- the page's files -------------------------------------------------------------------------------------------


def test_the_page_is_served_to_anybody_with_a_strict_policy(settings: ServerSettings, tokens: dict[str, str]) -> None:
    with Inside(settings) as server:
        for name in FILES:
            answer = server.ask("GET", f"/dashboard{name}")
            assert answer.status_code == 200, name
            assert answer.headers["x-content-type-options"] == "nosniff"
            policy = dict(one.split(" ", 1) for one in answer.headers["content-security-policy"].split("; "))
            assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect", "img")} == {"'self'"}
        assert server.ask("GET", "/dashboard").headers["content-type"] == "text/html; charset=utf-8"
        assert server.ask("GET", "/dashboard/page.js").headers["content-type"] == "text/javascript; charset=utf-8"
        assert server.ask("GET", "/dashboard/../control.py").status_code == 404


def test_nothing_in_it_is_inline_or_from_elsewhere(settings: ServerSettings) -> None:
    with Inside(settings) as server:
        html = server.ask("GET", "/dashboard").text
        linked = re.findall(r'(?:src|href)="([^"#]+)"', html)
        assert not re.search(r"<style|<script(?![^>]*src=)|\son\w+=|\sstyle=", html)
        texts = [server.ask("GET", f"/{path}").text for path in linked]
        imports = re.findall(r'from "\./([\w.]+)"', "".join(texts))
        texts += [server.ask("GET", f"/dashboard/{name}").text for name in imports]
    assert {f"/{path.rpartition('/')[2]}" for path in [*linked, *imports]} == set(FILES[1:])
    for text in texts:
        assert "innerHTML" not in text
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}


# --- whom it serves ---------------------------------------------------------------------------------------------


def test_the_data_are_for_observers_and_say_who_may_operate(settings: ServerSettings, tokens: dict[str, str]) -> None:
    with Inside(settings) as server:
        for token, status in (("", 401), ("wrong", 401), (tokens["decide"], 403)):
            refused = server.ask("GET", DATA, token=token)
            assert (refused.status_code, "cartpole" in refused.text) == (status, False)
        found = server.ask("GET", DATA, token=tokens["observe"]).json()["you"]
        assert found["name"] == "observe-holder"
        assert "has not the role operate" in found["refused"]
        found = server.ask("GET", DATA, token=tokens["operate"]).json()["you"]
        assert found == {"name": "operate-holder", "refused": None}
        assert server.ask("GET", f"{DATA}?after=noon", token=tokens["observe"]).status_code == 400


def test_a_page_without_a_token_may_look_and_change_nothing(settings: ServerSettings) -> None:
    with Inside(settings) as server:
        assert "LOOMRL_OPERATOR_TOKEN" in server.ask("GET", DATA).json()["you"]["refused"]
        for method, path, document in (
            ("POST", "/override", OVERRIDE),
            ("DELETE", "/override", None),
            ("PUT", "/kill-switch", {"on": True, "person": "ada", "reason": "test"}),
            ("POST", "/rollback", {"version": "1", "reason": "test"}),
        ):
            refused = server.ask(method, path, document, origin=OWN)
            assert refused.status_code == 403, path
            assert "LOOMRL_OPERATOR_TOKEN" in refused.json()["error"]
        assert server.ask("GET", "/override").json() == {"overrides": []}
        assert server.ask("POST", "/override", OVERRIDE).status_code == 201  # a program of this machine


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example", "https://127.0.0.1", "http://127.0.0.1:8080", "http://localhost",
     "http://127.0.0.1.evil.example", "http://127.0.0.1/", "http://127.0.0.1 http://evil.example"],
)  # fmt: skip
def test_no_other_page_operates_even_with_a_token(
    settings: ServerSettings, tokens: dict[str, str], origin: str
) -> None:
    with Inside(settings) as server:
        refused = server.ask("POST", "/override", OVERRIDE, tokens["operate"], origin)
        assert refused.status_code == 403
        assert f"{OWN}/dashboard" in refused.json()["error"]
        assert server.ask("GET", DATA, token=tokens["operate"], origin=origin).status_code == 403


def test_the_servers_own_page_operates_with_an_operators_token(
    settings: ServerSettings, tokens: dict[str, str]
) -> None:
    with Inside(settings) as server:
        for token, status in (("", 401), ("wrong", 401), (tokens["observe"], 403), (tokens["operate"], 201)):
            assert server.ask("POST", "/override", OVERRIDE, token, OWN).status_code == status
        (found,) = server.ask("GET", DATA, token=tokens["observe"]).json()["status"]["overrides"]
        assert server.ask("DELETE", f"/override/{found['id']}", None, tokens["operate"], OWN).status_code == 200
    done = [entry for entry in records("cartpole") if entry["kind"] == "operation"]
    assert {entry["actor"] for entry in done} == {"token operate-holder"}


def test_behind_a_proxy_that_ends_tls_the_page_has_its_origin(server: ServerProcess) -> None:
    origin = server.url.replace("http://", "https://")
    headers = {"Authorization": "Bearer correct horse", "Origin": origin}
    for forwarded, status in (({}, 403), ({"X-Forwarded-Proto": "https"}, 200)):
        answer = httpx.delete(f"{server.url}/override", headers=headers | forwarded, trust_env=False)
        assert answer.status_code == status, answer.text


# --- its figures ------------------------------------------------------------------------------------------------


def logged() -> dict[str, Any]:
    """Decisions by version and by who decided, as the audit log has them."""
    found: dict[str, Counter[str]] = {}
    for entry in records("cartpole"):
        if entry["kind"] == "decision":
            own = "explored" if entry["exploration_flag"] else "policy"
            by = own if entry["role"] in ("champion", "split") else entry["role"]
            found.setdefault(entry["version"], Counter())[by] += 1
    return {version: dict(counts) for version, counts in found.items()}


def summed(points: list[dict[str, Any]], *names: str) -> Any:
    """A count, over the points of the history."""
    total = 0
    for found in points:
        for name in names:
            found = found.get(name, {})  # noqa: PLW2901
        total += found or 0
    return total


def test_counts_and_their_history_are_those_of_the_audit_log(settings: ServerSettings) -> None:
    with Inside(settings) as server:
        for number in range(12):
            answer = {"agent_id": f"a{number % 4}", "observation": OBSERVATIONS[0].tolist(), "explore": number > 7}
            assert server.ask("POST", "/decide", answer).status_code == 200
        server.context.history.take()
        server.ask("POST", "/override", {**OVERRIDE, "agent_id": "a1"})
        batch = [{"agent_id": f"a{row % 2}", "observation": OBSERVATIONS[1].tolist()} for row in range(6)]
        decisions = server.ask("POST", "/decide", {"requests": batch}).json()["decisions"]
        server.ask("POST", "/feedback", {"decision_id": decisions[0]["decision_id"], "reward": 1.0})
        flood = [{"agent_id": "a0", "observation": OBSERVATIONS[1].tolist()} for _ in range(60)]
        assert server.ask("POST", "/decide", {"requests": flood}).status_code == 413
        server.context.history.take()
        found = server.ask("GET", DATA).json()
        first, second = found["history"]
        later = server.ask("GET", f"{DATA}?after={first['time']!r}").json()
    totals = found["totals"]
    assert totals["decisions"] == logged()
    assert totals["requests"] == 13
    assert (totals["feedback"], totals["limited"], totals["problems"]) == (1, 1, {"413": 1})
    assert later["history"] == [second]
    for version, counts in totals["decisions"].items():
        for by, count in counts.items():
            assert summed(found["history"], "decisions", version, by) == count
    assert [sum(point["latency_us"].values()) for point in (first, second)] == [12, 1]
    assert [point["requests"] for point in (first, second)] == [12, 1]
    assert sum(second["decisions"][found["status"]["roles"]["champion"]["version"]].values()) == 6
    assert 0 < second["seconds"] <= second["time"] - found["started"]


def test_latencies_keep_two_digits_and_the_newest_of_many(settings: ServerSettings) -> None:
    with Inside(settings) as server:
        history, metrics = server.context.history, server.context.metrics
        metrics.observe([123e-6, 118e-6, 0.0456, 4e-9, 2.0])
        history.take()
        history.take()
        first, second = history.after(0.0)
    assert first["latency_us"] == {120: 2, 46_000: 1, 1: 1, 2_000_000: 1}
    assert (second["latency_us"], "requests" in second) == ({}, False)
    many = ServerMetrics("cartpole")
    many.observe([number * 1e-6 for number in range(10_000)])
    kept = many.latencies_seconds(after=0)
    assert (len(kept), kept[0], kept[-1]) == (8_192, pytest.approx(1_808e-6), pytest.approx(9_999e-6))
    np.testing.assert_allclose(many.latencies_seconds(after=9_998), [9_998e-6, 9_999e-6])


def test_challengers_are_compared_with_who_acts_as_the_log_says(loomrl_home: Path, tmp_path: Path) -> None:
    champion = discrete_folder(tmp_path / "champion")
    leaning = BALANCING * np.array([[1], [1], [0], [1]], np.float32)  # does not see the pole's angle
    challenger = discrete_folder(tmp_path / "challenger", leaning, value=3.0)
    observations = np.random.default_rng(5).normal(size=(200, 4)).astype(np.float32)
    folders = {"champion_folder": champion, "challenger_folder": challenger}
    with ServerProcess("cartpole", **folders, rate=1e6) as server, server.client() as client:
        client.decide_many([Ask("cart-7", observation) for observation in observations[:120]])
        for observation in observations[120:]:
            client.decide("cart-8", observation, explore=True)  # chance agrees with nobody
        wait_for(lambda: client.status()["shadow"]["num_mirrored"] == len(own_choices()), seconds=150)
        (compared,) = data(client)["totals"]["compared"].values()
    mirrors = {entry["decision_id"]: entry for entry in records("cartpole") if entry["kind"] == "shadow"}
    pairs = [(entry, mirrors[entry["decision_id"]]) for entry in own_choices()]
    agreed = sum(decision["action"] == mirror["action"] for decision, mirror in pairs)
    assert 0 < agreed < len(pairs)
    assert (compared["num_decisions"], compared["num_agreed"]) == (len(pairs), agreed)
    assert compared["value"] == pytest.approx(math.fsum(mirror["value"] for _, mirror in pairs))
    assert compared["acting_value"] == pytest.approx(math.fsum(decision["value"] for decision, _ in pairs))


def own_choices() -> list[dict[str, Any]]:
    return [entry for entry in records("cartpole") if entry["kind"] == "decision" and not entry["exploration_flag"]]


def data(client: PolicyClient) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(client.url + DATA, trust_env=False).json()
    return found


# --- rollback ---------------------------------------------------------------------------------------------------


@pytest.fixture
def champions(ready_home: Path, tmp_path: Path) -> tuple[str, str]:
    """Two versions in the registry: the champion before, and the champion."""
    registry = Registry()
    first = promoted(registry, discrete_folder(tmp_path / "first", value=1.0))
    return first, promoted(registry, discrete_folder(tmp_path / "second", value=2.0))


@pytest.mark.long
def test_a_person_takes_the_champion_back(champions: tuple[str, str], tokens: dict[str, str]) -> None:
    first, second = champions
    order = {"version": second, "reason": "it stutters"}
    with Inside(ServerSettings("cartpole")) as server:
        for token, status in (("", 401), (tokens["observe"], 403), (tokens["decide"], 403)):
            assert server.ask("POST", "/rollback", order, token).status_code == status
        assert server.ask("GET", DATA, token=tokens["observe"]).json()["previous"] == first
        answer = server.ask("POST", "/rollback", order, tokens["operate"], OWN)
        assert answer.json() == {
            "message": f"version {first} is champion again, version {second} was taken back: it stutters",
            "champion": first,
        }
        again = server.ask("POST", "/rollback", order, tokens["operate"])
        assert (again.status_code, again.json()["error"]) == (
            409, f"version '{second}' is not champion here, version {first} is: look again",
        )  # fmt: skip
        nothing = server.ask("POST", "/rollback", {**order, "version": first}, tokens["operate"])
        assert nothing.status_code == 409
        assert "no previous champion to go back to" in nothing.json()["error"]
        server.context.follow_events()
        event = server.ask("GET", DATA, token=tokens["observe"]).json()["events"][0]
    assert Registry().aliases("cartpole") == {CHAMPION: first}
    names = ("kind", "version", "other", "person", "reason")
    assert [event[name] for name in names] == ["rollback", first, second, "operate-holder", "it stutters"]
    done = [entry for entry in records("cartpole") if entry["kind"] == "operation"]
    assert [(one["operation"], one["actor"], one["version"], one["reason"]) for one in done] == [
        ("rollback", "token operate-holder", version, "it stutters") for version in (second, first)
    ]
    with LoomDB.open() as db:
        (move,) = db.events("rollback")
        assert done[0]["timestamp"] < move.data["time"]  # on record before it was done


def test_what_cannot_be_taken_back_is_refused(
    champions: tuple[str, str], settings: ServerSettings, tokens: dict[str, str]
) -> None:
    operator, (first, second) = tokens["operate"], champions
    with Inside(settings) as server:
        assert "serves a folder" in server.ask("POST", "/rollback", {"version": "1", "reason": "x"}, operator).text
    with Inside(ServerSettings("cartpole", champion=first)) as server:
        refused = server.ask("POST", "/rollback", {"version": first, "reason": "x"}, operator)
        assert (refused.status_code, f"--champion {first}" in refused.text) == (409, True)
    with Inside(ServerSettings("cartpole")) as server:
        for order in ({"version": second}, {"version": second, "reason": ""}, {"version": 2, "reason": "x"},
                      {"version": second, "reason": "x" * 1_001}, {"version": second, "reason": "\0"}):  # fmt: skip
            assert server.ask("POST", "/rollback", order, operator).status_code == 400, order
    assert Registry().aliases("cartpole")[CHAMPION] == second
    assert not [entry for entry in records("cartpole") if entry["kind"] == "operation"]


def test_the_newest_events_of_one_policy(loomrl_home: Path) -> None:
    with LoomDB.open() as db:
        for number, policy in enumerate(["cartpole", "hopper", "cartpole", "cartpole"]):
            db.record_event("rollback" if number else "other", {"policy": policy, "number": number})
        found = db.newest_events("cartpole", ("rollback", "promotion"), limit=2)
        assert [event.data["number"] for event in found] == [3, 2]
        assert db.newest_events("cartpole", ("promotion",), limit=2) == []
