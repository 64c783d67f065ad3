"""Requests that arrive together are decided together, and none of them notices."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from loomrl.serving.decisions.requests import DecisionRequests
from loomrl.serving.process import ServerProcess
from loomrl.serving.recomputation import LogRecomputation
from loomrl.storage.audit.history import records
from loomrl.storage.audit.verification import verify_chain
from tests.support.policies import OBSERVATIONS, discrete_folder, recurrent_folder

ROWS = [[float(number) for number in row] for row in OBSERVATIONS]


@pytest.fixture
def server(loomrl_home: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """One champion; an agent has ten decisions to begin with, and gets hardly any more."""
    champion = discrete_folder(tmp_path / "champion")
    with ServerProcess("cartpole", champion_folder=champion, rate=0.001, burst=10) as started:
        yield started


def decide(agent: str, observation: Any = None, **more: Any) -> tuple[str, dict[str, Any]]:
    """A request for one decision: path and body."""
    return "/decide", {"agent_id": agent, "observation": ROWS[0] if observation is None else observation, **more}


def infer(rows: Sequence[list[float]], agent: str) -> tuple[str, dict[str, Any]]:
    """A request for several, by the inference protocol."""
    data = [number for row in rows for number in row]
    tensor = {"name": "observation", "shape": [len(rows), 4], "datatype": "FP32", "data": data}
    return "/v2/models/cartpole/infer", {"inputs": [tensor], "parameters": {"agent_id": agent}}


def written(path: str, body: dict[str, Any]) -> bytes:
    """A request as it crosses the wire."""
    text = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(text), text)


def read_answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The next answer: its status and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1)
    head = data.decode().lower()
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    body = b""
    while len(body) < length:
        body += connection.recv(length - len(body))
    return int(head.split(" ")[1]), json.loads(body)


def connect(server: ServerProcess) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def ask_at_once(
    server: ServerProcess, requests: Sequence[tuple[str, dict[str, Any]]]
) -> list[tuple[int, dict[str, Any]]]:
    """Send each on a connection of its own while the server sleeps, so that it wakes to all of them."""
    assert server.process is not None
    connections = [connect(server) for _ in requests]
    for connection in connections:  # accepted, and known to the event loop
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(connection)[0] == 200
    os.kill(server.process.pid, signal.SIGSTOP)
    for connection, request in zip(connections, requests, strict=True):
        connection.sendall(written(*request))
    time.sleep(0.05)  # loopback delivers
    os.kill(server.process.pid, signal.SIGCONT)
    answers = [read_answer(connection) for connection in connections]
    for connection in connections:
        connection.close()
    return answers


def recorded(kind: str) -> list[dict[str, Any]]:
    """The records of a kind as they stand in the log."""
    (folder,) = (Path(os.environ["LOOMRL_HOME"]) / "audit" / "cartpole").glob("server-*")
    lines = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_what_arrives_together_is_decided_together(server: ServerProcess, loomrl_home: Path) -> None:
    with server.client() as client:
        alone = [client.decide(f"alone-{n}", ROWS[n % 8]) for n in range(24)]
    answers = ask_at_once(server, [decide(f"a{n}", ROWS[n % 8], episode_id=f"e{n}") for n in range(24)])
    assert [status for status, _ in answers] == [200] * 24
    assert [answer["action"] for _, answer in answers] == [one.action for one in alone]
    assert [answer["value"] for _, answer in answers] == [one.value for one in alone]  # bit for bit
    num_alone = len(recorded("decision")) - len(alone)
    assert num_alone + len(recorded("decisions")) < 12, "they were decided one by one"
    by_id = {entry["decision_id"]: entry for entry in records("cartpole") if entry["kind"] == "decision"}
    for number, (_, answer) in enumerate(answers):
        entry = by_id[answer["decision_id"]]
        assert (entry["agent_id"], entry["episode_id"]) == (f"a{number}", f"e{number}")
        assert entry["action"] == answer["action"]
        np.testing.assert_array_equal(np.float32(entry["observation"]), OBSERVATIONS[number % 8])
    with server.client() as client:
        for _, answer in answers:
            client.feedback(answer["decision_id"], 1.0)
    statistics = httpx.get(f"{server.url}/v2/models/cartpole/stats").json()["model_stats"][0]
    assert (statistics["inference_count"], statistics["inference_stats"]["success"]["count"]) == (48, 48)
    assert statistics["execution_count"] == len(recorded("decision")) + len(recorded("decisions"))
    assert server.stop() == 0
    assert verify_chain(loomrl_home / "audit" / "cartpole" / "server-0").intact


def test_what_is_wrong_with_one_request_is_not_the_others_problem(server: ServerProcess) -> None:
    ask_at_once(server, [decide("hasty") for _ in range(10)])
    good = [decide(f"good-{n}", ROWS[n]) for n in range(8)]
    bad = [
        decide("short", [1.0]),
        decide("text", ["1", "2", "3", "4"]),
        decide("far", [1e39, 0.0, 0.0, 0.0]),
        decide("hasty"),
        ("/decide", {"requests": [decide("greedy")[1] for _ in range(11)]}),
        ("/decide", {"agent_id": "", "observation": ROWS[0]}),
        infer([[1.0]], "v"),
    ]
    mixed = [request for pair in zip(good, bad, strict=False) for request in pair] + good[len(bad) :]
    answers = ask_at_once(server, [*mixed, infer(ROWS[:3], "v3"), infer(ROWS[3:5], "v2")])
    assert [status for status, _ in answers[1 : 2 * len(bad) : 2]] == [400, 400, 400, 429, 413, 400, 400]
    assert [status for status, _ in answers[0 : 2 * len(bad) : 2]] == [200] * len(bad)
    assert [status for status, _ in answers[2 * len(bad) :]] == [200] * 3
    assert "shape [1]" in answers[1][1]["error"]
    assert "hasty" in answers[7][1]["error"]
    assert [len(answer["parameters"]["decision_ids"].split(",")) for _, answer in answers[-2:]] == [3, 2]
    decided = [entry for entry in records("cartpole") if entry["kind"] == "decision" and entry["agent_id"] != "hasty"]
    assert sorted(entry["agent_id"] for entry in decided) == sorted(
        [*(f"good-{n}" for n in range(8)), *["v3"] * 3, *["v2"] * 2]
    )


def test_answers_of_one_connection_leave_in_order(server: ServerProcess) -> None:
    asked = [decide("a", ROWS[n]) for n in range(3)] + [infer(ROWS[3:5], "b"), decide("a", [1.0]), decide("a", ROWS[5])]
    with connect(server) as connection:
        connection.sendall(b"".join(written(*request) for request in asked))
        answers = [read_answer(connection) for _ in asked]
    assert [status for status, _ in answers] == [200, 200, 200, 200, 400, 200]
    sequences = [recorded_in(answer) for status, answer in answers if status == 200]
    assert sequences == sorted(sequences)


def recorded_in(answer: dict[str, Any]) -> int:
    """The sequence of the record that an answer's first decision stands in."""
    first = answer["decision_id"] if "decision_id" in answer else answer["parameters"]["decision_ids"].split(",")[0]
    return int(first.partition("-")[2].partition(".")[0])


def test_a_request_that_is_half_read_is_answered_by_a_server_that_stops(server: ServerProcess) -> None:
    assert server.process is not None
    request = written(*decide("a"))
    with connect(server) as connection:
        connection.sendall(written(*decide("b")) + request[:-5])
        assert read_answer(connection)[0] == 200  # so the other one's head was read
        server.process.send_signal(signal.SIGTERM)
        while is_open(server):
            time.sleep(0.01)
        connection.sendall(request[-5:])
        status, answer = read_answer(connection)
        assert (status, connection.recv(1)) == (200, b"")
    assert answer["decision_id"] in {entry.get("decision_id") for entry in records("cartpole")}
    assert server.stop() == 0


def is_open(server: ServerProcess) -> bool:
    """Whether its port takes connections."""
    try:
        connect(server).close()
    except ConnectionRefusedError:
        return False
    return True


def test_explored_together_and_replayed(loomrl_home: Path, tmp_path: Path) -> None:
    champion = discrete_folder(tmp_path / "champion")
    with ServerProcess("cartpole", champion_folder=champion, seed=3, rate=1e6) as server:
        answers = ask_at_once(server, [decide(f"a{n}", ROWS[n % 8], explore=n % 2 == 0) for n in range(20)])
    assert {answer["exploration"] for _, answer in answers} == {True, False}
    report = LogRecomputation(folder=champion).run("cartpole")
    assert (report.num_equal, report.num_different) == (20, 0)


def test_recurrent_policies_are_asked_request_by_request(loomrl_home: Path, tmp_path: Path) -> None:
    folder = recurrent_folder(tmp_path / "policy")
    with ServerProcess("cartpole", champion_folder=folder, rate=1e6) as server:
        steps = [
            ask_at_once(server, [decide(f"a{n}", ROWS[step], episode_id="e") for n in range(4)]) for step in range(3)
        ]
    for step in steps:
        assert [status for status, _ in step] == [200] * 4
        assert len({(answer["action"], answer["value"]) for _, answer in step}) == 1


def test_who_reads_no_answers_is_not_read_from(server: ServerProcess) -> None:
    requests = written("/decide", {}) * 500_000  # whose answers are more than sockets hold
    with connect(server) as connection:
        connection.settimeout(4)
        with pytest.raises(TimeoutError):
            connection.sendall(requests)


def test_who_reads_late_gets_every_answer(server: ServerProcess) -> None:
    count = 30_000
    with connect(server) as connection:
        sender = threading.Thread(target=connection.sendall, args=(written("/decide", {}) * count,))
        sender.start()
        time.sleep(1)  # the server has met a full socket by then
        answers = read_until(connection, b"HTTP/1.1 400 ", count)
        sender.join()
    assert answers == count


def read_until(connection: socket.socket, mark: bytes, count: int) -> int:
    """Read until so many marks have come; how many did."""
    found, tail = 0, b""
    while found < count and (data := connection.recv(2**16)):
        text = tail + data
        found += text.count(mark)
        tail = text[-len(mark) + 1 :]
    return found


def test_what_was_asked_under_several_tokens_keeps_each_its_own() -> None:
    def asked(count: int, token: str | None) -> DecisionRequests:
        return DecisionRequests(["a"] * count, [None] * count, [False] * count, [[0.0]] * count, by_token=token)

    assert DecisionRequests.joined([asked(1, "fleet"), asked(2, "fleet")]).by_token == "fleet"
    assert DecisionRequests.joined([asked(1, None), asked(2, None)]).by_token is None
    mixed = DecisionRequests.joined([asked(1, "fleet"), asked(2, None), asked(1, "other")])
    assert mixed.by_token == ["fleet", None, None, "other"]
    assert mixed.only([3, 1]).by_token == ["other", None]
    assert DecisionRequests.joined([mixed, mixed]).by_token == ["fleet", None, None, "other"] * 2
