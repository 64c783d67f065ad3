"""`loomrl compare` on versions that are registered and logs as servers write them."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from loomrl.cli.main import app
from loomrl.errors import ConfigError
from loomrl.promotion.comparison.compare import VersionComparison
from loomrl.storage.audit.heads import anchor
from loomrl.storage.audit.log import AuditLog, ChainHead
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHALLENGER as CHALLENGING
from loomrl.storage.registry import CHAMPION as ACTING
from loomrl.storage.registry import Registry
from loomrl.system.home import home
from tests.support.side_by_side import dealt
from tests.support.simulated_logs import CHALLENGER, CHAMPION, Bandit, decide, greedy, register_linear, write_log

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _two_versions(ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    registry = Registry()
    register_linear(tmp_path / "one", CHAMPION, registry, [0.0, 1.0])
    register_linear(tmp_path / "two", CHALLENGER, registry, [0.0, 1.0])
    registry.set_aliases("cartpole", {ACTING: "1", CHALLENGING: "2"})


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments], env={"COLUMNS": "200"})


def log_both(number: int, epsilon: float = 0.2) -> None:
    """Explored episodes of the champion, and as many of either version without exploration."""
    world, log = Bandit(), AuditLog("cartpole")
    explored = world.log(np.random.default_rng(1), number, partial(greedy, weights=CHAMPION, epsilon=epsilon))
    write_log(log, explored, "explorer")
    for agent, version in enumerate(dealt(np.random.default_rng(3), number)):
        rng, weights = np.random.default_rng(agent), CHAMPION if version == "1" else CHALLENGER
        (own,) = world.log(rng, 1, partial(greedy, weights=weights))
        own.deciders, own.asked, own.explored = [version], [False], [False]
        write_log(log, [own], f"agent {agent}", experiment="e", dealt=version, shares={"1": 0.5, "2": 0.5})
    log.close()


def test_tables_for_a_person_and_a_document_for_machines() -> None:
    log_both(300)
    shown = run("cartpole", "champion", "challenger")
    assert shown.exit_code == 0, shown.output
    for words in ("version 2 beside 1, live", "reward", "limits.pole_stays_up", "doubly robust", "worth"):
        assert words in shown.output
    path = home() / "comparisons" / "cartpole-1-2.json"
    assert f"written: {path}" in shown.output
    kept = VersionComparison.read(path)
    assert json.loads(run("cartpole", "1", "2", "--json").output) == kept.to_json()
    live = kept.live.of("reward")
    assert live is not None
    assert (live.num_champion + live.num_challenger, live.least, live.greatest) == (300, 0.0, 1.0)
    assert (kept.live.experiments, kept.live.logs) == (["e"], ["cartpole/server-0"])
    assert "logs read: cartpole/server-0; experiments: e" in shown.output
    assert kept.off_policy.num_episodes == 300
    assert kept.off_policy.estimates[0].value == pytest.approx(0.73, abs=0.2)


def test_agents_that_hang_are_told_with_the_setting_that_gives_them_up() -> None:
    log_both(30)
    assert "not known yet" not in run("cartpole", "1", "2").output
    log = AuditLog("cartpole")
    decide(log, "hangs", "for ever", [0.0, 0.0, 0.0, 0.0], "1", experiment="e", dealt="1", shares={"1": 0.5, "2": 0.5})
    log.close()
    shown = run("cartpole", "1", "2").output
    assert "agents whose value is not known yet: 1;" in shown
    assert "`promotion.comparison.longest_episode_seconds` gives up" in shown


def test_a_log_of_another_host_that_is_not_here_leaves_everything_undecided() -> None:
    log_both(100)
    with LoomDB.open() as db:
        anchor(db, ChainHead("cartpole/robot-7-server-0", "000001", 12, "0" * 64))
    shown = run("cartpole", "1", "2")
    assert shown.exit_code == 0, shown.output
    assert "nothing is claimed: the log cartpole/robot-7-server-0 of" in shown.output
    assert "LOOMRL_AUDIT_FOLDERS" in shown.output
    kept = VersionComparison.read(home() / "comparisons" / "cartpole-1-2.json")
    assert {one.finding for one in kept.live.differences} == {"undecided"}
    assert (kept.off_policy.estimates, kept.off_policy.improvement) == ([], None)
    assert kept.off_policy.refused == kept.live.refused
    assert "refused: the log cartpole/robot-7-server-0 of" in shown.output


def test_one_quantity_has_the_whole_level() -> None:
    log_both(50)
    run("cartpole", "1", "2", "--on", "reward")
    kept = VersionComparison.read(home() / "comparisons" / "cartpole-1-2.json")
    assert [one.quantity for one in kept.live.differences] == ["reward"]
    unknown = run("cartpole", "1", "2", "--on", "speed")
    assert isinstance(unknown.exception, ConfigError)


def test_an_empty_log_compares_nothing_and_says_so() -> None:
    shown = run("cartpole", "1", "2")
    assert shown.exit_code == 0, shown.output
    assert "undecided" in shown.output
    assert "nothing is claimed: no experiment dealt agents to both 1 and 2" in shown.output
    assert "refused: the log has no whole episode that version 1 alone decided" in shown.output


def test_a_version_is_not_compared_with_itself() -> None:
    assert "both are version 1 of cartpole" in str(run("cartpole", "1", "champion").exception)
