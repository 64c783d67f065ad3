"""`loomrl model`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from loomrl.cli.main import app
from loomrl.environment.finite.shield import Shield
from loomrl.errors import ConfigError
from tests.support.prism_models import DIE, GAMBLER
from tests.support.trained import Policy


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["model", *map(str, arguments)])


@pytest.fixture
def die(tmp_path: Path) -> Path:
    path = tmp_path / "die.prism"
    path.write_text(DIE)
    return path


def test_a_number_is_shown_between_its_bounds_beside_storms(die: Path) -> None:
    done = run("check", die, "--property", "P=? [ F d=3 ]", "--storm", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["low"] <= 1 / 6 <= document["high"]
    assert document["storm"] == 1 / 6
    assert (document["holds"], document["num_states"]) == (None, 13)


@pytest.mark.parametrize(
    ("prop", "shown", "code"),
    [("P<0.2 [ F d=3 ]", "true", 0), ("P<0.1 [ F d=3 ]", "false", 1), ("P<=(1/6) [ F d=3 ]", "open", 1)],
)
def test_the_exit_code_says_whether_it_holds(die: Path, prop: str, shown: str, code: int) -> None:
    done = run("check", die, "--property", prop)
    assert (done.output.splitlines()[0], done.exit_code) == (shown, code)


def test_constants_and_formulas_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "gambler.prism"
    path.write_text(GAMBLER + "formula rich = x=N;")
    done = run("check", path, "--constant", "N=4", "--constant", "p=0.5", "--property", "P>=0.49 [ F rich ]")
    assert done.output.startswith("true")
    for given, message in (("N", "write NAME=VALUE"), ('N="4"', "write NAME=VALUE"), ("K=3", "no constant 'K'")):
        with pytest.raises(ConfigError, match=message):
            CliRunner().invoke(
                app, ["model", "check", str(path), "--constant", given, "--property", "P=? [ F rich ]"],
                catch_exceptions=False,
            )  # fmt: skip


def test_the_chain_of_a_policy_is_checked_and_exported(discrete: Policy, tmp_path: Path) -> None:
    prop = "P=? [ F<=100 over & s!=15 ]"
    done = run("check", discrete.environment, "--policy", discrete.training, "--property", prop, "--storm", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["low"] <= document["storm"] <= document["high"]
    done = run("export", discrete.environment, "--policy", discrete.training, "--output", tmp_path / "chain")
    names = {Path(line).name for line in done.output.splitlines()}
    assert names == {"chain.prism", "chain.sta", "chain.tra", "chain.lab", "chain.reward.srew"}
    again = run("check", tmp_path / "chain" / "chain.prism", "--property", 'P=? [ F<=100 "terminated" ]', "--json")
    direct = run("check", discrete.environment, "--policy", discrete.training, "--json",
                 "--property", 'P=? [ F<=100 "terminated" ]')  # fmt: skip
    assert json.loads(again.output)["low"] == pytest.approx(json.loads(direct.output)["low"], abs=1e-12)


def test_explicit_files_hold_every_transition(die: Path, tmp_path: Path) -> None:
    run("export", die, "--output", tmp_path / "chain")
    lines = (tmp_path / "chain" / "chain.tra").read_text().splitlines()
    assert lines[0] == "13 20"
    assert "0 1 0.5" in lines
    assert (tmp_path / "chain" / "chain.sta").read_text().splitlines()[:2] == ["(s,d)", "0:(0,0)"]
    assert (tmp_path / "chain" / "chain.lab").read_text().splitlines()[:2] == ['0="init" 1="deadlock" 2="done"', "0: 0"]
    assert (tmp_path / "chain" / "chain.flips.srew").read_text().splitlines()[:2] == ["13 7", "0 1.0"]


def test_a_shield_is_written(discrete: Policy, tmp_path: Path) -> None:
    path = tmp_path / "shield.safetensors"
    done = run("shield", discrete.environment, "--unsafe", "over & s!=15", "--output", path)
    assert done.exit_code == 0, done.output
    assert "of 16 states can be kept safe for ever" in done.output
    assert Shield.load(path).allowed.shape == (16, 4)


def test_what_does_not_go_together_is_named(discrete: Policy, die: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ([str(discrete.environment)], "--policy names the folder of who chooses in it"),
        ([str(die), "--policy", str(discrete.training)], "--policy needs the snapshot"),
        ([str(tmp_path / "none.prism")], "no such file or folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            CliRunner().invoke(
                app, ["model", "check", *arguments, "--property", "P=? [ F s=7 ]"], catch_exceptions=False
            )
