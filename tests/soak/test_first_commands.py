"""A sample of `first_commands`: a first command that is killed at some of its operations, and at a moment."""

import json
import random
from pathlib import Path

import pytest

from tests.soak import first_commands
from tests.soak.first_commands import NUM_KILLS, RESULTS


def test_a_home_works_after_a_first_command_was_killed_amid_the_tables(tmp_path: Path) -> None:
    with first_commands.forking(tmp_path) as server:
        assert first_commands.strike(server, tmp_path / "home", at=100)["killed"]


def test_every_operation_was_interrupted_and_each_home_worked() -> None:
    kept = {key: one["value"] for key, one in json.loads(RESULTS.read_text())["results"].items()}
    whole = kept.pop("whole")
    operations = {f"operation {at}" for at in range(1, whole["operations"] + 1)}
    assert kept.keys() == operations | {f"moment {number}" for number in range(NUM_KILLS)}
    assert (whole["code"], whole["error"]) == (0, "")
    assert [key for key in operations if not kept[key]["killed"]] == []


@pytest.mark.long
def test_a_home_works_after_a_first_command_was_killed(tmp_path: Path) -> None:
    rng = random.Random(first_commands.SEED)
    with first_commands.forking(tmp_path) as server:
        whole = first_commands.ask(server, tmp_path / "home")
        assert whole["code"] == 0, whole["error"]
        third = whole["operations"] // 3
        for part in range(3):  # MLflow's tables, LoomDB's, what comes then
            at = rng.randint(1 + part * third, (part + 1) * third)
            assert first_commands.strike(server, tmp_path / "home", at=at)["killed"]
        first_commands.strike(server, tmp_path / "home", after=rng.uniform(0, whole["seconds"]))
