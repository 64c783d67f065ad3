"""Recurrent policies served: each episode has a memory of its own, over restarts and swaps."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.serving.decisions.memory import Memories
from loomrl.serving.policy import roles
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.process import ServerProcess
from loomrl.serving.recomputation import LogRecomputation
from loomrl.serving.settings import ServerSettings
from loomrl.storage.audit.history import records
from loomrl.storage.audit.segments import segments
from loomrl.system.files import read_json, write_json
from loomrl.system.http.problems import Problem
from loomrl.system.security.encryption import KEYS, new_entry
from tests.support.inside import Inside, wait_for
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.remembering import MEMORY, episode, played, recurrent_folder

FIRST, SECOND, THIRD = episode(1), episode(2), episode(3)
_PATIENCE = 150.0  # seconds: a shadow gets only what others leave


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recurrent_folder(tmp_path_factory.mktemp("recurrent"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another version of the policy."""
    return recurrent_folder(tmp_path_factory.mktemp("other"), seed=2)


@pytest.fixture
def policy(folder: Path) -> ServedPolicy:
    return ServedPolicy.load(folder)


@pytest.fixture
def start(loomrl_home: Path, folder: Path) -> Iterator[Callable[..., Inside]]:
    """Starts a server; the one before it, if any, ends as by kill -9."""
    started: list[Inside] = []

    def again(**options: Any) -> Inside:
        for server in started:
            server.context.audit.close()
        started[:] = [Inside(ServerSettings("p", folders={"champion": folder}, **options))]
        started[0].context.roles.refresh()
        return started[0]

    yield again
    started[-1].context.audit.close()


def ask(server: Inside, observation: list[float], episode_id: str | None = "one", agent_id: str = "a") -> Any:
    document = {"agent_id": agent_id, "episode_id": episode_id, "observation": observation}
    return server.ask("POST", "/decide", document)


def decide(server: Inside, observation: list[float], episode_id: str = "one", agent_id: str = "a") -> tuple[Any, float]:
    answer = ask(server, observation, episode_id, agent_id)
    assert answer.status_code == 200, answer.text
    return answer.json()["action"], answer.json()["value"]


def decisions() -> list[dict[str, Any]]:
    return [entry for entry in records("p") if entry["kind"] == "decision"]


def test_memory_matters(policy: ServedPolicy) -> None:
    """Else nothing here would show that there is one."""
    fresh = [played(policy, [one])[0] for one in FIRST]
    assert played(policy, FIRST)[0] == fresh[0]
    assert all(now[1] != then[1] for now, then in zip(played(policy, FIRST)[1:], fresh[1:], strict=True))


def test_interleaved_episodes_have_memories_of_their_own(start: Callable[..., Inside], policy: ServedPolicy) -> None:
    server = start()
    plays = {("a", "one"): FIRST, ("a", "two"): SECOND, ("b", "one"): THIRD}
    found: dict[tuple[str, str], list[Any]] = {ids: [] for ids in plays}
    for step in range(3):
        for ids, observed in plays.items():
            found[ids].append(decide(server, observed[step], ids[1], ids[0]))
    for step in range(3, 6):  # and together
        requests = [{"agent_id": agent, "episode_id": name, "observation": observed[step]}
                    for (agent, name), observed in plays.items()]  # fmt: skip
        answer = server.ask("POST", "/decide", {"requests": requests}).json()["decisions"]
        for ids, one in zip(plays, answer, strict=True):
            found[ids].append((one["action"], one["value"]))
    for ids, observed in plays.items():
        assert found[ids] == played(policy, observed)
    assert [entry["memory"]["step"] for entry in decisions()] == [step for step in range(6) for _ in plays]
    assert LogRecomputation().run("p").equal


def test_what_a_recurrent_policy_needs_is_said(start: Callable[..., Inside]) -> None:
    server = start()
    refused = ask(server, FIRST[0], None)
    assert (refused.status_code, "send `episode_id`" in refused.json()["error"]) == (400, True)
    one = {"agent_id": "a", "episode_id": "one", "observation": FIRST[0]}
    twice = server.ask("POST", "/decide", {"requests": [one, {**one, "agent_id": "b"}, one]})
    assert twice.status_code == 400
    assert "two decisions of agent 'a' in episode 'one'" in twice.json()["error"]
    assert decisions() == []
    assert len(server.context.memories) == 0


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_an_episode_ends_with_feedback(start: Callable[..., Inside], policy: ServedPolicy, how: str) -> None:
    server = start()
    last = [ask(server, one).json()["decision_id"] for one in FIRST[:3]][-1]
    server.ask("POST", "/feedback", {"decision_id": last, "reward": 0.0, how: True})
    assert len(server.context.memories) == 0
    assert [decide(server, one) for one in FIRST] == played(policy, FIRST)
    assert [entry["memory"]["step"] for entry in decisions()] == [0, 1, 2, 0, 1, 2, 3, 4, 5]


# --- restarts ---------------------------------------------------------------------------------------------------


def test_a_restart_in_the_middle_changes_nothing(start: Callable[..., Inside], policy: ServedPolicy) -> None:
    found, others = [], []
    for cut in (2, 3):
        server = start()
        found += [decide(server, one) for one in FIRST[len(found) : len(found) + cut]]
        others += [decide(server, one, "two") for one in SECOND[len(others) : len(others) + 1]]
    ended = ask(start(), SECOND[2], "two").json()["decision_id"]
    server = start()
    server.ask("POST", "/feedback", {"decision_id": ended, "reward": 0.0, "terminated": True})
    server = start()
    found.append(decide(server, FIRST[5]))
    assert found == played(policy, FIRST)
    assert decide(server, SECOND[0], "two") == played(policy, SECOND[:1])[0]  # it had ended: this one is new
    assert LogRecomputation().run("p").equal


def test_a_sealed_log_without_its_key_does_not_bring_memories_back(
    start: Callable[..., Inside], monkeypatch: pytest.MonkeyPatch, policy: ServedPolicy
) -> None:
    monkeypatch.setenv(KEYS, new_entry("old"))
    decide(start(), FIRST[0])
    assert decide(start(), FIRST[1]) == played(policy, FIRST)[1]
    monkeypatch.delenv(KEYS)
    server = start()
    lost = ask(server, FIRST[2])
    assert lost.status_code == 409
    assert "sealed with a key it does not have; begin a new episode" in lost.json()["error"]
    assert decide(server, SECOND[0], "two") == played(policy, SECOND)[0]


def test_a_log_that_lacks_a_beginning_does_not_bring_memories_back(start: Callable[..., Inside]) -> None:
    decide(start(), FIRST[0])
    server = start()
    decide(server, FIRST[1])
    segments(server.context.audit.folder)[0].unlink()
    lost = ask(start(), FIRST[2])
    assert lost.status_code == 409
    assert "its log does not lead to what was remembered; begin a new episode" in lost.json()["error"]


def test_what_is_forgotten_is_said(policy: ServedPolicy) -> None:
    memories = Memories(capacity=2)
    observed = np.array([FIRST[0]], np.float32)
    for name in ("one", "two", "three"):
        recalled = memories.recall(policy, ["a"], [name])
        after = policy.outputs(observed, recalled.states)["state_out"]
        memories.keep(policy, recalled, after, is_kept=True)
    assert memories.versions() == {policy.version}
    with pytest.raises(Problem, match=r"memory of agent 'a' in episode 'one' is lost: .* begin a new episode"):
        memories.recall(policy, ["a"], ["one"])
    assert memories.recall(policy, ["a"], ["two"]).marks[0]["step"] == 1
    memories.end([("a", "one"), ("a", "two"), ("a", "three"), ("a", None), ("a", "four")])
    assert (len(memories), memories.versions()) == (0, set())
    assert memories.recall(policy, ["a"], ["one"]).marks[0]["step"] == 0


# --- swaps and people -------------------------------------------------------------------------------------------


@pytest.fixture
def no_standby(monkeypatch: pytest.MonkeyPatch) -> None:
    """A former champion is let go of at once, as after the seconds in which the registry has named no `previous`."""
    monkeypatch.setattr(roles, "_NAMING_SECONDS", -1.0)


def swap(server: Inside, folder: Path) -> None:
    server.context.roles._source._folders["champion"] = folder  # type: ignore[attr-defined]
    server.context.roles.refresh()


@pytest.mark.usefixtures("no_standby")
def test_an_episode_stays_with_its_version_until_it_ends(
    start: Callable[..., Inside], policy: ServedPolicy, folder: Path, other: Path
) -> None:
    server, newer = start(), ServedPolicy.load(other)
    found = [decide(server, one) for one in FIRST[:2]]
    swap(server, other)
    requests = [{"agent_id": name, "episode_id": "one", "observation": FIRST[2]} for name in ("a", "b")]
    kept, fresh = server.ask("POST", "/decide", {"requests": requests}).json()["decisions"]
    assert (kept["version"], fresh["version"]) == (str(folder), str(other))
    assert (fresh["action"], fresh["value"]) == played(newer, FIRST[2:3])[0]
    found.append((kept["action"], kept["value"]))
    server.context.roles.refresh()
    found += [decide(server, one) for one in FIRST[3:5]]
    last = ask(server, FIRST[5]).json()
    assert [*found, (last["action"], last["value"])] == played(policy, FIRST)
    assert server.context.roles.current.draining.keys() == {str(folder)}
    server.ask("POST", "/feedback", {"decision_id": last["decision_id"], "reward": 1.0, "truncated": True})
    server.context.roles.refresh()
    assert server.context.roles.current.versions() == {str(other)}
    assert ask(server, FIRST[0]).json()["version"] == str(other)
    assert LogRecomputation().run("p").equal


@pytest.mark.usefixtures("no_standby")
def test_an_episode_whose_version_is_gone_begins_anew_and_its_record_says_so(
    start: Callable[..., Inside], folder: Path, other: Path
) -> None:
    decide(start(), FIRST[0])
    server = start()
    swap(server, other)
    server.context.roles.refresh()  # nobody asked meanwhile, so the former version has no episode that is awake
    found = [decide(server, one) for one in FIRST[1:3]]
    assert found == played(ServedPolicy.load(other), FIRST[1:3])
    marks = [entry["memory"] for entry in decisions()]
    assert [mark["step"] for mark in marks] == [0, 0, 1]
    assert [mark.get("restarted_from") for mark in marks] == [None, str(folder), None]


def test_a_version_that_a_person_pins_decides_while_it_is_pinned(
    start: Callable[..., Inside], policy: ServedPolicy, folder: Path, other: Path
) -> None:
    server, pinned = start(), ServedPolicy.load(other)
    assert [decide(server, one) for one in FIRST[:2]] == played(policy, FIRST)[:2]
    override = {"version": str(other), "agent_id": "a", "person": "Ada", "reason": "test"}
    assert server.ask("POST", "/override", override).status_code == 201
    assert [decide(server, one) for one in FIRST[2:4]] == played(pinned, FIRST[2:4])
    server.ask("DELETE", "/override")
    assert [decide(server, one) for one in FIRST[4:6]] == played(policy, FIRST[4:6])
    marks = [entry["memory"] for entry in decisions()]
    former = [mark.get("restarted_from") for mark in marks]
    assert former == [None, None, str(folder), None, str(other), None]


def test_a_recurrent_version_stands_in_for_no_single_decision(
    start: Callable[..., Inside], loomrl_home: Path, tmp_path: Path, other: Path
) -> None:
    folder = recurrent_folder(tmp_path / "limited")
    limit = {"name": "few", "quantity": "action", "low": None, "high": 2.0}
    write_json(folder / "manifest.json", read_json(folder / "manifest.json") | {"constraints": [limit]})
    server = start()
    swap(server, folder)
    plan = {"fallback": {"version": str(other)}, "person": "Ada", "reason": "test"}
    assert server.ask("PUT", "/plan", plan).is_success
    server.context.roles.refresh()
    refused = ask(server, FIRST[0])
    assert (refused.status_code, "is recurrent: it cannot stand in" in refused.json()["error"]) == (503, True)


# --- protocols and the shadow -----------------------------------------------------------------------------------


def test_the_inference_protocol_keeps_the_memory_in_the_server(
    start: Callable[..., Inside], policy: ServedPolicy
) -> None:
    server = start()
    metadata = server.ask("GET", "/v2/models/p").json()
    assert [one["name"] for one in metadata["inputs"]] == ["observation"]
    assert "state_out" not in [one["name"] for one in metadata["outputs"]]
    values = []
    for one in FIRST:
        tensor = {"name": "observation", "datatype": "FP32", "shape": [1, 3], "data": one}
        document = {"inputs": [tensor], "parameters": {"agent_id": "a", "episode_id": "one"}}
        answer = server.ask("POST", "/v2/models/p/infer", document).json()
        values += [output["data"][0] for output in answer["outputs"] if output["name"] == "value"]
    assert values == pytest.approx([value for _, value in played(policy, FIRST)], rel=1e-6)
    tensor = {"name": "observation", "datatype": "FP32", "shape": [2, 3], "data": FIRST[0] + FIRST[1]}
    document = {"inputs": [tensor], "parameters": {"agent_id": "a", "episode_id": "two"}}
    assert server.ask("POST", "/v2/models/p/infer", document).status_code == 400


def test_a_recurrent_challenger_remembers_what_it_is_shown(loomrl_home: Path, folder: Path, other: Path) -> None:
    challenger = ServedPolicy.load(other)
    with ServerProcess("p", champion_folder=folder, challenger_folder=other) as server, server.client() as client:
        wait_for(lambda: client.status()["shadow"]["pid"] is not None, _PATIENCE)
        for mine, yours in zip(FIRST, SECOND, strict=True):
            client.decide("a", mine, episode_id="one")
            client.decide("b", yours, episode_id="one")
        wait_for(lambda: client.status()["shadow"]["num_pending"] == 0, _PATIENCE)
    mirrored = [entry for entry in records("p") if entry["kind"] == "shadow"]
    for agent_id, observed in (("a", FIRST), ("b", SECOND)):
        values = [entry["value"] for entry in mirrored if entry["agent_id"] == agent_id]
        assert values == [value for _, value in played(challenger, observed)]


def test_policies_without_memory_need_no_episode(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path)
    with Inside(ServerSettings("cartpole", folders={"champion": folder})) as server:
        assert server.decide("a", OBSERVATIONS[0].tolist()).status_code == 200
        (entry,) = (entry for entry in records("cartpole") if entry["kind"] == "decision")
        assert "memory" not in entry
        assert (ServedPolicy.load(folder).memory_size, MEMORY) == (0, 12)
