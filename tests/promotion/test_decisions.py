"""From a config, commit, snapshot, run or version to the decisions that came of it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from loomrl.cli.promotion import app
from loomrl.errors import ConfigError
from loomrl.promotion.decisions import config_sha256
from loomrl.promotion.lineage import PLUGINS_TAG
from loomrl.storage.audit.compaction import compact
from loomrl.storage.audit.keeper import AuditKeeper
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import decisions as several
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import Registry
from loomrl.storage.run_record import RunRecord, read_run, write_run
from loomrl.system.home import home
from tests.support.live import decide
from tests.support.policy_versions import config, register
from tests.support.template_home import at_home


def together(log: AuditLog, version: str, count: int) -> None:
    """One record of several decisions."""
    dtypes = {"observation": "float32", "action": "int64"}
    shared = {"count": count, "dtypes": dtypes, "policy": log.policy, "version": version, "override": None}
    shared |= {"observation": [0.0] * 4, "q_value": 0.5, "reward": None, "exploration_flag": False}
    columns = {"agent_id": ["shadow-1-0", *(f"a{row}" for row in range(1, count))], "action": list(range(count))}
    log.append([several(shared, columns)])


@pytest.fixture(scope="module")
def logged(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Versions 1 and 2 of runs of their own; decisions of both on two hosts, live and compacted."""
    folder = tmp_path_factory.mktemp("logged")
    with at_home(folder / "home", template_home):
        log_decisions(folder)
        yield folder


def log_decisions(folder: Path) -> None:
    for number, steps in ((1, 1_000), (2, 2_000)):
        plugins = f"plugin:descent@{number}{'0' * 63} plugin:thermostat@{'f' * 64}"
        version = register(folder, f"run-{number}", bias=float(number), tags={PLUGINS_TAG: plugins})
        document = config().model_dump(mode="json")
        document["training"]["total_env_steps"] = steps
        told = {"policy": "cartpole", "state": "promoted", "started": "2026", "version": version.version}
        write_run(RunRecord(run_id=f"run-{number}", config=document, git_commit=f"{number}" * 40, **told))
    for name in ("server-0", "server-1"):
        for _ in range(3):
            log = AuditLog("cartpole", name)
            decide(log, "a", "e", [0.0] * 4, version="1")
            together(log, "2", 3)
            decide(log, "a", "e", [0.0] * 4, version="1", override={"person": "ada"})
            with LoomDB.open() as db:
                AuditKeeper(log).anchor(lambda db=db: db)
            log.close()
    assert compact(log.folder)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["decisions", *arguments])


def counts(origin: str) -> dict[str, int]:
    found = json.loads(run(origin, "--json").stdout)
    assert found["missing"] == []
    return {one["version"]: one["num_decisions"] for one in found["versions"]}


def test_every_origin_leads_to_its_decisions(logged: Path) -> None:
    (digest,) = {one.tags["loomrl.snapshot_digest"] for one in Registry().versions("cartpole")}
    (logged / "cartpole.yaml").write_text(yaml.safe_dump(read_run("run-2").config))
    assert counts("cartpole@1") == {"1": 12}
    assert counts("policy:cartpole@2") == counts("run:run-2") == counts("commit:2222222") == {"2": 18}
    assert counts(f"config:{logged / 'cartpole.yaml'}") == {"2": 18}
    assert counts(f"config:{config_sha256(read_run('run-1'))[:12]}") == {"1": 12}
    assert counts(f"snapshot:{digest[:16]}") == {"1": 12, "2": 18}


def test_code_of_others_leads_to_the_decisions_of_what_was_made_with_it(logged: Path) -> None:
    assert counts("plugin:descent") == counts("plugin:thermostat") == counts("plugin:Thermostat") == {"1": 12, "2": 18}
    assert counts("plugin:descent@2") == counts(f"plugin:descent@2{'0' * 63}") == {"2": 18}


def test_counts_say_who_where_and_when(logged: Path) -> None:
    (version,) = json.loads(run("cartpole@1", "--json").stdout)["versions"]
    assert (version["num_decisions"], version["num_taken_over"], version["run_id"]) == (12, 6, "run-1")
    assert [one["chain"] for one in version["chains"]] == ["cartpole/server-0", "cartpole/server-1"]
    assert all(one["host"] and one["first"] < one["last"] for one in version["chains"])
    assert (version["first"], version["last"]) == (
        min(one["first"] for one in version["chains"]), max(one["last"] for one in version["chains"])
    )  # fmt: skip
    shown = run("cartpole@1").stdout
    assert "cartpole/server-1" in shown


def test_decisions_for_simulated_agents_are_told_apart(logged: Path) -> None:
    (none,) = json.loads(run("cartpole@1", "--json").stdout)["versions"]
    (some,) = json.loads(run("cartpole@2", "--json").stdout)["versions"]
    assert (none["num_simulated"], some["num_simulated"], some["num_decisions"]) == (0, 6, 18)
    assert [one["num_simulated"] for one in some["chains"]] == [3, 3]
    assert "simulated" in run("cartpole@2").stdout


def test_ids_come_in_pages(logged: Path) -> None:
    whole = [json.loads(line) for line in run("cartpole@2", "--ids", "--json").stdout.splitlines()]
    assert len({one["decision_id"] for one in whole}) == 18
    assert whole[0].keys() == {"decision_id", "policy", "version", "chain", "timestamp"}
    pages, after = [], []
    while page := run("cartpole@2", "--ids", "--limit", "4", *after).stdout.splitlines():
        pages += [line.split()[0] for line in page]
        after = ["--after", pages[-1]]
    assert pages == [one["decision_id"] for one in whole]


def test_a_log_that_is_not_here_is_named(logged: Path) -> None:
    chain, elsewhere = home() / "audit" / "cartpole" / "server-0", logged / "elsewhere"
    chain.rename(elsewhere)
    (missing,) = json.loads(run("cartpole@1", "--json").stdout)["missing"]
    elsewhere.rename(chain)
    assert "cartpole/server-0" in missing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["commit:9999999"], "no version came of 'commit:9999999'"),
        (["plugin:desc"], "no version came of 'plugin:desc'"),
        (["plugin:descent@3"], "no version came of 'plugin:descent@3'"),
        (["commit:2"], "7 characters or more"),
        (["config:nowhere"], "no version came of|no such file"),
        (["model:x"], r"expected POLICY\[@VERSION\], run:"),
        (["cartpole@1", "--limit", "2"], "are for --ids"),
        (["cartpole@1", "--ids", "--after", "nobody"], "no such decision"),
    ],
)
def test_what_leads_nowhere_is_said(logged: Path, arguments: list[str], message: str) -> None:
    error = run(*arguments).exception
    assert isinstance(error, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise error
