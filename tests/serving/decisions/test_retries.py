"""A request that is sent again under its id gets the decision it had, and none twice."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from loomrl.serving.client import PolicyClient
from loomrl.serving.decisions.requests import DecisionRequests
from loomrl.serving.decisions.retries import Retries
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import records
from loomrl.system.http.problems import Problem
from loomrl.system.security.encryption import KEYS, new_entry
from tests.support.policies import OBSERVATIONS, continuous_folder

OBS = OBSERVATIONS[0].astype(np.float64).tolist()


def ask(client: PolicyClient, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
    asked = {"agent_id": "a", "observation": OBS, "explore": True, **fields}
    return httpx.post(f"{client.url}/decide", json=asked, headers=headers, trust_env=False)


def on_record() -> Counter[tuple[str, str | None]]:
    found = [entry for entry in records() if entry["kind"] == "decision"]
    return Counter((entry["agent_id"], entry["request_id"]) for entry in found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return continuous_folder(tmp_path_factory.mktemp("policies") / "policy")


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyClient]:
    home = str(tmp_path_factory.mktemp("home"))
    server = ServerProcess("hopper", champion_folder=folder, environment={"LOOMRL_HOME": home})
    with server, server.client() as client:
        yield client


def test_asked_again_it_is_the_same_decision_also_after_a_crash(
    loomrl_home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS, new_entry("k"))
    several = {"requests": [{"agent_id": f"{row}", "observation": OBS, "request_id": "r"} for row in range(3)]}
    with ServerProcess("hopper", champion_folder=folder) as server, server.client() as client:
        first = ask(client, request_id="r-1").json()
        assert ask(client, request_id="r-1").json() == first
        assert ask(client, request_id="r-2").json() != first
        assert ask(client, request_id="r-1", agent_id="b").json()["decision_id"] != first["decision_id"]
        together = httpx.post(f"{client.url}/decide", json=several, trust_env=False).json()
        os.kill(server.process.pid, signal.SIGKILL)
    with ServerProcess("hopper", champion_folder=folder) as server, server.client() as client:
        assert ask(client, request_id="r-1").json() == first
        several["requests"].append({"agent_id": "3", "observation": OBS, "request_id": "r"})
        again = httpx.post(f"{client.url}/decide", json=several, trust_env=False).json()
        assert again["decisions"][:3] == together["decisions"]
        client.feedback(first["decision_id"], 1.0)
    assert set(on_record().values()) == {1}
    assert len(on_record()) == 7


def test_inference_puts_its_id_on_record_and_is_asked_anew(served: PolicyClient) -> None:
    tensor = {"name": "observation", "datatype": "FP32", "shape": [2, 4], "data": OBS * 2}
    url = f"{served.url}/v2/models/hopper/infer"
    answers = [httpx.post(url, json={"id": "v2", "inputs": [tensor]}, trust_env=False).json() for _ in range(2)]
    decided = [answer["parameters"]["decision_ids"] for answer in answers]
    assert decided[0] != decided[1]
    served.decide("client", OBS, request_id="v2")
    assert served.decide("client", OBS, request_id="v2") == served.decide("client", OBS, request_id="v2")


def test_a_header_names_all_rows_of_a_request(loomrl_home: Path, folder: Path) -> None:
    with ServerProcess("hopper", champion_folder=folder) as server, server.client() as client:
        first = ask(client, {"X-Request-Id": "h"}).json()
        assert ask(client, {"X-Request-Id": "h"}).json() == first
        rows = {"requests": [{"agent_id": "a", "observation": OBS}, {"agent_id": "a", "observation": OBS}]}
        rows["requests"][1]["request_id"] = "own"
        for _ in range(2):
            httpx.post(f"{client.url}/decide", json=rows, headers={"X-Request-Id": "h"}, trust_env=False)
    assert on_record() == {("a", "h"): 1, ("a", "h.0"): 1, ("a", "own"): 1}


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"observation": [0.0] * 4}, 409),
        ({"episode_id": "other"}, 409),
        ({"request_id": "line\nbreak"}, 400),
        ({"request_id": 7}, 400),
        ({"request_id": ""}, 400),
    ],
)
def test_another_question_needs_another_id(served: PolicyClient, changed: dict[str, object], status: int) -> None:
    assert ask(served, request_id="taken").status_code == 200
    refused = ask(served, **{"request_id": "taken", **changed})
    assert refused.status_code == status
    assert "request" in refused.json()["error"]


def test_what_is_malformed_is_no_other_question(served: PolicyClient) -> None:
    """It is refused before anything is looked up."""
    assert ask(served, request_id="whole").status_code == 200
    assert ask(served, request_id="whole", observation=[[1.0], 2.0]).status_code == 400


def test_false_is_another_question_than_0(served: PolicyClient) -> None:
    assert ask(served, request_id="zeros", observation=[0, 0, 0, 0]).status_code == 200
    for observation in ([False, 0, 0, 0], ["0", 0, 0, 0]):
        assert ask(served, request_id="zeros", observation=observation).status_code == 409


def test_a_number_beyond_float32_is_another_question_and_nothing_to_warn_of() -> None:
    retries = Retries()
    retries.remember(DecisionRequests(["a"], [None], [False], [[0.0]], ["1"]), [{"decision_id": "0"}])
    with pytest.raises(Problem, match="another question"):
        retries.find(DecisionRequests(["a"], [None], [False], [[1e39]], ["1"]))


def test_two_rows_of_one_agent_cannot_share_an_id(served: PolicyClient) -> None:
    row = {"agent_id": "twin", "observation": OBS, "request_id": "same"}
    refused = httpx.post(f"{served.url}/decide", json={"requests": [row, row]}, trust_env=False)
    assert refused.status_code == 400
    assert "same `request_id`" in refused.json()["error"]


def test_the_oldest_are_forgotten_first() -> None:
    retries = Retries(capacity=2)
    requests = DecisionRequests(["a"] * 3, [None] * 3, [False] * 3, [[0.0]] * 3, ["1", "2", "3"])
    retries.remember(requests, [{"decision_id": str(row)} for row in range(3)])
    assert retries.find(requests) == {1: {"decision_id": "1"}, 2: {"decision_id": "2"}}
