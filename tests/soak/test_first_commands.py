"""A sample of `first_commands`: a first command that is killed at some of its operations, and at a moment."""

import random
from pathlib import Path

import pytest

from tests.soak import first_commands


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
