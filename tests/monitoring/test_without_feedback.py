"""Nobody says what came of the decisions: what needs rewards stays undecided, and nothing is rolled back."""

import time
from pathlib import Path

import httpx

from loomrl.serving.client import Ask
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import records
from tests.support.policies import OBSERVATIONS, discrete_folder
from tests.support.projects import until


def test_two_versions_without_any_feedback_both_go_on(loomrl_home: Path, tmp_path: Path) -> None:
    champion, trial = (discrete_folder(tmp_path / name, value=value) for name, value in (("a", 1.0), ("b", 2.0)))
    asks = [Ask(f"agent-{number}", OBSERVATIONS[number % 8]) for number in range(100)]
    with ServerProcess("cartpole", champion_folder=champion, rate=1e6) as server, server.client() as client:
        client.set_plan(split={str(trial): 0.5}, person="Ada", reason="test")
        for _ in range(10):
            decided = {decision.version for decision in client.decide_many(asks)}
            time.sleep(0.01)
        shown = lambda: httpx.get(f"{server.url}/monitors", trust_env=False).json()  # noqa: E731
        until(lambda: sum(one["num_decisions"] for one in shown()["versions"].values()) == 1_000, "the monitors")
        found = shown()
    assert decided == {str(champion), str(trial)}
    for version in decided:
        reward = found["versions"][version]["monitors"]["reward"]
        assert (reward["num_values"], reward["e_value"]) == (0, 1.0)
        assert found["versions"][version]["monitors"]["shield"]["num_values"] > 300
    assert found["quarantined"] == []
    assert [entry for entry in records("cartpole") if entry["kind"] == "rollback"] == []
