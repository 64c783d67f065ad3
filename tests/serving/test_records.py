"""A decision reads the same whether it was asked for alone or with others."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.serving.client import Ask, PolicyClient
from loomrl.storage.audit.history import chains, find_decision, records
from loomrl.storage.audit.records import action_hashes, column, digest, expand, record_of, row_of
from loomrl.storage.audit.segments import lines, segments
from loomrl.system.files import sha256

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


KEYS = ("timestamp", "agent_id", "action_hash", "reward", "q_value", "exploration_flag")


def stored(decision_id: str) -> dict[str, Any]:
    """The record as it stands in the file."""
    (found,) = (
        json.loads(line)
        for folder in chains("cartpole")
        for path in segments(folder)
        for line in lines(path)
        if f'"decision_id":"{record_of(decision_id)}"'.encode() in line and line.startswith(b'{"kind":"decision')
    )
    return found


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_stored_has_the_keys_of_the_specification(client: PolicyClient, count: int) -> None:
    decisions = client.decide_many([Ask(f"a{row}", [0.1 * row, 0.0, 0.2 - 0.2 * row, 0.0]) for row in range(count)])
    entry = stored(decisions[0].decision_id)
    held = entry if count == 1 else {**entry, **entry["shared"], **entry["columns"]}
    assert [key for key in KEYS if key not in held] == []
    hashes = [sha256(np.asarray(one.action, np.int64).tobytes()) for one in decisions]
    assert column(entry, "action_hash") == hashes
    assert column(entry, "q_value") == column(entry, "value") == [one.value for one in decisions]
    assert column(entry, "reward") == [None] * count


def test_hashes_of_vectors_stand_one_by_one() -> None:
    action = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert action_hashes(action) == [digest(row) for row in action]


def test_records_of_several_from_before_have_the_same_keys_when_read(client: PolicyClient) -> None:
    """They held no hash of the action, and what the policy expected as `value` alone."""
    decisions = client.decide_many([Ask(f"a{row}", [0.1 * row, 0.0, 0.2 - 0.2 * row, 0.0]) for row in range(3)])
    now = stored(decisions[0].decision_id)
    columns = {name: values for name, values in now["columns"].items() if name not in ("action_hash", "q_value")}
    shared = {name: value for name, value in now["shared"].items() if name not in ("reward", "action_hash", "q_value")}
    for name in ("shared", "columns"):
        if "q_value" in now[name]:
            (shared if name == "shared" else columns)["value"] = now[name]["q_value"]
    before = now | {"shared": shared, "columns": columns}
    assert list(expand(before)) == list(expand(now))
