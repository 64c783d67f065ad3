"""A decision reads the same whether it was asked for alone or with others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.serving.client import Ask, PolicyClient
from loomrl.serving.history import find_decision, records
from loomrl.serving.records import row_of

WHEN = ("timestamp", "seconds", "decision_id", "sequence", "previous_hash", "hash", "row")


@pytest.fixture(autouse=True)
def _home(server_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOMRL_HOME", str(server_home))


def told(entry: dict[str, Any]) -> dict[str, Any]:
    """All of a record but when and where it was written, and numbers as the graph sees them."""
    rest = {key: value for key, value in entry.items() if key not in WHEN}
    return rest | {key: np.float32(rest[key]).tolist() for key in ("observation", "value", "q_value")}


def test_decisions_of_one_request_read_as_single_ones(client: PolicyClient) -> None:
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    asks = [Ask(f"agent-{row % 2}", obs, episode_id="e" if row else None) for row, obs in enumerate(observations)]
    together = client.decide_many(asks)
    alone = [client.decide(ask.agent_id, ask.observation, ask.episode_id) for ask in asks]
    assert [one.action for one in together] == [one.action for one in alone]
    for one, other in zip(together, alone, strict=True):
        first, second = find_decision(one.decision_id), find_decision(other.decision_id)
        assert first is not None
        assert second is not None
        assert told(first) == told(second)
        assert first["decision_id"] == one.decision_id
        assert first["row"] == row_of(one.decision_id, 5)
    by_id = {entry["decision_id"] for entry in records() if entry["kind"] == "decision"}
    assert {one.decision_id for one in together} <= by_id
    assert find_decision(together[0].decision_id.partition(".")[0]) is None
    assert find_decision(together[0].decision_id + "9") is None


def test_a_request_of_several_names_the_one_that_is_wrong(client: PolicyClient) -> None:
    good = [0.0, 0.0, 0.0, 0.0]
    for bad, message in (([0.0], r"requests\[2\]: `observation` has shape \[1\]"), ([0.0] * 3 + [1e39], "finite")):
        with pytest.raises(Exception, match=message):
            client.decide_many([Ask("a", good), Ask("b", good), Ask("c", bad)])


def test_what_was_asked_with_others_gets_its_own_feedback(client: PolicyClient) -> None:
    decisions = client.decide_many([Ask("a", [0.0] * 4), Ask("b", [0.1] * 4)])
    client.feedback(decisions[1].decision_id, 2.5, terminated=True)
    (entry,) = [
        one for one in records() if one["kind"] == "feedback" and one["decision_id"] == decisions[1].decision_id
    ]
    assert (entry["agent_id"], entry["reward"]) == ("b", 2.5)
