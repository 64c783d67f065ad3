"""The order of authority: a human override, the kill switch, the rate limit, the shield, the policy; the fallback."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from loomrl.environment.finite.shield import Shield
from loomrl.errors import ArtifactError
from loomrl.serving.policy.model import MANIFEST, UnloadedPolicy
from loomrl.serving.policy.roles import Roles
from loomrl.serving.settings import ServerSettings
from loomrl.storage.audit.history import records
from loomrl.storage.audit.verification import verify_chain
from loomrl.system.files import read_json, sha256_file, write_json
from loomrl.system.home import home
from loomrl.types import PolicyManifest
from tests.support.inside import Inside, wait_for
from tests.support.policies import BALANCING, discrete_folder

LEFT, RIGHT, UNKNOWN = [0.0, 0.0, -0.5, 0.0], [0.0, 0.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0]
INFER = "/v2/models/cartpole/infer"
BY = {"person": "Ada", "reason": "test"}


def shielded_folder(folder: Path) -> Path:
    """Where the pole leans to the right, the policy's choice (1) is not allowed; of other states nothing is known."""
    discrete_folder(folder, BALANCING)
    manifest = read_json(folder / "manifest.json")
    observations = np.array([LEFT, RIGHT, *manifest["probe_observations"]], np.float32)
    allowed = np.ones((len(observations), 2), np.bool_)
    allowed[1, 1] = False
    Shield(observations, allowed, np.zeros(allowed.shape)).save(folder / "shield.safetensors")
    write_json(folder / "manifest.json", manifest | {"shield_sha256": sha256_file(folder / "shield.safetensors")})
    return folder


@pytest.fixture
def server(loomrl_home: Path, tmp_path: Path) -> Iterator[Inside]:
    """Its champion has a shield; each agent may ask three times."""
    settings = ServerSettings(
        "cartpole", folders={"champion": shielded_folder(tmp_path / "champion")}, rate=1e-3, burst=3
    )
    with Inside(settings) as inside:
        yield inside


def told(server: Inside, agent_id: str, observation: Any = RIGHT) -> tuple[Any, ...]:
    """Status, and of a decision its action and who decided."""
    answer = server.decide(agent_id, observation)
    found = answer.json()
    return (answer.status_code, *(found[key] for key in ("action", "role") if answer.is_success))


def order(server: Inside, method: str, route: str, **document: Any) -> None:
    answer = server.ask(method, route, document | BY)
    assert answer.is_success, answer.text
    server.context.roles.refresh()


def test_a_plan_that_cannot_be_written_is_refused_and_orders_are_in_force(server: Inside) -> None:
    """The file that processes lock is none: as on a disk that takes nothing any more."""
    lock = home() / "controls" / "cartpole.json.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    answer = server.ask("PUT", "/plan", {"fallback": {"action": 1}, **BY})
    assert answer.status_code == 503
    assert "the plan in force stays: " in answer.text
    assert server.ask("GET", "/plan").json()["plan"]["fallback"] is None
    order(server, "POST", "/override", action=0, agent_id="a")
    assert told(server, "a") == (200, 0, "override")
    order(server, "PUT", "/kill-switch", on=True)
    assert told(server, "b") == (503,), "no fallback is set"


def test_each_stands_above_the_next(server: Inside) -> None:
    assert told(server, "a") == (200, 0, "champion")  # the policy chose 1, the shield took 0
    (decision,) = (entry for entry in records("cartpole") if entry["kind"] == "decision")
    assert decision["shield"]["chosen"] == 1
    assert told(server, "a", UNKNOWN) == (422,)
    for _ in range(2):  # nobody decided, but the agent asked
        told(server, "a", LEFT)
    assert told(server, "a", UNKNOWN) == (429,)  # the limit, before the shield says that it knows nothing

    order(server, "PUT", "/plan", fallback={"action": 1})
    order(server, "PUT", "/kill-switch", on=True)
    for _ in range(5):  # the kill switch, above the limit and the shield
        assert told(server, "a") == told(server, "b", UNKNOWN) == (200, 1, "kill_switch")

    order(server, "POST", "/override", action=0, agent_id="a")
    for _ in range(5):  # a person, above the kill switch
        assert told(server, "a", UNKNOWN) == (200, 0, "override")
    assert told(server, "b", UNKNOWN) == (200, 1, "kill_switch")

    order(server, "PUT", "/kill-switch", on=False)
    assert told(server, "a") == (200, 0, "override")
    server.ask("DELETE", "/override")
    assert told(server, "a") == (429,)
    assert verify_chain(server.context.audit.folder).intact


def test_where_what_was_set_last_is_not_known_people_and_the_kill_switch_decide(server: Inside) -> None:
    order(server, "PUT", "/plan", fallback={"action": 0})
    controls = server.context.controls
    files = [controls.path, controls.path.with_suffix(".copy")]
    for path in files:
        path.unlink()
        path.symlink_to(path)
    with pytest.raises(ArtifactError, match="cannot be read"):
        controls.refresh(has_changed=True)
    order(server, "POST", "/override", action=1, agent_id="b")
    refused = server.decide("a", LEFT)
    assert (refused.status_code, told(server, "b")) == (503, (200, 1, "override"))
    assert "no version acts: " in refused.json()["error"]
    order(server, "PUT", "/kill-switch", on=True)
    assert (told(server, "a"), told(server, "b")) == ((200, 0, "kill_switch"), (200, 1, "override"))
    order(server, "PUT", "/kill-switch", on=False)
    assert server.decide("a", LEFT).status_code == 503
    for path in files:
        path.unlink()
    controls.refresh(has_changed=True)
    assert told(server, "a", LEFT)[::2] == (200, "champion")


def test_without_a_fallback_the_kill_switch_stops_everything_but_people(server: Inside) -> None:
    order(server, "PUT", "/kill-switch", on=True)
    answer = server.decide("a", LEFT)
    assert (answer.status_code, answer.json()["error"]) == (
        503,
        "the kill switch is on, by Ada: test; no fallback is set",
    )
    order(server, "POST", "/override", action=1, agent_id="a")
    assert told(server, "a") == (200, 1, "override")


def test_the_fallback_decides_what_the_policy_has_no_answer_to(server: Inside, tmp_path: Path) -> None:
    other = str(discrete_folder(tmp_path / "other", -BALANCING))
    for fallback, action in (({"action": 1}, 1), ({"version": other}, 0)):
        order(server, "PUT", "/plan", fallback=fallback)
        rows = [("a", RIGHT), ("b", UNKNOWN), ("c", LEFT), ("d", UNKNOWN)]
        asks = [{"agent_id": f"{agent}-{action}", "observation": row} for agent, row in rows]
        decided = server.ask("POST", "/decide", {"requests": asks}).json()["decisions"]
        assert [one["role"] for one in decided] == ["champion", "fallback", "champion", "fallback"]
        assert [decided[row]["action"] for row in (1, 3)] == [action, action]
        assert len({one["decision_id"] for one in decided}) == 4
    written = {entry["decision_id"]: entry for entry in records("cartpole") if entry["kind"] == "decision"}
    assert [written[one["decision_id"]]["version"] == other for one in decided] == [False, True, False, True]


def test_a_tensor_has_one_version_and_its_fallback(server: Inside) -> None:
    order(server, "PUT", "/plan", fallback={"action": 1})
    tensor = {"name": "observation", "shape": [2, 4], "datatype": "FP32", "data": [*LEFT, *UNKNOWN]}
    answer = server.ask("POST", INFER, {"inputs": [tensor]}).json()
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    assert outputs["action"] == [1, 1]
    assert len(outputs["value"]) == 2  # what the graph says beside it


def test_a_persons_action_is_answered_though_no_version_is_loaded(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    tensor = {"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": LEFT}
    with Inside(ServerSettings("cartpole", folders={"champion": folder})) as server:
        server.context.roles.current = Roles(known=UnloadedPolicy(PolicyManifest.read(folder / MANIFEST), "1"))
        assert not server.ask("POST", INFER, {"inputs": [tensor]}).is_success
        assert server.ask("POST", "/override", BY | {"action": 1}).is_success
        for wanted in ({}, {"parameters": {"binary_data_output": True}}):
            answer = server.ask("POST", INFER, {"inputs": [tensor], **wanted})
            assert answer.is_success, answer.text
        found = server.ask("POST", INFER, {"inputs": [tensor]}).json()
    assert [(output["name"], output["data"]) for output in found["outputs"]] == [("action", [1])]


def test_a_person_pins_the_fallback(server: Inside) -> None:
    order(server, "POST", "/override", fallback=True, agent_id="a")
    answer = server.decide("a", LEFT)
    assert answer.status_code == 503
    assert "the fallback for agent a until cleared, by Ada: test; no fallback is set" in answer.json()["error"]
    order(server, "PUT", "/plan", fallback={"action": 1})
    assert told(server, "a", LEFT) == (200, 1, "override")
    assert told(server, "b", LEFT) == (200, 0, "champion")


def test_what_a_person_pinned_has_no_fallback(server: Inside) -> None:
    order(server, "PUT", "/plan", fallback={"action": 1})
    order(server, "POST", "/override", version=server.context.roles.current.champion.version)
    assert told(server, "a", UNKNOWN) == (422,)


def test_the_fallback_stands_in_for_a_champion_that_is_missing(loomrl_home: Path, tmp_path: Path) -> None:
    settings = ServerSettings("cartpole", folders={"challenger": discrete_folder(tmp_path / "challenger")})
    with Inside(settings) as server:
        assert server.decide("a", LEFT).status_code == 503
        order(server, "PUT", "/plan", fallback={"action": 1})
        assert told(server, "a", LEFT) == (200, 1, "fallback")


@pytest.mark.parametrize(
    ("plan", "status", "message"),
    [
        ({"fallback": {"action": 7}}, 400, "not one of 0 to 1"),
        ({"fallback": {"version": "/no/such/folder"}}, 422, "no policy folder"),
        ({"split": {"/no/such/folder": 0.5}}, 422, "no policy folder"),
        ({"challengers": ["/no/such/folder"]}, 422, "no policy folder"),
        ({"split": {"2": 2.0}}, 400, "a fraction is from"),
        ({"revision": 3}, 409, "was changed meanwhile"),
        ({"revision": True}, 400, "revision: "),
        ({"nonsense": 1}, 400, "Extra inputs"),
        ({"person": ""}, 400, "person"),
    ],
)
def test_bad_plans_are_refused(server: Inside, plan: dict[str, Any], status: int, message: str) -> None:
    answer = server.ask("PUT", "/plan", {**BY, **plan})
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text
    assert server.ask("GET", "/plan").json()["revision"] == 0


def test_a_version_that_acts_otherwise_joins_no_plan(server: Inside, tmp_path: Path) -> None:
    other = str(discrete_folder(tmp_path / "three", np.ones((4, 3), np.float32)))
    answer = server.ask("PUT", "/plan", {**BY, "split": {other: 0.5}})
    assert (answer.status_code, "observes or acts otherwise" in answer.text) == (422, True)


@pytest.mark.parametrize("document", [{}, {"on": 1, **BY}, {"on": True, "person": "Ada"}, {"on": True, **BY, "x": 1}])
def test_the_kill_switch_wants_a_person_and_a_reason(server: Inside, document: dict[str, Any]) -> None:
    assert server.ask("PUT", "/kill-switch", document).status_code == 400
    assert server.ask("GET", "/plan").json()["kill_switch"] is None


# --- the split --------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(loomrl_home: Path, tmp_path: Path) -> Iterator[tuple[Inside, str]]:
    """A server, and a version that does the opposite of its champion."""
    other = str(discrete_folder(tmp_path / "other", -BALANCING))
    settings = ServerSettings("cartpole", folders={"champion": discrete_folder(tmp_path / "champion")}, rate=1e6)
    with Inside(settings) as server:
        yield server, other


def versions(server: Inside, count: int = 400) -> list[dict[str, Any]]:
    asks = [{"agent_id": f"agent-{number}", "observation": LEFT} for number in range(count)]
    return server.ask("POST", "/decide", {"requests": asks}).json()["decisions"]


def test_records_say_what_was_dealt_whoever_decides(pair: tuple[Inside, str]) -> None:
    server, other = pair
    order(server, "PUT", "/plan", split={other: 0.25}, experiment="e")
    first = [one["version"] for one in versions(server, 40)]
    own = next(version for version in first if version != other)
    asked_together = {entry["timestamp"] for entry in records("cartpole") if entry["kind"] == "decision"}
    assert len(asked_together) == 1, "which version an agent was dealt does not tell when it was counted"
    order(server, "POST", "/override", action=1)
    versions(server, 40)
    server.decide("agent-0", LEFT)
    written = [entry for entry in records("cartpole") if entry["kind"] == "decision"]
    assert {entry["role"] for entry in written} == {"champion", "split", "override"}
    assert {entry["experiment"] for entry in written} == {"e"}
    assert [entry["shares"] for entry in written] == [{other: 0.25, own: 0.75}] * 81
    dealt = {entry["agent_id"]: entry["dealt"] for entry in written if entry["role"] == "override"}
    assert [dealt[f"agent-{number}"] for number in range(40)] == first


def test_agents_are_dealt_and_keep_their_version(pair: tuple[Inside, str]) -> None:
    server, other = pair
    order(server, "PUT", "/plan", split={other: 0.25}, experiment="e")
    first = versions(server)
    assert {(one["role"], one["version"] == other, one["assignment_probability"]) for one in first} == {
        ("champion", False, 0.75),
        ("split", True, 0.25),
    }
    assert [one["action"] for one in first] == [1 if one["role"] == "split" else 0 for one in first]
    assert [one["version"] for one in versions(server)] == [one["version"] for one in first]
    single = [server.decide(f"agent-{number}", LEFT).json()["version"] for number in range(20)]
    assert single == [one["version"] for one in first[:20]]
    order(server, "PUT", "/plan", split={other: 0.5})
    moved = [(old["role"], new["role"]) for old, new in zip(first, versions(server), strict=True)]
    assert set(moved) == {("champion", "champion"), ("champion", "split"), ("split", "split")}
    written = [entry for entry in records("cartpole") if entry["kind"] == "decision"]
    assert {entry["experiment"] for entry in written} == {"e"}
    assert {(entry["role"], entry["assignment_probability"]) for entry in written} == {
        ("champion", 0.75),
        ("split", 0.25),
        ("champion", 0.5),
        ("split", 0.5),
    }


def test_agents_of_a_version_that_is_gone_stay_with_the_champion(pair: tuple[Inside, str]) -> None:
    server, other = pair
    order(server, "PUT", "/plan", split={other: 0.25})
    roles = server.context.roles
    roles.current = type(roles.current)(champion=roles.current.champion)  # it was unloaded, or never came
    assert {(one["role"], one["assignment_probability"]) for one in versions(server)} == {("champion", 1.0)}


def test_a_version_of_the_split_may_be_named_and_a_challenger_may_not(pair: tuple[Inside, str]) -> None:
    server, other = pair
    tensor = {"name": "observation", "shape": [1, 4], "datatype": "FP32", "data": LEFT}
    route = f"/v2/models/cartpole/versions/{quote(other, safe='')}/infer"
    order(server, "PUT", "/plan", challengers=[other])
    assert server.ask("POST", route, {"inputs": [tensor]}).status_code == 403
    order(server, "PUT", "/plan", split={other: 1.0})
    assert server.ask("POST", route, {"inputs": [tensor]}).json()["model_version"] == other
    unload = f"/v2/repository/models/cartpole/versions/{quote(other, safe='')}/unload"
    answer = server.ask("POST", unload)
    assert (answer.status_code, "is in the plan" in answer.text) == (409, True)


def test_several_challengers_decide_in_shadow(pair: tuple[Inside, str], tmp_path: Path) -> None:
    server, other = pair
    third = str(discrete_folder(tmp_path / "third", value=3.0))
    order(server, "PUT", "/plan", split={other: 0.5}, challengers=[other, third])
    server.context.shadow.start()
    try:
        decided = versions(server, 20)
        wait_for(lambda: shadows().count(third) == len(decided))
    finally:
        server.context.shadow.stop()
    champions = [one for one in decided if one["role"] == "champion"]
    assert shadows().count(other) == len(champions)  # it does not mirror itself


def shadows() -> list[str]:
    """The versions that decided in shadow, once per decision."""
    return [entry["version"] for entry in records("cartpole") if entry["kind"] == "shadow"]
