"""`loomrl audit`: the name that a command had before warns and does the same."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.main import app


@pytest.mark.parametrize("name", ["recompute", "replay"])
def test_recomputing_had_another_name_which_warns(name: str, loomrl_home: Path) -> None:
    result = CliRunner().invoke(app, ["audit", name, "--json"])
    assert result.exit_code == 0, result.output
    assert '"num_decisions": 0' in result.stdout
    assert ("loomrl audit replay is loomrl audit recompute now" in result.stderr) == (name == "replay")
