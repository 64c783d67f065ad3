"""A server that is killed -9 in the middle of a request: before it writes, half-way through, or before it answers.

Whoever hears nothing asks again under the same request id, and there is one decision.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from loomrl.errors import ServiceError
from loomrl.serving.client import Ask, Decision, PolicyClient, Refused
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import records
from loomrl.storage.audit.verification import verify_chain
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.startup_code import environment_with

OBS = OBSERVATIONS[0].tolist()
ASKS = [Ask(f"agent-{number}", OBS, "e", explore=True, request_id="doomed") for number in range(5)]

# The server's own writing, of its first record that says DOOMED; the process that comes after it lives.
DIES = """
import os, pathlib, signal
write, mark = os.write, pathlib.Path({mark!r})

def write_and_die(handle, data):
    if {doomed!r} not in bytes(data) or mark.exists():
        return write(handle, data)
    mark.touch()
    write(handle, data[: round({share} * len(data))])
    os.kill(os.getpid(), signal.SIGKILL)

os.write = write_and_die
"""


class Doomed:
    """Servers of one policy and one log; the first of them dies when `share` of its doomed record is written."""

    def __init__(self, folder: Path, share: float, doomed: bytes = b"doomed") -> None:
        code = DIES.format(mark=str(folder / "has died"), doomed=doomed, share=share)
        self._environment = environment_with(code, folder / "code")
        self._policy = discrete_folder(folder / "policy")

    def server(self) -> ServerProcess:
        return ServerProcess("cartpole", champion_folder=self._policy, environment=self._environment)

    def kill_in(self, request: Callable[[PolicyClient], object]) -> None:
        """Send a request that is not answered."""
        with self.server() as server, server.client() as client:
            with pytest.raises(ServiceError, match="cannot be reached") as nothing:
                request(client)
            assert not isinstance(nothing.value, Refused)
            assert server.process is not None
            assert server.process.wait(30) == -9


def decide(client: PolicyClient) -> list[Decision]:
    return [client.decide(ASKS[0].agent_id, OBS, "e", explore=True, request_id="doomed")]


def decide_many(client: PolicyClient) -> list[Decision]:
    return client.decide_many(ASKS)


def doomed_decisions() -> list[tuple[str, str, int]]:
    found = [entry for entry in records("cartpole") if entry["kind"] == "decision" and entry["request_id"] == "doomed"]
    return [(entry["agent_id"], entry["decision_id"], entry["action"]) for entry in found]


@pytest.mark.parametrize(
    ("request_of", "share", "is_written"),
    [(decide, 1.0, True), (decide_many, 0.0, False), (decide_many, 0.5, False), (decide_many, 1.0, True)],
)
@pytest.mark.long_cases("decide-1.0-True", "decide_many-0.0-False", "decide_many-1.0-True")
def test_a_decision_is_taken_once(
    loomrl_home: Path,
    tmp_path: Path,
    request_of: Callable[[PolicyClient], list[Decision]],
    share: float,
    is_written: bool,
) -> None:
    doomed = Doomed(tmp_path, share)
    doomed.kill_in(request_of)
    with doomed.server() as server, server.client() as client:
        before = doomed_decisions()
        assert bool(before) is is_written
        told = request_of(client)
        assert told == request_of(client)
    on_record = doomed_decisions()
    assert on_record == [
        (ask.agent_id, one.decision_id, one.action) for ask, one in zip(ASKS[: len(told)], told, strict=True)
    ]
    assert before in ([], on_record)
    report = verify_chain(loomrl_home / "audit" / "cartpole" / "server-0")
    assert report.intact, report.findings
    assert bool(report.notes) is (share == 0.5)  # the torn half, cut and kept


@pytest.mark.parametrize(("share", "is_written"), [(0.5, False), (1.0, True)])
@pytest.mark.long_cases("1.0-True")
def test_a_reward_counts_once(loomrl_home: Path, tmp_path: Path, share: float, is_written: bool) -> None:
    doomed = Doomed(tmp_path, share, doomed=b'"kind":"feedback"')
    decisions: list[str] = []

    def reward(client: PolicyClient) -> None:
        decisions.append(client.decide("a", OBS).decision_id)
        client.feedback(decisions[0], 2.5)

    doomed.kill_in(reward)
    with doomed.server() as server, server.client() as client:
        if is_written:
            with pytest.raises(Refused, match="has its feedback already"):
                client.feedback(decisions[0], 2.5)
        else:
            client.feedback(decisions[0], 2.5)
    rewards = [(entry["decision_id"], entry["reward"]) for entry in records() if entry["kind"] == "feedback"]
    assert rewards == [(decisions[0], 2.5)]
    assert verify_chain(loomrl_home / "audit" / "cartpole" / "server-0").intact
